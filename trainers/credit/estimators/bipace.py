"""BiPACE: steps are compared within clusters of alike states, and credited by action."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from trainers.credit.estimators.base import Advantage, Calibrating, register
from trainers.credit.estimators.clustering import adaptive_radius, greedy_clusters, ngram_vectors, unit_vectors
from trainers.credit.estimators.comparison import STANDARD, Compared, Comparing
from trainers.credit.estimators.groups import (
    ROUNDING,
    Floats,
    Ints,
    first_rows,
    group_codes,
    group_diagnostics,
    group_statistics,
    mean_of,
)
from trainers.credit.estimators.returns import discounted_returns
from trainers.policy.config import Pooling
from trainers.settings import AtLeastOne, Fraction
from trainers.steps import StepTable
from trainers.steps.columns import EMBEDDING

Embedder = Literal["actor_hidden", "ngram_hash", "identity"]
Credit = Literal["q", "diff", "mean"]
ActionKey = Literal["action_tag", "first_tokens"]

ACTION = "action"
"""Column: the action of the step as text; None where the response holds none."""

SINGLETON, LEAVE_ONE_OUT, PACE = 0, 1, 2


@register("bipace")
@dataclass(frozen=True)
class BiPACE(Comparing, Calibrating):
    """Behavioural clusters and action-conditioned credit (Wang et al. 2026, Eq. 1 to 8).

    A = A^E + w A^S. A^E is GRPO's. For A^S the steps of a task are clustered by cosine distance of their states'
    fingerprints; in a cluster C, with the same action C⁼ and other actions C^≠, the return to go R is credited by
    ``q``: mean_{C⁼} R - mean_C R, or ``diff``: R - mean_{C^≠} R. Where C⁼ (or C^≠) has no other step, it is R minus the
    mean of the rest of the cluster; a step alone in its cluster gets 0.
    """

    embedder: Embedder = "actor_hidden"
    """Fingerprint of a state: the actor's hidden state (column ``embedding``), hashed character n-grams of the state
    key, or the key itself."""
    radius: Annotated[float, Field(ge=0, le=2)] | None = 0.10
    """ε: steps join a cluster within this cosine distance of its centroid (7B 0.10, 1.5B 0.05, n-grams 0.25); null
    searches it on the steps at hand (appendix F). ``identity`` has none."""
    layer: Annotated[int, Field(lt=0)] | None = None
    """Layer of the hidden state, counted from the last one (-1); by default -8 of 28 layers (7B), scaled to the model's
    depth. ``envsuite calibrate`` measures which is best."""
    pooling: Pooling = "last"
    """``last``: the state of the last token of the prompt; ``mean``: the mean over all its tokens."""
    credit: Credit = "q"
    """Step credit; ``mean`` is GiGPO's, so that clustering alone is tried."""
    action_key: ActionKey = "action_tag"
    """Criterion for equal actions: equal text of the action, or equal first tokens of the response."""
    action_tokens: AtLeastOne = 8
    """Number of tokens that ``first_tokens`` compares; also for steps whose response holds no action."""
    step_weight: float = 1.0
    """w, the weight of the step term."""
    gamma: Fraction = 0.95
    """Discount of the return to go."""
    compare: Compared = STANDARD
    """How episodes are compared, and steps with credit ``mean``; ``q`` and ``diff`` do not divide (Eq. 4 and 5)."""

    @property
    def needs(self) -> tuple[str, ...]:
        """The actor's hidden states and the parsed actions, where the settings read them."""
        embedding = (EMBEDDING,) if self.embedder == "actor_hidden" else ()
        return (*embedding, ACTION) if self.credit != "mean" and self.action_key == "action_tag" else embedding

    @property
    def hidden_state(self) -> tuple[int | None, Pooling]:
        """Layer and pooling."""
        return self.layer, self.pooling

    own_terms, own_weight = ("step",), "step_weight"
    """The step term."""

    def __call__(self, steps: StepTable) -> Advantage:
        """One advantage per step.

        Raises:
            MissingColumn: The embedder or the action key needs a column that is not there.
        """
        if self.open:
            return self.calibrate(steps)(steps)
        cluster, returns = self.clusters(steps), discounted_returns(steps, self.gamma)
        episode, _ = self.compare.episodes(steps)
        diagnostics = group_diagnostics(returns, cluster, "cluster")
        if self.credit == "mean":
            step = self.compare.within(returns, cluster)
        else:
            key = self.action_keys(steps)
            step, branch = (credit_q if self.credit == "q" else credit_diff)(returns, cluster, key)
            diagnostics.update(_pace_diagnostics(cluster, key, branch))
        if self.credit != "mean" and self.action_key == "action_tag":
            has_action = np.array([action is not None for action in steps.extra[ACTION].tolist()], np.bool_)
            diagnostics["action_parse_rate"] = mean_of(has_action)
        terms = {"episode": episode, "step": self.step_weight * step}
        return Advantage(episode + terms["step"], diagnostics=diagnostics, terms=terms, groups={"step": cluster})

    @property
    def open(self) -> bool:
        """Whether the radius is still to be found."""
        return self.radius is None and self.embedder != "identity"

    def calibrate(self, steps: StepTable) -> BiPACE:
        """The same method with the radius that gives clusters of a median size of 4 to 8 (appendix F)."""
        if self.embedder == "identity":
            return self
        rows = _rollout_order(steps)
        return replace(self, radius=adaptive_radius(self._vectors(steps)[rows], group_codes(steps.group_id)[rows]))

    def clusters(self, steps: StepTable) -> Ints:
        """Cluster of each row, shape (N,), numbered in the order of first appearance.

        Rows are taken episode by episode, by id, each by ``t``: greedy clusters depend on it.
        """
        if self.embedder == "identity":
            return group_codes(steps.group_id, steps.state_key)
        if self.radius is None:
            return self.calibrate(steps).clusters(steps)
        rows = _rollout_order(steps)
        out = np.empty(len(steps), np.int64)
        out[rows] = greedy_clusters(self._vectors(steps)[rows], group_codes(steps.group_id)[rows], self.radius)
        return group_codes(out)

    def _vectors(self, steps: StepTable) -> NDArray[np.floating[Any]]:
        return unit_vectors(steps) if self.embedder == "actor_hidden" else ngram_vectors(steps)

    def action_keys(self, steps: StepTable) -> Ints:
        """Code of each step's action, shape (N,), numbered in the order of first appearance."""
        actions: list[str | None] = [None] * len(steps)
        if self.action_key == "action_tag":
            actions = steps.column(ACTION, "bipace", "the rollout (action_key: first_tokens needs none)").tolist()
        keys = np.empty(len(steps), object)
        keys[:] = [
            tuple(steps.response[row][: self.action_tokens].tolist()) if action is None else action
            for row, action in enumerate(actions)
        ]
        return group_codes(keys)


