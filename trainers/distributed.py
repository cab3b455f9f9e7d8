"""The processes of a run: checks that they form one group, exchanges values between them, and ends them together."""

from __future__ import annotations

import contextlib
import datetime
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from accelerate import Accelerator, InitProcessGroupKwargs
from accelerate.utils import gather_object
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from envsuite.core.errors import EnvsuiteError, UnknownName
from trainers.settings import ConfigError

T = TypeVar("T")
GRACE_SECONDS = 10.0
"""Seconds that a process has to end by itself after it learns that another has ended."""


class PeerFailed(EnvsuiteError, RuntimeError):
    """Another process of the run has ended, so that this one cannot go on; the message names it."""


@dataclass(frozen=True)
class _Failure:
    """Sent in place of a value by a process that failed."""

    message: str


def guarded(command: Callable[[], int]) -> int:
    """The exit status of ``command``; errors that a user can mend become a message, and all processes end together.

    A process whose ``command`` returns waits for the others, which may still have work to do. Subnormal numbers are
    zero while it runs.

    2: the configuration is wrong. 1: anything else that a user can mend, or another process has failed. 130:
    interrupted.
    """
    try:
        with _without_subnormals():
            status = command()
        if _PEERS is not None:
            _PEERS.accelerator.wait_for_everyone()
        return status
    except PeerFailed as error:
        _say_first(f"error: {error}")
        return 1
    except EnvsuiteError as error:
        _report(str(error))
        _say(f"error: {error}")
        return 2 if isinstance(error, ConfigError | UnknownName) else 1
    except KeyboardInterrupt:
        _report("interrupted")
        _say("interrupted")
        return 130
    except Exception as error:
        # A collective operation fails with an error of its own where another process is gone; that one is named.
        if _PEERS is not None and (gone := _PEERS.waited_for(3.0)):
            _say_first(f"error: {gone}")
            return 1
        if _PEERS is not None and isinstance(error, RuntimeError) and "timed out" in str(error).lower():
            _report(f"waited for another process for longer than process_timeout ({error})")
            _say_first(
                f"error: {_PEERS.name(_PEERS.rank)} waited for another process for longer than process_timeout, and "
                f"all of them run; raise it if one may take longer for its episodes"
            )
            return 1
        _report(f"{type(error).__name__}: {error}")
        raise
    finally:
        if _PEERS is not None:
            _PEERS.close()
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def _say(text: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        sys.stderr.write(f"{text}\n")


@contextlib.contextmanager
def _without_subnormals() -> Iterator[None]:
    """Subnormal numbers count as zero in this thread and in those that it starts, so in PyTorch's.

    The gradients of a sharp attention are full of them, and a CPU takes many times longer for each.
    """
    before = bool(torch.tensor(1e-40) * 1 == 0)
    for dtype in (np.float32, np.float64):
        np.finfo(dtype)  # NumPy looks once, and would warn
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def _say_first(text: str) -> None:
    """Writes ``text`` to standard error in the first process that has not failed itself."""
    if _PEERS is None or _PEERS.first_alive():
        sys.stderr.write(f"{text}\n")


def _report(message: str) -> None:
    if _PEERS is not None:
        _PEERS.report(message)


class Peers:
    """Watches whether the other processes have ended, even while this one blocks.

    A process that fails writes its reason into the rendezvous store; the others on its machine detect one that was
    killed. A thread checks for both once a second, and ends this process if it has not ended by itself soon after: a
    process that blocks in a collective operation notices nothing else.

    Args:
        accelerator: The run's accelerator.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self.rank = accelerator.process_index
        self.members: list[tuple[str, int]] = every(accelerator, (socket.gethostname(), os.getpid()))
        """Host and process id of each process."""
        wait = datetime.timedelta(seconds=GRACE_SECONDS)
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self._store = TCPStore(address, port, is_master=False, timeout=wait)
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="peers", daemon=True)
        self._thread.start()

    def report(self, message: str) -> None:
        """Reports to the others that this process ends, and why."""
        with self._lock, contextlib.suppress(torch.distributed.DistError, RuntimeError):
            self._store.set(_key(self.rank), message)

    def close(self) -> None:
        """Stops watching."""
        self._closed.set()
        self._thread.join(GRACE_SECONDS)

    def failed(self) -> dict[int, str]:
        """Returns the other processes that have ended, by rank, each with its reason."""
        found: dict[int, str] = {}
        for rank, (host, pid) in enumerate(self.members):
            if rank == self.rank:
                continue
            try:
                with self._lock:
                    told = self._store.get(_key(rank)).decode() if self._store.check([_key(rank)]) else None
            except (torch.distributed.DistError, RuntimeError):  # the store's own process is gone
                told = None
            if told is not None:
                found[rank] = told
            elif host == self.members[self.rank][0] and not _alive(pid):
                found[rank] = "killed, or ended without a word"
        return found

    def waited_for(self, seconds: float) -> str:
        """Waits at most ``seconds`` for another process to end; returns a message on those that have, empty if none."""
        end = time.monotonic() + seconds
        while not (found := self.failed()) and time.monotonic() < end:
            time.sleep(0.1)
        return self._said(found)

    def first_alive(self) -> bool:
        """Whether every process before this one has ended."""
        return set(range(self.rank)) <= self.failed().keys()

    def name(self, rank: int) -> str:
        """Returns the name of a process in messages."""
        host, pid = self.members[rank]
        return f"rank {rank} (pid {pid} on {host})"

    def _said(self, found: dict[int, str]) -> str:
        return "; ".join(f"{self.name(rank)} ended: {reason}" for rank, reason in found.items())

    def _watch(self) -> None:
        while not self._closed.wait(1.0):
            if found := self.failed():
                if self._closed.wait(GRACE_SECONDS):
                    return
                if self.first_alive():
                    sys.stderr.write(f"error: {self._said(found)}\n")
                    sys.stderr.flush()
                os._exit(1)


_PEERS: Peers | None = None


def _key(rank: int) -> str:
    return f"trainers/failed/{rank}"


def _alive(pid: int) -> bool:
    """Whether a process of this machine runs; a zombie does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    stat = Path(f"/proc/{pid}/stat")
    with contextlib.suppress(OSError, IndexError):
        return stat.read_text().rpartition(")")[2].split()[0] not in "ZX"
    return True


def make_accelerator(timeout: float = 30.0) -> Accelerator:
    """An accelerator whose processes work together, on GPUs where there are some.

    Args:
        timeout: Minutes that a process waits for the others in a collective operation.

    Raises:
        ConfigError: The processes that were launched do not know of each other, or the launcher was set to something
            that training does not do.
    """
    global _PEERS
    check_launch(os.environ)
    waits = InitProcessGroupKwargs(timeout=datetime.timedelta(minutes=timeout))
    # Without cpu=True, processes launched on CPU know nothing of each other.
    accelerator = Accelerator(cpu=not torch.cuda.is_available(), kwargs_handlers=[waits])
    check_world(accelerator)
    if accelerator.num_processes > 1:
        _PEERS = Peers(accelerator)
    return accelerator


_REFUSED = {
    "ACCELERATE_USE_DEEPSPEED": ("DeepSpeed", "take distributed_type: MULTI_GPU, or NO, and set model.shard: full"),
    "ACCELERATE_USE_FSDP": ("FSDP", "take distributed_type: MULTI_GPU, or NO, and set model.shard: full"),
    "ACCELERATE_USE_MEGATRON_LM": ("Megatron-LM", "take distributed_type: MULTI_GPU, or NO"),
    "ACCELERATE_USE_PARALLELISM_CONFIG": ("a parallelism config", "leave parallelism_config out"),
    "ACCELERATE_DYNAMO_BACKEND": ("torch.compile (dynamo_backend)", "leave dynamo_config out"),
    "ACCELERATE_MIXED_PRECISION": ("mixed precision", 'take mixed_precision: "no", and set model.compute_dtype'),
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": (
        "gradient accumulation", "leave gradient_accumulation_steps out; optim.tokens_per_microbatch bounds memory",
    ),
}  # fmt: skip
_HARMLESS = {"", "0", "1", "false", "no"}


