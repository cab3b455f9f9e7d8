"""Every shipped configuration fits the hardware that its head states: a CPU, or the GPUs of its paper."""

from __future__ import annotations

import warnings

import pytest
from transformers import AutoConfig, LlamaConfig, PreTrainedConfig

from benchmarks.papers.plans import config_of, plan_runs, read_plans
from trainers.papers.index import PaperRun, published_rows
from trainers.papers.settings import setting_of
from trainers.planning.hardware import GIB, Device, Machines
from trainers.planning.plan import RunPlanner
from trainers.planning.program import PLAN, check
from trainers.run.cli import parse
from trainers.settings.shipped import located, shipped_configs

LAPTOP = Machines(1, 1, Device("cpu", 1e11, 1e11, 16 * GIB, 1e10, 1e9, measured=True))
ON_CPU = [
    name
    for name, file in shipped_configs().items()
    if not name.startswith(("configs/accelerate/", "configs/own-", "configs/one-gpu"))
    if "\nstages:" not in file.read_text(encoding="utf-8")  # of an imitation, which is not planned
]


def computed_alike() -> list[PaperRun]:
    """One training of each kind that shares the passes which are counted."""
    kinds: dict[tuple[object, ...], PaperRun] = {}
    for run in published_rows():
        config = config_of(run)
        lengths = (config.prompt.max_tokens, config.rollout.sampling.max_tokens, config.optim.tokens_per_microbatch)
        kinds.setdefault((run.model, setting_of(run).gpus, *lengths), run)
    return list(kinds.values())


@pytest.mark.slow
def test_the_kept_plans_of_papers_runs_are_what_the_planner_says():
    kept = read_plans()
    for run in computed_alike():
        ((_, plan),) = plan_runs([run])
        assert plan.fits and plan == kept[run], run.name


def shape(name: str) -> PreTrainedConfig:
    """The model's shape: SmolLM2-135M's by its card, else that of the model from which the others begin."""
    if "smollm2" not in name:
        return AutoConfig.from_pretrained(located("models/craft-1m"))
    width = {"hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9, "num_key_value_heads": 3}
    return LlamaConfig(
        vocab_size=49152, num_hidden_layers=30, max_position_embeddings=8192, tie_word_embeddings=True, **width
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_CPU)
def test_a_configuration_for_a_cpu_fits_sixteen_gibibytes(name):
    warnings.simplefilter("ignore")  # of passes on fake tensors
    config = parse(["--config", name], PLAN).config
    check(config, shape(name), LAPTOP, name)
    made = RunPlanner(shape(name), LAPTOP, 20).plan(config)
    assert made.fits, made.peaks
