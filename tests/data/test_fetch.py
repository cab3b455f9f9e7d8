from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from small_catalog import BOOK, CONTENT, HOUSE, SHOP, zipped

from envsuite.core.errors import DataError, UsageError
from envsuite.data import catalog
from envsuite.data.catalog import DataSet, data_set, data_sets
from envsuite.data.download import Patience
from envsuite.data.manager import fetch, state, verify
from envsuite.data.progress import DownloadDisplay
from envsuite.data.record import read_record

PATIENCE = Patience(attempts=2, sleep=lambda _: None)


def _there(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name[0] != "."}


def _damages(data: DataSet, root: Path) -> dict[str, str]:
    found = verify(data, root)
    return {str(damage.path.relative_to(found.folder)): damage.what for damage in found.damages}


def test_archives_are_unpacked_into_one_tree_and_removed(server, tmp_path):
    house = data_set("house")
    assert fetch(house, tmp_path) == tmp_path / "house"
    there = _there(tmp_path / "house")
    assert there.pop("fetched.json")
    assert there == HOUSE
    assert sorted(os.listdir(tmp_path / "house")) == [".lock", "fetched.json", "json"]
    assert state(house, tmp_path).state == "complete"
    assert not verify(house, tmp_path).damages


def test_files_that_a_person_put_there_are_used(server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("games.zip", "states.zip", "book.zip"):
        folder = tmp_path / ("book" if name == "book.zip" else "house")
        folder.mkdir(exist_ok=True)
        (folder / name).write_bytes(CONTENT[f"/{name}"])
    fetch(data_set("house"), Path())
    fetch(data_set("book"), Path())
    assert not server.seen
    record = read_record(tmp_path / "book", "book")
    assert record is not None and record.sources["book.zip"].url.startswith("file:///")


def test_what_is_there_and_right_is_not_fetched_again(server, tmp_path):
    for data in map(data_set, ("house", "shop", "book")):
        fetch(data, tmp_path)
        server.seen.clear()
        fetch(data, tmp_path)
        assert not server.seen


@pytest.mark.parametrize("name", ["house", "shop", "book"])
@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (None, "missing"),
        (lambda content: content[:-3], "truncated"),
        (lambda content: b"x" + content[1:], "changed"),
        (lambda content: content + b"\n", "changed"),
    ],
    ids=["removed", "cut", "altered", "lengthened"],
)
def test_damage_is_found_and_mended(server, tmp_path, name, harm, said):
    data = data_set(name)
    folder = fetch(data, tmp_path)
    victim = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "fetched.json")[-1]
    content = victim.read_bytes()
    victim.unlink()
    if harm is not None:
        victim.write_bytes(harm(content))
    (found,) = _damages(data, tmp_path).items()
    assert found[0] == str(victim.relative_to(folder)) and found[1].startswith(said)
    same_size = victim.exists() and victim.stat().st_size == len(content)
    assert state(data, tmp_path).state == ("complete" if same_size else "partial"), "by sizes alone"
    fetch(data, tmp_path)
    assert not verify(data, tmp_path).damages
    assert victim.read_bytes() == content


def test_an_unknown_checksum_is_recorded_and_held_against_later_changes(server, tmp_path):
    book = data_set("book")
    folder = fetch(book, tmp_path)
    record = read_record(folder, "book")
    assert record is not None
    source = record.sources["book.zip"]
    assert (source.known, source.sha256) == (False, hashlib.sha256(CONTENT["/book.zip"]).hexdigest())
    (folder / "recipes" / "bread.json").write_bytes(b'{"wheat": 4}')
    assert _damages(book, tmp_path) == {"recipes/bread.json": "changed: its content is not what it was"}


