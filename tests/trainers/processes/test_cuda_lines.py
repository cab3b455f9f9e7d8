"""Single lines that only a GPU runs, forced here; the list of all of them, cuda_lines.txt, is that of the code."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from pretended_cuda import GIB, pretended_cuda
from tiny_runs import model, save_model
from torch.distributed.fsdp import CPUOffloadPolicy
from vllm_interpreters import vllm_interpreter

from envsuite.installation.probes import TORCH
from envsuite.papersearch.model_selector import scorer_of
from trainers.credit import calibration, scorers
from trainers.imitation.training import imitate
from trainers.policy import sharding
from trainers.processes import cpu, distributed, memory
from trainers.processes.peers import GRACE_SECONDS
from trainers.programs import train
from trainers.rollout.engines import check_machine
from trainers.rollout.vllm import child, inside
from trainers.run import random_state
from trainers.run.iteration_metrics import _memory
from trainers.settings import ConfigError

ROOT = Path(__file__).parents[3]
GPUS = [torch.device("cuda", index) for index in range(3)]


# -- the list ----------------------------------------------------------------------------------------------------------


def mentions(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """By the function it is in, each mention of CUDA in code: of torch.cuda, of the type of a device, or the word."""
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}

    def within(node: ast.AST, name: str) -> Iterator[tuple[str, str]]:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            name = f"{name}.{node.name}".lstrip(".")
        kinds = {part.value for part in ast.iter_child_nodes(node) if isinstance(part, ast.Constant)} & {"cuda", "cpu"}
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "torch.cuda":
            yield name, f"cuda.{node.attr}"
        elif isinstance(node, ast.Compare) and kinds and "type" in ast.unparse(node):
            yield name, f"{'==' if isinstance(node.ops[0], ast.Eq) else '!='} {kinds.pop()}"
        elif isinstance(node, ast.Set) and kinds:
            yield name, f"in {kinds.pop()}"
        elif isinstance(node, ast.Constant) and "cuda" in str(node.value) and id(node) not in texts:
            yield name, "cuda"
        else:
            for part in ast.iter_child_nodes(node):
                yield from within(part, name)

    return within(tree, "")


def _in_code() -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for folder in ("trainers", "envsuite"):
        for file in (ROOT / folder).rglob("*.py"):
            for name, what in mentions(ast.parse(file.read_text(encoding="utf-8"))):
                found[f"{file.relative_to(ROOT)} {name}".strip()].add(what)
    return found


def _on_the_page() -> dict[str, tuple[set[str], str]]:
    """The table's rows: place, what it mentions, and the cells of checks."""
    rows = re.findall(r"^\| `((?:trainers|envsuite)/[^|]*)` \| ([^|]*) \| (.*) \|$", _PAGE, re.M)
    return {place: (set(re.findall(r"`(.+?)`", what)), checks) for place, what, checks in rows}


_PAGE = Path(__file__).with_name("cuda_lines.txt").read_text(encoding="utf-8")


@pytest.mark.seconds
def test_the_page_names_every_mention_of_cuda_in_code():
    assert {place: what for place, (what, _) in _on_the_page().items()} == _in_code()


def test_every_check_on_the_page_is_a_test_and_every_line_has_one_or_the_reason():
    tests = {
        f"{file.stem}::{name}"
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", file.read_text(encoding="utf-8"), re.M)
    }
    for place, (_, checks) in _on_the_page().items():
        named = re.findall(r"`(test_\w+::\w+)`", checks)
        assert set(named) <= tests, place
        assert named or "none: " in checks, place


def test_mentions_are_found_whatever_they_are_in():
    code = '''
"""On cuda."""
PLACES = {"cuda"}
class A:
    def f(self, device):
        """cuda"""
        if device.type != "cpu" or torch.cuda.is_available():  # cuda
            return f"cuda:{self}"
'''
    assert list(mentions(ast.parse(code))) == [
        ("", "in cuda"), ("A.f", "!= cpu"), ("A.f", "cuda.is_available"), ("A.f", "cuda")
    ]  # fmt: skip


