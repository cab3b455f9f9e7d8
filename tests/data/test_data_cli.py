from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest
from faulty_server import Faulty
from small_catalog import CONTENT

from envsuite.cli import main
from envsuite.data.progress import format_size

Said = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("ENVSUITE_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture
def said(server: Faulty, capsys: pytest.CaptureFixture[str]) -> Said:
    """Runs a command; returns its status, what it prints, and its messages."""
    return lambda *words: (main(["data", *words]), *capsys.readouterr())


def test_list_shows_state_size_version_and_place(root, said):
    def states() -> list[str]:
        code, out, _ = said("list")
        assert code == 0
        return [line.split()[1] for line in out.splitlines()]

    assert states() == ["state", "absent", "absent", "absent"]
    said("fetch", "shop")
    said("fetch", "house")
    assert states() == ["state", "complete", "complete", "absent"]
    (root / "shop" / "items.json").unlink()
    assert states() == ["state", "complete", "partial", "absent"]
    header, house, *_ = said("list")[1].splitlines()
    assert header.split() == ["name", "state", "size", "version", "where"]
    assert house.split()[2:] == ["1.9", "KiB", "json", str(root / "house" / "json")]


def test_fetch_says_what_and_where_and_one_line_a_file(root, said):
    code, out, err = said("fetch", "house")
    assert (code, out) == (0, f"{root / 'house'}\n")
    assert err.splitlines() == [
        "house (json): chores",
        "license: MIT",
        f"games.zip  {format_size(len(CONTENT['/games.zip']))}",
        f"states.zip  {format_size(len(CONTENT['/states.zip']))}",
        "unpacked 3 files of games.zip  900 B",
        "unpacked 3 files of states.zip  1.0 KiB",
    ]


def test_fetch_takes_a_folder_as_mirror_a_place_and_keeps_archives(server, root, tmp_path_factory, said):
    share, there = tmp_path_factory.mktemp("share with blank"), tmp_path_factory.mktemp("there")
    for name in ("games.zip", "states.zip"):
        (share / name).write_bytes(CONTENT[f"/{name}"])
    assert said("fetch", "house", "--mirror", share.as_uri(), "--to", str(there), "--keep-archives")[0] == 0
    assert (there / "house" / "games.zip").exists() and not list(root.iterdir()) and not server.seen


def test_verify_tells_by_what_it_judged(said):
    for name, words in (
        ("shop", "shop: 2 files, 20 B, all correct (checksums as reported by others)"),
        ("house", "house: 6 files, 1.9 KiB, all correct (unpacked from archives with checksums"),
        ("book", "no checksum is known for book.zip: compared with the record of the first fetch"),
    ):
        said("fetch", name)
        code, out, _ = said("verify", name)
        assert code == 0 and words in out
    code, out, _ = said("verify")
    assert code == 0 and len(out.splitlines()) == 3


def test_verify_names_what_is_wrong_and_the_remedy(root, said):
    said("fetch", "shop")
    (root / "shop" / "items.json").write_bytes(b"[1, 2")
    (root / "shop" / "human.json").unlink()
    assert said("verify") == (
        1,
        f"{root}/shop/human.json: missing\n{root}/shop/items.json: truncated: 5 of 10 bytes\n",
        "shop: 2 of 2 files are missing or damaged. Type: envsuite data fetch shop\n",
    )


def test_verify_of_what_is_not_there_fails(root, said):
    code, _, err = said("verify")
    assert code == 1 and "nothing is in" in err
    code, out, err = said("verify", "house")
    assert (code, out) == (1, f"{root}/house/json: not fetched\n") and "envsuite data fetch house" in err


def test_what_is_unknown_or_cannot_be_fetched_is_one_message_and_exit_code_2(server, said):
    server.script = deque(["404"])
    for words, messages in (
        (("fetch", "hose"), ["unknown data set 'hose'. Nearest: 'house'"]),
        (("verify", "hose"), ["unknown data set 'hose'. Nearest: 'house'"]),
        (("fetch", "shop"), ["items.json: HTTP 404", "--mirror URL"]),
    ):
        code, out, err = said(*words)
        assert (code, out) == (2, "") and all(message in err for message in messages) and "Traceback" not in err


def test_ctrl_c_says_how_to_go_on(monkeypatch, said):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("envsuite.data.download._receive", interrupt)
    code, _, err = said("fetch", "shop")
    assert code == 130 and "the same command resumes" in err
