"""Recorded cases of the methods that compare or value single steps, with the options that reproduce each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from benchmarks.golden_data import Json, step_table
from benchmarks.golden_dispatch import Case, Outcome, Rounding, computes_unit, handles
from benchmarks.golden_estimators import NORMALISE, penalised
from trainers.credit.estimators.bipace import ACTION, LEAVE_ONE_OUT, PACE, SINGLETON, BiPACE, credit_diff, credit_q
from trainers.credit.estimators.clustering import greedy_clusters
from trainers.credit.estimators.comparison import StateComparison
from trainers.credit.estimators.gigpo import GiGPO
from trainers.credit.estimators.groups import Floats, Ints, group_codes, group_statistics
from trainers.credit.estimators.hgpo import HGPO
from trainers.credit.estimators.returns import discounted_returns, episode_returns
from trainers.credit.estimators.steppo import StepPO
from trainers.credit.scpo import SCPO, failure_table, match_credit
from trainers.steps import StepTable
from trainers.steps.columns import EMBEDDING, STEP_SCORE, VALUE


@handles("paper", "hgpo_paper", "paper_ref.hgpo_paper")
def _(case: Case) -> Outcome:
    steps = step_table(case.data)
    estimator = HGPO(
        depth=int(case.take("K")),
        alpha=case.number("alpha"),
        gamma=case.number("gamma"),
        compare=StateComparison(ddof=case.one_of("ddof", {0: 0, 1: 1}), epsilon=case.number("epsilon")),
        omit_zero=case.flag("omit_zero_advantage"),
    )
    returns, (groups, exists) = discounted_returns(steps, estimator.gamma), estimator.levels(steps)
    values = {
        "advantage_per_row": estimator(steps).per_step,
        "level_advantage_per_row": estimator.items(steps, returns, groups, exists).T,
        "level_group_size_per_row": np.stack([group_statistics(returns, group).size for group in groups]).T,
    }
    return Outcome(values, str(estimator))


@handles(
    "verl-agent",
    "hgpo",
    "core_hgpo.compute_hgpo_outcome_advantage",
    "core_hgpo.compute_hgpo_outcome_advantage [torch.float32->float64 at load]",
)
def _(case: Case) -> Outcome:
    steps, shaper = penalised(case)
    estimator = HGPO(
        depth=int(case.take("history_length")),
        alpha=case.number("length_weight_alpha"),
        gamma=case.number("gamma"),
        compare=StateComparison.from_preset(
            "verl-agent", normalise=case.one_of("mode", NORMALISE), ddof=0, epsilon=case.number("epsilon")
        ),
        short_history="skip",
        first_weight=2.0,
        weight_epsilon=1e-6,
        episode_term=case.flag("base_group"),
    )
    advantage, listed = estimator(steps).per_step, case.expect.get("rows_changed_by_rounding_noise", [])
    assert advantage is not None
    rounding = {}
    if listed or case.dtype == "float32":
        # The original keeps an item that is not exactly zero, noise too; the recording says in which rows it did.
        bound = _rounding_bound(estimator, steps) if case.dtype == "float32" else np.zeros(len(steps))
        bound[listed] = np.inf
        noisy = _hgpo_with_noise(estimator, steps, torch.float32 if case.dtype == "float32" else torch.float64)
        rounding["advantage_per_row"] = Rounding(bound, noisy, every_dtype=True)
    values = {"advantage_per_row": advantage, "advantage_per_row_noise_free": advantage}
    return Outcome(values, f"{shaper} {estimator}", rounding, skipped=(("rows_changed_by_rounding_noise", _NOISE),))


_NOISE = "which rows the original's rounding changed; said about the recording"


def _rounding_bound(estimator: HGPO, steps: StepTable) -> Floats:
    """What a few units in float32's last place of each return, mean and deviation can change, shape (N,)."""
    returns, (groups, exists) = discounted_returns(steps, estimator.gamma), estimator.levels(steps)
    compare, bounds = estimator.compare, []
    for group, item in zip(groups, estimator.items(steps, returns, groups, exists), strict=False):
        std = group_statistics(returns, group, ddof=compare.ddof).std
        scale = std + compare.epsilon if compare.normalise == "std" else np.ones(len(std))
        bounds.append(np.where(std > 0.0, 4 * 2.0**-24 * np.abs(returns).max() * (1 + np.abs(item)) / scale, 0.0))
    return np.asarray(np.max(bounds, axis=0))


