"""Compare PaperSearch with recordings of StepPO's own searches and expansions: rewards and pool of each step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.parity_report import Report
from envsuite.core import ToolCall
from envsuite.papersearch.env import PaperSearchEnv
from envsuite.papersearch.question import CorpusQuery

RELEVANT, OTHER = 1.0, 0.02
"""Scores of gold papers and of others in the recordings, where they replace the model's."""
REWARD_ERROR = 1e-9


class Recorded:
    """The selector of the recordings."""

    name = "recorded"
    is_visible = True

    def scores(self, question: CorpusQuery, papers: NDArray[np.int64]) -> NDArray[np.float64]:
        """Returns the score of each paper. Shape: as ``papers``."""
        return np.array([RELEVANT if number in question.gold else OTHER for number in papers.tolist()])


def compare(episodes: Sequence[Mapping[str, Any]], make: Callable[..., PaperSearchEnv] = PaperSearchEnv) -> Report:
    """Replays episodes.

    Args:
        episodes: Each with ``task_id``, ``player``, ``gold`` and ``steps`` of ``calls``, ``call_rewards`` and ``pool``.
        make: Makes the environment from its arguments.
    """
    report = Report()
    env = make(split=None, reward="call", end_when_found=False)
    env.selector = Recorded()
    library = env.library
    for episode in episodes:
        where = f"{episode['task_id']}, {episode['player']}"
        env.reset(options={"task_id": episode["task_id"]})
        gold = sorted(library.key(number) for number in env.session.question.gold)
        report.same("gold papers of tasks", where, gold, episode["gold"])
        for number, step in enumerate(episode["steps"]):
            place = f"{where}, step {number}"
            calls = [ToolCall(name, arguments) for name, arguments in step["calls"]]
            before, earned = env.snapshot(), 0.0
            # Searches are paid before expansions: the difference that a call makes in this order is its reward.
            order = sorted(range(len(calls)), key=lambda one: calls[one].name == "expand")
            for count, call in enumerate(order, 1):
                env.restore(before)
                reward = env.step([calls[other] for other in order[:count]])[1]
                recorded = step["call_rewards"][call]
                report.near("rewards of calls", f"{place}, call {call}", reward - earned, recorded, REWARD_ERROR)
                earned = reward
            env.restore(before)
            reward = env.step(calls)[1]
            report.near("rewards of steps", place, reward, sum(step["call_rewards"]), REWARD_ERROR)
            pool = sorted(library.key(number) for number in env.session.pool)
            report.same("pools after steps", place, pool, step["pool"])
    return report
