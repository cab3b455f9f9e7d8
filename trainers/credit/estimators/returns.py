"""Returns of episodes, returns to go, and columns of numbers that are checked as they are read.

Everything is vectorised over rows, float64, linear in their number up to a sort, and indifferent to their order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from envsuite.core.errors import UsageError
from trainers.credit.estimators.groups import Floats, Ints, describe_row, episode_codes, mean_of
from trainers.steps import StepTable
from trainers.steps.columns import ENV_REWARD, ROW_SCORE, STEP_SCORE, SUPPLIERS, TRUNCATED


def episode_returns(steps: StepTable) -> Floats:
    """R(τ) of each row's episode: the undiscounted sum of its rewards, shape (N,).

    A column ``row_score`` is added to its own row only.
    """
    return episode_totals(steps) + row_score(steps)


def episode_totals(steps: StepTable) -> Floats:
    """R(τ) of each row's episode without the scores of rows, shape (N,)."""
    episode = episode_codes(steps)
    return np.asarray(np.bincount(episode, steps.reward)[episode], np.float64)


def discounted_returns(steps: StepTable, gamma: float) -> Floats:
    """Return to go R_t = Σ_{k≥t} gamma^{k-t} r_k within the episode, shape (N,).

    Rows are taken in the order of ``t``; an episode that was cut off counts as ended.
    The columns ``row_score`` and ``step_score`` are added to their own row only, after discounting.

    Raises:
        UsageError: Two rows are the same step of the same episode.
    """
    out = rewards_to_go(steps, gamma)
    if STEP_SCORE in steps.extra:
        out += finite_column(steps, STEP_SCORE, "a return to go", "the shaper scpo")
    return out + row_score(steps)


def rewards_to_go(steps: StepTable, gamma: float) -> Floats:
    """Σ_{k≥t} gamma^{k-t} r_k within the episode, shape (N,): :func:`discounted_returns` without scores of rows."""
    order, lengths = steps_in_order(steps)
    out = np.empty(len(steps))
    out[order] = backward_sums(steps.reward[order], lengths, gamma)
    return out


def steps_to_go(steps: StepTable) -> Ints:
    """Number of steps from each row to the end of its episode, itself included, shape (N,)."""
    order, lengths = steps_in_order(steps)
    out = np.empty(len(steps), np.int64)
    out[order] = np.repeat(np.cumsum(lengths), lengths) - np.arange(len(steps))
    return out


def steps_in_order(steps: StepTable) -> tuple[Ints, Ints]:
    """The rows, episode after episode and each by ``t``, shape (N,); and the number of steps of each episode.

    Raises:
        UsageError: Two rows are the same step of the same episode.
    """
    episode = episode_codes(steps)
    following = np.diff(episode)
    if (following >= 0).all() and (np.diff(steps.t)[following == 0] > 0).all():
        return np.arange(len(episode)), np.bincount(episode)
    order = np.lexsort((steps.t, episode))
    sorted_episode, sorted_t = episode[order], steps.t[order]
    double = np.flatnonzero((np.diff(sorted_episode) == 0) & (np.diff(sorted_t) == 0))
    if len(double):
        row = int(order[double[0]])
        raise UsageError(f"step {steps.t[row]} of episode {steps.episode_id[row]} is in the table twice")
    return order, np.bincount(sorted_episode)


def next_in_episode(steps: StepTable, values: Floats, last: Floats | float = 0.0) -> Floats:
    """The value of the step that follows each in its episode, ``last`` where none does, shape (N,)."""
    order, lengths = steps_in_order(steps)
    out = np.empty(len(steps))
    out[order[:-1]] = values[order[1:]]
    ends = order[np.cumsum(lengths) - 1]
    out[ends] = np.broadcast_to(last, out.shape)[ends]
    return out


def backward_sums(values: Floats, lengths: Ints, decay: float | Floats) -> Floats:
    """S_i = values_i + decay_i · S_{i+1} within each run of values, shape (M,).

    Args:
        values: Shape (M,), run after run.
        lengths: Length of each run; they add up to M, and may be 0.
        decay: Factor per position, one for all or shape (M,).
    """
    sums, factor = values.astype(np.float64), np.broadcast_to(np.asarray(decay, np.float64), values.shape)
    # All runs at once, backwards from their last values: as many turns as the longest run is long.
    by_length = np.argsort(-lengths, kind="stable")
    ends, lengths = (np.cumsum(lengths) - 1)[by_length], lengths[by_length]
    for back in range(1, int(lengths.max(initial=0))):
        here = ends[: np.searchsorted(-lengths, -back, side="left")] - back
        sums[here] += factor[here] * sums[here + 1]
    return sums


