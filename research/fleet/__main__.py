"""``python -m research.fleet --gpus 8x8xH100``: what feeds a fleet, what it waits for, what failures cost."""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from research.fleet.check import checked_against, table
from research.fleet.constants import SHIPPED, Constants
from research.fleet.figure import draw
from research.fleet.model import Failures
from research.fleet.scenario import OPTIONS, scenario_of
from research.fleet.shown import as_json, parts
from trainers.planning.program import WORKLOAD, sizes
from trainers.processes.distributed import run_guarded
from trainers.run.cli import ORDER, CommandLine, TrainerProgram, parse
from trainers.run.config import TrainConfig

FLEET = TrainerProgram(
    "python -m research.fleet",
    f"""Simulate a fleet of GPUs with environment servers, event by event: engines, updates, weight syncs, environment
servers, episodes of lognormal length, failures. It says how many environment cores and servers feed the GPUs, what
engines wait for, what staleness (asynchronous training) buys, how old its tokens are, and what failures cost. Equal
seeds, equal output. Speeds of GPUs are those of envsuite plan: estimates.
{ORDER}
examples:
  python -m research.fleet --gpus 8x8xH100 --model-shape qwen2.5-7b --config configs/alfworld.yaml \\
    --model.compute_dtype bfloat16 --model.shard full --rollout.tasks 128 --rollout.engine vllm --prompt-tokens 900
  python -m research.fleet --gpus 4xH100 --generation 4xH100 --staleness 0,1 --failures "{{hung: 1.0e-4}}" ...
  python -m research.fleet --check runs/textcraft --constants constants.json
""",
    elsewhere=True,
    options={**WORKLOAD, "--json yes": "Write what was found as JSON instead of tables.", **OPTIONS},
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(name)s: %(message)s")
    return run_guarded(lambda: _run(parse(arguments, FLEET)))


def _run(command: CommandLine) -> int:
    config, given = command.config, command.options
    if "check" in given:
        return _compare(given)
    tokens = sizes(given)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of passes on fake tensors
        return _simulate(config, given, tokens)


def _compare(given: Mapping[str, str]) -> int:
    folder = Path(given["check"])
    constants = Constants.read(Path(given["constants"]) if "constants" in given else SHIPPED)
    rows = checked_against(folder, constants)
    if "json" in given:
        sys.stdout.write(json.dumps([{**asdict(row), "error": row.error} for row in rows], indent=2) + "\n")
        return 0
    Console(highlight=False, width=None if sys.stdout.isatty() else 110).print(table(rows, f"{folder}, CPU seconds"))
    return 0


def _simulate(config: TrainConfig, given: Mapping[str, str], tokens: Mapping[str, int | None]) -> int:
    scenario = scenario_of(config, given, tokens)
    cores = scenario.used_cores
    outcomes = {k: scenario.simulate(cores, k) for k in scenario.staleness}
    none = Failures(deadline=scenario.fleet.failures.deadline, checkpoint=scenario.fleet.failures.checkpoint)
    sound = (
        outcomes
        if scenario.fleet.failures == none
        else {k: scenario.simulate(cores, k, none) for k in scenario.staleness}
    )
    if "figure" in given:
        draw(Path(given["figure"]), scenario, outcomes)
    if "json" in given:
        sys.stdout.write(json.dumps(as_json(scenario, outcomes, sound), indent=2) + "\n")
        return 0
    console = Console(highlight=False, soft_wrap=False, width=None if sys.stdout.isatty() else 130)
    for part in parts(scenario, outcomes, sound):
        console.print(part)
    return 0


if __name__ == "__main__":
    sys.exit(main())
