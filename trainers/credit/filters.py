"""Filters: they choose the step rows that are trained on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainers.credit.estimators.groups import GroupStatistics, episode_codes, first_rows, group_codes, group_statistics
from trainers.credit.estimators.returns import episode_returns
from trainers.settings import AtLeastOne, Count, Decay, check_fields
from trainers.settings.registry import Registry
from trainers.steps import StepTable
from trainers.steps.columns import SUCCESS


class Filter(ABC):
    """Chooses the rows that are trained on: its settings are its fields."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def needs(self) -> tuple[str, ...]:
        """Columns that the filter reads besides the table's own (:mod:`trainers.steps.columns`)."""
        return ()

    @abstractmethod
    def __call__(self, steps: StepTable) -> NDArray[np.bool_]:
        """Returns True where the row is kept, shape (N,); ``steps`` are those of all processes of a run."""


FILTERS: Registry[Filter] = Registry("filter", group="trainers.filters")


@FILTERS.register("zero_variance")
@dataclass(frozen=True)
class ZeroVariance(Filter):
    """Drop the groups whose episodes all have the same return (DAPO, section 3.2): they have nothing to compare."""

    refill_rounds: Count = 0
    """Most further rounds of rollout in an iteration, each with as many new tasks as groups were left out (dynamic
    sampling); 0 lets the batch shrink."""

    def __call__(self, steps: StepTable) -> NDArray[np.bool_]:
        """True for the rows of groups with different returns."""
        return np.asarray(_spread(steps).std > 0.0, np.bool_)


@FILTERS.register("low_spread")
@dataclass(frozen=True)
class LowSpread(Filter):
    """Drop the groups whose returns differ least (SPEAR, section 4.3, "Filtering of Low-variance Groups").

    Groups are ranked by the population's standard deviation of their episodes' returns. Of n groups, the first
    int((1 - fraction) · n) stay, at least one; of equal groups, those that come first.
    """

    fraction: Decay = 0.25
    """Share of the groups that is dropped."""

    def __call__(self, steps: StepTable) -> NDArray[np.bool_]:
        """True for the rows of the groups that stay."""
        group = group_codes(steps.group_id)
        std = _spread(steps).std[first_rows(group)]
        # As floating-point numbers (1 - 0.9) * 10 is less than 1.
        stay = max(1, int((1.0 - self.fraction) * len(std) + 1e-9))
        return np.isin(group, np.argsort(-std, kind="stable")[:stay])


@FILTERS.register("accepted")
@dataclass(frozen=True)
class Accepted(Filter):
    """Keep the episodes that rejection sampling accepts: those that solved their task, or have a score."""

    score: float | None = None
    """Accept returns of at least this; null: accept what solved its task."""
    most: AtLeastOne | None = None
    """Accept at most so many episodes of a task: the greatest returns, of equal ones the first."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Which episodes solved their task."""
        return (SUCCESS,) if self.score is None else ()

    def __call__(self, steps: StepTable) -> NDArray[np.bool_]:
        """True for the rows of accepted episodes."""
        episode, returns = episode_codes(steps), episode_returns(steps)
        if self.score is None:
            accepted = np.asarray(steps.column(SUCCESS, "accepted", "the rollout"), np.bool_)
        else:
            accepted = returns >= self.score
        if self.most is None:
            return accepted
        once = first_rows(episode)
        once = once[accepted[once]]
        order = once[np.lexsort((steps.episode_id[once], -returns[once], steps.group_id[once]))]
        group = steps.group_id[order]
        place = np.arange(len(order)) - np.searchsorted(group, group)
        return np.isin(episode, episode[order[place < self.most]])


@FILTERS.register("overlong")
@dataclass(frozen=True)
class Overlong(Filter):
    """Drop the episodes with a response that reached the token limit (DAPO, section 3.4; SPEAR, section 4.3).

    Such an episode was cut, so its return says little about what it would have led to.
    """

    needs = ("cut",)
    """The column that marks responses which reached the limit."""

    def __call__(self, steps: StepTable) -> NDArray[np.bool_]:
        """True for the rows of episodes all of whose responses ended by themselves."""
        return _without(steps, np.asarray(steps.column("cut", "overlong", "the rollout"), np.bool_))


@FILTERS.register("void_turn")
@dataclass(frozen=True)
class VoidTurn(Filter):
    """Drop the episodes with a completion that holds no tool call (SPEAR, section 4.3; SimpleTIR, 2025)."""

    needs = ("action",)
    """The parsed actions."""

    def __call__(self, steps: StepTable) -> NDArray[np.bool_]:
        """True for the rows of episodes all of whose completions parsed to an action."""
        action = steps.column("action", "void_turn", "the rollout")
        return _without(steps, np.array([text is None for text in action.tolist()], np.bool_))


def _spread(steps: StepTable) -> GroupStatistics:
    """Statistics of the returns of each row's group, each episode counted once."""
    group = group_codes(steps.group_id)
    return group_statistics(episode_returns(steps), group, samples=first_rows(episode_codes(steps)))


def _without(steps: StepTable, bad: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """True for the rows of episodes without a bad row."""
    episode = episode_codes(steps)
    return np.asarray(np.bincount(episode, bad)[episode] == 0.0, np.bool_) if len(steps) else bad