def credit_q(returns: Floats, cluster: Ints, key: Ints) -> tuple[Floats, Ints]:
    """Q - V: the mean return of the cluster's steps with the same action, less that of the cluster (credit ``q``).

    A step whose action no other of the cluster has gets its leave-one-out advantage.

    Args:
        returns: Discounted return of each step, shape (N,).
        cluster: Cluster of each step, shape (N,).
        key: Code of each step's action, shape (N,).

    Returns:
        A^S before its weight, and the branch that gave it (SINGLETON, LEAVE_ONE_OUT or PACE), both of shape (N,).
    """
    same = _SameAction.of(returns, cluster, key)
    return same.credit(returns, same.count > 1, same.total / np.maximum(same.count, 1))


def credit_diff(returns: Floats, cluster: Ints, key: Ints) -> tuple[Floats, Ints]:
    """A step's return, less the mean of the cluster's steps with other actions (credit ``diff``).

    A step of a cluster with one action gets its leave-one-out advantage. Arguments and results are
    :func:`credit_q`'s.
    """
    same = _SameAction.of(returns, cluster, key)
    other_count = same.size - same.count
    return same.credit(returns, other_count > 0, same.centred + same.total / np.maximum(other_count, 1))


@dataclass(frozen=True)
class _SameAction:
    """Sums over the steps of a cluster with the same action, by step; every field has shape (N,)."""

    centred: Floats
    """Returns relative to the cluster's mean, so that what does not differ is exactly 0."""
    size: Ints
    """Steps of the cluster."""
    count: Ints
    """Steps of the cluster with the same action."""
    total: Floats
    """Sum of ``centred`` over these."""

    @classmethod
    def of(cls, returns: Floats, cluster: Ints, key: Ints) -> _SameAction:
        same, stats = group_codes(cluster, key), group_statistics(returns, cluster)
        deviation = np.where(stats.std > 0.0, returns - stats.mean, 0.0)
        total = np.asarray(np.bincount(same, deviation), np.float64)
        return cls(deviation, stats.size, np.bincount(same)[same], total[same])

    def credit(self, returns: Floats, comparable: NDArray[np.bool_], by_action: Floats) -> tuple[Floats, Ints]:
        """``by_action`` where actions are ``comparable``, elsewhere the leave-one-out advantage; 0 for a step alone."""
        branch = np.where(comparable, PACE, LEAVE_ONE_OUT)
        branch[self.size == 1] = SINGLETON
        leave_one_out = self.centred * self.size / np.maximum(self.size - 1, 1)
        out = np.where(branch == PACE, by_action, np.where(branch == SINGLETON, 0.0, leave_one_out))
        out[abs(out) <= ROUNDING * np.maximum(1.0, abs(returns))] = 0.0
        return out, branch


def _rollout_order(steps: StepTable) -> Ints:
    return np.lexsort((steps.t, steps.episode_id, steps.group_id))


def _pace_diagnostics(cluster: Ints, key: Ints, branch: Ints) -> dict[str, float]:
    names = ("branch/singleton", "branch/leave_one_out", "branch/pace")
    if len(cluster) == 0:
        pair_names = ("action_keys_per_cluster", "matched_pairs", "matched_pairs_same_action")
        return dict.fromkeys((*names, *pair_names), 0.0)
    shares = {name: float((branch == code).mean()) for code, name in enumerate(names)}
    pairs = group_codes(cluster, key)
    kinds = np.bincount(cluster[first_rows(pairs)])
    size, alike = np.bincount(cluster), np.bincount(pairs)
    return {
        **shares,
        "action_keys_per_cluster": mean_of(kinds[size > 1]),
        "matched_pairs": float((size * (size - 1) // 2).sum()),
        "matched_pairs_same_action": float((alike * (alike - 1) // 2).sum()),
    }
