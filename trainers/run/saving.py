"""Begins a run's folder or goes on from a checkpoint, and writes checkpoints."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from trainers.processes.distributed import first_value, on_main, sharing_failures
from trainers.rollout.environments import prompt_file_of
from trainers.run import checkpoint
from trainers.run.cli import dump
from trainers.run.origin import prompt_settings
from trainers.run.records import write_summary

if TYPE_CHECKING:
    from trainers.run.assembly import Run

_LOG = logging.getLogger(__name__)


def open_run(run: Run, resume: str | None) -> None:
    """Prepares the run's folder, and restores a checkpoint where ``resume`` asks for it."""
    run.folder.check_shared()
    settings = dump(run.config)
    if resume is None:
        run.folder.begin(settings)
        _keep_prompt_file(run)
        run.trackers.begin(yaml.safe_load(settings), [], 0)
        return
    with sharing_failures(run.accelerator):
        main = run.accelerator.is_main_process
        choice = str(checkpoint.choose_checkpoint(run.folder.checkpoints, resume)) if main else ""
    folder, counters = Path(first_value(run.accelerator, choice)), run.counters
    changes = restore(run, folder)
    counters.metrics_lines = run.folder.mend_metrics(counters.metrics_lines, counters.iteration)
    lines = run.folder.read_metrics()
    run.folder.go_on(counters.iteration, settings, counters.metrics_lines)
    _keep_prompt_file(run)
    run.trackers.begin(yaml.safe_load(settings), lines, counters.metrics_lines)
    run.progress.resume_at(counters.iteration)
    run.progress.message(f"resuming after iteration {counters.iteration} from {folder}")
    if changes:
        run.progress.message(f"changed since that checkpoint, which changes results by rounding: {changes}")


def restore(run: Run, folder: Path) -> str:
    """Restores a checkpoint; returns which settings differ that change results by rounding."""
    return checkpoint.load(folder, run.accelerator, run.model, run.parts, _common_settings(run))


def save(run: Run, anew: bool = False) -> Path:
    """Writes a checkpoint of the present state, unless the last one is of the same; returns its folder.

    Args:
        run: The run.
        anew: Write it in any case.
    """
    counters, root = run.counters, run.folder.checkpoints
    folder = checkpoint.folder_of(root, counters.iteration)
    present = (counters.iteration, len(counters.evaluations), run.rollouts.progress())
    if run.saved == present and not anew:
        return folder
    began = time.perf_counter()
    run.progress.stage("checkpoint")
    counters.metrics_lines = run.folder.metrics_lines
    facts = {"iteration": counters.iteration, "config": _common_settings(run)}
    checkpoint.save(folder, run.accelerator, run.model, run.tokenizer, run.parts, facts)
    best, keep, before = run.config.alarms.goes_back, run.config.keep_checkpoints, run.alarms.since
    find_best = run.folder.best_checkpoint
    on_main(run.accelerator, lambda: checkpoint.prune(root, keep, find_best(before) if best else None))
    write_summary(run)
    run.saved = present
    _LOG.info("checkpoint of iteration %d written in %.1f s", counters.iteration, time.perf_counter() - began)
    return folder


def _keep_prompt_file(run: Run) -> None:
    """Writes the text of the prompt file, which the settings only name, into the run's folder."""
    if (file := prompt_file_of(run.config.prompt)) is not None:
        run.folder.write("prompt.jinja", file.source.encode())


def _common_settings(run: Run) -> dict[str, Any]:
    """The settings that a checkpoint and a run that goes on from it have in common; a prompt file by its text."""
    settings: dict[str, Any] = yaml.safe_load(dump(run.config))
    return {**settings, "prompt": prompt_settings(run.config.prompt)}
