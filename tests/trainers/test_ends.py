"""However one process of a run ends, all of them end soon, and say which it was."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny_runs import ROOT, environment

from trainers.distributed import check_launch
from trainers.settings import ConfigError

SCRIPT = str(Path(__file__).parent / "failing_rank.py")


def _both(how: str) -> tuple[list[int], list[str], list[int], float]:
    """Exit codes, standard errors and process ids of both, and the seconds that they took after the start."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "ACCELERATE_USE_CPU": "true"}
    began = time.monotonic()
    both = [
        subprocess.Popen(
            [sys.executable, SCRIPT, how], cwd=ROOT, stderr=subprocess.PIPE, text=True,
            env=environment(**where, RANK=str(rank), LOCAL_RANK=str(rank)),
        )
        for rank in (0, 1)
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=90)[1] for process in both]
    finally:
        for process in both:
            process.kill()
    return [process.returncode for process in both], said, [process.pid for process in both], time.monotonic() - began


@pytest.mark.parametrize(
    "how, codes, reason",
    [
        ("killed", [1, -9], "killed, or ended without a word"),
        pytest.param("raises", [1, 1], "the shop is closed", marks=pytest.mark.slow),
        pytest.param("shared", [1, 1], "no such file", marks=pytest.mark.slow),
        pytest.param("busy", [1, -9], "killed, or ended without a word", marks=pytest.mark.slow),
        pytest.param("sharded", [1, -9], "killed, or ended without a word", marks=pytest.mark.slow),
    ],
)
def test_when_the_second_process_ends_the_first_names_it(how: str, codes: list[int], reason: str) -> None:
    found, said, pids, seconds = _both(how)
    assert found == codes, said
    last = said[0].splitlines()[-1]
    assert last.startswith(f"error: rank 1 (pid {pids[1]} on ") and last.endswith(f"ended: {reason}"), said[0]
    assert "Traceback" not in said[0] and seconds < 45


def test_a_full_disk_in_the_first_process_ends_both_at_once() -> None:
    codes, said, pids, seconds = _both("disk")
    assert codes == [1, 1]
    assert "error: No space left on device" in said[0] and "Traceback" not in said[0] + said[1]
    errors = [line for line in said[1].splitlines() if line.startswith("error: ")]
    assert all(line.startswith(f"error: rank 0 (pid {pids[0]}") for line in errors), said[1]
    assert seconds < 45


def test_a_process_that_has_finished_waits_for_the_one_that_still_writes() -> None:
    codes, said, _, _ = _both("late")
    assert codes == [0, 0] and "error" not in said[0] + said[1], said


@pytest.mark.slow
def test_a_process_waits_no_longer_than_process_timeout_and_says_so() -> None:
    codes, said, pids, _ = _both("slow")
    assert codes == [1, 1]
    assert f"rank 0 (pid {pids[0]}" in said[0] and "process_timeout" in said[0] and "Traceback" not in said[0], said


@pytest.mark.slow
def test_a_bug_in_one_process_is_shown_once_with_its_traceback() -> None:
    codes, said, _, _ = _both("bug")
    assert codes == [1, 1]
    assert "TypeError: a bug" in said[0] and "Traceback" in said[0]
    assert "Traceback" not in said[1] and "rank 0" in said[1] and "TypeError: a bug" in said[1]


@pytest.mark.parametrize(
    "variable, value, words",
    [
        ("ACCELERATE_USE_DEEPSPEED", "true", ["DeepSpeed", "MULTI_GPU"]),
        ("ACCELERATE_USE_FSDP", "true", ["FSDP", "MULTI_GPU", "model.shard: full"]),
        ("ACCELERATE_USE_MEGATRON_LM", "true", ["Megatron"]),
        ("ACCELERATE_USE_PARALLELISM_CONFIG", "true", ["parallelism"]),
        ("ACCELERATE_DYNAMO_BACKEND", "INDUCTOR", ["torch.compile"]),
        ("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4", ["accumulation", "tokens_per_microbatch"]),
        ("ACCELERATE_MIXED_PRECISION", "bf16", ["mixed precision", "model.compute_dtype"]),
    ],
)
def test_a_launch_setting_that_is_not_followed_is_refused_by_name(variable: str, value: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        check_launch({variable: value})
    assert all(word in str(refused.value) for word in [f"{variable}={value.lower()}", *words]), refused.value


def test_what_accelerate_sets_by_itself_is_not_refused() -> None:
    check_launch({
        "ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_DYNAMO_BACKEND": "NO", "ACCELERATE_USE_CPU": "True",
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "1", "ACCELERATE_USE_FSDP": "false",
    })  # fmt: skip
