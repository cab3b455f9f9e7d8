"""SPEAR's reward: the outcome, tool calls while they are new, and the format."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainers.credit.estimators.groups import Floats, episode_codes
from trainers.credit.estimators.returns import steps_in_order
from trainers.credit.shapers import DIAGNOSTIC, SHAPERS, Shaper
from trainers.credit.spear.schedules import cosine_fall
from trainers.settings import Count, NotNegative
from trainers.steps import StepTable
from trainers.steps.columns import ITERATION

Outcome = Literal["sign", "environment"]
Calls = Literal["valid", "all"]


@SHAPERS.register("spear")
@dataclass(frozen=True)
class Spear(Shaper):
    """Composite reward of an episode (SPEAR, Eq. 17-21), earned by its last step.

    R = outcome + μ · min(limit, per_call · tool calls) + format, where μ falls from 1 to 0 over ``decay`` iterations:
    calls are rewarded in themselves only until the policy has learnt to use the tools.
    """

    outcome: Outcome = "sign"
    """``"sign"``: 1 for a solved task, else -1, in place of the environment's rewards (paper).
    ``"environment"``: the environment's rewards as they are, to which the rest is added (SPEAR's code)."""
    calls: Calls = "valid"
    """Steps that count as tool calls: those with a well-formed, executable action (paper), or all (SPEAR's code)."""
    tools: tuple[str, ...] = ()
    """Tools whose calls are rewarded; all of them by default. Mathematics has a tool for the answer, too, which is none
    that a policy has to be led to."""
    per_call: NotNegative = 0.1
    """Reward of a tool call."""
    limit: NotNegative = 1.0
    """Upper limit of the reward for the tool calls of an episode."""
    format: NotNegative = 0.1
    """Reward of an episode all of whose completions parsed; SPEAR's code for agents has no such term (0)."""
    decay: Count = 200
    """T_decay: iterations over which μ falls to 0."""

    needs = ("success", "action", ITERATION)
    """The success flag, the parsed actions, and the iteration."""

    def __call__(self, steps: StepTable) -> StepTable:
        """Returns the steps with the composite reward.

        Raises:
            MissingColumn: There is no column ``success``, ``action`` or ``iteration``.
        """
        success = steps.column("success", "spear", "the rollout")
        action = steps.column("action", "spear", "the rollout")
        iteration = steps.column(ITERATION, "spear", "the trainer")
        order, lengths = steps_in_order(steps)
        last, episode = order[np.cumsum(lengths) - 1], episode_codes(steps)
        mask = steps.valid if self.calls == "valid" else np.ones(len(steps), np.bool_)
        calls = np.bincount(episode, self._calls(action, mask), len(last))
        no_action = np.array([text is None for text in action.tolist()], np.bool_)
        well_formed = np.bincount(episode, no_action, len(last)) == 0.0
        reward = np.zeros(len(steps)) if self.outcome == "sign" else steps.reward.copy()
        reward[last] += self.intrinsic(calls, well_formed, iteration[last])
        if self.outcome == "sign":
            reward[last] += np.where(success[last], 1.0, -1.0)
        return steps.with_reward(reward).with_columns(**{
            f"{DIAGNOSTIC}mu": cosine_fall(iteration, self.decay),
            f"{DIAGNOSTIC}tool_calls": calls[episode],
            f"{DIAGNOSTIC}well_formed": well_formed[episode].astype(np.float64),
        })  # fmt: skip

    def _calls(self, actions: NDArray[np.object_], mask: NDArray[np.bool_]) -> Floats:
        """Returns the number of tool calls of each step that counts: 1, or with ``tools`` its calls of these."""
        if not self.tools:
            return mask.astype(np.float64)
        calls = np.zeros(len(actions))
        for row in np.flatnonzero(mask):
            calls[row] = sum(name in self.tools for name, _ in json.loads(actions[row] or "[]"))
        return calls

    def intrinsic(self, calls: ArrayLike, valid: ArrayLike, iteration: ArrayLike) -> Floats:
        """Returns the reward beyond the outcome: μ · min(limit, per_call · calls) + format.

        Args:
            calls: Tool calls of each episode, shape (E,).
            valid: Whether every completion of the episode parsed, shape (E,).
            iteration: Iteration in which the episode was played, shape (E,).
        """
        tools = np.minimum(self.limit, self.per_call * np.asarray(calls, np.float64))
        return np.asarray(cosine_fall(iteration, self.decay) * tools + np.where(valid, self.format, 0.0), np.float64)
