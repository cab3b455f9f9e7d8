"""What the tests of fetched data share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from faulty_server import Faulty, serving
from small_catalog import CONTENT, small_catalog

from envsuite.data import catalog


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Faulty]:
    """Has the files of :func:`small_catalog`, which is the catalogue meanwhile."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving(Faulty(dict(CONTENT))) as faulty:
        monkeypatch.setattr(catalog, "data_sets", lambda: small_catalog(faulty.url))
        yield faulty
