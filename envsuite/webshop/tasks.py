"""Loads catalogues and their goals, once per process."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from envsuite.core.errors import DataError
from envsuite.core.tasks import TaskSet
from envsuite.data.places import data_root
from envsuite.webshop.build import cached_catalogue
from envsuite.webshop.catalogue import Catalogue, open_catalogue
from envsuite.webshop.generate import DEFAULT, Shop, ShopDifficulty
from envsuite.webshop.source import SETS, WHICH, has_official, official_files, set_named

HORIZON = 15
"""Maximum number of steps of an episode."""


def load(
    source: str | Path | None = None, shop_seed: int = 0, products: int = 1000, difficulty: ShopDifficulty = DEFAULT
) -> Catalogue:
    """Returns the catalogue of a source; builds it if it is missing.

    Args:
        source: ``"official-1k"`` or ``"official-full"`` (in the folder ``webshop`` in ``$ENVSUITE_DATA``),
            ``"builtin"`` or ``"generated"``, which are the same, the path of a folder with the official files, or of a
            catalogue. ``None`` is the official set that is there, else ``"builtin"``.
        shop_seed: Seed of the built-in shop.
        products: Number of its products.
        difficulty: Difficulty of its goals.

    Raises:
        DataError: The source does not exist, is truncated, or is not of WebShop; or both official sets are there and
            ``source`` does not say which.
        UsageError: ``products``, ``shop_seed`` or ``difficulty`` is out of range.
    """
    if source in ("builtin", "generated") or (source is None and not has_official(data_root() / "webshop")):
        return open_catalogue(cached_catalogue(Shop(shop_seed, products, difficulty)))
    if source is None or source in SETS:
        return open_catalogue(cached_catalogue(official_files(source)))
    if source == "official":
        raise DataError(f"WebShop-v0: there are two official sets. {WHICH}")
    path = Path(source)
    if path.suffix == ".json":
        raise DataError(f"{path}: give the folder that has the official files, or a catalogue built from them")
    return open_catalogue(cached_catalogue(official_files(path)) if path.is_dir() else path)


@lru_cache(maxsize=8)
def task_set(catalogue: Catalogue, kind: str) -> TaskSet:
    """Returns the goals of a kind as tasks; see :meth:`Catalogue.tasks`."""
    products = catalogue.meta["stock"].partition(",")[0]
    return catalogue.tasks(kind, "builtin" if catalogue.family else set_named(products))


@lru_cache(maxsize=8)
def published_order(catalogue: Catalogue, kind: str) -> Mapping[str, int]:
    """Returns the place of each official goal of a kind in the original's shuffled list, by task id, from 0."""
    splits = task_set(catalogue, kind).splits
    return {task_id: place for place, task_id in enumerate((*splits["dev"], *splits["train"]))}