def check_launch(environment: os._Environ[str] | dict[str, str]) -> None:
    """Refuse settings of ``accelerate`` that training would not follow.

    Args:
        environment: Variables, as ``accelerate launch`` sets them.

    Raises:
        ConfigError: One is set; names it, and says what to set instead.
    """
    for variable, (name, remedy) in _REFUSED.items():
        value = environment.get(variable, "").lower()
        on = value not in (_HARMLESS - {"1"} if "_USE_" in variable else _HARMLESS)
        if on:
            raise ConfigError(f"accelerate is set to {name} ({variable}={value}), which training does not do; {remedy}")


def check_world(accelerator: Accelerator) -> None:
    """Checks that as many processes work together as the launcher was asked for.

    ``accelerate launch`` with some CPU settings starts processes that do not communicate, or a single one, without a
    word: each would then train alone and write the same files.

    Raises:
        ConfigError: The launcher was asked for another number of processes than work together.
    """
    remedy = "On CPU, launch with --config_file configs/accelerate/cpu2.yaml"
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if accelerator.num_processes != launched:
        raise ConfigError(f"{launched} processes were launched but {accelerator.num_processes} work together. {remedy}")
    # accelerate sets the address where processes meet if it was asked for several, even when it then starts one.
    if "ACCELERATE_MIXED_PRECISION" in os.environ and "MASTER_ADDR" in os.environ and "WORLD_SIZE" not in os.environ:
        raise ConfigError(f"accelerate was asked for several processes but started this one alone. {remedy}")


def every(accelerator: Accelerator, value: T) -> list[T]:
    """The values of all processes, in their order; each process must call this.

    Raises:
        PeerFailed: A process sent its failure instead of a value (:func:`sharing_failures`).
    """
    if accelerator.num_processes == 1:
        return [value]
    values: list[T] = gather_object([value])
    for rank, told in enumerate(values):
        if isinstance(told, _Failure) and rank != accelerator.process_index:
            name = f"rank {rank}" if _PEERS is None else _PEERS.name(rank)
            raise PeerFailed(f"{name} ended: {told.message}")
    return values


@contextlib.contextmanager
def sharing_failures(accelerator: Accelerator) -> Iterator[None]:
    """Raises in all processes if one fails: the error in that one, ``PeerFailed`` in the others.

    Every process must enter it. A process that waits in :func:`every` within it learns of the failure there.

    Raises:
        PeerFailed: Another process failed within it.
    """
    try:
        yield
    except PeerFailed:
        raise
    except Exception as error:
        if accelerator.num_processes > 1:
            gather_object([_Failure(str(error) or type(error).__name__)])
        raise
    every(accelerator, None)


def on_main(accelerator: Accelerator, work: Callable[[], None]) -> None:
    """Runs a function in the first process, while the others wait for it; each process must call this.

    Raises:
        PeerFailed: It failed there; raised in the others.
    """
    with sharing_failures(accelerator):
        if accelerator.is_main_process:
            work()


def agreed(accelerator: Accelerator, value: T) -> T:
    """Returns the first process's value in every process; each must call this."""
    return every(accelerator, value)[0]
