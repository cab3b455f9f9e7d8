"""A small catalogue whose files a local server has."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping
from dataclasses import replace

from envsuite.data.catalog import DataSet, RemoteFile, Unpack

HOUSE = {f"json/train/t{i}/{name}": f"{name} {i}".encode() * 50 for i in range(3) for name in ("game", "state")}
SHOP = {"items.json": b"[1, 2, 3]\n", "human.json": b'{"a": "b"}'}
BOOK = {"book-main/recipes/bread.json": b'{"wheat": 3}', "book-main/README": b"a book"}


def zipped(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in files.items():
            packed.writestr(zipfile.ZipInfo(name), content)
    return out.getvalue()


CONTENT = {
    "/games.zip": zipped({name: text for name, text in HOUSE.items() if "game" in name}),
    "/states.zip": zipped({name: text for name, text in HOUSE.items() if "state" in name}),
    **{f"/{name}": text for name, text in SHOP.items()},
    "/book.zip": zipped(BOOK),
}


def _file(url: str, name: str, unpack: Unpack | None = None) -> RemoteFile:
    content = CONTENT[f"/{name}"]
    return RemoteFile(
        name, (f"{url}/{name}",), len(content), hashlib.sha256(content).hexdigest(), len(content), unpack=unpack
    )


def small_catalog(url: str) -> tuple[DataSet, ...]:
    """``house`` is unpacked from two archives, ``shop`` used as it is, the checksum of ``book`` not known."""
    wanted = Unpack(("json/*/*/*",), strip=1, at_most=10_000)
    book = _file(url, "book.zip", Unpack(("book-*/recipes/*.json",), strip=2, at_most=1000))
    book = replace(book, size=None, sha256=None, at_most=10_000)
    house = (_file(url, "games.zip", wanted), _file(url, "states.zip", wanted))
    shop = (_file(url, "items.json"), _file(url, "human.json"))
    return (
        DataSet("house", "house", "json", "chores", "MIT", house, tree="json"),
        DataSet("shop", "shop", "3 products", "errands", "MIT", shop),
        DataSet("book", "book", "first edition", "bread", "none", (book,), tree="recipes"),
    )
