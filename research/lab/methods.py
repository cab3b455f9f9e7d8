"""The measured methods: every registered estimator, and the variants that the papers discuss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from research.lab.mdp import Floats, chance_of_reward, values
from research.lab.rollout import (
    TOKENS,
    Play,
    of_first_token,
    table,
    with_continuations,
    with_critic,
    with_greedy,
    with_signal,
)
from trainers.credit.estimators import ESTIMATORS, Estimator
from trainers.credit.estimators.returns import rewards_to_go
from trainers.credit.scpo import SCPO
from trainers.steps import StepTable
from trainers.steps.columns import ENTROPY, HINDSIGHT

STEPS = ("gigpo", "hgpo", "bipace", "graphgpo", "g2po", "pgpo", "gagpo", "rewardflow", "beacon", "hcapo", "empg")
"""Estimators that tell the steps of an episode apart."""
CRITICS = ("steppo", "ppo", "vetta", "hiper")
BATCHWISE = ("reinforce_pp", "reinforce_pp_baseline", "empg", "hiper")
"""Estimators that use all groups of a batch: each batch must be a table of its own."""
CONTINUATIONS = 8
"""Continuations per state of ``oracle_mc``."""
CRITIC_ERROR = 0.1
"""Standard deviation of a noisy critic's error, in units of the return (which lies in [0, 1])."""


@dataclass(frozen=True)
class Method:
    """An estimator with its settings and shaper."""

    name: str
    """Name in tables."""
    estimator: str
    """Its name in the registry."""
    options: Mapping[str, Any] = field(default_factory=dict)
    scpo: SCPO | None = None
    """The shaper, if any."""
    critic_error: float = 0.0
    """Standard deviation of the critic's error, which is drawn once for each state (and each action in it)."""

    def build(self, gamma: float | None = None) -> Estimator:
        """Builds the estimator; ``gamma`` replaces its own discount, if it has one."""
        estimator: Estimator = self._made(gamma)
        return estimator

    def _made(self, gamma: float | None) -> Any:
        made: Any = ESTIMATORS[self.estimator](**self.options)
        return replace(made, gamma=gamma) if gamma is not None and self.discounts else made

    def discount(self, gamma: float | None = None) -> float:
        """Returns the discount in :meth:`build`; 1 for an estimator without one."""
        return float(self._made(gamma).gamma) if self.discounts else 1.0

    @property
    def discounts(self) -> bool:
        """Whether the estimator has a discount."""
        cls: Any = ESTIMATORS[self.estimator]
        return "gamma" in {f.name for f in fields(cls)}

    @property
    def critic(self) -> bool:
        """Whether it needs values of states."""
        return self.estimator in CRITICS

    @property
    def batchwise(self) -> bool:
        """Whether it uses all groups of a batch."""
        return self.estimator in BATCHWISE

    def prepare(self, steps: StepTable) -> StepTable:
        """Returns the estimator's input."""
        return steps if self.scpo is None else self.scpo(steps)


def methods(world: str) -> list[Method]:
    """Returns every registered estimator but ``opd``, which needs a teacher, with its defaults, and variants of them.

    Estimators that are one function under several names (GRPO, DAPO and GSPO differ in the loss) are one method.
    BiPACE's fingerprints are the world's; in TextCraft its ``ngram_hash`` on the state keys is measured, too.
    """
    names: dict[Any, list[str]] = {}
    for name in ESTIMATORS:
        if name == "opd":
            continue
        names.setdefault(ESTIMATORS[name], []).append(name)
    found = []
    for same in names.values():
        leader = min(same, key=lambda name: (name != "grpo", name))
        found.append(Method(", ".join([leader, *(name for name in same if name != leader)]), leader))
    found += [
        Method("gigpo+scpo", "gigpo", scpo=SCPO()),
        Method("hgpo K=4", "hgpo", {"depth": 4}),
        Method("bipace diff", "bipace", {"credit": "diff"}),
        Method("bipace mean", "bipace", {"credit": "mean"}),
        Method("steppo, noisy V", "steppo", critic_error=CRITIC_ERROR),
        Method("ppo, noisy V", "ppo", critic_error=CRITIC_ERROR),
    ]
    if world == "textcraft":
        found.append(Method("bipace n-gram", "bipace", {"embedder": "ngram_hash", "radius": 0.25}))
    order = ("episodes", "steps", "critic")
    return sorted(
        found,
        key=lambda method: (
            order.index(family(method)),
            STEPS.index(method.estimator) if method.estimator in STEPS else -1,
            method.estimator,
            method.name,
        ),
    )


def family(method: Method) -> str:
    """Returns the kind of comparison: whole episodes, steps, or with values of states."""
    if method.critic or method.estimator == "oracle_mc":
        return "critic"
    return "steps" if method.estimator in STEPS else "episodes"


