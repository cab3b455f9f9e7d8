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

def faults(rounds):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(rounds):
        torch.ones(10_000_000)  # more than the 32 MB from which glibc never keeps a block
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

fresh = faults(8)
kept = keep_freed_memory()
faults(64)  # an aligned block needs a little more than it leaves: the first ones lie one behind the other
print(int(kept), fresh, faults(8))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_tensors_take_the_memory_of_those_before_them() -> None:
    run = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, timeout=120, check=True)
    kept, fresh, again = map(int, run.stdout.split())
    assert kept == 1 and again < fresh / 2, "a system short of memory may take some of it back"


def test_other_c_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    monkeypatch.setattr(cpu.ctypes, "CDLL", lambda _: pytest.fail("it is asked for a library"))
    assert not cpu.keep_freed_memory()
