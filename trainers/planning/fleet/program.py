"""``python -m trainers.plan --simulate``."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from trainers.planning.fleet.check import checked_against, table
from trainers.planning.fleet.constants import SHIPPED, Constants
from trainers.planning.fleet.figure import draw
from trainers.planning.fleet.model import Failures
from trainers.planning.fleet.scenario import scenario_of
from trainers.planning.fleet.shown import as_json, parts
from trainers.run.config import TrainConfig


def compare(given: Mapping[str, str]) -> int:
    """Prints a run beside its simulation; returns the exit status."""
    folder = Path(given["check"])
    constants = Constants.read(Path(given["constants"]) if "constants" in given else SHIPPED)
    rows = checked_against(folder, constants)
    if "json" in given:
        sys.stdout.write(json.dumps([{**asdict(row), "error": row.error} for row in rows], indent=2) + "\n")
        return 0
    Console(highlight=False, width=None if sys.stdout.isatty() else 110).print(table(rows, f"{folder}, CPU seconds"))
    return 0


def simulate(config: TrainConfig, given: Mapping[str, str], tokens: Mapping[str, int | None]) -> int:
    """Simulates the fleet of the command line and prints what was found; returns the exit status."""
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
