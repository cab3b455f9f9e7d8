"""``envsuite diagnose ENV``: what credit assignment has to deal with in an environment, from episodes of it."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
from accelerate import Accelerator
from rich.table import Table

from envsuite.core.errors import DataError
from envsuite.core.escaping import log_to_stderr
from envsuite.data.files import write_atomically
from envsuite.playing.episode import EpisodePlan
from envsuite.playing.step import Episode
from trainers.credit.diagnosis import MEASURES, Measure, diagnose, states_apart, untold
from trainers.credit.map import AXES, describe_nearest, load
from trainers.credit.rows import by_agent
from trainers.gateway.managers import manager_of
from trainers.policy.coupling import gradient_cosines
from trainers.policy.loading import load_model
from trainers.policy.model import Policy
from trainers.pool import Pool
from trainers.pool.database import FILE
from trainers.processes.distributed import make_accelerator, run_guarded
from trainers.rollout.engines import answers_in_text
from trainers.rollout.environments import sampling_of, tasks_of
from trainers.rollout.sampler import TaskPool, TaskSampler
from trainers.run.cli import ORDER, TrainerProgram, parse
from trainers.run.config import TrainConfig
from trainers.run.examples import examples_of
from trainers.run.playing import playing
from trainers.run.progress import RunProgress
from trainers.run.rollouts import check_episodes
from trainers.run.stopping import Stopping
from trainers.settings import ConfigError
from trainers.settings.console import EscapingConsole
from trainers.steps import StepTable
from trainers.steps.parquet import episode_files, read_episodes

ENOUGH = 256
"""Least number of episodes that are read of a run, in whole iterations, where it has so many."""
DIAGNOSE = TrainerProgram(
    "envsuite diagnose [ENV | EPISODES]",
    f"""Show what credit assignment has to deal with: success at the start, variance within groups, states that repeat,
what equal states hide, which steps decide. The model of model.path plays rollout.tasks groups of rollout.group_size
episodes, as an iteration of training does; nothing is trained. ENV, an environment's id or file, is played instead of
envs. EPISODES are there already and need no model: the folder of a run, whose first iterations are read until there
are {ENOUGH} episodes, a file of episodes, or a datapool.
{ORDER}
examples:
  envsuite diagnose --config configs/textcraft.yaml
  envsuite diagnose errand.py --config configs/own-environment.yaml --rollout.tasks 32 --rollout.group_size 16
  envsuite diagnose Sokoban-v0 --model.path runs/NAME/checkpoints/iteration-00060 --json sokoban.json
  envsuite diagnose runs/NAME
