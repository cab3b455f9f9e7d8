"""``python -m benchmarks.gpu --check``: what runs on this machine's GPU and what does not, within ten minutes.

Each check is a program of its own with a time limit. What one leaves of its time the next may use, so that a check that
hangs takes none of the time that those after it need.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.parts import run_limited
from benchmarks.gpu.report import heading

BAD = ("FAIL", "TIME OUT")
_NUMBERS, _RUNS = "tests/gpu/test_gpu_numbers.py", "tests/gpu/test_gpu_runs.py"
PYTEST = ("-m", "pytest", "-o", "addopts=", "-v", "--tb=short", "-p", "no:cacheprovider")
"""Each test has its line when it has run; the last line counts them."""
_SAID = re.compile(r"=* ?(\d+ (?:passed|failed|skipped|error).*?) in [\d.]+s|^(\w+ \S+ \w+ \w+: .*, \d+ s.*)$", re.M)
_WHY = re.compile(r"^(?:FAILED|ERROR|E  ) .*|^\S+:\d+: \w*Error$|^\S*\w*Error: .*", re.M)


@dataclass(frozen=True)
class Check:
    """A program; it succeeds with exit status 0."""

    name: str
    words: Sequence[str]
    """What Python is called with."""
    limit: float
    """Seconds that it has in any case."""


@dataclass(frozen=True)
class Found:
    """How a check ended."""

    check: Check
    status: str
    """``pass``, ``FAIL``, ``TIME OUT``, or ``skipped: ...``."""
    seconds: float = 0.0
    said: str = ""
    """What it said of itself, in a line."""
    why: Sequence[str] = ()
    """Lines of its output that tell of a failure."""


def checks(folder: Path, smoke: bool) -> list[Check]:
    """Those that there are, what matters most first; ``smoke`` tries them on the CPU."""

    def tests(name: str, file: str, chosen: str, limit: float) -> Check:
        return Check(name, [*PYTEST, file, "-k", chosen, *["--rehearse"] * smoke], limit)

    def speed(part: str, limit: float, way: str = "full", shape: str = "1.5b") -> Check:
        name = f"{part} {shape} {way}"
        words = ["-m", "benchmarks.gpu", "--parts", part, "--ways", way, "--attention", "sdpa", "--steps", "4"]
        words += ["--out", str(folder / name), *(["--smoke"] if smoke else ["--shapes", shape])]
        return Check(f"speed: {name}", words, limit)

    return [
        tests("log-probabilities and gradients", _NUMBERS, "in_float32 or in_bfloat16", 60),
        speed("update", 45),
        speed("update", 35, "lora"),
        speed("update", 50, "lora", "7b"),
        speed("generate", 40),
        speed("step", 60),
        tests("engine, optimiser, adapters", _NUMBERS, "engine or optimiser or adapter or hidden", 50),
        tests("recurrent layers and their libraries", _NUMBERS, "hybrid", 30),
        tests("whole runs", _RUNS, "not vllm and not flex", 80),
        tests("kernels of attention", _NUMBERS, "kernels or rows_of_many", 50),
        tests("vLLM", _RUNS, "vllm and eager", 80),
    ]


def checked(check: Check, folder: Path, limit: float) -> Found:
    """Runs a check, ``limit`` seconds at most; its output is left in a file of its name."""
    began, log = time.perf_counter(), folder / f"{re.sub('[^a-z]+', '-', check.name.lower())}.out"
    code = run_limited(check.words, log, limit, {**os.environ, "PYTHONUNBUFFERED": "1"})
    text = log.read_text(errors="replace")
    said = next((first or second for first, second in reversed(_SAID.findall(text))), "")
    if code is None:
        status, said = "TIME OUT", said or f"not finished after {limit:.0f} s"
    elif code == 0 and "skipped" in said and "passed" not in said:
        reasons = [line.split(": ", 2)[2] for line in text.splitlines() if line.startswith("tests/gpu: ")]
        status = f"skipped: {'; '.join(reasons)}"
    else:
        status = "FAIL" if code else "pass"
    why = (_WHY.findall(text) if code else []) or text.splitlines()
    why = why if status in BAD else []
    return Found(check, status, time.perf_counter() - began, said, tuple(why[-12:]))


def run(checks: Sequence[Check], folder: Path, total: float, tell: Callable[[list[Found]], None]) -> list[Found]:
    """Runs the checks one after the other in ``total`` seconds; ``tell`` is called after each with all so far."""
    began, found = time.perf_counter(), list[Found]()
    for number, check in enumerate(checks):
        left = total - (time.perf_counter() - began)
        limit = min(left, max(check.limit, left - sum(later.limit for later in checks[number + 1 :])))
        found.append(checked(check, folder, limit) if limit > 0 else Found(check, "FAIL", said="no time was left"))
        tell(found)
    return found


def page(machine: dict[str, Any], found: Sequence[Found]) -> str:
    """The page of pass and fail."""
    lines = [f"# {verdict(found)}", "", heading(machine), "", "| check | result | seconds | |", "|---|---|---:|---|"]
    lines += [f"| {one.check.name} | {one.status} | {one.seconds:.0f} | {one.said} |" for one in found]
    for one in found:
        if one.why:
            lines += ["", f"## {one.check.name}: {one.status}", "", "```", *(line[:300] for line in one.why), "```"]
    return "\n".join(lines) + "\n"


def verdict(found: Sequence[Found]) -> str:
    """All in a few words."""
    passed = sum(one.status == "pass" for one in found)
    bad = sum(one.status in BAD for one in found)
    return f"{passed} passed, {bad} failed, {len(found) - passed - bad} skipped"


def main(machine: dict[str, Any], out: Path, total: float, smoke: bool) -> int:
    """Checks, and writes the page; 0 if all that could be checked passed, 1 if not, 2 if there was nothing to check."""
    folder = out / "gpu-check"
    folder.mkdir(parents=True, exist_ok=True)
    wanted = checks(folder, smoke)

    def tell(found: list[Found]) -> None:
        print(f"{found[-1].check.name}: {found[-1].status}, {found[-1].seconds:.0f} s", flush=True)
        (out / "gpu-check.md").write_text(page(machine, found))  # it stays, whatever ends this program

    if machine["gpus"] or smoke:
        found = run(wanted, folder, total, tell)
    else:
        found = [Found(check, "skipped: no GPU") for check in wanted]
    (out / "gpu-check.md").write_text(page(machine, found))
    print(f"\n{page(machine, found)}")
    if any(one.status in BAD for one in found):
        return 1
    return 0 if any(one.status == "pass" for one in found) else 2
