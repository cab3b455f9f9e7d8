"""The processes of a run: checks that they form one group, exchanges values between them, and ends them together."""

from __future__ import annotations

import contextlib
import datetime
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs, InitProcessGroupKwargs, PartialState
from accelerate.utils import gather_object
from torch import Tensor, nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from envsuite.core.errors import EnvsuiteError, UnknownName
from envsuite.exits import INTERRUPTED, full, is_full, leave_stdout, raised, say
from envsuite.playing.activity import ACTIVITY
from trainers.processes import meeting
from trainers.processes.cpu import without_subnormals
from trainers.processes.interface import choose_interface
from trainers.processes.memory import ran_out
from trainers.processes.peers import GRACE_SECONDS, LATE, SILENT_SECONDS, Peers
from trainers.settings import ConfigError

T = TypeVar("T")
Ended = Callable[[BaseException | int], None]
"""Called with how the command of a process ended: its status, or an error."""
_STORE_SECONDS = 5.0
"""Seconds that the store at which the processes met may take to answer."""


class PeerFailed(EnvsuiteError, RuntimeError):
    """Another process of the run has ended, so that this one cannot go on; the message names it."""


@dataclass(frozen=True)
class _Failure:
    """Sent in place of a value by a process that failed."""

    message: str


def run_guarded(command: Callable[[], int | None], on_end: Ended = lambda how: None) -> int:
    """The exit status of ``command``; errors that a user can mend become a message, and all processes end together.

    A process whose ``command`` returns waits for the others, which may still have work to do. Subnormal numbers are
    zero while it runs.

    2: the configuration is wrong. 1: anything else that a user can mend, or another process has failed. 130:
    interrupted.

    Args:
        command: Returns its status; ``None`` is 0.
        on_end: Called before the other processes learn of it where ``command`` has ended otherwise than with 0: with
            its status, or with the error, which is :class:`PeerFailed` where another process is behind it.
    """
    global _ENDED
    _ENDED = on_end
    try:
        with without_subnormals(), raised():
            if status := command() or 0:
                on_end(status)
        if _PEERS is not None:
            with ACTIVITY.exchanging():
                PartialState().wait_for_everyone()
        return status
    except PeerFailed as error:
        on_end(error)
        _say_first(f"error: {error}")
        return 1
    except EnvsuiteError as error:
        on_end(error)
        _report(str(error))
        _say(f"error: {error}")
        return 2 if isinstance(error, ConfigError | UnknownName) else 1
    except KeyboardInterrupt:
        on_end(INTERRUPTED)
        _report("interrupted")
        say()
        return INTERRUPTED
    except BrokenPipeError:
        leave_stdout()
        return 0
    except Exception as error:
        if is_full(error):
            on_end(error)
            _report(full(error))
            _say(f"error: {full(error)}")
            return 1
        if _PEERS is not None:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # by which a launcher ends it, once another process is lost
        if _PEERS is not None and (culprit := _blames(error, _PEERS)):
            on_end(PeerFailed(culprit))
            return 1
        on_end(error)
        _report(f"{type(error).__name__}: {error}")
        if not ran_out(error):
            raise
        first = (str(error) or type(error).__name__).splitlines()[0]
        _say(f"error: memory ran out ({first}); envsuite plan says what fits, and what takes less")
        return 1
    finally:
        if _PEERS is not None:
            _PEERS.close()
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def _blames(error: Exception, peers: Peers) -> str:
    """Which other process is behind an error, which one of those that are left then says; empty if none is."""
    text = str(error).lower() if isinstance(error, RuntimeError) else ""
    if "timed out" in text or (isinstance(error, torch.distributed.DistError) and "timeout" in text):
        if late := peers.late():
            sys.stderr.write(f"error: {late}. Raise process_timeout if one may take longer for its episodes\n")
        return late or LATE
    # A collective operation fails with an error of its own where another process is gone. One of another machine
    # gives no further sign of life.
    message = peers.waited_for(3.0)
    if not message and (isinstance(error, torch.distributed.DistError) or "gloo" in text):
        message = peers.waited_for(2 * SILENT_SECONDS, silence=0.0)
    if message:
        _say_first(f"error: {message}")
    return message


