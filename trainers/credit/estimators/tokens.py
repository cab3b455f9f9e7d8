"""Functions shared by the methods with one advantage per token, and by those that whiten."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from envsuite.core.errors import UsageError
from trainers.credit.estimators.groups import Floats, Ints, all_equal, describe_row
from trainers.credit.estimators.returns import (
    backward_sums,
    cut_off,
    episode_returns,
    generalised_advantages,
    row_score,
    steps_in_order,
)
from trainers.steps import Ragged, StepTable
from trainers.steps.columns import SUPPLIERS, TOKEN_REWARD

Scope = Literal["episode", "step"]
Scale = Literal["variance", "std"]


@dataclass(frozen=True)
class TokenSequences:
    """The response tokens as sequences within which rewards are carried back."""

    index: Ints
    """Place of each token in ``response.values``, sequence after sequence, shape (M,)."""
    lengths: Ints
    """Number of tokens of each sequence."""
    reward: Floats
    """Reward of each token, in the order of ``index``."""

    def carry(self, values: Floats, decay: float) -> Floats:
        """:func:`backward_sums` of values in the order of ``index``, put in the order of ``response.values``."""
        return self.in_rows(backward_sums(values, self.lengths, decay))

    def in_rows(self, values: Floats) -> Floats:
        """Values in the order of ``index``, put in the order of ``response.values``."""
        out = np.empty(len(self.index))
        out[self.index] = values
        return out


def token_sequences(steps: StepTable, scope: Scope) -> TokenSequences:
    """The tokens of each episode in the order of its steps, or of each step alone.

    A step's reward is earned by its last token; that of a step without tokens by the last token before it in the
    episode. With ``scope="step"`` each step is an episode of its own that earns the return of the whole one
    (verl-agent). A token column ``reward`` is added.

    Raises:
        UsageError: A step is there twice, or a token's reward is not finite.
    """
    order, in_episode = steps_in_order(steps)
    tokens = steps.response.lengths[order]
    index = np.arange(len(steps.response.values))
    if (order[1:] < order[:-1]).any():
        index = Ragged(index, steps.response.offsets).take(order).values
    if scope == "step":
        lengths, score = tokens, episode_returns(steps)[order]
        last, first = np.cumsum(tokens) - 1, np.cumsum(tokens) - tokens
    else:
        lengths = np.bincount(np.repeat(np.arange(len(in_episode)), in_episode), tokens, len(in_episode))
        lengths = lengths.astype(np.int64)
        score = steps.reward[order] + row_score(steps)[order]
        last, first = np.cumsum(tokens) - 1, np.repeat(np.cumsum(lengths) - lengths, in_episode)
    reward = np.zeros(len(index))
    has_token = last >= first
    np.add.at(reward, last[has_token], score[has_token])
    if TOKEN_REWARD in steps.token_extra:
        reward += finite_tokens(steps, steps.token_extra[TOKEN_REWARD].values, TOKEN_REWARD)[index]
    return TokenSequences(index, lengths, reward)


def token_advantages(
    steps: StepTable, value: Floats, gamma: float, lam: float, scope: Scope = "episode", bootstrap: bool = False
) -> Floats:
    """Generalised advantages with the response token as the unit of time, one per response token.

    Args:
        steps: Step rows.
        value: Value of the text before each response token.
        gamma: Discount per token.
        lam: λ.
        scope: As in :func:`token_sequences`.
        bootstrap: As in :func:`~trainers.credit.estimators.returns.step_advantages`.

    Raises:
        MissingColumn: There is no column ``truncated``, which ``bootstrap`` reads.
        UsageError: A step is there twice, or a token's reward is not finite.
    """
    sequences = token_sequences(steps, scope)
    goes_on = cut_off(steps)[steps.response.row_of][sequences.index] if bootstrap else None
    value = value[sequences.index]
    return sequences.in_rows(generalised_advantages(sequences.reward, value, sequences.lengths, gamma, lam, goes_on))


def finite_tokens(steps: StepTable, values: Floats, name: str) -> Floats:
    """``values`` of a token column as float64.

    Raises:
        UsageError: One is not finite; the message names the column and the first such step.
    """
    values = np.asarray(values, np.float64)
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        where = describe_row(steps, int(steps.response.row_of[bad[0]]))
        raise UsageError(f"token column {name!r} is {values[bad[0]]} in {where}; every value must be finite")
    return values


def token_means(steps: StepTable, name: str, method: str) -> Floats:
    """Mean of the token column ``name`` over the response of each step, 0 for an empty one, shape (N,).

    Raises:
        MissingColumn: It is not there; the message names the method and what would supply it.
        UsageError: A value is not finite.
    """
    return row_means(steps, finite_tokens(steps, steps.token_column(name, method, SUPPLIERS[name]), name))


def row_means(steps: StepTable, values: Floats) -> Floats:
    """Mean of ``values``, one per response token, over the response of each step, 0 for an empty one, shape (N,)."""
    sums = np.bincount(steps.response.row_of, values, len(steps))
    return np.asarray(sums / np.maximum(steps.response.lengths, 1), np.float64)


def whiten(values: Floats, *, weight: Ints | None = None, epsilon: float = 1e-8, add_to: Scale = "variance") -> Floats:
    """Returns (value - mean) / sqrt(variance + epsilon) over the batch; 0 where all are equal or only one counts.

    Args:
        values: Shape (M,).
        weight: How often each value counts, shape (M,); once by default. A value that counts 0 times is scaled too.
        epsilon: Added to the sample's variance or standard deviation.
        add_to: Selects which of the two.
    """
    sample = values if weight is None else np.repeat(values, weight)
    if len(sample) < 2 or all_equal(sample):
        return np.zeros(len(values))
    low = float(sample.min())
    mean = low + float((sample - low).mean())
    variance = float(((sample - mean) ** 2).sum()) / (len(sample) - 1)
    scale = np.sqrt(variance) + epsilon if add_to == "std" else np.sqrt(variance + epsilon)
    out: Floats = (values - mean) / scale
    return out
