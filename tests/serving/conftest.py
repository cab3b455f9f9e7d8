from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from envsuite.serving import front
from envsuite.serving.server import EnvServer, serving
from envsuite.serving.settings import ServerSettings


@pytest.fixture
def start() -> Iterator[Callable[..., EnvServer]]:
    """Starts servers in threads of this process; by default of TextCraft, with a free port."""
    with ExitStack() as stack:

        def make(*environments: str, **settings: Any) -> EnvServer:
            ids = environments or ("TextCraft-v0",)
            return stack.enter_context(serving(ServerSettings(ids, **{"port": 0, "workers": 0, **settings})))

        yield make


@pytest.fixture
def leap(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Puts the clock by which sessions are idle forward, by so many seconds."""
    ahead: list[float] = []
    monkeypatch.setattr(front, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + sum(ahead)))
    return ahead.append
