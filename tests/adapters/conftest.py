from __future__ import annotations

from collections.abc import Iterator

import gymnasium
import pytest

from envsuite.core.naming import ADAPTERS
from envsuite.core.registration import ENVIRONMENTS, NAMED


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Names that a test registers are forgotten after it."""
    monkeypatch.setenv(NAMED, "")
    yield
    for env_id in [name for name in ENVIRONMENTS if name.partition("/")[0] in ADAPTERS]:
        del ENVIRONMENTS[env_id], gymnasium.registry[env_id]
