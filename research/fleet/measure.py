"""Measure the constants of ``python -m research.fleet``: ``python -m research.fleet.measure --runs runs/*``.

Each run gives one environment. The actions of its last iterations are played again, in the tasks in which they were
taken, and the CPU time of each reset and step is measured, that of sandboxes included. Each step is taken twice, and
the less counts, since other programs only ever slow one down; resets load tasks as they do in training. Lengths of
episodes are those of the run. Lognormal distributions with the mean and variance of the measurements are taken, since
waiting times depend on these two; `distance` is Kolmogorov's between them and what was measured. Calls over HTTP are
measured with `envsuite serve http` and a vector of 256 slots on this machine. `--out` is the file that `--constants`
reads; what it has of other environments stays.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
from rich.console import Console
from rich.table import Table

from envsuite.core.errors import EnvsuiteError
from envsuite.playing.step import Episode
from research.fleet.constants import Constants, EngineConstants, EnvironmentConstants, Fit
from research.fleet.measure_engine import measured_engine
from research.fleet.measure_memory import sessions_memory
from research.fleet.measure_serving import serving
from trainers.report.run import RunData
from trainers.rollout.environments import factory_of
from trainers.run.config import TrainConfig
from trainers.settings import checked
from trainers.steps.parquet import read_episodes

ITERATIONS = 3
"""Last iterations of a run whose episodes are taken."""
MOST_STEPS = 3000
"""Steps of a run that are played again."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table and write the file; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m research.fleet.measure", description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=Path, nargs="+", default=[], help="folders of runs, one for each environment")
    parser.add_argument("--engine", type=Path, help="folder of a run: the hf engine's speed with its model is measured")
    parser.add_argument("--out", type=Path, default=Path("constants.json"), help="the file (default: %(default)s)")
    arguments = parser.parse_args(argv)
    try:
        known = Constants.read(arguments.out) if arguments.out.exists() else None
        environments = dict(known.environments) if known else {}
        for folder in arguments.runs:
            run = RunData.load(folder)
            config = checked(TrainConfig, run.config)
            environments[config.envs[0].id] = found = environment(run, config)
            sys.stderr.write(f"{config.envs[0].id}: {found}\n")
        engine = known.engine if known else None
        if arguments.engine:
            engine = engine_of(RunData.load(arguments.engine))
        constants = Constants(
            f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
            datetime.date.today().isoformat(),
            f"python -m research.fleet.measure {' '.join(sys.argv[1:] if argv is None else argv)}",
            serving(),
            dict(sorted(environments.items())),
            engine,
        )
        constants.write(arguments.out)
    except EnvsuiteError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    Console(width=130).print(table(constants))
    return 0


def engine_of(run: RunData) -> EngineConstants:
    """The engine's speed with a run's model on this machine."""
    config = checked(TrainConfig, run.config)
    return EngineConstants(config.model.path, measured_engine(config))


def environment(run: RunData, config: TrainConfig) -> EnvironmentConstants:
    """The constants of the environment that a run trained on.

    Raises:
        DataError: The run has no episodes.
    """
    episodes = last_episodes(run)
    (resets, steps), (_, again) = replayed(config, episodes), replayed(config, episodes)
    steps = np.minimum(steps, again)
    base, memory = sessions_memory(factory_of(config.envs[0]))
    lines = [line for line in run.metrics if "time/codec" in line and "train/episode_length" in line]
    codec = sum(line["cpu/rollout"] * line["time/codec"] / line["time/rollout"] for line in lines)
    played = sum(line["train/episode_length"] * line["train/episodes"] for line in lines)
    lengths = np.array([len(episode.steps) for episode in episodes], dtype=float)
    horizon = config.envs[0].max_episode_steps or int(lengths.max())
    return EnvironmentConstants(
        Fit.of(steps), Fit.of(resets), Fit.of_counts(lengths, horizon), horizon, memory, base, codec / max(played, 1),
        f"{len(steps)} steps of the last {ITERATIONS} iterations of configs/{config.name}.yaml",
    )  # fmt: skip


