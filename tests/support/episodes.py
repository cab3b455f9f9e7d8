"""Steps and episodes by hand: what a test does not say of them is plain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from envsuite.playing.step import Episode, Step
from trainers.steps import Ragged, StepTable


def step(t: int = 0, **changes: Any) -> Step:
    """A valid step with a prompt of two tokens and a response of two."""
    plain: dict[str, Any] = {
        "prompt_ids": (1, 2), "response_ids": (3, 4), "response_logprobs": (-0.5, -0.5), "policy_version": 0,
        "finish_reason": "stop", "observation": "o", "state_key": f"k{t}", "action": None, "parse_error": None,
        "valid": True, "reward": 0.0,
    }  # fmt: skip
    return Step(t, **{**plain, **changes})


def episode(number: int = 0, *steps: Step, **changes: Any) -> Episode:
    """An episode of group 0 that has ended without success."""
    plain: dict[str, Any] = {
        "group_id": 0, "env_id": "X-v0", "task_id": "task", "task_type": "type", "split": "train", "task": "text",
        "terminated": True, "truncated": False, "success": False, "score": 0.0,
    }  # fmt: skip
    return Episode(number, steps=steps, **{**plain, **changes})


def token_table(rows: Sequence[tuple[Sequence[int], Sequence[int]]], **columns: Any) -> StepTable:
    """A step for each prompt and response; each is an episode of its own where ``columns`` say nothing else."""
    count = np.arange(len(rows))
    plain: dict[str, Any] = {
        "group_id": 0 * count, "episode_id": count, "t": 0 * count, "reward": np.zeros(len(rows)),
        "state_key": np.full(len(rows), "s", object), "valid": np.ones(len(rows), np.bool_),
        "prompt": Ragged.of((prompt for prompt, _ in rows), np.int32),
        "response": Ragged.of((response for _, response in rows), np.int32),
        "logprob": Ragged.of(([-1.0] * len(response) for _, response in rows), np.float32),
    }  # fmt: skip
    return StepTable(**{**plain, **columns})
