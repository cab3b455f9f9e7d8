"""Plans beside what an H100 took (docs/gpu.md); ``pytest -s`` prints the seconds by part, of then and of now."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from unittest.mock import patch

import pytest
from transformers import Qwen2Config

from benchmarks.gpu.parts import ADAPTER, Size
from benchmarks.gpu.shapes import SHAPES, episodes
from trainers.planning import dry_run
from trainers.planning.dry_run import DryRun, DryRunRows, MemoryTrial
from trainers.planning.hardware import GIB, GPUS, Machines
from trainers.planning.meter import Amounts
from trainers.planning.plan import RunPlanner
from trainers.policy import attention
from trainers.policy.config import AdapterConfig, ModelConfig, OptimConfig
from trainers.policy.packing import micro_batches
from trainers.policy.tree import TokenTree
from trainers.run.config import TrainConfig

SIZE, H100, NEAR = Size(), GPUS["H100"], 0.25
WAYS = {"full": None, "LoRA": AdapterConfig(**ADAPTER)}  # type: ignore[arg-type]


@dataclass(frozen=True)
class Group(DryRunRows):
    """The tree of a group of the benchmark's episodes; four of them are an update."""

    def tree(self) -> TokenTree:
        table = episodes(31, groups=1, members=SIZE.members, steps=SIZE.update_steps, prompt=512, response=64)
        (tree,) = micro_batches(table, SIZE.tokens_per_microbatch)
        return tree

    @property
    def tokens(self) -> int:
        return len(self.tree())


@contextmanager
def tiles() -> Iterator[None]:
    """A GPU's kernels before FlashAttention was among them."""
    with patch.multiple(attention, _runs_flash=lambda *_: False, _is_fused=lambda *_: False):
        yield


def update(shape: str, way: str, then: bool) -> tuple[dict[str, float], DryRun, RunPlanner, TrainConfig]:
    """Seconds of an update by part, as when it was measured, by tiles and with recomputed layers, or as it is now."""
    warnings.simplefilter("ignore")  # of passes on fake tensors
    config = replace(TrainConfig(), model=ModelConfig(compute_dtype="bfloat16", adapter=WAYS[way]))
    own = Qwen2Config(**SHAPES[shape])
    with patch.object(dry_run, "_kernels_of_a_gpu", tiles if then else dry_run._kernels_of_a_gpu):
        model = replace(config.model, gradient_checkpointing=then)
        found = MemoryTrial(own, model, OptimConfig(), 1, 1, Group(1, 512, 64), on_gpu=True).run()
    planner, passes = RunPlanner(own, Machines(1, 1, H100)), found.update
    parts = {
        "products": Amounts(products=passes.products), "other operations": Amounts(moved=passes.moved),
        "starting all": Amounts(operations=passes.operations), "passes": passes,
    }  # fmt: skip
    seconds = {name: SIZE.update_groups * planner._pass(config, amounts) for name, amounts in parts.items()}
    seconds["optimiser step"] = planner._pass(config, found.step)
    seconds["update"] = seconds["passes"] + seconds["optimiser step"]
    text = ", ".join(f"{name} {value:.2f} s" for name, value in seconds.items())
    sizes = found.sizes
    gib = (sizes.weights + sizes.gradients + sizes.moments + passes.peak) / GIB
    print(f"\n{shape}, {way}, {'then' if then else 'now'}: {text}; {gib:.1f} GiB in the passes")
    return seconds, found, planner, config


@pytest.mark.slow
@pytest.mark.parametrize(("way", "measured", "gib"), [("full", [3.84, 3.20], 28.8), ("LoRA", [3.92], 6.2)])
def test_an_update_is_planned_to_a_quarter_of_what_it_took(way, measured, gib):
    seconds, found, _, _ = update("1.5b", way, then=True)
    assert [seconds["update"]] * len(measured) == pytest.approx(measured, rel=NEAR)
    sizes, copies = found.sizes, 4 * found.sizes.trained  # of AdamW's step, which was not one kernel then
    held = sizes.weights + sizes.gradients + sizes.moments + max(found.update.peak, copies)
    assert held / GIB == pytest.approx(gib, rel=NEAR)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", ["1.5b", "7b"])
def test_flash_attention_and_kept_activations_are_planned_to_take_less(shape, way):
    now, found, planner, config = update(shape, way, then=False)
    ideal = SIZE.update_groups * found.update.products / H100.bfloat16
    print(f"{ideal / now['update']:.0%} of the peak in products that have to be")
    if shape == "1.5b":
        assert now["update"] < 0.8 * 3.92 and now["starting all"] < now["passes"]
        if way == "full":  # 128 sequences of 512 + 128 tokens: steps of 35 to 43 ms, 10.1 GiB
            sizes, tokens = found.sizes, 128 * (512 + 128)
            step = planner.engine(config, found).iteration(128, tokens)
            assert [step, step] == pytest.approx([0.035, 0.043], rel=NEAR)
            engine = sizes.weights + sizes.rounded + 2 * sizes.keys * tokens
            assert engine / GIB == pytest.approx(10.1, rel=NEAR)
