"""Recorded cases of the methods whose critic has several outputs, with the options that reproduce each original."""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.golden_data import TokenRows, step_table
from benchmarks.golden_dispatch import Case, Outcome, handles
from trainers.credit.estimators.groups import Floats
from trainers.credit.estimators.hiper import HiPER
from trainers.credit.estimators.vetta import VETTA
from trainers.credit.shapers import InvalidActionPenalty
from trainers.steps import StepTable, columns


def _charged(case: Case) -> tuple[StepTable, InvalidActionPenalty]:
    """The step rows, with the penalty in the reward of the invalid step."""
    shaper = InvalidActionPenalty(case.number("invalid_action_penalty_coef", 0.0))
    return shaper(step_table(case.data)), shaper


def _tokens(case: Case) -> TokenRows:
    return TokenRows.of(case.data, "float64")


def _dense(case: Case, flat: Floats) -> Floats:
    return _tokens(case).dense(torch.from_numpy(np.ascontiguousarray(flat)))


@handles("paper2", "vetta", "refs.vetta")
def _(case: Case) -> Outcome:
    steps, shaper = _charged(case)
    estimator = VETTA(
        case.number("gamma_turn"), case.number("lam_turn"), case.number("gamma_token"), case.number("lam_token"),
        case.number("alpha"),
    )  # fmt: skip
    steps = steps.with_columns(**{columns.VALUE: np.array([row["value_turn"] for row in case.data["steps"]])})
    steps = steps.with_token_columns(**{columns.VALUE: _tokens(case).column("value_token").numpy()})
    turn, token = estimator.levels(steps)
    of_turn, of_token = estimator.returns(steps)
    values = {
        "turn_advantage_per_row": turn,
        "token_advantage": _dense(case, token),
        "token_residual": _dense(case, estimator.residual(steps, token)),
        "advantage": _dense(case, estimator(steps).tokens(steps)),
        "turn_return_per_row": of_turn,
        "token_return": _dense(case, of_token),
    }
    return Outcome(values, f"{shaper} {estimator}")


def _planned(case: Case, steps: StepTable) -> StepTable:
    """The columns of planned answers: token 0 is the switch, token 1 the subgoal, the others the action."""
    rows = case.data["steps"]
    place = np.arange(len(steps.response.values)) - steps.response.offsets[steps.response.row_of]
    switch = np.array([row["switch"] for row in rows], np.bool_)
    recorded = {columns.VALUE_HIGH: "value_high", columns.VALUE_LOW: "value_low", columns.VALUE_SWITCH: "value_term"}
    values = {name: np.array(case.data["tokens"][key], np.float64)[:, 0] for name, key in recorded.items()}
    block = np.minimum(place + 1, columns.BLOCKS["action"]).astype(np.int8)
    return steps.with_token_columns(**{columns.BLOCK: block}).with_columns(**{
        columns.SWITCH: switch,
        columns.SEGMENT: switch | (steps.t == 0),
        columns.SWITCH_PROBABILITY: np.array([row["switch_probability"] for row in rows]),
        columns.TRUNCATED: np.array([row["truncated"] for row in rows], np.bool_),
        **values,
    })  # fmt: skip


def _levels(estimator: HiPER, steps: StepTable) -> dict[str, Floats]:
    found = estimator.segments(steps)
    return {
        "low_advantage_per_row": estimator._normalise(found.low),
        "high_advantage_per_row": np.where(found.starts, estimator._normalise(found.high, found.starts), 0.0),
    }


@handles("hiper", "hiper", "compute_hae_advantage")
def _(case: Case) -> Outcome:
    steps, shaper = _charged(case)
    spread = case.one_of("keep_penalty_mode", {None: False, "normalized": True})
    cost = -case.number("keep_penalty", 0.0)
    estimator = HiPER(
        case.number("gamma"), case.number("lam_turn"), case.number("lam_seg"),
        switch=case.one_of("term", {True: "hiper_code", False: "none"}),
        normalise=bool(case.take("norm_adv", False)),
        end=case.one_of("bootstrap_truncated", {None: "zero", False: "zero", True: "hiper_code"}),
        hiper_code_keep=0.0 if spread else cost,
        hiper_code_keep_spread=cost if spread else 0.0,
    )  # fmt: skip
    steps = _planned(case, steps)
    high, low, *switch = estimator.returns(steps)
    values = _levels(estimator, steps) | {
        "high_return_per_row": high,
        "low_return_per_row": low,
        "advantage": _dense(case, estimator(steps).tokens(steps)),
    }
    if switch:
        values["term_advantage_per_row"] = estimator._normalise(estimator.switching(steps))
        values["term_return_per_row"] = switch[0]
    return Outcome(values, f"{shaper} {estimator}")


@handles("paper2", "hiper_paper", "refs.hiper_paper")
def _(case: Case) -> Outcome:
    estimator = HiPER(case.number("gamma"), case.number("lam_low"), case.number("lam_high"), normalise=False)
    steps = _planned(case, step_table(case.data))
    return Outcome(_levels(estimator, steps) | {"switch_advantage_per_row": estimator.switching(steps)}, str(estimator))
