"""Settings of a process that computes on a CPU."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from trainers import cpu

FAULTS = """
import resource, torch
from trainers.cpu import keep_freed_memory
kept = {keep} and keep_freed_memory()
for number in range(40):  # an aligned block needs a little more than it leaves: the first ones lie one behind the other
    if number == 32:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(2**24)
print(int(kept), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_tensors_take_the_memory_of_those_before_them() -> None:
    def faults(keep: bool) -> tuple[int, int]:
        run = subprocess.run(
            [sys.executable, "-c", FAULTS.format(keep=keep)], capture_output=True, text=True, timeout=120, check=True
        )
        kept, count = run.stdout.split()
        return int(kept), int(count)

    (_, fresh), (kept, again) = faults(False), faults(True)
    assert kept == 1 and again < fresh / 2, "a system short of memory may take some of it back"


def test_other_c_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    monkeypatch.setattr(cpu.ctypes, "CDLL", lambda _: pytest.fail("it is asked for a library"))
    assert not cpu.keep_freed_memory()