def _hgpo_with_noise(estimator: HGPO, steps: StepTable, dtype: torch.dtype) -> Floats:
    """The same items in the original's arithmetic, where equal values may differ from their mean."""
    compare = estimator.compare

    def items(values: Floats, group: Ints, *, unbiased: bool = False) -> Floats:
        out, given = np.zeros(len(values)), torch.tensor(values, dtype=dtype)
        for code in np.unique(group):
            rows = np.flatnonzero(group == code)
            if len(rows) > 1:
                sample = given[torch.from_numpy(rows)]
                scale = sample.std(unbiased=unbiased) + compare.epsilon if compare.normalise == "std" else 1.0
                out[rows] = ((sample - sample.mean()) / scale).double().numpy()
        return out

    groups, exists = estimator.levels(steps)
    found = [items(discounted_returns(steps, estimator.gamma), group) for group in groups]
    noisy = np.stack(found) * exists
    if estimator.episode_term:
        noisy = np.vstack([noisy, items(episode_returns(steps), group_codes(steps.group_id), unbiased=True)])
    weights = estimator.weights()
    return np.asarray((weights @ noisy) / (weights @ (noisy != 0.0) + estimator.weight_epsilon))


@handles("StepPO", "steppo_gae", "compute_gae_advantage_return", "paper_ref.steppo_gae")
def _(case: Case) -> Outcome:
    steps = step_table(case.data).with_columns(**{VALUE: np.array([row["value"] for row in case.data["steps"]])})
    gamma, lam = case.number("gamma"), case.number("lam")
    estimator = StepPO(gamma, lam, whiten=case.origin == "peer-code")
    values = {
        "advantage_per_row": estimator(steps).per_step,
        "returns_per_row": estimator.returns(steps)[0],
        "advantage_before_whitening_per_row": estimator.raw(steps),
    }
    return Outcome(values, str(estimator))


_TAG = re.compile(r"<action>(.*?)</action>", re.DOTALL)
_BRANCH = {SINGLETON: "singleton", LEAVE_ONE_OUT: "loo", PACE: "pace"}


def _with_states_and_actions(case: Case) -> StepTable:
    rows = case.data["steps"]
    found = [_TAG.search(row["response_text"]) for row in rows]
    actions = np.empty(len(rows), object)
    actions[:] = [None if match is None else match[1].strip() for match in found]
    return step_table(case.data).with_columns(
        **{EMBEDDING: np.array([row["embedding"] for row in rows], np.float64), ACTION: actions}
    )


@handles("verl-agent", "bigpo_state_only", "paper_ref.bigpo_clusters + core_gigpo.step_norm_reward")
def _(case: Case) -> Outcome:
    steps = _with_states_and_actions(case)
    estimator = BiPACE(
        radius=case.number("cluster_eps"),
        credit="mean",
        step_weight=case.number("w"),
        gamma=case.number("gamma"),
        compare=StateComparison.from_preset("verl-agent", normalise=case.one_of("mode", NORMALISE)),
    )
    total, (episode, _) = estimator(steps).per_step, estimator.compare.episodes(steps)
    assert total is not None
    values = {
        "cluster_of_row": estimator.clusters(steps),
        "step_part_per_row": (total - episode) / estimator.step_weight,
        "advantage_per_row": total,
    }
    return Outcome(values, str(estimator), skipped=(("min_decision_margin", _MARGIN),))


_MARGIN = "how near the closest call of the clustering was; said about the recording"


@handles("verl-agent", "bipace", "paper_ref.pace + core_gigpo.episode_norm_reward")
def _(case: Case) -> Outcome:
    steps = _with_states_and_actions(case)
    estimator = BiPACE(
        radius=case.number("cluster_eps"),
        credit=case.one_of("estimator", {"q_style": "q", "counterfactual": "diff"}),
        action_key=case.one_of("action_key", {"action_tag": "action_tag", "first_n": "first_tokens"}),
        action_tokens=int(case.take("n_action_tokens")),
        step_weight=case.number("w"),
        gamma=case.number("gamma"),
        compare=StateComparison.from_preset("verl-agent", normalise=case.one_of("episode_mode", NORMALISE)),
    )
    cluster, key = estimator.clusters(steps), estimator.action_keys(steps)
    by_action = credit_q if estimator.credit == "q" else credit_diff
    step, branch = by_action(discounted_returns(steps, estimator.gamma), cluster, key)
    values = {
        "cluster_of_row": cluster,
        "action_key_of_row": key,
        "branch_of_row": [_BRANCH[code] for code in branch.tolist()],
        "step_part_per_row": step,
        "episode_part_per_row": estimator.compare.episodes(steps)[0],
        "advantage_per_row": estimator(steps).per_step,
    }
    return Outcome(values, str(estimator))


