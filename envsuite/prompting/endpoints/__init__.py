"""Endpoints that speak OpenAI's chat completions: requests that are repeated, answers that are read strictly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envsuite.core.errors import MissingExtra
from envsuite.prompting.endpoints.options import Options, cost_of
from envsuite.prompting.endpoints.reading import Malformed, Reply, Tokens, read
from envsuite.prompting.endpoints.request import Replied, body_of

if TYPE_CHECKING:
    from envsuite.prompting.endpoints.pool import Pool

__all__ = ["Malformed", "Options", "Pool", "Replied", "Reply", "Tokens", "body_of", "cost_of", "open_pool", "read"]


def open_pool(options: Options, slots: int) -> Pool:
    """Returns a pool of requests to an endpoint; close it after use.

    Args:
        options: Settings of the endpoint.
        slots: Most requests that are wanted at a time.

    Raises:
        MissingExtra: httpx2 is not installed.
    """
    try:
        from envsuite.prompting.endpoints.pool import Pool
    except ImportError as error:
        raise MissingExtra(f"endpoints need {error.name}: pip install 'envsuite[endpoints]'") from error
    return Pool(options, slots)
