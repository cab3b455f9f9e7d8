"""Measures what credit assignment has to deal with in an environment, from groups of episodes of one policy.

Everything is a pure function of a step table, indifferent to the order of its rows and to the names of its states.
A state is what the environment's state key tells apart within a group: episodes of one task from one initial state.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from envsuite.core.errors import DataError
from envsuite.evaluation.statistics import (
    cluster_bootstrap,
    cluster_bootstrap_bounds,
    clustered_wilson_bounds,
    score_interval,
)
from trainers.credit.estimators.groups import (
    ROUNDING,
    Floats,
    Ints,
    all_equal,
    episode_codes,
    first_rows,
    group_codes,
    group_statistics,
)
from trainers.credit.estimators.returns import episode_returns, rewards_to_go
from trainers.credit.rows import estimation_order
from trainers.steps import StepTable
from trainers.steps.columns import SUCCESS, TRUNCATED

LEVEL = 0.2
"""Level of the tests by which decisive steps are counted (λ of Storey 2002): a lower one finds fewer of them where
episodes are few, a higher one varies more."""
DRAWS = 400
"""Permutations of each test."""
SPLITS = 50
"""Random halves of the episodes by which effective decisions are counted."""
PROMPTS = 64
"""Most states whose prompts, or gradients, are compared with each other."""


How = Literal["rate", "share", "ratio", "explained", "mean"]
"""Interval of a measure: Wilson's clustered by group; the same or a bootstrap of groups; else that bootstrap alone."""

_TABLE = tomllib.loads(Path(__file__).with_name("measures.toml").read_text(encoding="utf-8"))
MEASURES: dict[str, tuple[How, str]] = {name: (how, meaning) for name, (how, meaning) in _TABLE.items()}
"""By name: how the interval is computed, and the meaning, which begins with the unit."""


@dataclass(frozen=True)
class Measure:
    """A ratio of two sums over groups of episodes: a share, or a mean."""

    name: str
    """One of :data:`MEASURES`."""
    totals: Floats
    """Numerator of each group, shape (groups,); shape (1,) for a measure that has no interval."""
    counts: Floats
    """Denominator of each."""

    @property
    def value(self) -> float | None:
        """The ratio; ``None`` where it cannot be told: what is explained needs two groups that tell of it."""
        whole, least = float(self.counts.sum()), 2 if MEASURES[self.name][0] == "explained" else 1
        return float(self.totals.sum()) / whole if np.count_nonzero(self.counts) >= least else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Bounds of 95 %; ``None`` where they cannot be told."""
        if self.value is None or len(self.totals) < 2:
            return None
        how = MEASURES[self.name][0]
        if how == "rate":
            bounds = clustered_wilson_bounds(self.totals, self.counts)
            return float(bounds[0]), float(bounds[1])
        if how == "share":
            return score_interval(self.totals, self.counts)
        mask = (self.totals != 0.0) | (self.counts != 0.0)
        if mask.sum() < 2:
            return None
        with np.errstate(all="ignore"):  # a draw of groups that tell nothing
            low, high = np.ravel(cluster_bootstrap_bounds(self.totals[None, mask], self.counts[None, mask]))
        return (float(low), float(high)) if np.isfinite([low, high]).all() else None


class _Visits:
    """Columns of a step table, in an order that does not depend on its own.

    Raises:
        DataError: There is no step.
    """

    def __init__(self, steps: StepTable) -> None:
        if not len(steps):
            raise DataError("there is no step to measure: every episode failed, or ended before its first step")
        self.steps = steps = steps.take(estimation_order(steps))
        self.group, self.episode = group_codes(steps.group_id), episode_codes(steps)
        self.key = group_codes(self.group, steps.state_key)
        self.begins = first_rows(self.episode)
        """First row of each episode."""
        self.lengths = np.bincount(self.episode)
        self.place = np.arange(len(steps)) - self.begins[self.episode]
        self.first = first_rows(group_codes(self.episode, self.key))
        """Rows at which an episode meets a state for the first time: those of different episodes are independent."""
        self.returns = episode_returns(steps)
        self.won = np.asarray(steps.extra[SUCCESS], np.bool_) if SUCCESS in steps.extra else self.returns > 0.0
        self.to_go = rewards_to_go(steps, 1.0)
        self.before = np.where(self.place == 0, -1, np.roll(self.key, 1))
        """State of the step before, -1 where there is none."""

    def sums(self, values: Any, rows: NDArray[Any] | slice = slice(None)) -> Floats:
        """Sums of ``values`` of some rows by group, shape (groups,)."""
        group = self.group[rows]
        return np.asarray(np.bincount(group, np.broadcast_to(values, group.shape), self.group.max() + 1), np.float64)


def explained_squares(values: Floats, cell: Ints, part: Ints) -> tuple[Floats, Floats]:
    """Sums of squares between the parts of each cell beyond what chance gives, and the most that they can be.

    Their ratio is the adjusted share of the variance that the parts explain (ε² of Kelley 1935): 1 where the values of
    each part are equal. Over all ways to assign the values of a cell to its rows its mean is exactly 0. Both are 0
    where a cell can tell nothing: it has one part, parts of one row each, or equal values.

    Args:
        values: Shape (N,).
        cell: Codes from 0 without gaps, shape (N,).
        part: What may explain differences within a cell, shape (N,).

    Returns:
        Two arrays of shape (cells,).
    """
    inside, joint = group_statistics(values, cell), group_codes(cell, part)
    whole, size = (inside.size * inside.std**2)[first_rows(cell)], np.bincount(cell)
    heads = cell[first_rows(joint)]
    parts, free = np.bincount(heads), np.maximum(size - 1, 1)
    between = np.bincount(heads, np.bincount(joint, values - inside.mean) ** 2 / np.bincount(joint))
    degrees = np.where((whole > 0.0) & (parts > 1), size - parts, 0)
    return np.where(degrees > 0, between - whole * (parts - 1) / free, 0.0), whole * degrees / free


def in_halves(values: Floats, cell: Ints, part: Ints, half: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Two independent estimates of the variance between the parts of each cell, times its rows; each (cells,).

    Args:
        values: Shape (N,).
        cell: Codes from 0 without gaps, shape (N,).
        part: Shape (N,).
        half: Rows of the first estimate; the others are those of the second. Shape (N,).
    """
    halves = np.zeros((2, int(cell.max(initial=-1)) + 1))
    for number, rows in enumerate((half, ~half)):
        codes = group_codes(cell[rows])
        heads, size = first_rows(codes), np.bincount(codes)
        beyond, most = explained_squares(values[rows], codes, part[rows])
        whole = size * group_statistics(values[rows], codes).std[heads] ** 2
        # Without bias: beyond (n - 1) / (n - parts), where most is whole (n - parts) / (n - 1).
        halves[number, cell[rows][heads]] = np.divide(beyond * whole, most, out=np.zeros(len(size)), where=most > 0.0)
    return halves[0], halves[1]


