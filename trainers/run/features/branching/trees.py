"""Trees of episodes: further episodes of a task start at steps of earlier ones, and some are kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import takewhile

import numpy as np

from envsuite.playing.episode import Branches, EpisodePlan
from envsuite.playing.step import Episode
from trainers.rollout.config import TreeConfig


class Tree:
    """The episodes that were grown from one; each is a path from the task to a leaf.

    Args:
        root: Plan of the first episode.
        first: Id of the first branch; the others count on.
        seed: Draws steps and leaves.
    """

    def __init__(self, root: EpisodePlan, first: int, seed: Sequence[int]) -> None:
        self.root = root
        self.plans = [root]
        self.first = first
        self.episodes: dict[int, Episode] = {}
        self._rng = np.random.default_rng(seed)

    @property
    def leaves(self) -> list[Episode]:
        """Episodes that did not fail, in the order of their plans."""
        return [e for plan in self.plans if (e := self.episodes[plan.episode_id]).error is None]

    def plan_branches(self, count: int, branches: Branches) -> list[EpisodePlan]:
        """Plans ``count`` further episodes; none where every episode failed.

        Nodes are the steps of the tree, those that episodes share once, and each is drawn with the same probability,
        with replacement. The last step of an episode is no node: nothing follows it. A branch keeps the path to its
        node and makes the next step anew. In a tree without nodes (episodes of one step) branches begin with the task.

        Args:
            count: Number of branches.
            branches: Steps of the tree's episodes as points; those of the new episodes' parents are in it.
        """
        sound = {e.episode_id: e for e in self.leaves}
        points = [
            branches[plan.episode_id][t]
            for plan in self.plans
            if plan.episode_id in sound
            for t in range(_start(plan) + 1, len(sound[plan.episode_id].steps))
        ]
        if not points and self.root.episode_id in sound:
            points = branches[self.root.episode_id][:1]
        if not points:
            return []
        choices = self._rng.integers(len(points), size=count).tolist()
        plans = [
            replace(self.root, episode_id=self.first + number, branch=points[point])
            for number, point in enumerate(choices, start=len(self.plans) - 1)
        ]
        self.plans += plans
        return plans

    def grow(self, episodes: Iterable[Episode], branches: Branches) -> None:
        """Takes episodes that were played as planned; in ``branches`` each then has the points before its own, too."""
        parents = {id(point): plan.episode_id for plan in self.plans for point in branches.get(plan.episode_id, [])}
        plans = {plan.episode_id: plan for plan in self.plans}
        for episode in episodes:
            self.episodes[episode.episode_id] = episode
            if (point := plans[episode.episode_id].branch) is not None:
                before = branches[parents[id(point)]][: len(point.steps)]
                branches[episode.episode_id] = [*before, *branches[episode.episode_id]]

    def prune(self, config: TreeConfig) -> tuple[list[Episode], int]:
        """Draws the episodes that are kept.

        Returns:
            These, and those that failed; and the number of response tokens that none of them has.
        """
        leaves = self.leaves
        keep = len(leaves) if config.keep is None else min(config.keep, len(leaves))
        numbers = sorted(self._rng.choice(len(leaves), keep, replace=False).tolist())
        episodes: list[Episode] = []
        for number in numbers:
            shared_steps = max((_common(leaves[number], episode) for episode in episodes), default=0)
            episodes.append(replace(leaves[number], tree=self.root.episode_id, shared=shared_steps))
        starts = {plan.episode_id: _start(plan) for plan in self.plans}
        sampled_tokens = sum(_tokens(leaf, starts[leaf.episode_id]) for leaf in leaves)
        failures = [e for e in self.episodes.values() if e.error is not None]
        return [*episodes, *failures], sampled_tokens - sum(_tokens(leaf, leaf.shared) for leaf in episodes)


def _start(plan: EpisodePlan) -> int:
    """Returns the index of the first step that the episode makes itself."""
    return 0 if plan.branch is None else len(plan.branch.steps)


def _common(first: Episode, second: Episode) -> int:
    """Returns the number of first steps that are the same sample in both."""
    pairs = zip(first.steps, second.steps, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1], pairs))


def _tokens(episode: Episode, start: int) -> int:
    return sum(len(step.response_ids) for step in episode.steps[start:])
