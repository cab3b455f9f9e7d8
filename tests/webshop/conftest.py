from __future__ import annotations

import json
from pathlib import Path

import pytest
from shop_files import write_shop

from benchmarks.parity_webshop import Recorded
from envsuite.webshop.build import build
from envsuite.webshop.catalogue import Catalogue
from envsuite.webshop.nouns import BuiltinNouns
from envsuite.webshop.source import CatalogueFiles, products_of


@pytest.fixture(scope="session")
def shop_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A catalogue of a few products that have all the oddities of the official ones."""
    folder = tmp_path_factory.mktemp("shop")
    return build(write_shop(folder), folder / "shop.catalogue", BuiltinNouns())


@pytest.fixture(scope="session")
def shop(shop_path: Path) -> Catalogue:
    return Catalogue(shop_path)


@pytest.fixture(scope="session")
def official_files(shared: Path) -> CatalogueFiles:
    data = shared / "data" / "webshop"
    names = ("items_shuffle_1000.json", "items_ins_v2_1000.json", "items_human_ins.json")
    return CatalogueFiles(*(data / name for name in names))


@pytest.fixture(scope="session")
def recorded_nouns(shared: Path, official_files: CatalogueFiles) -> Recorded:
    nouns = json.loads((shared / "golden" / "webshop" / "title_nouns.json").read_text())
    return Recorded({raw.title: nouns[raw.asin] for raw in products_of(official_files.products)})


@pytest.fixture(scope="session")
def official_path(
    official_files: CatalogueFiles, recorded_nouns: Recorded, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The catalogue of the official 1,000 products."""
    return build(official_files, tmp_path_factory.mktemp("official") / "official.catalogue", recorded_nouns)


@pytest.fixture(scope="session")
def official(official_path: Path) -> Catalogue:
    return Catalogue(official_path)
