"""A simulation beside the run that it simulates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from research.fleet.constants import Constants
from research.fleet.model import Fleet, UpdateSpeed, Workload
from research.fleet.observed import episodes_of, trained_tokens, workload_of
from research.fleet.outcome import ROLLOUT_PROCESS
from research.fleet.simulation import Simulation
from trainers.report.run import RunData
from trainers.run.config import TrainConfig
from trainers.settings import ConfigError, checked

REPEATS = 20
"""Simulated iterations for each of the run's."""


@dataclass(frozen=True)
class Row:
    """One quantity."""

    what: str
    unit: str
    measured: float
    simulated: float

    @property
    def error(self) -> float:
        """Relative error of the simulation."""
        return self.simulated / self.measured - 1.0 if self.measured else float("nan")


def checked_against(folder: Path, constants: Constants, clock: str = "cpu") -> list[Row]:
    """Simulates a run and compares.

    The lengths of episodes are those of the run, as lognormal distributions; the speed of the engine, of environments
    and of calls is the constants', measured apart from the run. The update's seconds a token, which depend on how many
    rows the run's filters keep, are taken from the run's odd iterations, and the even ones are compared.

    Args:
        folder: Folder of the run: one process, engine ``hf``, synchronous.
        constants: Measured with the run's model on the run's machine.
        clock: ``cpu`` compares CPU seconds, which other programs disturb little; ``time`` those of the clock.

    Raises:
        ConfigError: The run has another engine, or the constants have no engine.
        DataError: The run has no episodes.
    """
    run = RunData.load(folder)
    config = checked(TrainConfig, run.config)
    if config.rollout.engine != "hf":
        raise ConfigError(
            f"--check {folder}: rollout.engine is {config.rollout.engine!r}; only runs of hf are compared"
        )
    if constants.engine is None:
        raise ConfigError(
            "--check needs the engine's speed on this machine, which the constants do not have; measure it: "
            f"python -m research.fleet.measure --engine {folder} --out FILE, and give --constants FILE"
        )
    lines = [line for line in run.metrics if "time/rollout" in line]
    odd, even = lines[::2], lines[1::2]
    if not even:
        raise ConfigError(f"--check {folder}: the run has {len(lines)} iterations; at least two are needed")
    work = workload_of(config, [episode for line in even for episode in episodes_of(run, line["iteration"])])
    update = UpdateSpeed(
        sum(line[f"{clock}/update"] for line in odd) / sum(trained_tokens(run, line["iteration"]) for line in odd),
        float(np.mean([line[f"{clock}/estimator"] + line["time/log"] for line in odd])),
        0.0,
    )
    return _rows(even, work, update, config, constants, clock)


def fleet_of(config: TrainConfig, constants: Constants) -> Fleet:
    """One process that plays and trains; environments in it, or on the servers of the configuration's addresses."""
    urls = config.envs[0].url
    client = constants.environment(config.envs[0].id).codec
    if urls is None:
        return Fleet(1, config.rollout.slots, True, 1, place="inline", client=client, client_blocks=True)
    return Fleet(
        1, config.rollout.slots, True, 1, cores=1 if isinstance(urls, str) else len(urls),
        request=constants.serving.request, network=constants.serving.network,
        client=client + constants.serving.client, client_blocks=True,
    )  # fmt: skip


def _rows(
    lines: Sequence[dict[str, Any]],
    work: Workload,
    update: UpdateSpeed,
    config: TrainConfig,
    constants: Constants,
    clock: str,
) -> list[Row]:
    assert constants.engine is not None
    fleet = fleet_of(config, constants)
    environment = constants.environment(config.envs[0].id).speed
    simulation = Simulation(work, environment, constants.engine.speed, update, fleet, config.seed)
    outcome = simulation.run(REPEATS)
    mean = {name: float(np.mean([line[name] for line in lines])) for name in (
        f"{clock}/rollout", f"{clock}/update", f"{clock}/estimator", "time/log", "time/rollout", "time/engine",
        "time/env", "time/codec", "train/episode_length",
    )}  # fmt: skip
    episodes = work.tasks * work.group_size
    whole = mean[f"{clock}/rollout"] + mean[f"{clock}/update"] + mean[f"{clock}/estimator"] + mean["time/log"]
    trained = outcome.training_busy * outcome.iteration
    rolled = outcome.iteration - trained
    busy = mean["time/engine"] / mean["time/rollout"]
    generated = outcome.generating * outcome.iteration
    other = outcome.engines[ROLLOUT_PROCESS] + outcome.engines["environment"]
    return [
        Row("steps of an episode", "", mean["train/episode_length"], simulation.steps / (episodes * REPEATS)),
        Row("iteration", "s", whole, outcome.iteration),
        Row("rollout", "s", mean[f"{clock}/rollout"], rolled),
        Row("update, estimator, log", "s", whole - mean[f"{clock}/rollout"], trained),
        Row("engine's share of the rollout", "%", 100 * busy, 100 * generated / rolled),
        Row("environments and codec, of the rollout", "%", 100 * (1 - busy), 100 * other * outcome.iteration / rolled),
        Row(
            "engine idle, of the iteration", "%", 100 * (1 - busy * mean[f"{clock}/rollout"] / whole),
            100 * (1 - outcome.generating),
        ),
    ]  # fmt: skip


def table(rows: Sequence[Row], title: str) -> Table:
    """Measured, simulated, error."""
    out = Table(title=title, title_justify="left", box=None, header_style="bold")
    out.add_column("")
    for column in ("measured", "simulated", "error"):
        out.add_column(column, justify="right")
    for row in rows:
        out.add_row(f"{row.what}{f', {row.unit}' if row.unit else ''}", f"{row.measured:.2f}", f"{row.simulated:.2f}",
                    f"{row.error:+.1%}")  # fmt: skip
    return out