def generalised_advantages(
    reward: Floats, value: Floats, lengths: Ints, gamma: float, lam: float, goes_on: NDArray[np.bool_] | None = None
) -> Floats:
    """Generalised advantage estimates (Schulman et al. 2016, Eq. 16) within each run, shape (M,).

    A_i = Σ_l (gamma lam)^l δ_{i+l} with δ_i = r_i + gamma V_{i+1} - V_i; the value after the end of a run is 0.

    Args:
        reward: Shape (M,), run after run.
        value: Shape (M,).
        lengths: Length of each run.
        gamma: Discount.
        lam: λ; 0 trusts the values, 1 the rewards.
        goes_on: Where this is true at the last value of a run, that value follows it instead of 0, shape (M,).
    """
    last = (np.cumsum(lengths) - 1)[lengths > 0]
    following = np.append(value[1:], 0.0)[: len(value)]
    following[last] = 0.0 if goes_on is None else np.where(goes_on[last], value[last], 0.0)
    return backward_sums(reward + gamma * following - value, lengths, gamma * lam)


def step_advantages(steps: StepTable, value: Floats, gamma: float, lam: float, bootstrap: bool = False) -> Floats:
    """Generalised advantages with the step as the unit of time, shape (N,).

    Args:
        steps: Step rows; a column ``row_score`` is added to the reward.
        value: Value of the state that each step answers, shape (N,).
        gamma: Discount per step.
        lam: λ.
        bootstrap: As :func:`cut_off` says, an episode that was cut off goes on with its last value.

    Raises:
        MissingColumn: There is no column ``truncated``, which ``bootstrap`` reads.
        UsageError: A step is there twice.
    """
    order, lengths = steps_in_order(steps)
    reward = steps.reward + row_score(steps)
    goes_on = cut_off(steps)[order] if bootstrap else None
    out = np.empty(len(steps))
    out[order] = generalised_advantages(reward[order], value[order], lengths, gamma, lam, goes_on)
    return out


def cut_off(steps: StepTable) -> NDArray[np.bool_]:
    """Whether the episode of each row was cut off before its task came to an end, shape (N,).

    What comes after is then worth something. The observation that it ended with was never asked about, so the value of
    the last state that was stands for it, as in the code of HiPER's authors.

    Raises:
        MissingColumn: There is no column ``truncated``.
    """
    return steps.column(TRUNCATED, "bootstrap", SUPPLIERS[TRUNCATED]).astype(np.bool_)


def explained_variance(value: Floats, target: Floats) -> float:
    """Share of the targets' variance that the values explain: 1 - var(target - value) / var(target)."""
    variance = float(np.var(target)) if len(target) else 0.0
    return 1.0 - float(np.var(target - value)) / variance if variance > 0.0 else 0.0


def value_diagnostics(value: Floats, advantage: Floats) -> dict[str, float]:
    """Returns the mean of a critic's values, and the share of the variance of value + advantage that they explain."""
    return {"value_mean": mean_of(value), "explained_variance": explained_variance(value, value + advantage)}


def env_reward(steps: StepTable) -> Floats:
    """The environment's own reward of each step, before shaping, shape (N,)."""
    return np.asarray(steps.extra.get(ENV_REWARD, steps.reward), np.float64)


def row_score(steps: StepTable) -> Floats:
    """The column ``row_score``, zeros where there is none, shape (N,).

    Raises:
        UsageError: A value is not finite.
    """
    if ROW_SCORE not in steps.extra:
        return np.zeros(len(steps))
    return finite_column(steps, ROW_SCORE, "a return", "the shaper invalid_action_penalty")


def finite_column(steps: StepTable, name: str, method: str, supplied_by: str) -> Floats:
    """The extra column ``name`` as float64, shape (N,) or (N, …).

    Raises:
        MissingColumn: It is not there; the message names the method and what would supply it.
        UsageError: A value is not finite; the message names the column and the first such step.
    """
    values = np.asarray(steps.column(name, method, supplied_by), np.float64)
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        where = describe_row(steps, int(bad[0][0]))
        raise UsageError(f"column {name!r} is {values[tuple(bad[0])]} in {where}; every value must be finite")
    return values