def beyond_chance(values: Floats, cell: Ints, part: Ints) -> Floats:
    """Estimate of whether the values of a cell differ between its parts more than by chance, shape (cells,).

    (q - λ) / (1 - λ), where q is the probability that a permutation test with ties broken at random rejects at level
    λ: 0 in expectation where the parts are alike, and 1 where they surely differ. Summed over cells it is the number
    of those that differ, as Storey (2002) estimates it; cells with too few values to tell make it too small.

    Args:
        values: Shape (N,).
        cell: Codes from 0 without gaps, shape (N,).
        part: Shape (N,).
    """
    joint = group_codes(cell, part)
    heads, size = cell[first_rows(joint)], np.bincount(joint)
    values = values - group_statistics(values, cell).mean

    def between(sample: Floats) -> Floats:
        return np.asarray(np.bincount(heads, np.bincount(joint, sample) ** 2 / size), np.float64)

    rng, place, permutation = np.random.default_rng(0), np.argsort(cell, kind="stable"), np.empty_like(values)
    statistic = between(values)
    margin = ROUNDING * np.maximum(1.0, np.bincount(cell, values**2))
    above, alike = np.zeros(len(statistic)), np.ones(len(statistic))
    for _ in range(DRAWS):
        permutation[place] = values[np.lexsort((rng.random(len(cell)), cell))]
        further = between(permutation) - statistic
        above += further > margin
        alike += np.abs(further) <= margin
    rejection = np.clip((LEVEL * (DRAWS + 1) - above) / alike, 0.0, 1.0)
    return (rejection - LEVEL) / (1.0 - LEVEL)


def states_apart(steps: StepTable, most: int = PROMPTS) -> Ints:
    """Rows of ``most`` different states, or fewer, with a prompt and a response, spread over the table."""
    rows = first_rows(group_codes(steps.group_id, steps.state_key))
    rows = rows[(steps.response.lengths[rows] > 0) & (steps.prompt.lengths[rows] > 0)]
    return rows[np.unique(np.linspace(0, len(rows) - 1, min(most, len(rows))).round().astype(np.int64))]


def token_overlap(steps: StepTable, rows: Ints) -> Floats:
    """Tokens that two prompts have in common, as a share of those that either has, for each pair of ``rows``."""
    sets = [set(steps.prompt[row].tolist()) for row in rows.tolist()]
    pairs = [(first, second) for number, first in enumerate(sets) for second in sets[:number]]
    return np.array([len(first & second) / len(first | second) for first, second in pairs], np.float64)


