"""``python -m benchmarks.gpu`` runs, as far as a CPU can show, and a part that fails leaves the others."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import psutil
import pytest
import torch
from tiny_runs import ROOT, environment

sys.path.insert(0, str(ROOT))

from benchmarks.gpu import check
from benchmarks.gpu.__main__ import KERNELS, SMOKE, main, measured, planned
from benchmarks.gpu.check import PYTEST, Check, Found, checks, page, run
from benchmarks.gpu.parts import Part, outcome
from benchmarks.gpu.report import described, markdown
from benchmarks.gpu.shapes import episodes
from trainers.policy.packing import micro_batches


def _given(**changes: object) -> argparse.Namespace:
    kinds, shapes, ways = ["update", "generate", "step"], ["1.5b", "7b"], ["full", "lora"]
    base = {"parts": kinds, "shapes": shapes, "ways": ways, "attention": KERNELS, "steps": 50, "smoke": False}
    return argparse.Namespace(**{**base, **changes})


def test_several_gpus_get_parts_of_their_own():
    assert {part.processes for part in planned(_given(), 1)} == {1}
    spread = [part for part in planned(_given(), 4) if part.processes > 1]
    assert {(part.kind, part.processes, part.settings.shard) for part in spread} == {
        ("update", 4, "full"),
        ("step", 4, "full"),
    }


def test_the_episodes_of_a_group_share_their_prompt():
    table = episodes(100, groups=2, members=3, steps=4, prompt=10, response=5)
    assert len(table) == 2 * 3 * 4 and len({each.tobytes() for each in table.prompt if len(each) == 10}) == 2
    (tree,) = micro_batches(table, 1000, True)
    assert len(tree) == 2 * 10 + 6 * (4 * 5 - 1 + 3 * 5), "the last response token predicts nothing"


@pytest.mark.skipif(torch.cuda.is_available(), reason="what is said where there is no GPU")
def test_a_kernel_that_does_not_run_here_is_named_and_costs_nothing(tmp_path):
    told = measured(Part("update", "tiny", "full", "flex", device="cpu", size=SMOKE), tmp_path, 1.0)
    assert told["status"] == "not run" and "needs CUDA" in told["message"]
    assert not list(tmp_path.iterdir())


def test_a_part_that_takes_too_long_is_ended(tmp_path):
    told = measured(Part("update", "tiny", "full", device="cpu", size=SMOKE), tmp_path, 0.5)
    assert told["status"] == "not finished" and told["wall_s"] < 60


def test_running_out_of_memory_is_an_outcome(monkeypatch, tmp_path):
    def full(*_: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 28.00 GiB.\nmore")

    monkeypatch.setattr("benchmarks.gpu.parts.update", full)
    told = outcome(Part("update", "tiny", "full", device="cpu"), tmp_path)
    assert told == {"status": "out of memory", "message": "CUDA out of memory. Tried to allocate 28.00 GiB."}


def test_the_page_has_what_was_measured_and_why_the_rest_was_not():
    part = {"kind": "update"}
    page = markdown({"machine": described(True), "results": [
        {"name": "a", "status": "ok", "part": part, "tokens_per_s": 1234.5, "seconds": 2.0, "memory_gib": 3.0},
        {"name": "b", "status": "out of memory", "message": "first\nCUDA out of memory", "part": part},
    ]})  # fmt: skip
    assert "| a | 1,234 | 2.00 | 3.00 |  |" in page
    assert "| b | out of memory |  |  |  |" in page and "- b: out of memory (CUDA out of memory)" in page
    assert "no figure here means anything" in page and f"torch {torch.__version__}" in page


@pytest.mark.slow
def test_everything_runs_with_tiny_shapes_on_a_cpu(tmp_path):
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


# -- python -m benchmarks.gpu --check: a page of pass and fail, whatever its checks do ---------------------------------


SLOW = "import time\n\ndef test_quick():\n    pass\n\ndef test_long():\n    time.sleep(60)\n"
TESTS = "def test_one():\n    pass\n\ndef test_two():\n    assert 1 == 2, 'no more'\n"
SKIPS = "import pytest\n\n@pytest.mark.skip(reason='needs a friend')\ndef test_one():\n    pass\n"


def _tests(folder: Path, name: str, text: str) -> Check:
    file = folder / f"test_{name}.py"
    file.write_text(text)
    return Check(name, [*PYTEST, "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder), str(file)], 30.0)


@pytest.mark.seconds
def test_what_passes_fails_hangs_or_is_skipped_is_on_the_page(tmp_path):
    grandchild = "import subprocess, sys; print(subprocess.Popen(['sleep', '60']).pid, flush=True); import time; "
    wanted = [
        Check("hangs", ["-c", grandchild + "time.sleep(60)"], 1.0),
        _tests(tmp_path, "fails", TESTS),
        replace(_tests(tmp_path, "slow", SLOW), limit=6.0),
        _tests(tmp_path, "skipped", SKIPS),
        Check("breaks", ["-c", "raise ValueError('no such GPU')"], 30.0),
        Check("passes", ["-c", "print('update 1.5b full sdpa: ok, 34 s')"], 30.0),
    ]
    told: list[int] = []
    began = perf_counter()
    found = run(wanted, tmp_path, 127.0, lambda so_far: told.append(len(so_far)))
    assert perf_counter() - began < 60 and told == [1, 2, 3, 4, 5, 6]
    assert [one.status for one in found] == ["TIME OUT", "FAIL", "TIME OUT", "skipped: ", "FAIL", "pass"]
    assert not psutil.pid_exists(int((tmp_path / "hangs.out").read_text())), "what a check starts ends with it"
    text = page(described(True), found)
    assert text.startswith("# 1 passed, 4 failed, 1 skipped\n") and f"torch {torch.__version__}" in text
    assert "| passes | pass | 0 | update 1.5b full sdpa: ok, 34 s |" in text
    assert "test_quick PASSED" in text and "test_long" in text, "how far it has come"
    assert "| 1 failed, 1 passed |" in text and "no more" in text and "ValueError: no such GPU" in text


def test_a_check_that_hangs_takes_no_time_of_those_after_it(tmp_path, monkeypatch):
    clock, limits = [0.0], list[float]()

    def checked(one: Check, folder: Path, limit: float) -> Found:
        limits.append(limit)
        clock[0] += 5.0 if one.name == "quick" else limit
        return Found(one, "pass")

    monkeypatch.setattr(check, "checked", checked)
    monkeypatch.setattr(check.time, "perf_counter", lambda: clock[0])
    hangs, quick = Check("hangs", [], 40.0), Check("quick", [], 20.0)
    run([hangs, quick, hangs, quick], tmp_path, 120.0, lambda _: None)
    assert limits == [40.0, 20.0, 55.0, 20.0], "its own time, and what those before it have left"
    limits.clear(), clock.clear(), clock.append(0.0)
    found = run([hangs, hangs], tmp_path, 30.0, lambda _: None)
    assert limits == [30.0] and found[1].status == "FAIL" and found[1].said == "no time was left"


def test_all_checks_together_take_less_than_ten_minutes():
    wanted = checks(Path("runs"), smoke=False)
    assert sum(one.limit for one in wanted) <= 580 and len({one.name for one in wanted}) == len(wanted)


@pytest.mark.skipif(torch.cuda.is_available(), reason="what is said where there is no GPU")
def test_without_a_gpu_all_is_skipped_and_the_exit_status_says_so(tmp_path):
    assert main(["--check", "--out", str(tmp_path)]) == 2
    text = (tmp_path / "gpu-check.md").read_text()
    count = len(checks(tmp_path, smoke=False))
    assert f"# 0 passed, 0 failed, {count} skipped" in text and text.count("| skipped: no GPU |") == count


@pytest.mark.slow
def test_every_check_runs_on_a_cpu(tmp_path):
    assert main(["--check", "--smoke", "--total", "3000", "--out", str(tmp_path)]) == 0
    text = (tmp_path / "gpu-check.md").read_text()
    assert " 0 failed" in text and text.count("| pass |") == 9
    assert text.count("| skipped: a rehearsal on the CPU leaves out ") == 2
