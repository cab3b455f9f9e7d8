from __future__ import annotations

import hashlib
import io
import os
import stat
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsuite.core.errors import DataError
from envsuite.data.catalog import Unpack
from envsuite.data.part import shape_trouble
from envsuite.data.progress import SilentProgress
from envsuite.data.unpack import unpack

SPEC = Unpack(("set/*/game.txt", "set/*/state.json"), strip=1, at_most=10_000)
FILES = {
    "set/a/game.txt": b"one",
    "set/a/state.json": b"{}",
    "set/b/game.txt": b"two" * 100,
    "set/b/c/game.txt": b"too deep",
    "set/a/movie.avi": bytes(50_000),
    "other/a/game.txt": b"elsewhere",
}
Pack = Callable[[Path, dict[str, bytes]], Path]


def _zip(folder: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(folder / "set.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.mkdir("set/a")
        for name, content in files.items():
            packed.writestr(name, content)
    return folder / "set.zip"


def _tar(kind: str) -> Pack:
    def pack(folder: Path, files: dict[str, bytes]) -> Path:
        path = folder / f"set.tar.{kind}"
        with tarfile.open(path, f"w:{kind}") as packed:  # type: ignore[call-overload]
            for name, content in files.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                info.mode = 0o4777
                packed.addfile(info, io.BytesIO(content))
        return path

    return pack


PACKS = {"zip": _zip, "gz": _tar("gz"), "xz": _tar("xz"), "bz2": _tar("bz2"), "tar": _tar("")}


@pytest.fixture(params=PACKS, ids=str)
def pack(request: pytest.FixtureRequest) -> Pack:
    return PACKS[request.param]


def _there(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def refused(archive: Path, why: str, spec: Unpack = SPEC) -> Path:
    """Returns the folder into which the archive must not be unpacked."""
    with pytest.raises(DataError, match=why):
        unpack(archive, spec, archive.parent / "out", SilentProgress())
    return archive.parent / "out"


def test_the_wanted_members_are_unpacked_and_no_other(pack, tmp_path):
    entries = unpack(pack(tmp_path, FILES), SPEC, tmp_path / "out", SilentProgress())
    expected = {name.removeprefix("set/"): content for name, content in list(FILES.items())[:3]}
    assert _there(tmp_path / "out") == expected
    assert {name: (entry.size, entry.sha256) for name, entry in entries.items()} == {
        name: (len(content), hashlib.sha256(content).hexdigest()) for name, content in expected.items()
    }
    assert not any(path.stat().st_mode & (stat.S_ISUID | 0o111) for path in (tmp_path / "out").rglob("*.*"))


@pytest.mark.parametrize(
    "name",
    ["/set/a/game.txt", "set/../game.txt", "../set/a/game.txt", "set/a/../../../game.txt", "C:/a/game.txt", "set//x"],
)
def test_a_path_that_leads_out_is_refused(pack, tmp_path, name):
    assert not refused(pack(tmp_path, {**FILES, name: b"evil"}), "not one below a folder").exists()


@pytest.mark.parametrize("name", ["set\\a\\game.txt", "set/a/game.txt\0.png"])
def test_a_path_that_means_another_one_elsewhere_is_refused(tmp_path, name):
    archive = _zip(tmp_path, {**FILES, "set/a/" + "?" * (len(name) - 6): b"evil"})
    archive.write_bytes(archive.read_bytes().replace(b"set/a/" + b"?" * (len(name) - 6), name.encode()))
    refused(archive, "not one below a folder")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_a_link_or_device_in_a_tar_is_refused_where_it_is_wanted(tmp_path, kind):
    for name in ("set/z/game.txt", "set/z/elsewhere"):
        with tarfile.open(tmp_path / "set.tar", "w") as packed:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            packed.addfile(info)
            packed.addfile(tarfile.TarInfo("set/a/game.txt"))
        if name.endswith("game.txt"):
            refused(tmp_path / "set.tar", "link or a device")
    assert list(unpack(tmp_path / "set.tar", SPEC, tmp_path / "other", SilentProgress())) == ["a/game.txt"]


def test_a_link_in_a_zip_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as packed:
        info = zipfile.ZipInfo("set/a/game.txt")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        packed.writestr(info, "/etc/passwd")
    refused(tmp_path / "set.zip", "link or a device")


def test_what_is_there_twice_too_large_or_not_wanted_at_all_is_refused(pack, tmp_path):
    large = pack(tmp_path, {**FILES, "set/z/game.txt": bytes(100_000)})
    assert not refused(large, r"unpacks to 98\.0 KiB; at most 9\.8 KiB").exists(), "before anything is written"
    refused(pack(tmp_path, FILES), "in it twice", replace(SPEC, strip=2))
    refused(pack(tmp_path, {"readme": b""}), r"has no member like set/\*/game\.txt")


def test_an_archive_that_lies_about_its_size_is_cut(tmp_path):
    archive = _zip(tmp_path, {"set/z/game.txt": bytes(1_000_000)})
    size = (1_000_000).to_bytes(4, "little")
    archive.write_bytes(archive.read_bytes().replace(size, (9).to_bytes(4, "little")))
    assert sum(map(len, _there(refused(archive, r"set\.zip")).values())) <= 9


def test_an_encrypted_archive_is_named(tmp_path):
    archive = _zip(tmp_path, {"set/a/game.txt": b"secret"})
    content = bytearray(archive.read_bytes())
    for signature, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        at = content.rfind(signature)
        content[at + flags] |= 1
    archive.write_bytes(content)
    refused(archive, "is encrypted")


@given(st.data())
def test_a_damaged_archive_is_an_error_or_does_no_harm(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("damaged")
    archive = PACKS[data.draw(st.sampled_from(sorted(PACKS)))](folder, FILES)
    content = bytearray(archive.read_bytes())
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    else:
        for at in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=4)):
            content[at] ^= data.draw(st.integers(1, 255))
    archive.write_bytes(content)
    before = set(os.listdir(folder))
    try:
        entries = unpack(archive, SPEC, folder / "out", SilentProgress())
    except DataError as error:
        assert str(archive) in str(error)
    else:
        assert {name: hashlib.sha256(text).hexdigest() for name, text in _there(folder / "out").items()} == {
            name: entry.sha256 for name, entry in entries.items()
        }
    assert set(os.listdir(folder)) <= before | {"out"}


@pytest.mark.parametrize("place", ["first", "last"])
def test_a_name_that_is_damaged_is_damage(tmp_path, place):
    archive = tmp_path / "set.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("a/\u00e9", "text")
    content, name = archive.read_bytes(), "\u00e9".encode()
    at = content.index(name) if place == "first" else content.rindex(name)
    archive.write_bytes(content[:at] + b"\xff\xff" + content[at + len(name) :])
    refused(archive, "damaged", Unpack(("a/*",), strip=0, at_most=1000))
    assert place == "first" or shape_trouble(archive, "set.zip") is not None
