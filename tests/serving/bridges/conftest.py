from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from talk import run

from envsuite.serving.bridges.server import Bridge, bridging
from envsuite.serving.bridges.settings import BridgeSettings

PATIENT = "talk:Patient-v0"


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs tests that are conversations, none of which may hang."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    run(partial(pyfuncitem.obj, **arguments))
    return True


@pytest.fixture(scope="session")
def bridge(data_folder: Path) -> Iterator[Bridge]:
    """A bridge in a thread of this process, with free choice among three environments."""
    with bridging(BridgeSettings(("TextCraft-v0", "WebShop-v0", PATIENT), port=0)) as running:
        yield running


@pytest.fixture
def start() -> Iterator[Callable[..., Bridge]]:
    """Starts bridges in threads of this process; by default of TextCraft, with a free port."""
    with ExitStack() as stack:

        def make(*environments: str, **settings: Any) -> Bridge:
            return stack.enter_context(
                bridging(BridgeSettings(environments or ("TextCraft-v0",), **{"port": 0, **settings}))
            )

        yield make


@pytest.fixture(scope="module")
def http() -> Iterator[httpx2.Client]:
    with httpx2.Client() as client:
        yield client
