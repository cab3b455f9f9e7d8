from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from families import tokenizer_of
from talking import Place


@pytest.fixture(scope="session")
def speaks(smol: Any) -> Any:
    """A tokenizer whose chat template takes tools."""
    return tokenizer_of(smol, "smollm2")


@pytest.fixture
def made(speaks: Any) -> Iterator[Callable[..., Place]]:
    """Makes gateways at addresses."""
    with contextlib.ExitStack() as stack:
        yield lambda says=None, serve=None, **settings: stack.enter_context(
            Place(speaks, says or (lambda prompt: "Well."), **settings).open_at_an_address(**serve or {})
        )


@pytest.fixture(scope="module")
def numbered(speaks: Any) -> Iterator[Place]:
    """A gateway whose answers all differ."""
    numbers = itertools.count()
    with Place(speaks, lambda prompt: f"Answer {next(numbers)}.").open_at_an_address() as place:
        yield place