def _say(text: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        sys.stderr.write(f"{text}\n")


def _say_first(text: str) -> None:
    """Writes ``text`` to standard error in the first process that has not failed itself."""
    if _PEERS is None or _PEERS.first_alive():
        sys.stderr.write(f"{text}\n")


def _report(message: str) -> None:
    if _PEERS is not None:
        _PEERS.report(message)


_PEERS: Peers | None = None
_ENDED: Ended = lambda how: None  # noqa: E731


def peers() -> Peers | None:
    """The other processes of the run; ``None`` where this one is alone."""
    return _PEERS


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
    choose_interface(os.environ)
    # Gloo raises when the time is up; NCCL aborts, so that the message of Peers has to come before.
    late = 2 * GRACE_SECONDS if torch.cuda.is_available() else 0.0
    has_agent = meeting.in_agent(os.environ)
    if os.environ.get("WORLD_SIZE") == "1":
        os.environ.pop("LOCAL_RANK", None)  # alone, it computes as one that no launcher started
    url = meeting.URL if has_agent else None
    waits = InitProcessGroupKwargs(init_method=url, timeout=datetime.timedelta(minutes=timeout, seconds=late))
    # Without cpu=True, processes launched on CPU know nothing of each other.
    accelerator = Accelerator(cpu=not torch.cuda.is_available(), kwargs_handlers=[waits])
    check_world(accelerator)
    if accelerator.num_processes > 1:
        members = all_gather_object(accelerator, (socket.gethostname(), os.getpid()))
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = TCPStore(address, port, is_master=False, timeout=datetime.timedelta(seconds=_STORE_SECONDS))
        own = meeting.own_part(store, "peers")
        _PEERS = Peers(
            accelerator.process_index, members, own, 60.0 * timeout, not has_agent, lambda why: _ENDED(PeerFailed(why))
        )
    return accelerator


def data_parallel(
    accelerator: Accelerator, module: nn.Module, optimizer: torch.optim.Optimizer, output: Callable[[], Tensor]
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A module whose gradients are averaged over the processes, and its optimiser.

    Parameters that take no part in every output, as those of experts or of attention to an encoder, are waited for
    otherwise, and gradients stay apart.

    Args:
        accelerator: The processes.
        module: In training mode, or evaluation.
        optimizer: That of the module's parameters.
        output: Computes an output of the module; after it no gradients are left.
    """
    if accelerator.num_processes > 1:
        module.to(accelerator.device)
        output().sum().backward()  # type: ignore[no-untyped-call]
        has_unused = any(p.requires_grad and p.grad is None for p in module.parameters())
        module.zero_grad()
        accelerator.ddp_handler = DistributedDataParallelKwargs(find_unused_parameters=has_unused)
    pair: tuple[nn.Module, torch.optim.Optimizer] = accelerator.prepare(module, optimizer)
    return pair


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
        if value not in (_HARMLESS - {"1"} if "_USE_" in variable else _HARMLESS):
            raise ConfigError(f"accelerate is set to {name} ({variable}={value}), which training does not do; {remedy}")


def check_world(accelerator: Accelerator) -> None:
    """Checks that as many processes work together as the launcher was asked for.

    ``accelerate launch`` with some CPU settings starts processes that do not communicate, or a single one, without a
    word: each would then train alone and write the same files.

    Raises:
        ConfigError: The launcher was asked for another number of processes than work together.
    """
    remedy = "On CPU, launch with --config_file configs/accelerate/cpu2.yaml"
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if accelerator.num_processes != size:
        raise ConfigError(f"{size} processes were launched but {accelerator.num_processes} work together. {remedy}")
    # accelerate sets the address where processes meet if it was asked for several, even when it then starts one.
    if "ACCELERATE_MIXED_PRECISION" in os.environ and "MASTER_ADDR" in os.environ and "WORLD_SIZE" not in os.environ:
        raise ConfigError(f"accelerate was asked for several processes but started this one alone. {remedy}")


def all_gather_object(accelerator: Accelerator | None, value: T) -> list[T]:
    """The values of all processes, in their order; each process must call this. Without an accelerator: of this one.

    Raises:
        PeerFailed: A process sent its failure instead of a value (:func:`sharing_failures`).
    """
    if accelerator is None or accelerator.num_processes == 1:
        return [value]
    values: list[T] = _gather(value)
    for rank, reply in enumerate(values):
        if isinstance(reply, _Failure) and rank != accelerator.process_index:
            name = f"rank {rank}" if _PEERS is None else _PEERS.name(rank)
            raise PeerFailed(f"{name} ended: {reply.message}")
    return values


def _gather(value: Any) -> list[Any]:
    with ACTIVITY.exchanging():
        return gather_object([value])  # type: ignore[no-any-return]


@contextlib.contextmanager
def sharing_failures(accelerator: Accelerator | None) -> Iterator[None]:
    """Raises in all processes if one fails: the error in that one, ``PeerFailed`` in the others.

    Every process must enter it. One that waits in :func:`all_gather_object` within it learns of the failure there.

    Raises:
        PeerFailed: Another process failed within it.
    """
    try:
        yield
    except PeerFailed:
        raise
    except Exception as error:
        if accelerator is not None and accelerator.num_processes > 1:
            _gather(_Failure(str(error) or type(error).__name__))
        raise
    all_gather_object(accelerator, None)


def on_main(accelerator: Accelerator, work: Callable[[], None]) -> None:
    """Runs a function in the first process, while the others wait for it; each process must call this.

    Raises:
        PeerFailed: It failed there; raised in the others.
    """
    with sharing_failures(accelerator):
        if accelerator.is_main_process:
            work()


def first_value(accelerator: Accelerator | None, value: T) -> T:
    """Returns the first process's value in every process; each must call this. Without an accelerator: ``value``."""
    return all_gather_object(accelerator, value)[0]
