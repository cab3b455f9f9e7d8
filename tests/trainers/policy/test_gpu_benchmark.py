"""``python -m benchmarks.gpu`` runs, as far as a CPU can show, and a part that fails leaves the others."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import pytest
import torch
from tiny_runs import ROOT, environment

sys.path.insert(0, str(ROOT))

from benchmarks.gpu.__main__ import KERNELS, SMOKE, measured, planned
from benchmarks.gpu.parts import Part, outcome
from benchmarks.gpu.report import described, markdown
from benchmarks.gpu.shapes import episodes
from trainers.policy.packing import micro_batches


def _given(**changes: object) -> argparse.Namespace:
    kinds, shapes, ways = ["update", "generate", "step"], ["1.5b", "7b"], ["full", "lora"]
    base = {"parts": kinds, "shapes": shapes, "ways": ways, "attention": KERNELS, "steps": 50, "smoke": False}
    return argparse.Namespace(**{**base, **changes})


def test_several_gpus_get_parts_of_their_own() -> None:
    assert {part.processes for part in planned(_given(), 1)} == {1}
    spread = [part for part in planned(_given(), 4) if part.processes > 1]
    assert {(part.kind, part.processes, part.settings.shard) for part in spread} == {
        ("update", 4, "full"),
        ("step", 4, "full"),
    }


def test_the_episodes_of_a_group_share_their_prompt() -> None:
    table = episodes(100, groups=2, members=3, steps=4, prompt=10, response=5)
    assert len(table) == 2 * 3 * 4 and len({each.tobytes() for each in table.prompt if len(each) == 10}) == 2
    (tree,) = micro_batches(table, 1000, True)
    assert len(tree) == 2 * 10 + 6 * (4 * 5 - 1 + 3 * 5), "the last response token predicts nothing"


@pytest.mark.skipif(torch.cuda.is_available(), reason="what is said where there is no GPU")
def test_a_kernel_that_does_not_run_here_is_named_and_costs_nothing(tmp_path: Path) -> None:
    told = measured(Part("update", "tiny", "full", "flex", device="cpu", size=SMOKE), tmp_path, 1.0)
    assert told["status"] == "not run" and "needs CUDA" in told["message"]
    assert not list(tmp_path.iterdir())


def test_a_part_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    told = measured(Part("update", "tiny", "full", device="cpu", size=SMOKE), tmp_path, 0.5)
    assert told["status"] == "not finished" and told["wall_s"] < 60


def test_running_out_of_memory_is_an_outcome(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*_: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 28.00 GiB.\nmore")

    monkeypatch.setattr("benchmarks.gpu.parts.update", full)
    told = outcome(Part("update", "tiny", "full", device="cpu"), tmp_path)
    assert told == {"status": "out of memory", "message": "CUDA out of memory. Tried to allocate 28.00 GiB."}


def test_the_page_has_what_was_measured_and_why_the_rest_was_not() -> None:
    part = {"kind": "update"}
    page = markdown({"machine": described(True), "results": [
        {"name": "a", "status": "ok", "part": part, "tokens_per_s": 1234.5, "seconds": 2.0, "memory_gib": 3.0},
        {"name": "b", "status": "out of memory", "message": "first\nCUDA out of memory", "part": part},
    ]})  # fmt: skip
    assert "| a | 1,234 | 2.00 | 3.00 |  |" in page
    assert "| b | out of memory |  |  |  |" in page and "- b: out of memory (CUDA out of memory)" in page
    assert "no figure here means anything" in page and f"torch {torch.__version__}" in page


@pytest.mark.slow
def test_everything_runs_with_tiny_shapes_on_a_cpu(tmp_path: Path) -> None:
    import subprocess

    words = ["-m", "benchmarks.gpu", "--smoke", "--ways", "full", "lora", "--attention", "sdpa", "flex"]
    done = subprocess.run(
        [sys.executable, *words, "--out", str(tmp_path)],
        cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=1500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads((tmp_path / "gpu.json").read_text())["results"]
    failed = [result for result in results if result["status"] != "ok" and result["part"]["attention"] == "sdpa"]
    assert not failed, failed
    assert {(r["part"]["kind"], r["part"]["way"]) for r in results if r["status"] == "ok"} == {
        (kind, way) for kind in ("update", "generate", "step") for way in ("full", "lora")
    }
    assert (tmp_path / "gpu.md").read_text() in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gpu.json", "gpu.md"]