def last_episodes(run: RunData) -> list[Episode]:
    """The sound episodes of the last iterations."""
    files = sorted((run.folder / "episodes").glob("iteration-*.parquet"))[-ITERATIONS:]
    return [episode for file in files for episode in read_episodes(file) if episode.error is None and episode.steps]


def descendants(pid: int) -> list[int]:
    """Ids of all living children of a process, and theirs."""
    found, pending = [], [pid]
    while pending:
        for task in Path(f"/proc/{pending.pop()}/task").glob("*/children"):
            children = [int(child) for child in task.read_text().split()]
            found += children
            pending += children
    return found


def replayed(config: TrainConfig, episodes: Sequence[Episode]) -> tuple[np.ndarray, np.ndarray]:
    """CPU seconds of each reset and step when the episodes' actions are played again, those of sandboxes included."""
    worlds = {index: factory_of(env).make() for index, env in enumerate(config.envs)}
    resets: list[float] = []
    steps: list[float] = []
    spent = own_seconds
    try:
        for episode in episodes:
            if len(steps) >= MOST_STEPS:
                break
            env = _world(config, worlds, episode)
            if env is None:
                continue
            resets.append(spent(partial(env.reset, options={"task_id": episode.task_id})))
            steps += [spent(partial(env.step, step.action)) for step in episode.steps if step.action is not None]
            if spent is own_seconds and descendants(os.getpid()):
                spent, resets, steps = all_seconds, [], []  # the first episode has started a sandbox
    finally:
        for env in worlds.values():
            env.close()
    return np.array(resets), np.array(steps)


def own_seconds(work: Callable[[], object]) -> float:
    """CPU seconds that ``work`` takes in this process."""
    began = time.process_time()
    work()
    return time.process_time() - began


def all_seconds(work: Callable[[], object]) -> float:
    """The same in this process and its children."""
    before = _children()
    own = own_seconds(work)
    return own + max(0.0, _children() - before)


def _children() -> float:
    """CPU seconds of the processes that this one has started: those that have ended, and those that live."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    alive = 0
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError):
            alive += int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
    return ended.ru_utime + ended.ru_stime + alive / 1e9


def _world(config: TrainConfig, worlds: dict[int, gymnasium.Env], episode: Episode) -> gymnasium.Env | None:
    """The environment that has the episode's task."""
    for index, env in worlds.items():
        if episode.task_id in env.get_wrapper_attr("tasks").ids(config.envs[index].split):
            return env
    return None


def table(constants: Constants) -> Table:
    """The environments' constants."""
    out = Table(title=f"{constants.machine}, {constants.date}", title_justify="left", box=None, header_style="bold")
    for column in (
        "environment", "step, µs: median", "mean", "sigma", "distance", "reset, µs: mean", "steps: median", "sigma",
        "distance", "steps/s a core", "MiB a process", "KiB a session", "codec, µs",
    ):  # fmt: skip
        out.add_column(column, justify="left" if column == "environment" else "right")
    for name, env in constants.environments.items():
        step, mean = env.step, env.step.lognormal.mean
        out.add_row(
            name, f"{step.median * 1e6:,.0f}", f"{mean * 1e6:,.0f}", f"{step.sigma:.2f}", f"{step.distance:.2f}",
            f"{env.reset.lognormal.mean * 1e6:,.0f}", f"{env.steps.median:.1f}", f"{env.steps.sigma:.2f}",
            f"{env.steps.distance:.2f}", f"{1 / (mean + constants.serving.request):,.0f}",
            f"{env.base / 2**20:.0f}", f"{env.memory / 2**10:,.0f}", f"{env.codec * 1e6:,.0f}",
        )  # fmt: skip
    return out


if __name__ == "__main__":
    sys.exit(main())