def test_a_second_fetch_of_other_bytes_says_so(server, tmp_path, capsys):
    book = data_set("book")
    shutil.rmtree(fetch(book, tmp_path) / "recipes")
    server.content["/book.zip"] = zipped({**BOOK, "book-main/README": b"second edition"})
    fetch(book, tmp_path, progress=DownloadDisplay(sys.stderr))
    assert "not the same as when it was fetched first" in capsys.readouterr().err
    assert not verify(book, tmp_path).damages


def test_a_new_version_in_the_catalogue_is_fetched(server, tmp_path):
    shop = data_set("shop")
    fetch(shop, tmp_path)
    server.content["/items.json"] = new = b"[4, 5, 6, 7]"
    items = replace(shop.files[0], size=len(new), sha256=hashlib.sha256(new).hexdigest(), at_most=len(new))
    newer = replace(shop, version="4 products", files=(items, shop.files[1]))
    assert state(newer, tmp_path).state == "partial"
    assert not verify(newer, tmp_path).damages, "what is there is still what was fetched"
    fetch(newer, tmp_path)
    assert (tmp_path / "shop" / "items.json").read_bytes() == new
    assert state(newer, tmp_path).version == "4 products"


def test_data_sets_may_share_a_folder_and_files(server, tmp_path, monkeypatch):
    shop = data_set("shop")
    human = replace(shop, name="human", version="people", files=shop.files[1:])
    monkeypatch.setattr(catalog, "data_sets", lambda: (shop, human))
    fetch(human, tmp_path)
    assert state(shop, tmp_path).state == "absent"
    server.seen.clear()
    fetch(shop, tmp_path)
    assert [path for path, _ in server.seen] == ["/items.json"]
    assert state(human, tmp_path).state == state(shop, tmp_path).state == "complete"


def test_a_tree_of_unknown_origin_is_not_touched(server, tmp_path):
    mine = tmp_path / "house" / "json" / "mine"
    mine.mkdir(parents=True)
    with pytest.raises(DataError, match="exists already, and was not fetched by this command"):
        fetch(data_set("house"), tmp_path)
    assert mine.is_dir() and not server.seen


def test_nothing_of_a_wrong_archive_is_unpacked(server, tmp_path):
    server.content["/states.zip"] = bytes(len(CONTENT["/states.zip"]))
    with pytest.raises(DataError, match=r"states\.zip: could not be fetched"):
        fetch(data_set("house"), tmp_path, patience=PATIENCE)
    assert sorted(_there(tmp_path / "house")) == ["games.zip"], "which the next call goes on with"
    assert state(data_set("house"), tmp_path).state == "partial"


def test_an_archive_that_cannot_be_unpacked_goes_aside(server, tmp_path):
    book = data_set("book")
    server.content["/book.zip"] = zipped({"book-main/recipes/../../../evil.json": b"", **BOOK})
    with pytest.raises(DataError, match=r"not one below a folder.*book\.zip\.bad now"):
        fetch(book, tmp_path)
    assert sorted(os.listdir(tmp_path / "book")) == [".lock", "book.zip.bad"]
    server.content["/book.zip"] = CONTENT["/book.zip"]
    fetch(book, tmp_path)
    assert not verify(book, tmp_path).damages


