"""Endpoints that speak OpenAI's chat completions: requests that are repeated, answers that are read strictly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envsuite.core.errors import MissingExtra
from envsuite.prompting.endpoints.options import EndpointOptions, cost_of
from envsuite.prompting.endpoints.reading import AnswerTokens, MalformedAnswer, Reply, read
from envsuite.prompting.endpoints.request import RequestResult, body_of

if TYPE_CHECKING:
    from envsuite.prompting.endpoints.pool import RequestPool

__all__ = [
    "AnswerTokens",
    "EndpointOptions",
    "MalformedAnswer",
    "Reply",
    "RequestPool",
    "RequestResult",
    "body_of",
    "cost_of",
    "open_pool",
    "read",
]


def open_pool(options: EndpointOptions, slots: int) -> RequestPool:
    """Returns a pool of requests to an endpoint; close it after use.

    Args:
        options: Settings of the endpoint.
        slots: Most requests that are wanted at a time.

    Raises:
        MissingExtra: httpx2 is not installed.
    """
    try:
        from envsuite.prompting.endpoints.pool import RequestPool
    except ImportError as error:
        raise MissingExtra(f"endpoints need {error.name}: pip install 'envsuite[endpoints]'") from error
    return RequestPool(options, slots)
