"""Settings of an endpoint."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from envsuite.core.addresses import address
from envsuite.core.errors import UsageError
from envsuite.prompting.endpoints.reading import AnswerTokens

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PRICES = ("input", "cached", "output")
_MILLION = 1_000_000
_OURS = ("messages", "tools", "stream", "n")


@dataclass(frozen=True)
class EndpointOptions:
    """Settings of an endpoint for chat completions.

    Raises:
        UsageError: They cannot work; the message names the setting.
    """

    url: str
    """Address of the endpoint, up to the part before ``/chat/completions``: ``http://127.0.0.1:8000/v1``."""
    model: str
    """Name of the model there."""
    key_variable: str | None = None
    """Name of the environment variable that has the API key; without it none is sent."""
    concurrency: int = 8
    """Most requests at a time."""
    patience: float = 120.0
    """Seconds for which a failed request is repeated."""
    timeout: float = 600.0
    """Seconds that the endpoint may take for one answer."""
    budget: int | None = None
    """Tokens, of prompts and answers together, after which nothing more is asked."""
    prices: Mapping[str, float] | None = None
    """Price of a million tokens: ``input``, ``output``, and ``cached`` where that differs from ``input``."""
    served_as: str | None = None
    """Name under which the endpoint's answers come, where it is another than ``model``."""
    extra: Mapping[str, Any] | None = None
    """Further fields of each request; one that is null leaves out a field, e.g. ``{seed: null}``."""
    prefix: str = ""
    """Text before the name of a setting in messages: ``"--"`` on a command line."""

    def __post_init__(self) -> None:
        self._check_url()
        for name in ("model", "served_as"):
            value = getattr(self, name)
            if not isinstance(value, str | None) or value == "" or (name == "model" and value is None):
                raise UsageError(f"{self.setting(name)} is {value!r}; it must be the name of a model")
        for name, kinds, what in (
            ("concurrency", int, "a whole number"),
            ("budget", int, "a whole number of tokens"),
            ("patience", (int, float), "seconds"),
            ("timeout", (int, float), "seconds"),
        ):
            value = getattr(self, name)
            wrong = isinstance(value, bool) or not isinstance(value, kinds) or not value > 0
            if wrong and not (name == "budget" and value is None):
                raise UsageError(f"{self.setting(name)} is {value!r}; it must be {what}, above 0")
        self._check_prices()
        if not isinstance(self.extra, Mapping | None) or not all(isinstance(key, str) for key in self.extra or ()):
            raise UsageError(f"{self.setting('extra')} is {self.extra!r}; it must be like {{reasoning_effort: low}}")
        for name in _OURS:
            if name in (self.extra or {}):
                raise UsageError(f"{self.setting('extra')} has {name!r}, which is set for each request; leave it out")
        self.key()

    def setting(self, name: str) -> str:
        """Returns a setting as a person writes it: ``rollout.engine_options.key_variable``, or ``--key-variable``."""
        return self.prefix + (name.replace("_", "-") if self.prefix == "--" else name)

    def key(self) -> str | None:
        """Returns the API key; ``None`` where none is sent.

        Raises:
            UsageError: The setting is not the name of a variable, or the variable is not set.
        """
        name = self.key_variable
        if name is None:
            return None
        if not isinstance(name, str) or not _NAME.fullmatch(name):  # perhaps the key itself, which no message may show
            raise UsageError(
                f"{self.setting('key_variable')} is not the name of an environment variable; write a name such as "
                "OPENAI_API_KEY there, and the key into that variable"
            )
        if not (key := os.environ.get(name, "").strip()):
            raise UsageError(f"{self.setting('key_variable')} is {name}, but that environment variable is not set")
        return key

    def cost(self, tokens: AnswerTokens) -> float | None:
        """Returns the cost of tokens, in the currency of the prices; ``None`` without prices."""
        return None if self.prices is None else cost_of(tokens, self.prices)

    def _check_url(self) -> None:
        key = f"name the environment variable of an API key in {self.setting('key_variable')} instead"
        address(self.url, self.setting("url"), "http://127.0.0.1:8000/v1", key)

    def _check_prices(self) -> None:
        prices = self.prices
        if prices is None:
            return
        names_fit = isinstance(prices, Mapping) and {"input", "output"} <= set(prices) <= set(_PRICES)
        if not names_fit or not all(isinstance(price, int | float) and price >= 0 for price in prices.values()):
            raise UsageError(
                f"{self.setting('prices')} is {prices!r}; it must be the price of a million tokens, like "
                "{input: 0.5, output: 1.5} (and cached, where that differs from input)"
            )


def cost_of(tokens: AnswerTokens, prices: Mapping[str, float]) -> float:
    """Returns the cost of tokens at the prices of a million of them, as :attr:`EndpointOptions.prices` has them."""
    cached_price = prices.get("cached", prices["input"])
    fresh = tokens.prompt - tokens.cached
    return (fresh * prices["input"] + tokens.cached * cached_price + tokens.answer * prices["output"]) / _MILLION