@pytest.mark.parametrize("when", ["os.replace", "os.fsync"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("count", range(6))
def test_an_interruption_at_any_time_is_gone_on_with(server, tmp_path, monkeypatch, when, after, count):
    house, left = data_set("house"), [count]
    real = {"os.replace": os.replace, "os.fsync": os.fsync}[when]

    def stop(*arguments: object) -> None:
        left[0] -= 1
        if after or left[0] >= 0:
            real(*arguments)  # type: ignore[operator]
        if left[0] < 0:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(when, stop)
        fetch(house, tmp_path)
        assert left[0] < count, f"{when} was never called"
        raise KeyboardInterrupt  # there were not so many calls
    if state(house, tmp_path).state == "complete":
        assert not verify(house, tmp_path).damages
    fetch(house, tmp_path)
    assert _there(tmp_path / "house" / "json") == {name.removeprefix("json/"): text for name, text in HOUSE.items()}
    assert {name for name in os.listdir(tmp_path / "house") if name.startswith(".")} == {".lock"}


def test_two_processes_fetch_once(server, tmp_path):
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from pathlib import Path; from small_catalog import small_catalog; from envsuite.data.manager import fetch\n"
        f"fetch(small_catalog({server.url!r})[0], Path({str(tmp_path)!r}))"
    )
    server.script = deque(["waits"])
    with subprocess.Popen([sys.executable, "-c", code]) as other:
        while not server.seen and other.poll() is None:
            time.sleep(0.01)

        def wait(seconds: float) -> None:
            server.go.set()
            time.sleep(0.01)

        fetch(data_set("house"), tmp_path, patience=Patience(sleep=wait))
        server.go.set()
    assert other.returncode == 0
    assert [path for path, _ in server.seen] == ["/games.zip", "/states.zip"]
    assert not verify(data_set("house"), tmp_path).damages


def test_mirrors_are_asked_in_order_and_in_place_of_the_public_places(server, tmp_path):
    shop = data_set("shop")
    for name, content in SHOP.items():
        server.content[f"/b/{name}"] = content
    fetch(shop, tmp_path, mirrors=[f"{server.url}/a", f"{server.url}/b/"], patience=PATIENCE)
    assert [path for path, _ in server.seen] == ["/a/items.json", "/b/items.json", "/a/human.json", "/b/human.json"]
    with pytest.raises(DataError) as error:
        fetch(shop, tmp_path / "other", mirrors=[f"{server.url}/nowhere"], patience=PATIENCE)
    assert f"{server.url}/nowhere/items.json: HTTP 404" in str(error.value)
    with pytest.raises(UsageError, match="--mirror /mnt/share: not an address"):
        fetch(shop, tmp_path, mirrors=["/mnt/share"])


def test_a_file_that_cannot_be_looked_at_is_told_with_the_reason(server, tmp_path):
    folder = fetch(data_set("book"), tmp_path)
    shutil.rmtree(folder / "recipes")
    (folder / "recipes").write_text("a file where a folder was")
    assert set(_damages(data_set("book"), tmp_path).values()) == {"not readable (Not a directory)"}


def test_a_damaged_record_is_named(server, tmp_path):
    folder = fetch(data_set("shop"), tmp_path)
    for content in (b"", b"[]", b'{"format": 9}', b'{"format": 1, "sets": {"shop": {"files": 3}}}'):
        (folder / "fetched.json").write_bytes(content)
        with pytest.raises(DataError, match=r"fetched\.json: not a record"):
            verify(data_set("shop"), tmp_path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path, server):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(DataError, match="file/shop: cannot be written"):
        fetch(data_set("shop"), tmp_path / "file")


def test_every_published_file_has_a_place_a_bound_and_a_checksum_of_the_right_form():
    names = [data.name for data in data_sets()]
    assert len(set(names)) == len(names)
    for data in data_sets():
        assert (data.tree is not None) == any(file.unpack is not None for file in data.files)
        for file in data.files:
            assert file.urls and all(urlsplit(url).scheme == "https" for url in file.urls)
            assert (file.size is None) == (file.sha256 is None)
            assert file.size is None or file.size <= file.at_most
            assert file.sha256 is None or len(bytes.fromhex(file.sha256)) == 32
            if file.unpack is not None:
                assert all(len(pattern.split("/")) > file.unpack.strip for pattern in file.unpack.wanted)


def test_recorded_webshop_files_agree_with_the_catalogue(shared):
    attributes = shared / "data" / "webshop" / "items_ins_v2_1000.json"
    known = {file.name: file for data in data_sets() for file in data.files}[attributes.name]
    content = attributes.read_bytes()
    assert (len(content), hashlib.sha256(content).hexdigest()) == (known.size, known.sha256)
