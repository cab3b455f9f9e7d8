"""``python failing_rank.py HOW``: several processes work until one ends as ``HOW`` says."""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
from accelerate import Accelerator

from envsuite.core import DataError
from trainers import distributed
from trainers.distributed import every, guarded, make_accelerator, on_main, sharing_failures


def _work(accelerator: Accelerator, how: str) -> int:
    rank = accelerator.process_index
    every(accelerator, rank)
    if how == "killed" and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "raises" and rank == 1:
        raise DataError("the shop is closed")
    if how == "bug" and rank == 0:
        raise TypeError("a bug")
    if how == "busy" and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "busy":
        time.sleep(60)  # never asks the other for anything
    if how == "shared":
        with sharing_failures(accelerator):
            if rank == 1:
                raise DataError("no such file")
            every(accelerator, 1), every(accelerator, 2)
    if how == "sharded":
        _sharded(accelerator)
    if how == "slow" and rank == 1:
        time.sleep(12)
    if how == "disk":
        on_main(accelerator, _full)
    if how == "late":
        distributed.GRACE_SECONDS = 0.5
        time.sleep(4 * (rank == 0))
        return 0
    torch.distributed.barrier()
    return 0


def _sharded(accelerator: Accelerator) -> None:
    """The second process ends between two passes of a sharded policy, the first waits for its part of the weights."""
    from tiny_runs import model

    from trainers.policy.config import ModelConfig
    from trainers.policy.model import Policy
    from trainers.policy.packing import one_token
    from trainers.policy.sharding import shard

    policy = Policy(model("qwen2", 31))
    shard(policy, ModelConfig(shard="full"), accelerator)
    policy(one_token()).logprob.sum().backward()
    if accelerator.process_index == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    policy(one_token()).logprob.sum().backward()


def _full() -> None:
    raise DataError("No space left on device")


sys.exit(guarded(lambda: _work(make_accelerator(0.05 if sys.argv[1] == "slow" else 30.0), sys.argv[1])))