def diagnose(steps: StepTable) -> dict[str, Measure]:
    """Measures the environment that episodes were played in, for the policy that played them; returns them by name.

    Args:
        steps: Groups of episodes, with the column ``action``.

    Raises:
        DataError: There is no step.
    """
    visits = _Visits(steps)
    parts = (_outcomes(visits), _states(visits), _aliasing(visits), _decisions(visits), _texts(visits))
    measures = {name: Measure(name, *sums) for part in parts for name, sums in part.items()}
    return {name: measures[name] for name in MEASURES if name in measures}


def untold(measures: Mapping[str, Measure]) -> list[str]:
    """Returns what these episodes cannot tell, why, and what would help."""
    episodes = measures["success"].counts
    won, flat = measures["success"].value, measures["zero_variance_groups"].value
    count = f"{int(episodes.sum()):,}"
    if episodes.max() < 2:
        return [
            "every task was played once: what equal states earn, which steps decide and how returns vary within a "
            "group cannot be told; raise rollout.group_size"
        ]
    if flat == 1.0:
        why, easier = f"{count} episodes", "easier tasks, a better model or a reward for parts of a task"
        why = f"no episode succeeded in {count}" if won == 0.0 else f"all of {why} succeeded" if won == 1.0 else why
        return [
            f"{why}, and the returns of each group are equal: which steps decide, and whether equal states hide "
            f"something, cannot be told; {'harder tasks' if won == 1.0 else easier} would show it"
        ]
    lines = []
    if won == 0.0:
        lines.append(
            f"no episode succeeded in {count}: which steps decide success cannot be told, only which ones change what "
            "is earned on the way"
        )
    if measures["comparable"].value == 0.0:
        lines.append(
            "no state of a group was met by episodes that acted differently and earned differently: which steps decide "
            "cannot be told; larger groups (rollout.group_size) would show it where states repeat"
        )
    return lines


Sums = dict[str, tuple[Floats, Floats]]


def _outcomes(visits: _Visits) -> Sums:
    """Measures of whole episodes.

    ``zero_variance_groups`` is that of the metrics. ``within_variance`` is one less the adjusted share of the variance
    of returns that the groups explain, of groups of several episodes. ``late_reward`` adds up magnitudes.
    """
    steps, first, last = visits.steps, visits.begins, visits.begins + visits.lengths - 1
    episodes, reward, heads = visits.sums(1.0, first), np.abs(steps.reward), first_rows(visits.group)
    inside = group_statistics(visits.returns, visits.group, samples=first)
    rows = first[inside.size[first] > 1]
    returns, groups = visits.returns[rows], (inside.size[heads] > 1).sum()
    apart = np.zeros(len(rows)) if all_equal(returns) else (returns - returns.mean()) ** 2
    free = (len(rows) - 1) / max(len(rows) - groups, 1)  # of all returns, by those within groups
    sums = {
        "success": (visits.sums(visits.won[first], first), episodes),
        "return": (visits.sums(visits.returns[first], first), episodes),
        "zero_variance_groups": (visits.sums(inside.std[heads] == 0.0, heads), visits.sums(1.0, heads)),
        "within_variance": (visits.sums(free * inside.std[rows] ** 2, rows), visits.sums(apart, rows)),
        "episode_length": (visits.sums(visits.lengths, first), episodes),
        "median_length": (np.array([np.median(visits.lengths)]), np.ones(1)),
        "longest_episode": (np.array([float(visits.lengths.max())]), np.ones(1)),
        "late_reward": (visits.sums(reward[last], last), visits.sums(reward)),
    }
    if TRUNCATED in steps.extra:
        sums["truncated"] = (visits.sums(steps.extra[TRUNCATED][first], first), episodes)
    return sums


def _states(visits: _Visits) -> Sums:
    """Measures of how states repeat; groups of steps and singletons are those of GiGPO's step term."""
    steps, key, stays = visits.sums(1.0), visits.key, visits.key == visits.before
    back = ~stays
    back[visits.first] = False
    return {
        "repeated_states": (visits.sums(np.bincount(key[visits.first])[key] > 1), steps),
        "singletons": (visits.sums(np.bincount(key)[key] == 1), steps),
        "state_group_size": (steps, visits.sums(1.0, first_rows(key))),
        "stays": (visits.sums(stays), steps),
        "cycles": (visits.sums(back), steps),
    }


