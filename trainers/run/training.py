"""Trains an agent in this process, with others where a launcher has started several."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from envsuite.core.errors import EnvsuiteError
from trainers.run.config import TrainConfig
from trainers.run.restarts import LOCK_SECONDS, Restarts, first_time

if TYPE_CHECKING:
    from accelerate import Accelerator

    from trainers.run.progress import RunProgress

_LOG = logging.getLogger("trainers.train")


Settle = Callable[[TrainConfig, "Accelerator"], TrainConfig]


def main(arguments: Sequence[str] | None = None, settle: Settle = lambda config, _: config) -> int:
    """Run the command line, with what ``settle`` makes of its settings; returns the exit status.

    0: done. 1: failed. 2: the configuration is wrong. 3: paused by an alarm. 130, 143: stopped by Ctrl-C or SIGTERM.
    After 3, 130 and 143 there is a checkpoint.
    """
    from trainers.run.cli import TRAIN, parse

    try:
        command = parse(arguments, replace(TRAIN, name="accelerate launch -m trainers.train", options={}))
    except EnvsuiteError as error:  # said before the libraries are loaded, which takes seconds
        if first_time(str(error)):
            sys.stderr.write(f"error: {error}\n")
        return 2
    restarts = Restarts(Path(command.config.output) / command.config.name)
    if (status := restarts.status()) is not None:
        return status
    from trainers.processes.distributed import run_guarded

    return run_guarded(lambda: _train(command.config, command.resume, restarts, settle), restarts.leave_verdict)


def _train(config: TrainConfig, resume: str | None, restarts: Restarts, settle: Settle) -> int:
    from trainers.processes.distributed import make_accelerator, peers
    from trainers.report.stats import before_after_table, first_and_last
    from trainers.rollout.engines import AUTO
    from trainers.run.assembly import Run
    from trainers.run.checkpoint import choose_checkpoint, engine_in
    from trainers.run.lock import hold_folder_by_main
    from trainers.run.log import run_log
    from trainers.run.loop import train
    from trainers.run.progress import RunProgress
    from trainers.run.stopping import Interrupted
    from trainers.run.watchdog import Watchdog
    from trainers.settings.console import EscapingConsole

    accelerator = make_accelerator(config.process_timeout)
    main = accelerator.is_main_process
    folder = Path(config.output) / config.name
    log = folder / ("run.log" if main else f"run.rank{accelerator.process_index}.log")
    display = RunProgress(config.iterations, console=EscapingConsole(quiet=not main))
    started_again = restarts.again or (restarts.watched and resume is not None)  # also by a scheduler, in a new agent
    patience = LOCK_SECONDS if started_again else 0.0
    hold = hold_folder_by_main(accelerator, folder, "trainers.train", "--name", patience)
    with hold, run_log(log), display as progress, Watchdog(progress, peers()):
        _LOG.info(
            "%d process(es) work together; this is number %d (pid %d)",
            accelerator.num_processes, accelerator.process_index, os.getpid(),
        )  # fmt: skip
        progress.message(f"{config.name}: {accelerator.num_processes} process(es) on {accelerator.device}, {folder}")
        try:
            resume = restarts.go_on(accelerator, resume, progress)
            if resume is not None and config.rollout.engine == AUTO:
                name, options = engine_in(choose_checkpoint(folder / "checkpoints", resume))
                config = replace(config, rollout=replace(config.rollout, engine=name, engine_options=options))
            evaluations = train(Run(settle(config, accelerator), accelerator, progress), resume)
        except Interrupted as stopped:
            progress.message(str(stopped))
            return stopped.exit_code
        except EnvsuiteError as error:
            _LOG.info("ended by an error: %s", error)
            raise
        if main:
            report = _report(config, folder, progress)
            for before, after in first_and_last(evaluations):
                if after is not before:
                    progress.table(before_after_table(before, after))
                else:
                    where = f"{after.env_id}, split {after.split}"
                    progress.message(f"{where}: the weights did not change, so there is one evaluation")
            progress.message(f"report: {report}")
    return 0


def _report(config: TrainConfig, folder: Path, progress: RunProgress) -> Path | str:
    """Writes the report of a finished run; returns where it is, or how to get it."""
    if not config.report:
        return f"not written (report: false); envsuite report {folder} writes it"
    from trainers.report.html import write_html
    from trainers.report.plots import write_plots
    from trainers.report.run import RunData

    progress.stage("report")
    run = RunData.load(folder)
    write_plots(run)
    return write_html(run)
