"""Processes that work together until one of them ends, or hangs, as ``how`` says."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from pathlib import Path

from accelerate import Accelerator

from envsuite.core import DataError
from envsuite.playing.activity import ACTIVITY
from trainers.processes import peers
from trainers.processes.distributed import all_gather_object, make_accelerator, on_main, run_guarded, sharing_failures


def _work(accelerator: Accelerator, how: str, struck: int) -> int:
    rank = accelerator.process_index
    all_gather_object(accelerator, rank)
    ACTIVITY.begin("rollout")
    if how in ("killed", "busy", "foreign") and rank == struck:
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "stopped" and rank == struck:
        with ACTIVITY.waiting("the answer of server nine"):
            time.sleep(2.5)  # a second until it is told, another until the others have read it
            os.kill(os.getpid(), signal.SIGSTOP)
    if how == "hangs" and rank == struck:
        peers.GRACE_SECONDS = 0.5  # it ends sooner when the other has ended, and the test with it
        with ACTIVITY.waiting("the answer of server nine"):
            time.sleep(60)
    if how == "raises" and rank == 1:
        raise DataError("the shop is closed")
    if how == "bug" and rank == 0:
        raise TypeError("a bug")
    if how == "busy":
        time.sleep(60)  # never asks the other for anything
    if how == "shared":
        with sharing_failures(accelerator):
            if rank == 1:
                raise DataError("no such file")
            all_gather_object(accelerator, 1), all_gather_object(accelerator, 2)
    if how == "disk":
        on_main(accelerator, _full)
    if how == "late":
        peers.GRACE_SECONDS = 0.5
        time.sleep(4 * (rank == 0))
        return 0
    all_gather_object(accelerator, rank)
    return 0


def _full() -> None:
    raise DataError("No space left on device")


def strike(rank: int, ranks: int, port: int, how: str, struck: int, folder: str) -> None:
    """A process of the run, with standard error in ``folder/<rank>``; it makes ``folder/<rank>.met`` when all met."""
    os.dup2(os.open(f"{folder}/{rank}", os.O_CREAT | os.O_WRONLY | os.O_APPEND), 2)
    sys.stderr = open(2, "w", buffering=1, closefd=False)
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "ACCELERATE_USE_CPU": "true",
    }  # fmt: skip
    if how == "foreign":  # as if each process ran on a machine of its own
        socket.gethostname = lambda: f"machine-{rank}"
    minutes = {"hangs": 0.12, "stopped": 0.2}.get(how, 30.0)

    def work() -> int:
        accelerator = make_accelerator(minutes)
        Path(folder, f"{rank}.met").touch()
        return _work(accelerator, how, struck)

    sys.exit(run_guarded(work))