def furnish(
    method: Method, played: Play, policy: Floats, rng: np.random.Generator, seed: int, gamma: float | None = None
) -> StepTable:
    """Returns the step table with the columns that ``method`` needs.

    A critic has the policy's exact values with the method's discount (``ppo``: per token), plus an error. There are no
    plans: for ``hiper`` each response is an action, and each episode one segment. The entropy is the policy's in the
    state, and the probability in hindsight that of the action given success: both exact, where a model that is told the
    end gives an estimate of its own.

    Args:
        method: The method.
        played: The episodes.
        policy: The policy that played, shape (S, A) or (runs, S, A).
        rng: Draws fingerprints and the greedy episodes.
        seed: Seed of a noisy critic's errors.
        gamma: As in :meth:`Method.build`.
    """
    steps = table(played, rng)
    if method.critic:
        steps = _with_values(steps, method, played, policy, seed, method.discount(gamma))
    if method.estimator == "remax":
        steps = with_greedy(steps, played, policy, rng)
    if method.estimator == "empg":
        steps = with_signal(steps, ENTROPY, _entropy(played, policy))
    if method.estimator == "hcapo":
        steps = with_signal(steps, HINDSIGHT, _hindsight(steps, played, policy))
    if method.estimator == "oracle_mc":
        steps = with_continuations(steps, played, policy, method.discount(gamma), CONTINUATIONS, rng)
    return steps


def _of_rows(played: Play, column: Floats) -> Floats:
    """The rows' own of numbers for each state, (S, A) or (runs, S, A): shape (N, A)."""
    return column[played.state] if column.ndim == 2 else column[played.run, played.state]


def _entropy(played: Play, policy: Floats) -> Floats:
    """Entropy of the policy in the state of each row, in nats, shape (N,)."""
    chance = _of_rows(played, policy)
    return np.asarray(-(chance * np.log(np.maximum(chance, 1e-300))).sum(-1), np.float64)


def _hindsight(steps: StepTable, played: Play, policy: Floats) -> Floats:
    """Logarithm of each action's probability given that the episode succeeds, shape (N,); 0 where it did not.

    Once an episode has earned something it succeeds whatever comes: then it is the policy's own probability.
    """
    likely = np.log(np.maximum(_of_rows(played, policy)[np.arange(len(steps)), played.action], 1e-300))
    q, v = chance_of_reward(played.world, policy)
    where = (played.t, played.state) if v.ndim == 2 else (played.t, played.run, played.state)
    gain = np.log(np.maximum(q[(*where, played.action)], 1e-300) / np.maximum(v[where], 1e-300))
    paid = (played.reward > 0).astype(np.float64)
    total = np.bincount(played.episode, paid)[played.episode]
    sure = total > rewards_to_go(steps.with_reward(paid), 1.0)
    return np.where(total > 0, np.where(sure, likely, likely + gain), 0.0)


def _with_values(steps: StepTable, method: Method, played: Play, policy: Floats, seed: int, gamma: float) -> StepTable:
    lengths = np.arange(TOKENS[0], TOKENS[1] + 1)
    by_token = method.estimator == "ppo"
    # A response of L tokens discounts the next state's value by gamma^L, and its own reward by gamma^(L - 1).
    q, v = values(played.world, policy, float(np.mean(gamma**lengths)) if by_token else gamma)
    own = float(np.mean(gamma ** (lengths - 1.0))) if by_token else 1.0
    where = (played.t, played.state) if v.ndim == 2 else (played.t, played.run, played.state)
    wrong = np.random.default_rng(seed).standard_normal((*v.shape[1:], q.shape[-1] + 1)) * method.critic_error
    of_state = own * v[where] + wrong[(*where[1:], -1)]
    of_action = q[(*where, played.action)] + wrong[(*where[1:], played.action)]
    return with_critic(steps, played, of_state, of_action, gamma if by_token else 1.0)


def advantages(method: Method, estimator: Estimator, steps: StepTable, played: Play) -> tuple[Floats, dict[str, float]]:
    """Returns the advantage of each step's action, shape (N,), and the diagnostics.

    A batchwise method gets each run as a table of its own; its diagnostics are then those of the last.
    """
    shaped = method.prepare(steps)
    if not method.batchwise:
        given = estimator(shaped)
        return of_first_token(shaped, given.per_step, given.per_token), dict(given.diagnostics)
    out = np.empty(len(steps))
    diagnostics: dict[str, float] = {}
    for rows in np.split(np.arange(len(steps)), np.flatnonzero(np.diff(played.run)) + 1):
        batch = shaped.take(rows)
        given = estimator(batch)
        out[rows] = of_first_token(batch, given.per_step, given.per_token)
        diagnostics = dict(given.diagnostics)
    return out, diagnostics
