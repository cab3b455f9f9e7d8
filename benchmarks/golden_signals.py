"""Recorded cases of the methods that read signals of the policy: entropies, and log-probabilities in hindsight."""

from __future__ import annotations

import numpy as np

from benchmarks.golden_data import flat_tokens, step_table
from benchmarks.golden_dispatch import Case, Outcome, handles
from trainers.credit.estimators.comparison import StateComparison
from trainers.credit.estimators.empg import EMPG
from trainers.credit.estimators.hcapo import HCAPO
from trainers.credit.estimators.tokens import token_means
from trainers.steps import StepTable
from trainers.steps.columns import ENTROPY, HINDSIGHT


def _steps(case: Case, name: str, recorded: str) -> StepTable:
    return step_table(case.data).with_token_columns(**{name: flat_tokens(case.data, recorded)})


def _empg(case: Case, epsilon: float) -> EMPG:
    k, k_future, zeta = (case.number(name) for name in ("k", "k_f", "zeta"))
    return EMPG(k, k_future, zeta, StateComparison(ddof=1, epsilon=epsilon))


@handles("paper2", "empg", "refs.empg")
def _(case: Case) -> Outcome:
    case.one_of("ddof", {1: None})
    case.one_of("epsilon", {1e-8: None})  # of the range of the entropies
    estimator, steps = _empg(case, 0.0), _steps(case, ENTROPY, "entropy")
    values = {
        "step_entropy_per_row": token_means(steps, ENTROPY, "empg"),
        "entropy_scale_per_row": estimator.scale(steps),
        "clarity_per_row": estimator.clarity(steps),
        "episode_part_per_row": estimator.compare.episodes(steps)[0],
        "advantage_per_row": estimator(steps).per_step,
    }
    return Outcome(values, str(estimator))


@handles("empgport", "empg_port", "compute_EMPG_advantage")
def _(case: Case) -> Outcome:
    case.one_of("base", {"grpo over trajectories, ddof=1, epsilon=0": None})
    estimator = _empg(case, 0.0)
    return Outcome({"advantage_per_row": estimator(_steps(case, ENTROPY, "entropy")).per_step}, str(estimator))


@handles("paper2", "hcapo", "refs.hcapo")
def _(case: Case) -> Outcome:
    (low, high), smoothing = case.take("clip"), case.take("smoothing_alpha")
    estimator = HCAPO(
        weight=case.number("omega"),
        gamma=case.number("gamma"),
        temperature=case.number("temperature"),
        clip_low=1.0 - low,
        clip_high=high - 1.0,
        alpha=1.0 if smoothing is None else float(smoothing),
        over=case.one_of("scope", {"task_group": "task"}),
        harmless=bool(case.take("do_no_harm_mask")),
        compare=StateComparison(ddof=int(case.take("ddof")), epsilon=case.number("epsilon")),
    )
    steps = _steps(case, HINDSIGHT, "hindsight_log_prob")
    ratio = estimator.ratios(steps)
    value = estimator.values(steps, ratio)
    values = {
        "hindsight_probability_per_row": np.exp(token_means(steps, HINDSIGHT, "hcapo") / estimator.temperature),
        "ratio_per_row": ratio,
        "hindsight_q_per_row": value,
        "micro_part_per_row": estimator.step_term(steps, value),
        "episode_part_per_row": estimator.compare.episodes(steps)[0],
        "advantage_per_row": estimator(steps).per_step,
    }
    return Outcome(values, str(estimator))
