"""Columns of a step table beyond the rollout's own: their names, and the setting that supplies each.

An estimator, a shaper or a filter declares the columns that it ``needs``. The rollout supplies those of
:data:`ROLLOUT`, a shaper those of :data:`SHAPED`; a provider (:mod:`trainers.credit.providers`) supplies the others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from envsuite.core.errors import UsageError
from trainers.settings import ConfigError


class MissingColumn(UsageError):
    """A method needs a column that the table does not have."""


ITERATION = "iteration"
"""The iteration, from 1, in which the step was played."""

ENV_REWARD = "env_reward"
"""The environment's own reward, where shaping may have changed the table's."""

GREEDY = "greedy"
"""Whether the step is one of a greedy episode, which is in a group of its own and never trained on."""

REFERENCE = "ref_logprob"
"""Token column: log-probability under the reference policy."""

VALUE = "value"
"""Column or token column: the critic's value of the state that a step answers, or of the text before a token."""

STATES = "critic_states"
"""Column or token column of vectors: what a critic's head reads; stays in the process that computed it."""

TARGET = "value_target"
"""Column or token column: what the critic is trained towards."""

EMBEDDING = "embedding"
"""Column of vectors: the actor's hidden state of the state that a step answers."""

GREEDY_RETURN = "greedy_return"
"""Return of the greedy episode of the row's task."""

MC_VALUE = "mc_value"
"""Mean return of episodes that were continued from the state that a step answers."""

NEXT_MC_VALUE = "next_mc_value"
"""The same of the state that the step led to; 0 at the end of an episode."""

ROW_SCORE = "row_score"
"""Added to a row's own score after summing and discounting; written by shapers."""

STEP_SCORE = "step_score"
"""Added to a row's own return to go, and to no episode's return; written by shapers."""

TOKEN_REWARD = "reward"
"""Token column: added to what a token earns, such as a divergence in the reward; written by shapers."""

SUCCESS = "success"
"""Whether the episode solved its task."""

TREE = "tree"
"""Id of the episode that the tree of the step's episode was grown from; of one that is in no tree, its own."""

NEXT_STATE = "next_state_key"
"""Identity of the observation that the step led to."""

ROLLOUT = frozenset({"action", "step_text", "cut", SUCCESS, NEXT_STATE, TREE, ITERATION})
SHAPED = frozenset({ENV_REWARD, ROW_SCORE, STEP_SCORE, TOKEN_REWARD})

SUPPLIERS = {
    VALUE: "a critic (method.critic: {kind: head})",
    EMBEDDING: "a pass of the actor (method.embedding: {}; embedder: ngram_hash and identity need none)",
    GREEDY_RETURN: "a greedy episode of each task (method.greedy_baseline: true)",
    **dict.fromkeys((MC_VALUE, NEXT_MC_VALUE), "continuations of episodes (method.oracle: {continuations: 8})"),
    REFERENCE: "the reference policy (objective.kl, or the shaper kl_penalty)",
    **{name: "the rollout" for name in ROLLOUT},
}
"""Where each column comes from, for messages."""


def check_supply(method: str, needs: Collection[str], settings: Mapping[str, str | tuple[str, ...]]) -> None:
    """Compare the columns that a method needs with those that its settings supply.

    Args:
        method: Name of the estimator, for messages.
        needs: Columns that estimator, shapers and filters read.
        settings: Column, or columns, that each setting of the section ``method`` supplies, by the setting's name.

    Raises:
        MissingColumn: Nothing supplies a column; the message names the method, the column and the setting.
        ConfigError: A setting supplies, at a cost, what nothing reads.
    """
    supplied = {key: (names,) if isinstance(names, str) else names for key, names in settings.items()}
    known = ROLLOUT.union(SHAPED, {REFERENCE}, *supplied.values())
    for name in sorted(set(needs) - known):
        raise MissingColumn(f"{method} needs the column {name!r}, which {SUPPLIERS.get(name, 'nothing')} supplies")
    for key, names in supplied.items():
        if not set(names) <= set(needs):
            raise ConfigError(
                f"method.{key} is set, but {method} with these options does not read what it supplies, which is not "
                "free; leave it out"
            )
