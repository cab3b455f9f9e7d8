"""``accelerate launch -m trainers.train``: train an agent."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from envsuite.core.errors import EnvsuiteError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status.

    0: done. 1: failed. 2: the configuration is wrong. 130, 143: stopped by Ctrl-C or SIGTERM after a checkpoint.
    """
    from trainers.cli import parse
    from trainers.config import ConfigError

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    for name in ("trainers", "envsuite"):
        logging.getLogger(name).setLevel(logging.INFO)
    try:
        command = parse(arguments)
    except EnvsuiteError as error:
        _say(f"error: {error}")
        return 2
    try:
        return _train(command)
    except ConfigError as error:
        _say(f"error: {error}")
        return 2
    except EnvsuiteError as error:
        _say(f"error: {error}")
        return 1


def _train(command: object) -> int:
    # Imported here: a wrong option is reported before torch is loaded.
    from accelerate import Accelerator
    from rich.console import Console

    from trainers.cli import Command
    from trainers.processes import check_world
    from trainers.progress import Progress, run_log
    from trainers.report.html import write_report
    from trainers.report.stats import EvalResult, before_after_table
    from trainers.trainer import Interrupted, Trainer

    assert isinstance(command, Command)
    config = command.config
    accelerator = Accelerator()
    check_world(accelerator)
    console = Console(quiet=not accelerator.is_main_process)
    folder = Path(config.output) / config.name
    with (
        run_log(folder / ("run.log" if accelerator.is_main_process else f"run.rank{accelerator.process_index}.log")),
        Progress(config.iterations, console=console) as progress,
    ):
        progress.message(f"{config.name}: {accelerator.num_processes} process(es) on {accelerator.device}, {folder}")
        try:
            trainer = Trainer(config, accelerator, progress)
            evaluations = trainer.run(command.resume)
        except Interrupted as stopped:
            progress.message(str(stopped))
            return stopped.exit_code
        finally:
            accelerator.end_training()
        if accelerator.is_main_process:
            progress.stage("report")
            report = write_report(folder)
            first: dict[tuple[str, str, str], EvalResult] = {}
            last: dict[tuple[str, str, str], EvalResult] = {}
            for result in evaluations:
                first.setdefault((result.env_id, result.split, result.manifest_hash), result)
                last[result.env_id, result.split, result.manifest_hash] = result
            for key, result in last.items():
                if result is not first[key]:
                    progress.table(before_after_table(first[key], result))
            progress.message(f"report: {report}")
    return 0


def _say(text: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
