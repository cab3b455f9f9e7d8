"""What a method, a shaper or a filter cannot work with is refused by name: columns, values, settings."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from step_tables import table_of

from envsuite.core.errors import EnvsuiteError
from trainers.credit.estimators import ESTIMATORS, Estimator
from trainers.credit.estimators.bipace import BiPACE
from trainers.credit.estimators.comparison import CENTRED, StateComparison
from trainers.credit.estimators.dr_grpo import DrGRPO
from trainers.credit.estimators.gigpo import GiGPO
from trainers.credit.estimators.gpg import GPG
from trainers.credit.estimators.groups import similar_codes
from trainers.credit.estimators.hiper import HiPER
from trainers.credit.estimators.opo import OPO
from trainers.credit.estimators.ppo import PPO
from trainers.credit.estimators.reinforce_pp import ReinforcePP
from trainers.credit.estimators.returns import discounted_returns
from trainers.credit.filters import FILTERS, LowSpread
from trainers.credit.scpo import SCPO
from trainers.credit.shapers import SHAPERS, InvalidActionPenalty, KLPenalty
from trainers.credit.spear import Spear
from trainers.credit.spear.replay import ReplayConfig
from trainers.settings import checked
from trainers.steps import StepTable
from trainers.steps.columns import (
    BLOCK,
    ITERATION,
    LOW_START,
    OLD,
    REFERENCE,
    ROW_SCORE,
    SUPPLIERS,
    SWITCH_PROBABILITY,
    MissingColumn,
)

STEPS = table_of([(0, 4, 0, 1.0, "a", True), (0, 7, 3, 0.0, "a", True)])
STEPS = STEPS.with_columns(cut=np.zeros(2, np.bool_), iteration=np.ones(2, np.int64), step_text=STEPS.extra["action"])
STEPS = STEPS.with_columns(**{ROW_SCORE: np.zeros(2)}).with_token_columns(**{REFERENCE: np.zeros(4)})
METHODS = [
    *(kinds[name]() for kinds in (ESTIMATORS, SHAPERS, FILTERS) for name in kinds),
    *(BiPACE(embedder="identity"), PPO(bootstrap=True), HiPER(end="hiper_code")),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_a_column_that_is_missing_is_named_with_what_supplies_it(method):
    method(STEPS)
    for name in set(method.needs) - {OLD, LOW_START}:  # which the loss and the critic read
        bare = replace(
            STEPS,
            extra={key: column for key, column in STEPS.extra.items() if key != name},
            token_extra={key: column for key, column in STEPS.token_extra.items() if key != name},
        )
        said = "the trainer" if name == ITERATION else re.escape(SUPPLIERS[name].partition(";")[0])
        with pytest.raises(MissingColumn, match=rf"needs the (token )?column '{name}', which {said}"):
            method(bare)


def _damaged(column: str, wrong: float) -> StepTable:
    """The steps with a wrong value in the second one, if the column has numbers."""
    steps = STEPS
    if (values := steps.extra.get(column, steps.t)).dtype == np.float64:
        values = values.copy()
        values[1] = wrong
        steps = steps.with_columns(**{column: values})
    if column in steps.token_extra and column != BLOCK:
        values = steps.token_extra[column].values
        steps = steps.with_token_columns(**{column: np.where(np.arange(4) == 2, wrong, values)})
    return steps


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("method", [method for method in METHODS if isinstance(method, Estimator)], ids=repr)
def test_a_value_that_is_not_finite_is_named_with_its_step(method, wrong):
    for column in set(method.needs or [ROW_SCORE]) - {SWITCH_PROBABILITY}:
        if (steps := _damaged(column, wrong)) is not STEPS:
            said = rf"'{column}' is ({wrong} in row 1|not finite.* in row 1 \(episode 7, step 3\))"
            with pytest.raises(EnvsuiteError, match=said):
                method(steps)


def _made(name: str, **options: Any) -> object:
    return checked(ESTIMATORS[name], options, f"option of estimator {name}")


def _with(**columns: Any) -> StepTable:
    return STEPS.with_columns(**{name: np.array(column) for name, column in columns.items()})


@pytest.mark.parametrize(
    ("build", "words"),
    [
        # columns
        (lambda: table_of([(0, 0, 0, 0.0, "a", True), (0, 0, 1, np.nan, "b", True)]), "'reward' is nan in row 1"),
        (lambda: STEPS.with_token_columns(reward=np.zeros(3)), "'reward' must have one value for each response token"),
        (lambda: discounted_returns(STEPS.take(np.array([1, 1])), 0.9), "step 3 of episode 7 is in the table twice"),
        (lambda: similar_codes(np.zeros(1, np.int64), np.array([3], object), 0.9), "row 0 has 3, a int"),
        (lambda: BiPACE(embedder="ngram_hash")(replace(STEPS, state_key=np.array([3, 3], object))), "has 3, a int"),
        (lambda: BiPACE()(_with(embedding=[1.0, 1.0])), "column 'embedding' has shape (2,)"),
        (lambda: BiPACE()(_with(embedding=[[1.0], [0.0]])), "column 'embedding' is all zeros"),
        (
            lambda: ReinforcePP()(STEPS.with_token_columns(reward=np.array([0.0, np.inf, 0.0, 0.0]))),
            "'reward' is inf in row 0 (episode 4, step 0)",
        ),
        # names
        (lambda: ESTIMATORS["gigpoo"], "unknown estimator 'gigpoo'. Nearest: 'gigpo'"),
        (lambda: SHAPERS["invalid_penalty"], "Nearest: 'invalid_action_penalty'"),
        (lambda: FILTERS["zero_var"], "Nearest: 'zero_variance'"),
        (lambda: GPG(scale="all"), "GPG: unknown scale"),
        (lambda: InvalidActionPenalty(reach="rows"), "Nearest: 'row'"),
        (lambda: KLPenalty(estimator="k4"), "KLPenalty: unknown estimator 'k4'"),
        (lambda: SCPO(order="random"), "SCPO: unknown order 'random'"),
        (lambda: SCPO(scorer="exakt"), "unknown scorer 'exakt'"),
        (lambda: SCPO(scorer="sentence_embedder", scorer_options={"path": None}), "path is None"),
        (lambda: Spear(outcome="sing"), "Spear: unknown outcome 'sing'"),
        # numbers
        (lambda: GiGPO(gamma=1.5), "gamma is 1.5"),
        (lambda: InvalidActionPenalty(-0.1), "coef is -0.1"),
        (lambda: KLPenalty(-0.1), "coef is -0.1"),
        (lambda: LowSpread(1.0), "fraction is 1.0"),
        (lambda: PPO(scope="step", bootstrap=True), "bootstrap follows an episode, but scope is step"),
        (lambda: SCPO(alpha=-1.0), "alpha is -1.0"),
        (lambda: SCPO(base=1.0), "base is 1.0"),
        (lambda: Spear(decay=-1), "decay is -1"),
        (lambda: Spear(tools="python"), "tools is 'python'; it must be a list: [one, two]"),
        (lambda: checked(ReplayConfig, {"cov": [3.0, 2.0]}, "option"), "cov is [3.0, 2.0]"),
        # comparisons
        (lambda: DrGRPO(StateComparison("std")), "without normalise"),
        (lambda: OPO(replace(CENTRED, weigh="step")), "without weigh"),
        (lambda: GiGPO(compare={"ddof": 0}), "it must be an instance of StateComparison"),
        (lambda: _made("rloo", compare={"normalise": "std"}), "without normalise: read here are only weigh, singleton"),
        (lambda: _made("opo", compare={"weigh": "step"}), "without weigh: read here are only singleton"),
        (lambda: _made("gigpo", compare_step={"singleton": "raw"}), "without singleton"),
        (lambda: _made("grpo", compare="verlagent"), "unknown compare 'verlagent'. Nearest: 'verl-agent'"),
        (lambda: _made("grpo", compare={"ddof": 2}), "compare.ddof is 2"),
        (lambda: _made("grpo", compare=3), "compare is 3; it must be a section of settings"),
    ],
)
def test_what_cannot_work_is_refused_by_name(build, words):
    with pytest.raises(EnvsuiteError) as caught:
        build()
    assert words in str(caught.value)
