"""``python -m benchmarks.gpu --check``: a page of pass and fail, whatever its checks do."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import psutil
import pytest
import torch
from tiny_runs import ROOT

sys.path.insert(0, str(ROOT))

from benchmarks.gpu import check
from benchmarks.gpu.__main__ import main
from benchmarks.gpu.check import PYTEST, Check, Found, checks, page, run
from benchmarks.gpu.report import described

SLOW = "import time\n\ndef test_quick():\n    pass\n\ndef test_long():\n    time.sleep(60)\n"
TESTS = "def test_one():\n    pass\n\ndef test_two():\n    assert 1 == 2, 'no more'\n"
SKIPS = "import pytest\n\n@pytest.mark.skip(reason='needs a friend')\ndef test_one():\n    pass\n"


def _tests(folder: Path, name: str, text: str) -> Check:
    file = folder / f"test_{name}.py"
    file.write_text(text)
    return Check(name, [*PYTEST, "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder), str(file)], 30.0)


@pytest.mark.seconds
def test_what_passes_fails_hangs_or_is_skipped_is_on_the_page(tmp_path: Path) -> None:
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


def test_a_check_that_hangs_takes_no_time_of_those_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_all_checks_together_take_less_than_ten_minutes() -> None:
    wanted = checks(Path("runs"), smoke=False)
    assert sum(one.limit for one in wanted) <= 580 and len({one.name for one in wanted}) == len(wanted)


@pytest.mark.skipif(torch.cuda.is_available(), reason="what is said where there is no GPU")
def test_without_a_gpu_all_is_skipped_and_the_exit_status_says_so(tmp_path: Path) -> None:
    assert main(["--check", "--out", str(tmp_path)]) == 2
    text = (tmp_path / "gpu-check.md").read_text()
    count = len(checks(tmp_path, smoke=False))
    assert f"# 0 passed, 0 failed, {count} skipped" in text and text.count("| skipped: no GPU |") == count


@pytest.mark.slow
def test_every_check_runs_on_a_cpu(tmp_path: Path) -> None:
    assert main(["--check", "--smoke", "--total", "3000", "--out", str(tmp_path)]) == 0
    text = (tmp_path / "gpu-check.md").read_text()
    assert " 0 failed" in text and text.count("| pass |") == 6
    assert text.count("| skipped: a rehearsal on the CPU leaves out ") == 2
