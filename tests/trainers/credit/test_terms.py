"""The terms of an advantage sum to it, under every method and its options."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from numpy.testing import assert_allclose
from step_tables import for_each, step_tables, table_of

from trainers.credit.estimators import ESTIMATORS, Estimator
from trainers.credit.inertness import term_metrics
from trainers.credit.recipes import recipe, recipes
from trainers.settings import make
from trainers.steps import StepTable

MORE: dict[str, list[dict[str, Any]]] = {
    "gigpo": [{"step_weight": 0.3}, {"step_weight": 0.0}, {"compare": {"normalise": "mean", "weigh": "step"}}],
    "hgpo": [
        {"depth": 0},
        {"omit_zero": False, "episode_term": True},
        {"short_history": "skip", "weight_epsilon": 1e-6, "first_weight": 2.0, "alpha": 0.5},
    ],
    "bipace": [
        {"step_weight": 0.5, "credit": "diff"},
        {"credit": "mean", "embedder": "identity"},
        {"embedder": "ngram_hash", "radius": 0.25, "action_key": "first_tokens"},
    ],
    "graphgpo": [{"graph_weight": 0.5, "episode_weight": 0.0}, {"exponent": "code", "penalise": True}],
    "g2po": [{"step_weight": 0.5}, {"step_weight": 0.0}],
    "pgpo": [{"beta": 0.0}, {"alpha": 0.0, "leave_one_out": True}],
    "gagpo": [{"over": "none"}],
    "rewardflow": [{"step_weight": 0.1, "arrival": "first"}, {"longest": "rewardflow_code", "penalise": True}],
    "tree_grpo": [{"combine": "tree_2norm"}, {"combine": "tree_inner"}, {"lone_leaf": "raw"}],
    "remax": [{"credit": "to_go"}],
    "ppo": [{"whiten": True, "scope": "step"}],
    "steppo": [{"whiten": True}],
}


def _cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every method with its defaults, the options above, and those of every recipe and variant."""
    yield from ((name, {}) for name in ESTIMATORS)
    yield from ((name, options) for name, found in MORE.items() for options in found)
    for name, entry in recipes().items():
        for variant in (name, *(f"{name}/{variant}" for variant in entry.variants)):
            method = recipe(variant).method
            yield method["estimator"], method.get("options", {})


CASES = {f"{name}-{options}": (name, options) for name, options in _cases()}


def _made(case: str) -> Estimator:
    name, options = CASES[case]
    return make(ESTIMATORS[name], options, "option")


@pytest.mark.seconds
@given(steps=step_tables())
@for_each(case=CASES)
def test_the_terms_sum_to_the_advantage(case: str, steps: StepTable) -> None:
    estimator = _made(case)
    advantage = estimator(steps)
    whole, terms = advantage.whole, advantage.summands
    assert all(term.shape == whole.shape and term.dtype == np.float64 for term in terms.values())
    assert_allclose(sum(terms.values()), whole, rtol=1e-9, atol=1e-9)
    assert set(estimator.distinguishing) <= set(terms) and set(advantage.groups) <= set(terms)
    assert all(group.shape == (len(steps),) for group in advantage.groups.values())


def _ordered(options: dict[str, Any]) -> bool:
    """Whether an option of the original's depends on the order of rows."""
    return bool(options.get("similarity")) or options.get("arrival") == "first"


@pytest.mark.seconds
@given(steps=step_tables())
@for_each(case=[case for case, (_, options) in CASES.items() if not _ordered(options)])
def test_what_the_terms_do_does_not_depend_on_the_order_of_rows(case: str, steps: StepTable) -> None:
    order = np.random.default_rng(len(steps)).permutation(len(steps))
    other = steps.take(order)
    estimator = _made(case)
    told = term_metrics(steps, estimator(steps))
    assert told == pytest.approx(term_metrics(other, estimator(other)), abs=1e-9)
    for name, value in told.items():
        if name.endswith(("/touched", "/singletons")):
            assert 0.0 <= value <= 1.0, name


@pytest.mark.parametrize("case", CASES)
def test_the_terms_of_an_empty_table_are_there_and_do_nothing(case: str) -> None:
    empty = table_of([])
    assert set(term_metrics(empty, _made(case)(empty)).values()) == {0.0}
