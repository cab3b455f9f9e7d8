"""Prompts to a vLLM server, and its answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainers.rollout.engine import Sampling
from trainers.rollout.vllm.connection import Connection

_PLAIN: Mapping[str, Any] = {
    "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "ignore_eos": True,
    "logprobs": 0, "return_token_ids": True,
}  # fmt: skip
"""Settings of every request; all that a model's generation_config.json could change otherwise."""


@dataclass(frozen=True)
class Answer:
    """The tokens that a server sampled for one prompt."""

    ids: list[int]
    logprobs: list[float]
    reason: str


def ask(server: Connection, prompts: Sequence[Sequence[int]], sampling: Sampling, seed: int) -> list[Answer]:
    """Has a server continue prompts.

    Raises:
        EngineFailed: It does not answer, or not as vLLM does.
        Refused: It refuses the prompts.
    """
    body = {
        **_PLAIN,
        "model": server.model,
        "prompt": [*prompts],
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "stop_token_ids": [] if sampling.ignore_eos else [*sampling.stop_ids],
        "seed": seed,
    }
    answer = server.post("/v1/completions", body, same_weights=True)
    try:
        choices = sorted(answer["choices"], key=lambda choice: choice["index"])
        found = [
            Answer([*choice["token_ids"]], [*choice["logprobs"]["token_logprobs"]], choice["finish_reason"])
            for choice in choices
        ]
    except (LookupError, TypeError, AttributeError) as error:
        raise server.failed(f"/v1/completions answered without {error}; vLLM does, from 0.11") from error
    for one in found:
        if len(one.ids) != len(one.logprobs):
            raise server.failed(f"it gave {len(one.logprobs)} log-probabilities for {len(one.ids)} tokens")
    if len(found) != len(prompts):
        raise server.failed(f"it gave {len(found)} answers to {len(prompts)} prompts")
    return found
