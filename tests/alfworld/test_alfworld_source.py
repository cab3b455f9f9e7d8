from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paper_games import FAMILY, write_game, write_games

from envsuite.alfworld import source
from envsuite.alfworld.game_file import FAMILIES, GAME, TRAJECTORY, parse_family, parse_game
from envsuite.alfworld.source import Games, find_root, games_of, index_file
from envsuite.alfworld.tasks import load
from envsuite.core import DataError

TICK = 0.02
"""Longer than file systems take between two times that they tell apart."""


def indexed(root: Path) -> Games:
    """The games as a new process finds them."""
    games_of.cache_clear()
    return games_of(find_root(root))


def facts(games: Games) -> dict[str, Any]:
    return {name: vars(games)[name] for name in ("root", "splits", "families", "left_out", "version")}


@pytest.fixture
def root(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nine games, which were there long before anybody looks."""
    monkeypatch.setattr(source, "FRESH_SECONDS", TICK)
    root = write_games(tmp_path / "games")
    time.sleep(1.5 * TICK)
    return root


def test_the_second_start_reads_only_games_that_have_changed_or_were_written_just_now(root, monkeypatch):
    read: list[Path] = []
    monkeypatch.setattr(source, "parse_game", lambda path, content: read.append(path) or parse_game(path, content))
    first = indexed(root)
    assert {split: len(ids) for split, ids in first.splits.items()} == {
        "train": 3, "valid_seen": 3, "valid_unseen": 3,
    }  # fmt: skip
    read.clear()
    assert facts(indexed(root)) == facts(first) and read == []
    edited = root / "json_2.1.1" / "valid_seen" / f"{FAMILY}-Mug-None-Desk-1" / "trial_valid_seen"
    _edit(edited)
    indexed(root)
    assert read == [edited / GAME]
    game = write_game(root, "train", f"{FAMILY}-Pen-None-Desk-1") / GAME
    later = time.time() + 60  # a clock that is fast: the game is new for however long this process pauses
    os.utime(game, (later, later))
    for _ in range(2):
        read.clear()
        indexed(root)
        assert game in read


def _edit(folder: Path) -> None:
    path = folder / GAME
    about = path.stat()
    path.write_bytes(path.read_bytes().replace(b"(define)", b"(DEFINE)"))  # as long as it was …
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))  # … and as old


def _replace(folder: Path) -> None:
    copy = folder / "copy"
    copy.write_bytes((folder / GAME).read_bytes().replace(b"(define)", b"(define other)"))
    copy.replace(folder / GAME)


def _unsolvable(folder: Path) -> None:
    path = folder / GAME
    path.write_bytes(orjson.dumps(orjson.loads(path.read_bytes()) | {"solvable": False}))


CHANGES: dict[str, Callable[[Path], object]] = {
    "edited in place": _edit,
    "replaced": _replace,
    "marked": _unsolvable,
    "game removed": lambda folder: (folder / GAME).unlink(),
    "trajectory removed": lambda folder: (folder / TRAJECTORY).unlink(),
    "removed": shutil.rmtree,
    "task removed": lambda folder: shutil.rmtree(folder.parent),
    "trial renamed": lambda folder: folder.rename(folder.parent / "trial_other"),
    "trial copied": lambda folder: shutil.copytree(folder, folder.parent / "trial_copy"),
    "moved to another split": lambda folder: folder.parent.rename(folder.parents[2] / "valid_seen" / f"{FAMILY}-moved"),
    "added": lambda folder: write_game(folder.parents[3], "train", f"{FAMILY}-Pen-None-Desk-2"),
    "left-out one added": lambda folder: write_game(folder.parents[3], "train", f"{FAMILY}-AppleSliced-None-Desk-2"),
    "split added": lambda folder: write_game(folder.parents[3], "valid_train", f"{FAMILY}-Pen-None-Desk-2"),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_an_index_is_as_good_as_reading_everything_whatever_has_changed(root, kind):
    before = indexed(root)
    CHANGES[kind](root / "json_2.1.1" / "train" / f"{FAMILY}-Mug-None-Desk-0" / "trial_train")
    after = indexed(root)
    index_file(find_root(root)).unlink()
    assert facts(after) == facts(indexed(root))
    assert (after.version == before.version) == (kind == "left-out one added")


@given(damage=st.data())
@settings(max_examples=25)
def test_a_damaged_index_is_made_anew(damage):
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENVSUITE_DATA", f"{place}/data")
        patch.setattr(source, "FRESH_SECONDS", 0.0)
        root = write_games(Path(place) / "games", 1)
        wanted = facts(indexed(root))
        path = index_file(find_root(root))
        good = path.read_bytes()
        kind = damage.draw(st.sampled_from(["cut", "flip", "other"]))
        at = damage.draw(st.integers(0, len(good) - 1))
        bad = {
            "cut": good[:at],
            "flip": good[:at] + bytes([good[at] ^ damage.draw(st.integers(1, 255))]) + good[at + 1 :],
            "other": damage.draw(st.binary(max_size=100)),
        }[kind]
        path.write_bytes(bad)
        assert facts(indexed(root)) == wanted
    games_of.cache_clear()


def test_an_index_of_another_version_is_made_anew(root, monkeypatch):
    wanted = facts(indexed(root))
    with monkeypatch.context() as patch:
        patch.setattr(source, "FORMAT", 0)
        body = b'{"of": "another layout"}'
        index_file(find_root(root)).write_bytes(f"{source._seal(body)}\n".encode() + body)
    assert facts(indexed(root)) == wanted


def test_a_cache_that_cannot_be_written_to_is_said_and_does_not_matter(root, tmp_path, monkeypatch, caplog):
    wanted = facts(indexed(root))
    (tmp_path / "file").touch()
    monkeypatch.setenv("ENVSUITE_DATA", str(tmp_path / "file"))
    assert facts(indexed(root)) == wanted
    assert "set ENVSUITE_DATA" in caplog.text


def test_the_version_is_that_of_the_content_wherever_it_lies(root, tmp_path):
    copy = tmp_path / "elsewhere"
    shutil.copytree(root / "json_2.1.1", copy / "data")
    assert indexed(copy / "data").version == indexed(root).version
    assert load(copy / "data")[1] == load(root)[1]


def test_what_is_no_task_of_alfworld_is_left_out(root):
    write_game(root, "train", f"{FAMILY}-BreadSliced-None-Desk-1")
    write_game(root, "train", "pick_and_place_with_movable_recep-Pen-Mug-Desk-1")
    (write_game(root, "train", f"{FAMILY}-A-None-Desk-1") / GAME).unlink()
    (write_game(root, "train", f"{FAMILY}-B-None-Desk-1") / TRAJECTORY).unlink()
    write_game(root, "train", f"{FAMILY}-C-None-Desk-1", solvable=False)
    write_game(root, "train", f"{FAMILY}-D-None-Desk-1", solvable=None)
    games = indexed(root)
    assert sum(map(len, games.splits.values())) == 9
    assert {name[22:23]: why.split(" is ")[-1].split(" was ")[-1] for name, why in games.left_out.items()} == {
        "C": "marked as not solvable", "D": "never checked to be solvable",
    }  # fmt: skip


def test_a_game_that_is_in_two_splits_has_two_ids(root):
    task = f"{FAMILY}-Mug-None-Desk-1"
    shutil.copytree(root / "json_2.1.1" / "train" / task, root / "json_2.1.1" / "valid_train" / task)
    games, tasks = load(root)
    assert tasks.ids("valid_train") == (f"valid_train/{task}/trial_train",)
    assert f"{task}/trial_train" in tasks.ids("train")
    assert games.path(f"valid_train/{task}/trial_train").parts[-4] == "valid_train"


@pytest.mark.parametrize("known", ["train", "valid_train"])
def test_a_game_that_one_split_marks_as_solvable_is_played_whatever_the_other_says(root, known):
    task = f"{FAMILY}-Pen-None-Desk-9"
    for split in ("train", "valid_train"):
        write_game(root, split, task, solvable=True if split == known else None)
    games, tasks = load(root)
    assert tasks.ids(known).count(f"{task}/trial_T1") == 1
    assert f"{task}/trial_T1" not in games.left_out


def test_tasks_are_in_an_order_that_their_ids_decide(root):
    ids = load(root)[1].ids("train")
    shutil.rmtree(root / "json_2.1.1" / "train" / ids[1].split("/")[0])
    games_of.cache_clear()
    assert load(root)[1].ids("train") == (ids[0], ids[2])


def _single(root: Path) -> Path:
    return root / "json_2.1.1" / "train"


@pytest.mark.parametrize(
    ("choose", "said"),
    [
        (lambda root: root / "nowhere", ["there is no folder", "nowhere", "envsuite data fetch alfworld"]),
        (_single, ["no game of ALFWorld", "looks like a single split or task", "the folder that holds json_2.1.1"]),
        (lambda root: _single(root) / f"{FAMILY}-Mug-None-Desk-0", ["looks like a single split or task"]),
        (lambda root: root.parent / "empty", ["no game of ALFWorld", "envsuite data fetch alfworld"]),
        (lambda root: root.parent / "alfred", ["1 trajectories without game", "ALFRED's own data set"]),
        (lambda root: root.parent / "unsolvable", ["none of its 1 games is marked as solvable"]),
    ],
    ids=["missing", "split", "task", "empty", "alfred", "unsolvable"],
)
def test_a_folder_that_is_not_alfworlds_is_named_with_the_remedy(root, choose, said):
    (root.parent / "empty").mkdir()
    (write_game(root.parent / "alfred", "train", f"{FAMILY}-Mug-None-Desk-0") / GAME).unlink()
    write_game(root.parent / "unsolvable", "train", f"{FAMILY}-Mug-None-Desk-0", solvable=False)
    with pytest.raises(DataError) as caught:
        load(choose(root))
    assert all(words in str(caught.value) for words in said)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (GAME, b'{"pddl_domain": "(def', "truncated, or not JSON"),
        (GAME, b"", "truncated, or not JSON"),
        (GAME, b"[]", "not an object of JSON but list"),
        (GAME, b'{"pddl_domain": "", "grammar": ""}', "it has no text 'pddl_problem'"),
        (GAME, b'{"pddl_domain": "", "grammar": "", "pddl_problem": "", "solvable": "yes"}', "'solvable' is 'yes'"),
        (GAME, b'{"pddl_domain": "", "grammar": "", "pddl_problem": "", "walkthrough": [1]}', "'walkthrough' is not"),
        (TRAJECTORY, b'{"task_type": ', "truncated, or not JSON"),
        (TRAJECTORY, b"{}", "it has no text 'task_type'"),
        (TRAJECTORY, b'{"task_type": "pick_two_obj"}', "Nearest: 'pick_two_obj_and_place'"),
        (TRAJECTORY, b'{"task_type": "look_at_obj_in_light"}', "its folder is called pick_and_place_simple-Mug"),
    ],
)
def test_a_bad_file_is_named_with_the_remedy_and_nothing_is_loaded(root, name, content, said):
    indexed(root)
    kept = index_file(find_root(root)).read_bytes()
    bad = _single(root) / f"{FAMILY}-Mug-None-Desk-1" / "trial_train" / name
    bad.write_bytes(content)
    for _ in range(2):
        with pytest.raises(DataError) as caught:
            indexed(root)
        assert str(caught.value).startswith(str(bad)) and said in str(caught.value)
        assert "envsuite data fetch alfworld" in str(caught.value)
    assert index_file(find_root(root)).read_bytes() == kept


def test_of_many_bad_files_three_are_named(root):
    for path in root.rglob(GAME):
        path.write_bytes(b"{")
    with pytest.raises(DataError, match=r"and 6 more$") as caught:
        indexed(root)
    assert str(caught.value).count("truncated") == 3


def test_a_game_that_is_edited_or_removed_after_the_start_is_noticed_when_it_is_played(root):
    games, tasks = load(root)
    edited, removed, touched = tasks.ids("train")
    _edit(games.path(edited).parent)
    games.path(removed).unlink()
    games.path(touched).touch()
    assert games.path(touched).is_file()
    with pytest.raises(DataError, match="has changed since it was indexed; make the environment anew"):
        games.path(edited)
    with pytest.raises(DataError, match="cannot be read"):
        games.path(removed)
    assert load(root)[0].path(edited).is_file(), "made anew it is played as it is now"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
KEYS = st.sampled_from(["pddl_domain", "grammar", "pddl_problem", "solvable", "walkthrough", "task_type"])
VALUES = JSON | st.sampled_from([*FAMILIES, "text"])


@given(st.binary(max_size=50) | st.dictionaries(KEYS, VALUES).map(lambda body: json.dumps(body).encode()))
def test_whatever_a_file_holds_it_is_read_or_named(content):
    for parse, name in ((parse_game, GAME), (parse_family, TRAJECTORY)):
        path = Path("json_2.1.1") / "train" / f"{FAMILY}-Mug" / "trial" / name
        try:
            parse(path, content)
        except DataError as error:
            assert str(error).startswith(str(path))


def test_official_games_are_the_default_where_they_are_and_said_not_to_be_all_there(root, cache, caplog):
    root.rename(cache / "alfworld")
    assert load()[1].source == "official"
    assert "envsuite data verify alfworld" in caplog.text
    assert (
        load("official")[1].hash == load(cache / "alfworld")[1].hash == load(cache / "alfworld" / "json_2.1.1")[1].hash
    )
