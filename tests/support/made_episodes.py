"""Steps and episodes of which a test says what matters to it."""

from __future__ import annotations

from typing import Any

from trainers.steps import Episode, Step


def made_step(t: int, **other: Any) -> Step:
    """A valid step of two response tokens without an action."""
    values = dict(
        t=t, prompt_ids=(1, 2, 3), response_ids=(4, 5), response_logprobs=(-0.5, -1.5), policy_version=0,
        finish_reason="stop", observation="o", state_key="k", action=None, parse_error=None, valid=True, reward=0.0,
        info={},
    )  # fmt: skip
    return Step(**{**values, **other})


def made_episode(number: int, *steps: Step, **other: Any) -> Episode:
    """An episode that ended with success."""
    values = dict(group_id=0, env_id="TextCraft-v0", task_id="t", task_type="depth-1", split="train", task="craft",
                  terminated=True, truncated=False, success=True, score=1.0)  # fmt: skip
    return Episode(**{"episode_id": number, "steps": steps, **values, **other})
