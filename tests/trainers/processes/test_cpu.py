"""Settings of a process that computes on a CPU."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from trainers.policy.config import ModelConfig
from trainers.policy.loading import load_model
from trainers.processes import cpu

FAULTS = """
import resource, torch
from trainers.processes.cpu import keep_freed_memory

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


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_tensors_take_the_memory_of_those_before_them():
    run = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, timeout=120, check=True)
    kept, fresh, again = map(int, run.stdout.split())
    assert kept == 1 and again < fresh / 2, "a system short of memory may take some of it back"


def test_other_c_libraries_are_left_alone(monkeypatch):
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    monkeypatch.setattr(cpu.ctypes, "CDLL", lambda _: pytest.fail("it is asked for a library"))
    assert not cpu.keep_freed_memory() and not cpu.return_freed_memory()


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float, float], None]]:
    """Sets the speeds that are measured, of float32 and bfloat16, of a machine without a GPU."""

    def forget() -> None:
        cpu.bfloat16_is_slow.cache_clear()
        cpu.warn_of_slow_bfloat16.cache_clear()

    def set_speeds(float32: float, bfloat16: float) -> None:
        speeds = {"float32": float32, "bfloat16": bfloat16}
        monkeypatch.setattr(cpu, "product_speed", lambda dtype: speeds[dtype])
        monkeypatch.setattr(cpu.torch.cuda, "is_available", lambda: False)
        forget()

    yield set_speeds
    forget()


@pytest.mark.parametrize(
    ("dtype", "speed", "warned"),
    [("bfloat16", 1.1e9, True), ("bfloat16", 40e9, False), ("bfloat16", 200e9, False), ("float32", 1.1e9, False)],
)
def test_a_model_in_bfloat16_on_a_cpu_that_is_slow_in_it_is_warned_of_once_with_the_setting(
    measured, caplog, dtype, speed, warned
):
    measured(49e9, speed)
    for _ in range(2):
        load_model(ModelConfig(compute_dtype=dtype))
    told = [record.getMessage() for record in caplog.records if record.name == "trainers.processes.cpu"]
    assert len(told) == warned
    assert all("--model.compute_dtype float32" in line and "1.1 GFLOP/s" in line for line in told)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_speed_of_products_is_measured(dtype):
    threads = torch.get_num_threads()
    assert 1e6 < cpu.product_speed(dtype) < 1e14 and torch.get_num_threads() == threads


@pytest.mark.slow
def test_make_smollm2_takes_float32_where_bfloat16_is_slow(root):
    command = ["make", "-n", "smollm2", f"BIN={Path(sys.executable).parent}"]
    said = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    programs = said.replace("\\\n", " ").splitlines()
    runs = [line for line in programs if "configs/smollm2" in line]
    slow = "--model.compute_dtype float32 --model.adapter.base float32"
    assert len(runs) == 2 and all((slow in line) == cpu.bfloat16_is_slow() for line in runs)
