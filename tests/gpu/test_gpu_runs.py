"""Whole runs on GPUs: one process, several over NCCL, and with vLLM on the same GPU."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from policies import wide_llama
from tiny_runs import ROOT, environment, save_model, summary, write_settings

from envsuite.installation.vllm import look_up_vllm, vllm_python
from trainers.report.metrics import read_metrics

ADAPTER = {"model.adapter": {"rank": 4, "base": "bfloat16"}, "model.compute_dtype": "bfloat16"}
RUNS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"model.compute_dtype": "bfloat16"},
    "flex": {"model.compute_dtype": "bfloat16", "model.attention": "flex"},
    "adapter": ADAPTER,
    "reference offloaded": {"recipe": "grpo", "method.reference": "offload", "method.objective.kl": "k3"},
}


def _launch(config: Path, processes: int = 1, timeout: float = 600.0) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    words = words if processes > 1 else [sys.executable]
    kept = {name: value for name, value in os.environ.items() if name == "ACCELERATE_USE_CPU"}
    return subprocess.run(
        [*words, "-m", "trainers.train", "--config", str(config)],
        cwd=ROOT, env=environment(**kept), capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip


def _metrics(folder: Path) -> list[dict[str, Any]]:
    return [record for record in read_metrics(folder / "runs/tiny/metrics.jsonl") if "train/loss" in record]


@pytest.mark.parametrize("name", RUNS)
def test_a_run_trains_on_the_gpu(name, place, device):
    if name == "flex" and device.type == "cpu":
        pytest.skip("a rehearsal on the CPU leaves out what needs CUDA")
    if name == "adapter":
        pytest.importorskip("peft", reason="needs peft: pip install 'envsuite[lora]'")
    if name == "flex":
        save_model(place / "model", heads=2)  # of 16 numbers
    done = _launch(write_settings(place, **RUNS[name]))
    assert done.returncode == 0, done.stderr[-3000:]
    told = _metrics(place)
    assert len(told) == 4 and all(math.isfinite(record["train/loss"]) for record in told)
    assert all(record["train/logprob_gap"] < (1e-3 if name == "float32" else 0.05) for record in told)
    assert summary(place / "runs/tiny")["device"].startswith(device.type)
    assert device.type == "cpu" or all(record["memory/gpu"] > 0 for record in told)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_iteration_of_the_quick_start(dtype, tmp_path, device):
    words = ["--config", "configs/textcraft.yaml", "--iterations", "1", "--evaluation.episodes", "8"]
    words += ["--output", str(tmp_path), "--model.compute_dtype", dtype]
    words += ["--rollout.tasks", "2", "--rollout.group_size", "4"] if device.type == "cpu" else []
    kept = {name: value for name, value in os.environ.items() if name == "ACCELERATE_USE_CPU"}
    done = subprocess.run(
        [sys.executable, "-m", "trainers.train", *words],
        cwd=ROOT, env=environment(**kept), capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    (told,) = [r for r in read_metrics(tmp_path / "textcraft/metrics.jsonl") if "train/loss" in r]
    assert told["train/logprob_gap"] < (1e-3 if dtype == "float32" else 0.02)
    assert told["train/valid_actions"] > 0.1, "the model that is shipped knows something of the game"


@pytest.mark.gpus(2)
@pytest.mark.parametrize("name", ["copies", "copies, bfloat16", "full", "full, adapter", "hybrid"])
def test_two_processes_have_the_metrics_of_one(name, place, device):
    """Over NCCL, or in a rehearsal over gloo."""
    changes: dict[str, Any] = {"iterations": 2, "optim.lr": 1e-4, "model.gradient_checkpointing": True}
    if "bfloat16" in name:
        changes["model.compute_dtype"] = "bfloat16"
    if "adapter" in name:
        pytest.importorskip("peft", reason="needs peft: pip install 'envsuite[lora]'")
        changes |= ADAPTER
    spread = "none" if "copies" in name else name.split(",")[0]
    found = {}
    for processes in (1, 2):
        folder = place / str(processes)
        folder.mkdir()
        more = {"model.path": str(place / "model"), "model.shard": spread if processes > 1 else "none"}
        done = _launch(write_settings(folder, **changes, **more), processes)
        assert done.returncode == 0, done.stderr[-3000:]
        assert summary(folder / "runs/tiny")["processes"] == processes
        found[processes] = _metrics(folder)
    assert len(found[1]) == len(found[2]) == 2
    tolerance = 0.05 if "bfloat16" in str(changes) else 1e-3
    for one, two in zip(found[1], found[2], strict=True):
        for key in ("train/entropy", "train/response_length"):
            assert two[key] == pytest.approx(one[key], rel=tolerance, abs=tolerance)
        assert two["train/logprob_gap"] < tolerance
    first, again = found[1][0], found[2][0]  # later iterations sample from other weights
    assert again["train/grad_norm"] == pytest.approx(first["train/grad_norm"], rel=max(tolerance, 1e-2))


VLLM: dict[str, dict[str, Any]] = {
    "graphs": {},
    "eager": {"enforce-eager": True},
    "asynchronous": {"async-scheduling": True},
    "synchronous": {"no-async-scheduling": True},
}
"""Arguments of vLLM; without any it captures CUDA graphs, and fits its longest sequence to its memory."""


def _check_vllm(place: Path, processes: int = 1, options: dict[str, Any] | None = None, **changes: Any) -> None:
    """Has a run sample with vLLM, whose updates are proven, and whose log-probabilities are the policy's."""
    if problem := look_up_vllm(sys.executable if "place" in (options or {}) else vllm_python()).problem:
        pytest.skip(f"needs vLLM: {problem}")
    wide_llama(tied=False).save_pretrained(place / "model")
    changes |= {"rollout.engine_options": options or {}, "model.compute_dtype": "bfloat16"}
    done = _launch(write_settings(place, **{"rollout.engine": "vllm", **changes}), processes, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    assert yaml.safe_load((place / "runs/tiny/config.yaml").read_text())["rollout"]["engine"] == "vllm"
    assert len(_metrics(place)) == 4 and all(record["train/logprob_gap"] < 0.1 for record in _metrics(place))


@pytest.mark.cuda_only
@pytest.mark.parametrize("way", VLLM)
@pytest.mark.parametrize("sleep", [True, False])
def test_a_vllm_server_on_the_same_gpu(sleep, way, place):
    """It takes a share of what is free, sleeps while the policy trains and wakes for its weights, and proves each."""
    _check_vllm(place, options={"sleep": sleep, "arguments": VLLM[way]})


@pytest.mark.cuda_only
@pytest.mark.parametrize("changes", [{"rollout.engine": "auto"}, ADAPTER], ids=["auto", "adapter"])
def test_a_vllm_server_chosen_by_auto_and_one_that_reloads_adapters(changes, place):
    if "model.adapter" in changes:
        pytest.importorskip("peft", reason="needs peft: pip install 'envsuite[lora]'")
    _check_vllm(place, **changes)


@pytest.mark.cuda_only
@pytest.mark.gpus(2)
@pytest.mark.parametrize("size", ["tensor-parallel-size", "data-parallel-size"])
def test_a_vllm_server_over_two_gpus(size, place):
    """One process trains on the first; of two replicas each proves its weights."""
    _check_vllm(place, options={"arguments": {size: 2}})


@pytest.mark.cuda_only
@pytest.mark.parametrize("way", VLLM)
@pytest.mark.parametrize("processes", [1, 2])
def test_vllm_in_the_trainers_processes(processes, way, place):
    """As above, without a server, on the GPU of each process."""
    if processes > torch.cuda.device_count():
        pytest.skip(f"needs {processes} GPUs, and there is {torch.cuda.device_count()}")
    _check_vllm(place, processes, {"place": "process", "arguments": VLLM[way]})
