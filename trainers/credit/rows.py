"""Step rows of an iteration as shapers and estimators see them, made without a model: saved episodes give them, too."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from envsuite.core.errors import UsageError
from envsuite.playing.step import Episode
from trainers.credit.estimators.returns import episode_returns
from trainers.steps import StepTable
from trainers.steps.columns import AGENT, ENV_REWARD, GREEDY, GREEDY_RETURN, ITERATION, PLAYED, TREE

_LOG = logging.getLogger(__name__)
_IDS, _AGENTS = 1 << 40, (1 << 22) - 1
"""Numbers of episodes, and of agents: one of each make a number of 62 bits."""


def unshaped_steps(episodes: Sequence[Episode], iteration: int) -> StepTable:
    """Steps of ``episodes`` with their own rewards; failed episodes are left out.

    Greedy episodes are there, too, each in a group of its own (:func:`greedy_group`); steps of several agents are as
    :func:`by_agent` has them.

    Args:
        episodes: Episodes of an iteration.
        iteration: In which they were played, from 1.
    """
    greedy = [replace(e, greedy=False, group_id=greedy_group(e.group_id)) for e in episodes if e.greedy]
    tables = [StepTable.from_episodes(episodes), StepTable.from_episodes(greedy)]
    table = StepTable.join(tables)
    return by_agent(table.with_columns(**{
        ITERATION: np.full(len(table), iteration, np.int64),
        ENV_REWARD: table.reward,
        GREEDY: np.repeat([False, True], [len(part) for part in tables]),
    }))  # fmt: skip


def by_agent(steps: StepTable) -> StepTable:
    """The steps of several agents as if each had played episodes of its own, so that methods credit each by itself.

    Statistics over the whole batch, of methods that have such, are those of all agents.

    The steps of an agent in an episode are an episode, those of an agent in a group are a group, and t counts the
    agent's steps; column ``played`` keeps their places in what was played. Numbers of episodes and groups depend on the
    agents' names alone, so they are the same in all processes. Steps of environments of one agent stay as they are.

    Args:
        steps: Any steps, in any order, which is kept.

    Raises:
        UsageError: A number of an episode or a group is too large.
    """
    agents = steps.extra[AGENT].tolist()
    if not any(agents):
        return steps
    if max(np.abs(steps.episode_id).max(), np.abs(steps.group_id).max()) >= _IDS:
        raise UsageError(f"episodes of several agents are numbered below {_IDS:,}")
    numbers = {agent: zlib.crc32(agent.encode()) % _AGENTS + 1 if agent else 0 for agent in agents}
    offsets = np.array([numbers[agent] * _IDS for agent in agents], np.int64)
    episode = steps.episode_id + offsets
    group = np.where(steps.group_id < 0, steps.group_id - offsets, steps.group_id + offsets)
    order = np.lexsort((steps.t, episode))
    first = np.flatnonzero(np.diff(episode[order], prepend=episode[order[:1]] - 1))
    t = np.empty_like(steps.t)
    t[order] = np.arange(len(steps)) - np.repeat(first, np.diff(first, append=len(steps)))
    extra = {**steps.extra, PLAYED: steps.t, TREE: steps.extra[TREE] + offsets}
    return replace(steps, group_id=group, episode_id=episode, t=t, extra=extra)


def as_played(steps: StepTable) -> list[tuple[int, int]]:
    """The episode of each step and its place there, as they were played: reverses :func:`by_agent`."""
    episodes = steps.episode_id % _IDS if PLAYED in steps.extra else steps.episode_id
    return list(zip(episodes.tolist(), steps.extra.get(PLAYED, steps.t).tolist(), strict=True))


def with_greedy_return(steps: StepTable) -> StepTable:
    """The sampled steps with the column ``greedy_return``.

    Steps of tasks whose greedy episode failed are left out.
    """
    greedy = steps.extra[GREEDY]
    baseline, samples = steps.take(np.flatnonzero(greedy)), steps.take(np.flatnonzero(~greedy))
    greedy_returns = dict(zip(task_groups(baseline).tolist(), episode_returns(baseline).tolist(), strict=True))
    rows = np.flatnonzero([group in greedy_returns for group in samples.group_id.tolist()])
    if len(rows) < len(samples):
        tasks = len(np.unique(samples.group_id)) - len(np.unique(samples.group_id[rows]))
        _LOG.warning("%d tasks are left out: their greedy episode failed, or the agent had no turn in it", tasks)
        samples = samples.take(rows)
    column = np.array([greedy_returns[group] for group in samples.group_id.tolist()], np.float64)
    return samples.with_columns(**{GREEDY_RETURN: column})


def estimation_order(steps: StepTable) -> NDArray[np.int64]:
    """Rows in the order in which estimators get them, by group, episode and t: the same for any number of processes."""
    return np.lexsort((steps.t, steps.episode_id, steps.group_id))


def greedy_group(group_id: int) -> int:
    """The group of the greedy episode of a task: one of its own, so that no method compares with it."""
    return -1 - group_id


def task_groups(greedy: StepTable) -> NDArray[np.int64]:
    """The groups of the sampled episodes of the greedy steps' tasks, shape (N,)."""
    return np.asarray(-1 - greedy.group_id, np.int64)
