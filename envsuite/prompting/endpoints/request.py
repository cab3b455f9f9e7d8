"""The body of a request, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from envsuite.prompting.endpoints.options import EndpointOptions
from envsuite.prompting.endpoints.reading import Reply

_SEEDS = 1 << 31  # more bits are refused by some endpoints


@dataclass(frozen=True)
class RequestResult:
    """The result of a request: a reply, or the reason why there is none."""

    request_id: int
    reply: Reply | None
    error: str | None = None
    no_room: bool = False
    """The messages leave no room for an answer in the model's context."""


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
