"""Requests for completions as vLLM's servers take them, and their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from envsuite.playing.engine import Sampling
from trainers.rollout.vllm.host import VLLMAnswer

PLAIN: Mapping[str, Any] = {
    "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "ignore_eos": True,
    "logprobs": 0,
}  # fmt: skip
"""Settings of every request; all that a model's generation_config.json could change otherwise."""


def settings_of(sampling: Sampling, seed: int) -> dict[str, Any]:
    """How to sample, in vLLM's words: those of its servers, and of its class ``SamplingParams``."""
    return {
        **PLAIN,
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "stop_token_ids": [] if sampling.ignore_eos else [*sampling.stop_ids],
        "seed": seed,
    }


def body_of(model: str, prompts: Sequence[Sequence[int]], sampling: Sampling, seed: int) -> dict[str, Any]:
    """Body of a request to ``/v1/completions``."""
    return {"model": model, "prompt": [*prompts], "return_token_ids": True, **settings_of(sampling, seed)}


def answers_in(body: Any, prompts: int) -> list[VLLMAnswer]:
    """The answers of ``/v1/completions`` to so many prompts.

    Raises:
        ValueError: It is not as vLLM answers; says what is missing.
    """
    try:
        choices = sorted(body["choices"], key=lambda choice: choice["index"])
        answers = [
            VLLMAnswer([*choice["token_ids"]], [*choice["logprobs"]["token_logprobs"]], choice["finish_reason"])
            for choice in choices
        ]
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"/v1/completions answered without {error}; vLLM does, from 0.11") from error
    for answer in answers:
        if len(answer.ids) != len(answer.logprobs):
            raise ValueError(f"it gave {len(answer.logprobs)} log-probabilities for {len(answer.ids)} tokens")
    if len(answers) != prompts:
        raise ValueError(f"it gave {len(answers)} answers to {prompts} prompts")
    return answers


def scoring_body_of(model: str, ids: Sequence[int]) -> dict[str, Any]:
    """Body of a request whose answer has the log-probability of each token of its prompt, ``ids``, but the first."""
    return {"model": model, "prompt": [*ids], "prompt_logprobs": 0, "max_tokens": 1, "temperature": 0.0}


def prompt_logprobs_in(body: Any, ids: Sequence[int]) -> list[float]:
    """The log-probabilities of ``ids``, but of the first, in the answer to :func:`scoring_body_of`.

    Raises:
        ValueError: It is not as vLLM answers; says what is missing.
    """
    try:
        places = body["choices"][0]["prompt_logprobs"][1:]
        return [float(place[str(token)]["logprob"]) for place, token in zip(places, ids[1:], strict=True)]
    except (LookupError, TypeError, ValueError) as error:
        raise ValueError(f"/v1/completions gave no log-probabilities of the prompt ({error}); vLLM does") from error
