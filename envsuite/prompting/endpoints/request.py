"""The body of a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envsuite.prompting.endpoints.options import EndpointOptions

_SEEDS = 1 << 31  # more bits are refused by some endpoints


def body_of(
    options: EndpointOptions,
    messages: list[Mapping[str, Any]],
    tools: list[Mapping[str, Any]] | None,
    *,
    temperature: float,
    top_p: float,
    max_tokens: int,
    seed: int | None,
) -> dict[str, Any]:
    """Returns the body of a request.

    Args:
        options: Settings of the endpoint; their ``extra`` is laid over the rest, and its nulls leave fields out.
        messages: The messages to answer.
        tools: OpenAI's function schemas; ``None``: no tools.
        temperature: 0 is greedy.
        top_p: Mass of the nucleus.
        max_tokens: Most tokens of the answer.
        seed: Any number; its last 31 bits are sent.
    """
    sampling = {"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens}
    body: dict[str, Any] = {"model": options.model, "messages": messages, **sampling, "stream": False}
    if seed is not None:
        body["seed"] = seed % _SEEDS
    if tools:
        body["tools"] = tools
    body |= options.extra or {}
    return {name: value for name, value in body.items() if value is not None}
