"""Several processes that work together over gloo, on the CPU, quickly: forked from one server that has imported torch.

``on_ranks(function, ranks, *arguments)`` calls ``function(accelerator, *arguments)`` in each of so many processes and
returns their results, in the order of the processes. The function is defined at the top of a test module or of a module
beside it; arguments and results are pickled. One call can run many cases: put the loop into the function.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, TypeVar

R = TypeVar("R")

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["tiny_runs", "trainers.processes.distributed", "trainers.policy.update"])


@contextlib.contextmanager
def server() -> Iterator[ForkServerContext]:
    """What starts processes by a fork of the server; one that it starts now imports the modules beside the tests."""
    path = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = f"{Path(__file__).parent}:{path}"
    try:
        yield _SERVER
    finally:
        os.environ["PYTHONPATH"] = path


def on_ranks(function: Callable[..., R], ranks: int, *arguments: Any, timeout: float = 120.0) -> list[R]:
    """The results of ``function(accelerator, *arguments)`` in each of ``ranks`` processes.

    Raises:
        AssertionError: One of them failed, or did not finish in time; the message holds its traceback.
    """
    while True:
        try:
            return _on_ranks(function, ranks, *arguments, timeout=timeout)
        except AssertionError as error:  # somebody may take the port between its choice and its use
            if "EADDRINUSE" not in str(error):
                raise


def _on_ranks(function: Callable[..., R], ranks: int, *arguments: Any, timeout: float) -> list[R]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pipes, processes = [], []
    results: dict[int, R] = {}
    try:
        for rank in range(ranks):
            with server() as forks:
                ours, theirs = forks.Pipe(duplex=False)
                process = forks.Process(target=_process, args=(rank, ranks, port, theirs, function, arguments))
                process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        end = time.monotonic() + timeout
        waiting = {pipe: rank for rank, pipe in enumerate(pipes)}
        while waiting:
            answered = wait([*waiting], max(0.0, end - time.monotonic()))
            assert answered, f"processes {sorted(waiting.values())} of {ranks} did not finish in time"
            for pipe in answered:  # the first to fail is the cause; the others only wait for it
                rank = waiting.pop(pipe)
                try:
                    failed, result = pickle.loads(pipe.recv_bytes())
                except EOFError:
                    raise AssertionError(f"process {rank} of {ranks} ended without a result") from None
                assert not failed, f"process {rank} of {ranks}:\n{result}"
                results[rank] = result
        return [results[rank] for rank in range(ranks)]
    finally:
        for process in processes:
            process.join(timeout=5.0 if len(results) == ranks else 0.0)
            if process.is_alive():
                process.kill()


def _process(
    rank: int, ranks: int, port: int, pipe: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    import torch

    from trainers.processes.distributed import make_accelerator

    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "ACCELERATE_USE_CPU": "true",
    }
    try:
        pipe.send_bytes(pickle.dumps((False, function(make_accelerator(), *arguments))))
    except Exception:
        pipe.send_bytes(pickle.dumps((True, traceback.format_exc())))
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