# -- the lines ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def available(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there was a GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


class Moved(Exception):
    """A model is moved."""


@pytest.mark.parametrize("what", ["calibrate", "scorer", "imitate", "selector"])
@pytest.mark.usefixtures("available")
def test_models_beside_the_policy_go_to_the_gpu(what, tmp_path, monkeypatch):
    def stop(self: torch.nn.Module, *where: Any, **_: Any) -> None:
        raise Moved(*where)

    folder = save_model(tmp_path / "model")
    monkeypatch.setattr(calibration, "_model_of", lambda *_: None)
    monkeypatch.setattr(calibration, "load_steps", lambda *_: (None, None))
    monkeypatch.setattr(calibration, "load_model", lambda _: model("qwen2", 31))
    ways: dict[str, Callable[[], Any]] = {
        "calibrate": lambda: calibration.calibrate(tmp_path, None, 1, [], []),
        "scorer": lambda: scorers.SentenceEmbedder(str(folder))._model,
        "imitate": lambda: imitate(SimpleNamespace(seed=0), model("qwen2", 31), None),  # type: ignore[arg-type]
        "selector": lambda: scorer_of(folder),
    }
    monkeypatch.setattr(torch.nn.Module, "to", stop)
    with pytest.raises(Moved, match=r"^cuda$"):
        ways[what]()


def test_free_memory_of_a_gpu_is_what_is_free_and_what_pytorch_keeps_without_use():
    with pretended_cuda() as gpu:
        assert memory.free(gpu) == 63 * GIB and _memory()["memory/gpu"] == 7.0


@pytest.mark.usefixtures("available")
def test_bfloat16_is_not_slow_on_a_gpu(monkeypatch):
    monkeypatch.setattr(cpu, "product_speed", lambda dtype: 1e12 if dtype == "float32" else 1.0)
    assert not cpu.bfloat16_is_slow.__wrapped__()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cpu.bfloat16_is_slow.__wrapped__()


@pytest.mark.parametrize("gpu", [True, False])
def test_accelerate_takes_gpus_and_nccl_waits_longer_than_the_processes_message(gpu, monkeypatch):
    def accelerator(cpu: bool, kwargs_handlers: list[Any]) -> SimpleNamespace:
        given.append((cpu, kwargs_handlers[0].timeout))
        return SimpleNamespace(num_processes=1)

    given: list[tuple[bool, timedelta]] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(distributed, "Accelerator", accelerator)
    monkeypatch.setattr(distributed, "check_world", lambda _: None)
    distributed.make_accelerator(2.0)
    assert given == [(not gpu, timedelta(minutes=2, seconds=2 * GRACE_SECONDS * gpu))]


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_weights_in_main_memory_are_pinned_beside_a_gpu(kind, monkeypatch):
    given: list[Any] = []
    monkeypatch.setattr(sharding, "fully_shard", lambda module, **how: given.append(how["offload_policy"]))
    one = model("qwen2", 31)
    sharding.shard_over(one, one, SimpleNamespace(device_type=kind), "float32", offload=True)  # type: ignore[arg-type]
    assert {type(each) for each in given} == {CPUOffloadPolicy}
    assert all(each.pin_memory == (kind == "cuda") for each in given)


@pytest.mark.usefixtures("available")
def test_several_processes_are_launched_on_several_gpus(monkeypatch):
    words: list[str] = []
    monkeypatch.setattr(train, "launch", lambda given: words.extend(given) or 0)
    assert train.main(["--processes", "2"]) == 0
    assert words[:5] == ["--multi_gpu", "--mixed_precision", "no", "--num_processes", "2"]


