"""Measures success on tasks that are not trained on.

``envsuite eval model --config FILE --model.path CHECKPOINT`` measures a checkpoint, or any other model; with
``--rollout.engine openai`` one behind an endpoint.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path

import orjson

from envsuite.core.escaping import log_to_stderr
from trainers.processes.distributed import make_accelerator, run_guarded
from trainers.run.cli import EVALUATE, parse
from trainers.run.evaluation import evaluate
from trainers.run.results import with_seeds
from trainers.settings.words import whole_number

INCOMPLETE = 3
"""Exit status where some episodes were not played to their end, because the engine gave no answer."""


def main(arguments: Sequence[str]) -> int:
    """Run the command line: the results as JSON on standard output; returns the exit status."""
    log_to_stderr(logging.WARNING, "%(levelname)s %(name)s: %(message)s")
    return run_guarded(lambda: _main(arguments))


def _main(arguments: Sequence[str]) -> int:
    command = parse(arguments, EVALUATE)
    keep, out = (None if (name := command.options.get(key)) is None else Path(name) for key in ("keep", "out"))
    seeds = whole_number("--seeds", command.options["seeds"], most=10_000) if "seeds" in command.options else None
    config = with_seeds(command.config, seeds, out is not None)
    accelerator = make_accelerator(config.process_timeout)
    results = evaluate(config, accelerator, keep, out, command.options.get("policy"))
    if accelerator.is_main_process:
        body = [result.to_json() for result in results]
        sys.stdout.write(orjson.dumps(body, option=orjson.OPT_INDENT_2).decode() + "\n")
    lacking, failures = sum(result.unanswered for result in results), sum(result.failed for result in results)
    if not lacking and not (failures and out is not None) and len(results) == len(config.evaluation.envs):
        return 0
    more = f", {failures} failed" if failures else ""
    hint = "" if keep is None and out is None else "; the same command goes on where it stopped"
    sys.stderr.write(f"incomplete: {lacking} episodes got no answer from the engine{more}, and are not counted{hint}\n")
    return INCOMPLETE
