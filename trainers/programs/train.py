"""``envsuite train``: checks the settings of a run, then trains here or in processes that accelerate starts."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from accelerate import DistributedType
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import launch_command, launch_command_parser
from torch.distributed import DistError
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous.api import RendezvousError
from torch.distributed.run import parse_args as torchrun_words
from torch.distributed.run import run as torchrun

from envsuite.exits import INTERRUPTED, say, status_of
from trainers.planning.settling import settle
from trainers.programs.nodes import HeadNodeMissing, place_of
from trainers.run.cli import TRAIN, parse
from trainers.run.restarts import final_status
from trainers.run.training import main as train
from trainers.settings import ConfigError
from trainers.settings.shipped import located
from trainers.settings.words import whole_number

PROCESSES, LAUNCH, RESTARTS = "processes", "launch-config", "max-restarts"
_CHECKPOINT_SECONDS = 280
"""Time of processes after SIGTERM: less than the 5 minutes that SLURM and Kubernetes give. Torch's own are 30 s."""


def main(arguments: Sequence[str]) -> int:
    """Runs the command line; returns the exit status, that of :func:`trainers.run.training.main`.

    A setting that cannot work is said in one line, whatever the number of processes, before any of them is started.
    """
    return status_of(lambda: _main(arguments))


def _main(arguments: Sequence[str]) -> int:
    command = parse(arguments, TRAIN)
    processes = whole_number("--processes", command.options.get(PROCESSES, "1"))
    restarts = whole_number("--max-restarts", command.options.get(RESTARTS, "0"), 0)
    place, launch_config = place_of(command.options), command.options.get(LAUNCH)
    end_status = partial(_report_end, restarts, Path(command.config.output) / command.config.name, time.time())
    if launch_config is not None:
        options = ["--config_file", str(located(launch_config))]
        if restarts and load_config_from_file(options[1]).distributed_type == DistributedType.NO:
            raise ConfigError(
                f"--max-restarts {restarts}: accelerate starts the one process of {launch_config} without torch's "
                "agent, which would start it again; leave --launch-config out"
            )
    elif processes == 1 and restarts == 0 and place is None:
        return train(command.words, settle)
    elif processes == 1 and place is None:
        words = ["--nproc-per-node", "1", "--max-restarts", str(restarts), "-m", "trainers.train", *command.words]
        return end_status(_status(lambda: torchrun(torchrun_words(words))))  # type: ignore[no-untyped-call]
    elif torch.cuda.is_available():
        options = ["--multi_gpu", "--mixed_precision", "no"]
    else:
        options = ["--config_file", str(located("configs/accelerate/cpu2.yaml"))]
        os.environ["ACCELERATE_USE_CPU"] = "true"
    if launch_config is None or PROCESSES in command.options:
        options += ["--num_processes", str(processes * (1 if place is None else place.nodes))]
    if place is not None:
        options += place.words
        try:
            os.environ |= place.variables
        except HeadNodeMissing as error:
            sys.stderr.write(f"error: {error}\n")
            return 1  # 2 would say that starting again does not help
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, (os.cpu_count() or 1) // processes))
    options += ["--max_restarts", str(restarts), "--num_cpu_threads_per_process", threads]
    return end_status(launch([*options, "-m", "trainers.train", *command.words]))


def _report_end(restarts: int, folder: Path, since: float, status: int) -> int:
    """The status of a run that has ended; says that it might have gone on, where it has not said why it cannot."""
    if not status or not restarts:
        return status
    if (final := final_status(folder, since)) is not None:
        return final
    if status not in (INTERRUPTED, 128 + signal.SIGTERM):
        sys.stderr.write(f"error: {folder} was lost, and --max-restarts {restarts} used up; go on with --resume\n")
    return status


def launch(words: Sequence[str]) -> int:
    """``accelerate launch`` in this process; ends without a traceback where the run has ended with a message.

    Args:
        words: Its command line.

    Returns:
        The exit status of the run, as a shell gives it.
    """
    arguments = launch_command_parser().parse_args([*words])
    return _status(lambda: launch_command(arguments))


def _status(start: Callable[[], None]) -> int:
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # the run says itself how it ended
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(_CHECKPOINT_SECONDS))  # read when the agent starts
    try:
        start()
    except subprocess.CalledProcessError as error:  # one process
        status = error.returncode
    except ChildFailedError as error:  # several
        status = error.get_first_failure()[1].exitcode
    except (RendezvousError, DistError, ConnectionError) as error:
        why = str(error.__cause__ or error).partition("\n")[0]
        sys.stderr.write(f"error: the nodes of this run lost each other, or did not meet ({why})\n")
        return 1
    except SignalException as error:  # several, which have ended
        return 128 + error.sigval
    except KeyboardInterrupt:
        if not _wait_for_processes():
            say()
        return INTERRUPTED
    else:
        return 0
    return status if status >= 0 else 128 - status


def _wait_for_processes() -> bool:
    """Waits for the started processes, which write a checkpoint after Ctrl-C; returns whether there were any."""
    has_processes = False
    with contextlib.suppress(ChildProcessError):
        while os.wait():
            has_processes = True
    return has_processes