def _aliasing(visits: _Visits) -> Sums:
    """Measures of what equal keys hide.

    It is the share of the variance of returns to go, at first visits to a state, that the step's number, the state
    before or all states before explain (:func:`explained_squares`): 0 in expectation where keys are states and the
    policy acts by them alone. States that every episode meets with the same past are left out.
    """
    cell, values, heads = visits.key[visits.first], visits.to_go[visits.first], first_rows(visits.key)
    paths, path, history = dict[tuple[int, int], int](), 0, np.zeros(len(visits.key), np.int64)
    for row, before in enumerate(visits.before.tolist()):
        path = 0 if before < 0 else paths.setdefault((path, before), len(paths) + 1)
        history[row] = path
    sums: Sums = {}
    for name, part in (("alias_step", visits.place), ("alias_previous", visits.before), ("alias_history", history)):
        beyond, most = explained_squares(values, cell, part[visits.first])
        sums[name] = visits.sums(beyond, heads), visits.sums(most, heads)
    prompt = group_codes(cell, np.array([visits.steps.prompt[row].tobytes() for row in visits.first], object))
    size, alike = np.bincount(cell), np.bincount(prompt)
    pairs = visits.sums(size * (size - 1.0), heads)
    same = visits.sums(alike * (alike - 1.0), visits.first[first_rows(prompt)])
    return {**sums, "other_prompts": (pairs - same, pairs)}


def _decisions(visits: _Visits) -> Sums:
    """Measures of what actions change: the variance of returns to go that they explain, and the steps that decide.

    A step is decisive where actions at its state differ in return to go by more than chance, as :func:`beyond_chance`
    estimates; an episode's first visit to a state counts, and states where nothing can be compared count as 0.
    """
    rows, heads = visits.first, first_rows(visits.key)
    cell, values = visits.key[rows], visits.to_go[rows]
    episodes, steps = visits.sums(1.0, visits.begins), visits.sums(1.0)
    action = group_codes(cell, visits.steps.column("action", "a diagnosis", "the rollout")[rows])
    beyond, most = explained_squares(values, cell, action)
    comparable = (most > 0.0)[cell]
    codes, weight = group_codes(cell[comparable]), np.zeros(len(rows))
    weight[comparable] = beyond_chance(values[comparable], codes, action[comparable])[codes]
    decisive, won = visits.sums(weight, rows), visits.sums(visits.won[visits.begins], visits.begins)
    place = (visits.place[rows] + 0.5) / visits.lengths[visits.episode[rows]]
    factor = float(comparable.any())
    clear = decisive.sum() * ((Measure("decisive_steps", decisive, episodes).interval or (0.0,))[0] > 0.0)
    return {
        "action_variance": (visits.sums(beyond, heads), visits.sums(most, heads)),
        "comparable": (visits.sums(comparable, rows), steps),
        "decisive_steps": (decisive, factor * episodes),
        "decisive_share": (decisive, factor * steps),
        "decisive_of_success": (visits.sums(weight * visits.won[rows], rows), factor * won),
        "effective_decisions": _effective(visits, action),
        "decisive_place": (np.array([weight @ place]), np.array([clear])),
    }


def _effective(visits: _Visits, action: Ints) -> tuple[Floats, Floats]:
    """Sums over groups whose ratio is (Σ v)² / Σ v², of the variances v that each step of an episode decides.

    k steps with equal v give k. Products of estimates from two halves of a group's episodes are squares without bias.
    Where no v is above 0 by more than chance, both are 0.
    """
    rows, heads, rng = visits.first, first_rows(visits.key), np.random.default_rng(0)
    totals, counts = visits.sums(0.0), visits.sums(0.0)
    for _ in range(SPLITS):
        half = np.zeros(len(visits.begins), np.bool_)
        half[np.lexsort((rng.random(len(half)), visits.group[visits.begins]))[::2]] = True
        first_half, second_half = in_halves(visits.to_go[rows], visits.key[rows], action, half[visits.episode[rows]])
        totals += visits.sums(first_half, heads) * visits.sums(second_half, heads)
        counts += visits.sums(first_half * second_half, heads)
    clear = cluster_bootstrap(counts, np.ones(len(counts)))[0] > 0.0
    return totals * clear, counts * clear


def _texts(visits: _Visits) -> Sums:
    """Measures of prompts and responses."""
    steps, all_steps = visits.steps, visits.sums(1.0)
    overlap = token_overlap(steps, states_apart(steps))
    return {
        "prompt_overlap": (np.array([overlap.sum()]), np.array([float(len(overlap))])),
        "valid_actions": (visits.sums(steps.valid), all_steps),
        "response_length": (visits.sums(steps.response.lengths), all_steps),
        "prompt_length": (visits.sums(steps.prompt.lengths), all_steps),
    }
