"""Columns of a step table beyond the rollout's own: their names, and what supplies each.

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

TEACHER = "teacher_logprob"
"""Token column: log-probability under the teacher, another model."""

OLD = "old_logprob"
"""Token column: log-probability under the policy before the update, as the trainer computes it."""

ENTROPY = "entropy"
"""Token column: entropy of the policy's whole distribution where it sampled the token, in nats."""

HINDSIGHT = "hindsight_logprob"
"""Token column: log-probability once the prompt says how the episode ended; 0 in episodes without success."""

VALUE = "value"
"""Column or token column: the critic's value of the state that a step answers, or of the text before a token."""

STATES = "critic_states"
"""Column or token column of vectors: what a critic's head reads; stays in the process that computed it."""

VALUE_HIGH, VALUE_LOW, VALUE_SWITCH = "value_high", "value_low", "value_switch"
"""Columns: values of a step for the choice of a subgoal, for its pursuit, and for whether to change it."""

VALUES = (VALUE, VALUE_HIGH, VALUE_LOW, VALUE_SWITCH)
"""The columns of a critic's values; it supplies those that the method declares."""


def target_of(value: str) -> str:
    """Returns the name of the column, or token column, of what a critic's value is trained towards."""
    return f"{value}_target"


TARGET = target_of(VALUE)
"""That of the column ``value``."""

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

AGENT = "agent"
"""Agent whose step it is; "" in an environment of one agent."""

PLAYED = "played"
"""Index of the step in its episode, where ``t`` is that among the steps of its agent."""

TREE = "tree"
"""Id of the episode that the tree of the step's episode was grown from; of one that is in no tree, its own."""

NEXT_STATE = "next_state_key"
"""Identity of the observation that the step led to."""

LAST = "last_observation"
"""Text of the observation that the episode ended with, the same in each of its rows."""

MILESTONE = "milestone"
"""Whether the step reached a milestone of its task, one or several."""

TRUNCATED = "truncated"
"""Whether the episode was cut off before its task came to an end."""

BLOCK = "block"
"""Token column: in which block of a planned answer (:mod:`envsuite.prompting.plan`) a token begins, one of
:data:`BLOCKS`, int8."""

BLOCKS = {"none": 0, "switch": 1, "subgoal": 2, "action": 3}

SWITCH = "switch"
"""Whether the agent wrote that its subgoal changes."""

SEGMENT = "segment"
"""Whether a segment of one subgoal begins at the step: the first of its episode, or one that switches."""

SWITCH_PROBABILITY = "switch_probability"
"""Probability with which the agent would have written that its subgoal changes."""

LOW_START = "low_start"
"""Number of response tokens up to the end of the subgoal; 0 where the answer has none."""

PLANNED = (BLOCK, SWITCH, SEGMENT, SWITCH_PROBABILITY, LOW_START)
"""The columns of planned answers."""

ROLLOUT = frozenset({"action", "step_text", "cut", SUCCESS, NEXT_STATE, TREE, LAST, ITERATION, TRUNCATED, AGENT})
SHAPED = frozenset({ENV_REWARD, ROW_SCORE, STEP_SCORE, TOKEN_REWARD})

MADE = frozenset({ENTROPY, HINDSIGHT, TEACHER, GREEDY_RETURN, EMBEDDING, MILESTONE, MC_VALUE, NEXT_MC_VALUE, *PLANNED})
"""Columns whose provider is there because an estimator reads them."""

SUPPLIERS = {
    **dict.fromkeys(VALUES, "a critic (method.critic: {kind: head})"),
    ENTROPY: "a pass of the policy",
    HINDSIGHT: "a pass of the policy that is told the end",
    TEACHER: "a teacher (method.options.teacher)",
    EMBEDDING: "a pass of the actor (embedder: ngram_hash and identity need none)",
    GREEDY_RETURN: "a greedy episode of each task",
    MILESTONE: "a rollout whose environments see milestones",
    **dict.fromkeys((MC_VALUE, NEXT_MC_VALUE), "continuations of episodes"),
    REFERENCE: "the reference policy (objective.kl, or the shaper kl_penalty)",
    **dict.fromkeys(PLANNED, "a reader of planned answers (prompt.plan: true)"),
    **{name: "the rollout" for name in ROLLOUT},
}
"""Where each column comes from, for messages."""


def check_supply(method: str, needs: Collection[str], settings: Mapping[str, Collection[str]]) -> None:
    """Compare the columns that a method needs with those that its settings supply.

    Args:
        method: Name of the estimator, for messages.
        needs: Columns that estimator, shapers and filters read.
        settings: Columns that each setting of the section ``method`` can supply, by the setting's name.

    Raises:
        MissingColumn: Nothing supplies a column; the message names the method, the column and the setting.
        ConfigError: A setting supplies, at a cost, what nothing reads.
    """
    columns = {name for own in settings.values() for name in own}
    for name in sorted(set(needs) - ROLLOUT - SHAPED - {REFERENCE, OLD} - columns):
        raise MissingColumn(f"{method} needs the column {name!r}, which {SUPPLIERS.get(name, 'nothing')} supplies")
    for key, own in settings.items():
        if not set(own) & set(needs):
            raise ConfigError(
                f"method.{key} is set, but {method} with these options does not read what it supplies, which is not "
                "free; leave it out"
            )