NO_OP = "Nothing happens."


@handles("verl-agent", "scpo", "paper_ref.scpo_shape + core_gigpo.compute_gigpo_outcome_advantage")
def _(case: Case) -> Outcome:
    rows = case.data["steps"]
    steps, penalty = penalised(case)
    out = [not row["is_action_valid"] or row["next_observation"] == NO_OP for row in rows]
    texts = np.empty(len(rows), object)
    texts[:] = [None if left_out else row["step_text"] for row, left_out in zip(rows, out, strict=True)]
    steps = steps.with_columns(step_text=texts)
    shaper = SCPO(
        alpha=case.number("alpha"),
        threshold=case.number("theta"),
        base=case.number("lam"),
        success_above=case.number("tau_succ"),
        reference=case.one_of("select", {"longest": "longest", "shortest": "shortest"}),
        order=case.one_of("order", {"chronological": "chronological", "longest_response_first": "longest_first"}),
        monotonic=case.flag("monotonic", True),
    )
    gamma = case.number("gamma")
    number = {row["step_text"]: int(row["step_text_id"]) for row in rows}
    similarity = np.array(case.data["step_text_similarity"], np.float64)

    def recorded(pairs: Sequence[tuple[str, str]]) -> Floats:
        return np.array([similarity[number[one], number[other]] for one, other in pairs], np.float64)

    credit = shaper.credit(steps, recorded)
    shaped = steps.with_columns(**{STEP_SCORE: shaper.alpha * credit})
    # The recorded returns are those before the penalty, the recorded advantages those with it.
    without_penalty = step_table(case.data, row_order=True).with_columns(**{STEP_SCORE: shaper.alpha * credit})
    found = {rows[own[0]]["group_id"]: rows[own[0]]["traj_id"] for own, _ in shaper.references(steps)}
    gigpo = GiGPO(gamma=gamma, compare=StateComparison.from_preset("verl-agent"))
    centred = replace(gigpo, compare=StateComparison.from_preset("verl-agent", normalise="mean"))
    values = {
        "credit_per_row": credit,
        "shaped_return_per_row": discounted_returns(without_penalty, gamma),
        "reference_traj_of_group": {row["group_id"]: found.get(row["group_id"]) for row in rows},
        "filtered_rows": np.flatnonzero(out).tolist(),
        "gigpo_mean_std_norm_advantage_per_row": gigpo(shaped).per_step,
        "gigpo_mean_norm_advantage_per_row": centred(shaped).per_step,
    }
    return Outcome(values, f"{penalty} {shaper} {gigpo}")


@computes_unit("similarity", "self_similarity", "theta", "soft_base", "permutation", "next")
def matcher_unit(case: Json, _: list[Json]) -> Outcome:
    """A unit case of SCPO's matcher."""
    similarity, own = np.array(case["similarity"], np.float64), np.array(case["self_similarity"], np.float64)
    threshold, base = float(case["theta"]), float(case["soft_base"])
    table, played = failure_table(own, threshold), np.arange(similarity.shape[1])

    def credit(order: Ints, *, monotonic: bool = True) -> Floats:
        alike, found = similarity.tolist(), np.zeros(len(order))
        found[order] = match_credit(alike, table, order.tolist(), threshold=threshold, base=base, monotonic=monotonic)
        return found

    values = {
        "next": table,
        "credit_chronological": credit(played),
        "credit_permuted": credit(np.array(case["permutation"], np.int64)),
        "credit_no_monotonicity": credit(played, monotonic=False),
    }
    return Outcome(values, f"match_credit(threshold={threshold}, base={base})")


@computes_unit("vectors", "vectors_from_case", "eps", "labels")
def clustering_unit(case: Json, cases: list[Json]) -> Outcome:
    """A unit case of BiPACE's clustering; its vectors may be those of an earlier case."""
    source = case if case["vectors"] is not None else cases[int(case["vectors_from_case"])]
    vectors = np.array(source["vectors"], np.float64)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    labels = greedy_clusters(vectors, np.zeros(len(vectors), np.int64), float(case["eps"]))
    return Outcome({"labels": labels}, f"greedy_clusters(radius={case['eps']})")
