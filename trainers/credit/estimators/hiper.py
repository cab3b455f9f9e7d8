"""HiPER: segments of one subgoal, credited by what follows a segment, and the turns in it by its own end."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal

import numpy as np

from trainers.credit.estimators.base import Advantage, CriticValue, ValueBased, register
from trainers.credit.estimators.groups import Bools, Floats, all_equal, episode_codes, mean_abs
from trainers.credit.estimators.returns import backward_sums, row_score, steps_in_order, value_diagnostics
from trainers.settings import Fraction, NotNegative
from trainers.steps import Ragged, StepTable
from trainers.steps.columns import (
    BLOCK,
    BLOCKS,
    LOW_START,
    SEGMENT,
    SUPPLIERS,
    SWITCH,
    SWITCH_PROBABILITY,
    TRUNCATED,
    VALUE_HIGH,
    VALUE_LOW,
    VALUE_SWITCH,
)

EPSILON = 1e-8


@dataclass(frozen=True)
class Segments:
    """Advantages of segments and turns, in the table's order, shape (N,)."""

    low: Floats
    high: Floats
    """0 where no segment begins."""
    rest: Floats
    """Discounted rewards of the rest of the segment, plus the value of what comes after it."""
    starts: Bools


@register("hiper")
@dataclass(frozen=True)
class HiPER(ValueBased):
    """Hierarchical advantages (arXiv 2602.16165) of answers with blocks for switch, subgoal and action.

    A segment begins at the first turn and where the agent switches. Low: generalised advantages over the turns of a
    segment with V_low, whose last turn is followed by V_high of the next segment; for the tokens of the action. High:
    the same over segments as steps, with V_high, the discounted reward of the segment and discount gamma^length; for
    the subgoal's tokens where a segment begins. Switch: (q - p) (V_high - V_low), with q whether the agent switches
    and p how probable that was; for the tokens of the switch. Other tokens have 0; a turn without action block has the
    low advantage throughout.
    """

    gamma: Fraction = 1.0
    """Discount per turn."""
    lam: Fraction = 1.0
    """λ over the turns of a segment."""
    lam_segment: Fraction = 0.95
    """λ over segments."""
    switch: Literal["paper", "hiper_code", "none"] = "paper"
    """Advantage of the switch: the paper's; or, as in the authors' code, the segment's discounted rewards from the turn
    on plus V_high of the next one, minus a third value; or none."""
    normalise: bool = True
    """Centre each of the three over the turns that have it, and divide by their population deviation."""
    end: Literal["zero", "hiper_code"] = "zero"
    """Value after the last turn of an episode that was cut off: 0; or, as in the authors' code for ALFWorld, those of
    the last turn itself (V_low) and of its segment's begin (V_high)."""
    hiper_code_keep: NotNegative = 0.0
    """Charged, in the authors' code only, for each turn that keeps its subgoal (ALFWorld: 0.3)."""
    hiper_code_keep_spread: NotNegative = 0.0
    """The same as (this · share of such turns / number of such turns) for each of them (WebShop: 3.5)."""
    hiper_code_changed: NotNegative = 0.0
    """Charged, in the authors' code only, for each turn that keeps its subgoal and words it otherwise (0.3)."""

    per = "token"
    """Tokens of different blocks have different advantages."""

    own_terms = ("high",)
    """The advantage of segments: where no subgoal is written, turns alone are credited."""

    @property
    def values(self) -> tuple[CriticValue, ...]:
        """V_high before the response, learnt where a segment begins; V_low after the subgoal; the switch's third."""
        outputs = (CriticValue(VALUE_HIGH, learns=SEGMENT), CriticValue(VALUE_LOW, at=LOW_START))
        return (*outputs, CriticValue(VALUE_SWITCH)) if self.switch == "hiper_code" else outputs

    @property
    def needs(self) -> tuple[str, ...]:
        """The critic's values, and the blocks."""
        paper = (SWITCH, SWITCH_PROBABILITY) if self.switch == "paper" else ()
        return (*super().needs, BLOCK, *paper, *((TRUNCATED,) if self.end == "hiper_code" else ()))

    def __call__(self, steps: StepTable) -> Advantage:
        """One advantage per response token.

        Raises:
            MissingColumn: A value or a column of the blocks is not there.
            UsageError: A value is not finite, or a step is there twice.
        """
        block = steps.token_column(BLOCK, "hiper", SUPPLIERS[BLOCK])
        row, segments = steps.response.row_of, self.segments(steps)
        low, high = self._normalise(segments.low), self._normalise(segments.high, segments.starts)
        switch = self.switching(steps)
        acts = np.bincount(row[block == BLOCKS["action"]], minlength=len(steps)) > 0
        terms = {
            "low": np.where((block == BLOCKS["action"]) | ~acts[row], low[row], 0.0),
            "high": np.where((block == BLOCKS["subgoal"]) & segments.starts[row], high[row], 0.0),
            "switch": np.where(block == BLOCKS["switch"], self._normalise(switch)[row], 0.0),
        }
        of_low = self.values[1].column(steps, "hiper")
        turns, plan_rows = max(len(steps), 1), np.unique(row[block == BLOCKS["subgoal"]])
        diagnostics = {
            **value_diagnostics(of_low, segments.low),
            "segment_rate": float(segments.starts.sum()) / turns,
            "planned_rate": len(plan_rows) / turns,
            "low_abs": mean_abs(segments.low),
            "high_abs": mean_abs(segments.high[segments.starts]),
            "switch_abs": mean_abs(switch),
        }
        whole = terms["low"] + terms["high"] + terms["switch"]
        return Advantage(per_token=whole, diagnostics=diagnostics, terms=terms)

    def segments(self, steps: StepTable) -> Segments:
        """Returns the advantages of turns and segments before they are normalised."""
        v_high, v_low = (value.column(steps, "hiper") for value in self.values[:2])
        order, lengths = steps_in_order(steps)
        starts = self._starts(steps)[order]
        reward, v_high, v_low = self.reward(steps)[order], v_high[order], v_low[order]
        first = np.flatnonzero(starts)
        size = np.diff(np.append(first, len(order)))
        last = first + size - 1
        ends = np.isin(last, np.cumsum(lengths)[lengths > 0] - 1)
        after = np.append(v_high[first[1:]], 0.0)[: len(first)]
        end_low = end_high = np.zeros(len(first))
        if self.end == "hiper_code":
            cut = steps.column(TRUNCATED, "hiper", SUPPLIERS[TRUNCATED]).astype(np.bool_)[order][last]
            end_low, end_high = np.where(cut, v_low[last], 0.0), np.where(cut, v_high[first], 0.0)
        after_low, after_high = np.where(ends, end_low, after), np.where(ends, end_high, after)

        following = np.append(v_low[1:], 0.0)[: len(order)]
        following[last] = after_low
        low = backward_sums(reward + self.gamma * following - v_low, size, self.gamma * self.lam)
        gains = reward.copy()
        gains[last] += self.gamma * after_high
        to_go = backward_sums(gains, size, self.gamma)
        # A segment is a step of discount gamma^length; at its first turn ``to_go`` has its rewards and the next value.
        of_episode = np.bincount(np.repeat(np.arange(len(lengths)), lengths)[first], minlength=len(lengths))
        decay = self.gamma**size * self.lam_segment
        high = np.zeros(len(order))
        high[first] = backward_sums(to_go[first] - v_high[first], of_episode, decay)
        row = np.empty(len(order), np.int64)
        row[order] = np.arange(len(order))
        return Segments(low[row], high[row], to_go[row], starts[row])

    def switching(self, steps: StepTable) -> Floats:
        """Returns the advantage of the switch before it is normalised, shape (N,)."""
        if self.switch == "none":
            return np.zeros(len(steps))
        if self.switch == "hiper_code":
            return self.segments(steps).rest - self.values[2].column(steps, "hiper")
        high, low = (value.column(steps, "hiper") for value in self.values[:2])
        columns = (steps.column(name, "hiper", SUPPLIERS[name]) for name in (SWITCH, SWITCH_PROBABILITY))
        switch, probability = (column.astype(np.float64) for column in columns)
        return np.asarray((switch - probability) * (high - low), np.float64)

    def returns(self, steps: StepTable) -> tuple[Floats, ...]:
        """Returns the critic's targets: V + A of each level; of the third value what it is compared with."""
        segments = self.segments(steps)
        high, low = (value.column(steps, "hiper") for value in self.values[:2])
        return (segments.high + high, segments.low + low, segments.rest)[: len(self.values)]

    def reward(self, steps: StepTable) -> Floats:
        """Returns the rewards, less what the options charge for turns that keep their subgoal, shape (N,)."""
        reward, keeps = steps.reward + row_score(steps), ~self._starts(steps)
        reward = reward - self.hiper_code_keep * keeps
        if self.hiper_code_keep_spread:
            episode = episode_codes(steps)
            # share of the turns / number of the turns = 1 / length of the episode
            reward = reward - self.hiper_code_keep_spread * keeps / np.bincount(episode)[episode]
        if self.hiper_code_changed:
            reward = reward - self.hiper_code_changed * (keeps & self._rewords(steps))
        return np.asarray(reward, np.float64)

    def _rewords(self, steps: StepTable) -> Bools:
        """Whether the tokens of a turn's subgoal differ from those of the turn before."""
        block = Ragged(steps.token_column(BLOCK, "hiper", SUPPLIERS[BLOCK]), steps.response.offsets)
        order, _ = steps_in_order(steps)
        own = (steps.response[row][block[row] == BLOCKS["subgoal"]] for row in order.tolist())
        subgoals = [tokens.astype(np.int64).tobytes() for tokens in own]
        out = np.zeros(len(steps), np.bool_)
        out[order[1:]] = [previous != current for previous, current in itertools.pairwise(subgoals)]
        return out

    def _starts(self, steps: StepTable) -> Bools:
        """Whether a segment begins at each row; the first turn of an episode always does."""
        order, lengths = steps_in_order(steps)
        out = steps.column(SEGMENT, "hiper", SUPPLIERS[SEGMENT]).astype(np.bool_)
        out[order[(np.cumsum(lengths) - lengths)[lengths > 0]]] = True
        return out

    def _normalise(self, values: Floats, has: Bools | None = None) -> Floats:
        """Normalises over the rows that have the advantage."""
        own = values if has is None else values[has]
        if not self.normalise or not len(own):
            return values
        if all_equal(own):
            return np.zeros(len(values))
        return np.asarray((values - own.mean()) / (own.std() + EPSILON), np.float64)
