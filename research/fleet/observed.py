"""Workload of a run, read from its folder."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from envsuite.core.errors import DataError
from envsuite.playing.step import Episode
from envsuite.prompting import Window, make_memory
from research.fleet.model import Lognormal, Workload
from trainers.report.run import RunData
from trainers.run.config import TrainConfig
from trainers.steps.parquet import read_episodes


def episodes_of(run: RunData, iteration: int) -> list[Episode]:
    """The sound episodes of an iteration.

    Raises:
        DataError: They were not kept (``episodes_every``).
    """
    found = read_episodes(run.folder / "episodes" / f"iteration-{iteration:05d}.parquet")
    return [episode for episode in found if episode.error is None and episode.steps]


def _merges(memory: str) -> bool:
    """Whether each prompt of an episode continues the last one."""
    return not isinstance(make_memory(memory), Window)


def trained_tokens(run: RunData, iteration: int) -> float:
    """Tokens of an iteration's episodes as a simulation counts those of an update: first prompts once a group."""
    episodes, groups = episodes_of(run, iteration), set()
    together, total = _merges(run.config["prompt"]["memory"]), 0
    for episode in episodes:
        if together:
            total += len(episode.steps[-1].prompt_ids) + len(episode.steps[-1].response_ids)
        else:
            total += sum(len(step.prompt_ids) + len(step.response_ids) for step in episode.steps)
        if episode.group_id in groups:
            total -= len(episode.steps[0].prompt_ids)
        groups.add(episode.group_id)
    return float(total)


def workload_of(config: TrainConfig, episodes: Sequence[Episode]) -> Workload:
    """The workload whose distributions fit these episodes best.

    Raises:
        DataError: There are none.
    """
    if not episodes:
        raise DataError("no episodes: the run must keep those of its iterations (episodes_every: 1)")
    lengths = np.array([len(episode.steps) for episode in episodes], dtype=float)
    responses = np.array([len(step.response_ids) for episode in episodes for step in episode.steps], dtype=float)
    firsts = [len(episode.steps[0].prompt_ids) for episode in episodes]
    growth = [len(two.prompt_ids) - len(one.prompt_ids) for e in episodes for one, two in pairwise(e.steps)]
    most = config.rollout.sampling.max_tokens
    horizon = config.envs[0].max_episode_steps or int(lengths.max())
    return Workload(
        config.rollout.tasks,
        config.rollout.group_size,
        Lognormal.fit_counts(lengths, horizon),
        horizon,
        float(np.mean(firsts)),
        float(np.mean(growth or [0])),
        Lognormal.fit_counts(responses, most),
        most,
        _merges(config.prompt.memory),
        shares=True,
    )
