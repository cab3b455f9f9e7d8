"""Recorded cases of Tree-GRPO, with the options that reproduce the original."""

from __future__ import annotations

import numpy as np

from benchmarks.golden_data import step_table
from benchmarks.golden_dispatch import Case, Outcome, handles
from trainers.credit.estimators.comparison import StateComparison
from trainers.credit.estimators.groups import first_rows, group_codes
from trainers.credit.estimators.tree_grpo import TreeGRPO
from trainers.steps.columns import TREE


@handles(
    "treegrpo",
    "tree_grpo tree_grpo_2norm",
    "compute_grpo_outcome_advantage (by prompt and by tree), summed",
    "compute_tree_grpo_outcome_advantage",
)
def _(case: Case) -> Outcome:
    epsilon, ddof = case.number("epsilon"), int(case.take("ddof"))
    compare = StateComparison.from_preset("verl", epsilon=epsilon, ddof=ddof)
    estimator = TreeGRPO("sum" if "intra_part_per_traj" in case.expect else "tree_2norm", "raw", compare)
    rows = case.data["steps"]
    tree = group_codes(np.array([row["tree_id"] for row in rows], object))
    found = estimator(step_table(case.data).with_columns(**{TREE: tree}))
    assert found.per_step is not None
    first = first_rows(group_codes(np.array([row["traj_id"] for row in rows], object)))
    names = [rows[row]["traj_id"] for row in first]
    parts = {"advantage": found.per_step, **{f"{name}_part": term for name, term in found.terms.items()}}
    values = {f"{name}_per_traj": dict(zip(names, part[first].tolist(), strict=True)) for name, part in parts.items()}
    return Outcome(values, str(estimator))