""",
    options={"--json FILE": "Write the measures, unrounded, into a file, too."},
)


def main(arguments: Sequence[str]) -> int:
    """Run the command line: the table on standard output; returns the exit status."""
    log_to_stderr(logging.WARNING, "%(levelname)s %(name)s: %(message)s")
    return run_guarded(lambda: _main(arguments))


def _main(arguments: Sequence[str]) -> None:
    words = [*arguments[:1]] if arguments and not arguments[0].startswith("-") else []
    source = next((Path(word) for word in words if Path(word).is_dir() or word.endswith(".parquet")), None)
    own = ["--envs", json.dumps([{"id": word} for word in words])] if words and source is None else []
    command = parse([*own, *arguments[len(words) :]], DIAGNOSE)
    config = command.config
    accelerator: Accelerator | None = None
    if source is None:
        accelerator = make_accelerator(config.process_timeout)
        episodes = play_episodes(config, accelerator)
    else:
        episodes = load_episodes(source)
    steps = by_agent(StepTable.from_episodes(episodes))
    measures = diagnose(steps)
    if accelerator is not None and not answers_in_text(config.rollout.engine):
        measures["gradient_cosine"] = gradient_cosine(config, accelerator, steps)
    failures = sum(episode.error is not None for episode in episodes)
    counts = {"episodes": len(episodes) - failures, "groups": len({e.group_id for e in episodes}), "failed": failures}
    where = ", ".join(sorted({episode.env_id for episode in episodes}))
    missing = untold(measures)
    place = describe_nearest(load(), {name: measures[name].value for name in AXES})
    if "json" in command.options:
        body = {"environment": where, **counts, "measures": as_json(measures), "untold": missing, "map": place}
        write_atomically(Path(command.options["json"]), json.dumps(body, indent=1).encode())
    console = EscapingConsole(highlight=False, width=None if sys.stdout.isatty() else 110)
    console.print(f"{where}; " + ", ".join(f"{name}: {count:,}" for name, count in counts.items()))
    console.print(measure_table(measures))
    for line in (*missing, *place):
        console.print(f"\n{line}")


def load_episodes(source: Path) -> list[Episode]:
    """Reads episodes that were played before: of a run those of its first iterations, while the policy is new.

    Args:
        source: A file of episodes, the folder of a run, or a datapool.

    Raises:
        DataError: There are none.
    """
    if source.suffix == ".parquet":
        episodes = read_episodes(source)
    elif (source / FILE).is_file():
        with Pool(source) as pool:
            episodes = pool.episodes()
    else:
        episodes = []
        for file in episode_files(source / "episodes", "iteration-*"):
            episodes += read_episodes(file) if len(episodes) < ENOUGH else []
    if not episodes:
        raise DataError(
            f"{source}: no episodes there; give the folder of a run that keeps them (episodes_every: 1), a file of "
            "episodes, a datapool, or an environment for the model to play"
        )
    return episodes


def play_episodes(config: TrainConfig, accelerator: Accelerator) -> list[Episode]:
    """Plays ``rollout.tasks`` groups of ``rollout.group_size`` episodes, sampled as in training.

    Raises:
        ConfigError: There is more than one process, or an environment cannot be made.
        EpisodesFailed: All episodes failed.
    """
    if accelerator.num_processes > 1:
        raise ConfigError("envsuite diagnose plays in one process; start it without accelerate launch")
    envs, size = config.envs, config.rollout.group_size
    pools = [TaskPool(tasks_of(env, f"envs[{i}]").ids(env.split), env.weight) for i, env in enumerate(envs)]
    draws = enumerate(TaskSampler(pools, config.seed).draw(config.rollout.tasks))
    plans = [EpisodePlan(group * size + i, group, env, task) for group, (env, task) in draws for i in range(size)]
    examples = [examples_of(env, config.prompt) for env in envs]
    with RunProgress(1, console=EscapingConsole(stderr=True)) as progress, playing(config, accelerator) as player:
        slots, sampling = min(config.rollout.slots, len(plans)), sampling_of(config.rollout.sampling, player.stop_ids)
        rollout = player.config.rollout
        manager = manager_of(rollout, config.prompt, envs, slots, player.engine, player.tokenizer, examples)
        with closing(manager):
            stop, seed = Stopping(accelerator, progress), config.seed + 1
            episodes = stop.phase("rollout", len(plans), lambda watch: manager.run(plans, sampling, seed, watch))
    check_episodes(accelerator, episodes, "diagnosis")
    return episodes


def gradient_cosine(config: TrainConfig, accelerator: Accelerator, steps: StepTable) -> Measure:
    """Measures how alike the policy's gradients at different states are."""
    model = load_model(config.model)
    model.to(accelerator.device)
    temperature = config.rollout.sampling.temperature or 1.0
    policy = Policy(model, temperature=temperature, compute_dtype=config.model.compute_dtype)
    cosines = np.abs(gradient_cosines(policy, steps.take(states_apart(steps))))
    return Measure("gradient_cosine", np.array([cosines.sum()]), np.array([float(len(cosines))]))


def measure_table(measures: Mapping[str, Measure]) -> Table:
    """Returns a table of the measures."""
    table = Table("measure", box=None, header_style="bold", pad_edge=False)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("95 %", justify="right", no_wrap=True)
    table.add_column("")
    for name, (how, meaning) in MEASURES.items():
        if name in measures:
            scale, digits = (1.0, 2) if how == "mean" else (100.0, 1)
            value, bounds = measures[name].value, measures[name].interval
            number = "-" if value is None else f"{scale * value:.{digits}f}" + (" %" if scale > 1.0 else "")
            between = "" if bounds is None else "[" + ", ".join(f"{scale * end:.{digits}f}" for end in bounds) + "]"
            table.add_row(name, number, between, meaning)
    return table


def as_json(measures: Mapping[str, Measure]) -> dict[str, dict[str, float | str | None]]:
    """Returns value, interval and meaning of each measure; null where it cannot be told."""
    entries = {}
    for name, measure in measures.items():
        low, high = measure.interval or (None, None)
        entries[name] = {"value": measure.value, "low": low, "high": high, "meaning": MEASURES[name][1]}
    return entries