@pytest.mark.parametrize(("visible", "own"), [(None, "1"), ("4,5", "5"), ("GPU-a,GPU-b", "GPU-b"), ("", "1")])
def test_a_vllm_server_sees_the_gpu_of_its_process(visible, own, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert "CUDA_VISIBLE_DEVICES" not in child._environment(sys.executable, torch.device("cpu"))
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert child._environment(sys.executable, GPUS[1])["CUDA_VISIBLE_DEVICES"] == own


@pytest.mark.parametrize(
    ("processes", "rank", "count", "own"),
    [(1, 0, 1, "0"), (1, 0, 4, "0,1,2,3"), (2, 0, 2, "0,2"), (2, 1, 2, "1,3"), (2, 1, 4, "1,5,6,7")],
)
def test_a_vllm_server_of_several_gpus_takes_its_process_and_those_that_nobody_trains_on(
    processes, rank, count, own, monkeypatch
):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    monkeypatch.setenv("LOCAL_RANK", str(rank))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    variables = child._environment(sys.executable, GPUS[rank], child.further_gpus(count))
    assert variables["CUDA_VISIBLE_DEVICES"] == own


@pytest.mark.parametrize(("processes", "sizes"), [(1, {"tensor-parallel-size": 3}), (2, {"tensor_parallel_size": 2})])
def test_a_vllm_server_of_more_gpus_than_there_are_is_refused_before_a_model_is_loaded(
    processes, sizes, tmp_path, monkeypatch
):
    options = {"python": vllm_interpreter(tmp_path, "0.33.0", "2.14.0"), "arguments": sizes}
    check_machine("vllm", options)  # a machine without GPUs has nothing to share out
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    said = (
        rf"over {next(iter(sizes.values()))} GPUs, each of {processes} process.* this machine has 2 GPU\(s\); spread it"
    )
    with pytest.raises(ConfigError, match=said):
        check_machine("vllm", options)


@pytest.mark.parametrize("device", [GPUS[1], torch.device("cpu")])
def test_vllm_in_this_process_leaves_the_random_numbers_of_its_gpu(device, monkeypatch):
    @contextmanager
    def fork_rng(devices: list[torch.device]) -> Iterator[None]:
        forked.append(devices)
        yield

    forked: list[list[torch.device]] = []
    monkeypatch.setattr(torch.random, "fork_rng", fork_rng)
    with inside._preserve_process(device):
        pass
    assert forked == [[device] if device.type == "cuda" else []]


@pytest.mark.parametrize("later", [2, 1])
@pytest.mark.usefixtures("available")
def test_random_states_of_gpus_are_restored_where_there_are_as_many(later, monkeypatch):
    states, restored = [torch.arange(16, dtype=torch.uint8), torch.full((16,), 200, dtype=torch.uint8)], []
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: states)
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", restored.extend)
    kept = json.loads(json.dumps(random_state.random_state()))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: later)
    random_state._restore_random(kept)
    assert len(restored) == (2 if later == 2 else 0)
    assert all(torch.equal(one, own) for one, own in zip(restored, states, strict=False))


def test_the_doctor_asks_torch_for_each_gpu(monkeypatch, capsys):
    stand_in = ModuleType("torch")
    about = SimpleNamespace(name="H100", total_memory=80 * GIB, major=9, minor=0)
    gpu = SimpleNamespace(
        is_available=lambda: True, device_count=lambda: 2, get_device_properties=lambda index: about,
        is_bf16_supported=lambda including_emulation: not including_emulation,
    )  # fmt: skip
    told = {"__version__": "2.13.0", "version": SimpleNamespace(cuda="13.0", hip=None), "cuda": gpu}
    vars(stand_in).update(told, backends=SimpleNamespace(mps=SimpleNamespace(is_available=lambda: False)))
    monkeypatch.setitem(sys.modules, "torch", stand_in)
    exec(TORCH, {})
    answer = json.loads(capsys.readouterr().out)
    assert answer["devices"] == [{"name": "H100", "memory": 80 * GIB, "capability": [9, 0]}] * 2 and answer["bf16"]
