"""The catalogues and goals that an environment can be made with; loaded once per process."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from envsuite.core.errors import DataError, UsageError
from envsuite.core.tasks import TaskSet
from envsuite.webshop.build import cached
from envsuite.webshop.catalogue import Catalogue, open_catalogue
from envsuite.webshop.source import official_files

HORIZON = 15
"""Steps of an episode."""


def load(source: str) -> Catalogue:
    """The catalogue of a source; official files are built into one where that was not done yet.

    Args:
        source: ``"official"`` (the folder ``webshop`` in ``$ENVSUITE_DATA``), the path of a folder with the official
            files, or of a catalogue.

    Raises:
        DataError: There is nothing of the kind, or it is truncated or foreign.
        UsageError: ``source`` names a kind of source that WebShop does not have.
    """
    if source in ("builtin", "generated"):
        raise UsageError(
            f"WebShop-v0 has no source {source!r}. It has 'official' (files in $ENVSUITE_DATA/webshop), the path of a "
            "folder with the official files, and the path of a catalogue"
        )
    if source == "official":
        return open_catalogue(cached(official_files()))
    path = Path(source)
    if path.suffix == ".json":
        raise DataError(f"{path}: give the folder that has the official files, or a catalogue made of them")
    return open_catalogue(cached(official_files(path)) if path.is_dir() else path)


@lru_cache(maxsize=8)
def task_set(catalogue: Catalogue, kind: str) -> TaskSet:
    """The goals of a kind as tasks; see :meth:`Catalogue.tasks`."""
    return catalogue.tasks(kind, "official")
