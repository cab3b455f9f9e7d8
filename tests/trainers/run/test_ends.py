"""However one process of a run ends, all of them end soon, and say which it was."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from failing_rank import strike
from ranks import server
from told import lacks

from trainers.processes.distributed import check_launch
from trainers.settings import ConfigError


@dataclass
class Ended:
    """What processes that ended leave."""

    codes: list[int]
    said: list[str]
    """Standard error of each."""
    pids: list[int]
    seconds: float
    """From when they worked together to the end of the last that ends by itself."""


@pytest.fixture
def ended(tmp_path: Path) -> Callable[..., Ended]:
    """Starts processes, waits until all but a stopped one have ended, and kills that one."""

    def end(how: str, ranks: int = 2, struck: int = 1) -> Ended:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        with server() as forks:
            processes = [
                forks.Process(target=strike, args=(rank, ranks, port, how, struck, str(tmp_path)))
                for rank in range(ranks)
            ]
            for process in processes:
                process.start()
        others = [process for rank, process in enumerate(processes) if rank != struck or "stopped" not in how]
        try:
            while len([*tmp_path.glob("*.met")]) < ranks and all(process.is_alive() for process in processes):
                time.sleep(0.05)
            began = time.monotonic()
            for process in others:
                process.join(90.0)
            seconds = time.monotonic() - began
        finally:
            for process in processes:
                process.kill()
        for process in processes:
            process.join()
        said = [(tmp_path / str(rank)).read_text() for rank in range(ranks)]
        return Ended([process.exitcode for process in processes], said, [p.pid for p in processes], seconds)

    return end


@pytest.mark.seconds
@pytest.mark.parametrize(
    "how, codes, reason",
    [
        ("killed", [1, -9], "killed, or ended without a word; last: "),
        pytest.param("raises", [1, 1], "the shop is closed", marks=pytest.mark.slow),
        pytest.param("shared", [1, 1], "no such file", marks=pytest.mark.slow),
        pytest.param("busy", [1, -9], "killed, or ended without a word; last: ", marks=pytest.mark.slow),
    ],
)
def test_when_the_second_process_ends_the_first_names_it(ended, how, codes, reason):
    found = ended(how)
    assert found.codes == codes, found.said
    last = found.said[0].splitlines()[-1]
    assert last.startswith(f"error: rank 1 (pid {found.pids[1]} on ") and f"ended: {reason}" in last, found.said[0]
    assert "Traceback" not in found.said[0] and found.seconds < 45


@pytest.mark.slow
@pytest.mark.parametrize("struck", [0, 1, 2])
@pytest.mark.parametrize("how", ["killed", "stopped", "foreign"])
def test_whichever_of_three_processes_is_lost_one_of_the_others_names_it(ended, how, struck):
    found = ended(how, ranks=3, struck=struck)
    rest = [rank for rank in range(3) if rank != struck]
    assert [found.codes[rank] for rank in rest] == [1, 1], found.said
    lines = [line for rank in rest for line in found.said[rank].splitlines() if line.startswith("error: ")]
    assert lines and all(f"rank {struck} (pid {found.pids[struck]} on " in line for line in lines), found.said
    assert "Traceback" not in "".join(found.said) and found.seconds < 60
    if how == "stopped":
        assert any("no sign of life" in line for line in lines), lines
        assert any("rollout" in line and "the answer of server nine" in line for line in lines), lines


@pytest.mark.seconds
@pytest.mark.parametrize("struck", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_a_process_waits_no_longer_than_process_timeout_and_says_for_whom_and_what_that_does(ended, struck):
    found = ended("hangs", struck=struck)
    other = 1 - struck
    last = next(line for line in found.said[other].splitlines() if line.startswith("error: "))
    assert found.codes[other] == 1 and found.seconds < 45, found.said
    assert f"rank {other} (pid {found.pids[other]} on " in last and "process_timeout" in last
    assert f"for rank {struck} (pid {found.pids[struck]} on " in last, last
    assert "which is in rollout" in last and "waits for the answer of server nine" in last, last
    assert "Traceback" not in "".join(found.said), found.said


@pytest.mark.seconds
def test_a_full_disk_in_the_first_process_ends_both_at_once(ended):
    found = ended("disk")
    first, second = found.said
    assert found.codes == [1, 1] and found.seconds < 45
    assert "error: No space left on device" in first and "Traceback" not in first + second
    errors = [line for line in second.splitlines() if line.startswith("error: ")]
    assert all(line.startswith(f"error: rank 0 (pid {found.pids[0]}") for line in errors), second


@pytest.mark.seconds
def test_a_process_that_has_finished_waits_for_the_one_that_still_writes(ended):
    found = ended("late")
    assert found.codes == [0, 0] and "error" not in "".join(found.said), found.said


@pytest.mark.slow
def test_a_bug_in_one_process_is_shown_once_with_its_traceback(ended):
    found = ended("bug")
    first, second = found.said
    assert found.codes == [1, 1] and "TypeError: a bug" in first and "Traceback" in first
    assert "Traceback" not in second and "rank 0" in second and "TypeError: a bug" in second


@pytest.mark.parametrize(
    "variable, value, told",
    [
        ("ACCELERATE_USE_DEEPSPEED", "true", "DeepSpeed … MULTI_GPU … model.shard: full"),
        ("ACCELERATE_USE_FSDP", "true", "FSDP … MULTI_GPU … model.shard: full"),
        ("ACCELERATE_USE_MEGATRON_LM", "true", "Megatron"),
        ("ACCELERATE_USE_PARALLELISM_CONFIG", "true", "parallelism"),
        ("ACCELERATE_DYNAMO_BACKEND", "INDUCTOR", "torch.compile"),
        ("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4", "accumulation … tokens_per_microbatch"),
        ("ACCELERATE_MIXED_PRECISION", "bf16", "mixed precision … model.compute_dtype"),
    ],
)
def test_a_launch_setting_that_is_not_followed_is_refused_by_name(variable, value, told):
    with pytest.raises(ConfigError) as refused:
        check_launch({variable: value})
    assert not lacks(str(refused.value), f"{variable}={value.lower()} … {told}"), refused.value


def test_what_accelerate_sets_by_itself_is_not_refused():
    check_launch({
        "ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_DYNAMO_BACKEND": "NO", "ACCELERATE_USE_CPU": "True",
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "1", "ACCELERATE_USE_FSDP": "false",
    })  # fmt: skip
