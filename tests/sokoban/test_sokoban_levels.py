"""Sources of levels: built-in, generated, folders; their splits."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsuite.core import DataError, UnknownTask, UsageError
from envsuite.core.draws import Draw
from envsuite.sokoban import tasks as module
from envsuite.sokoban.env import SokobanEnv
from envsuite.sokoban.expert import SokobanExpert
from envsuite.sokoban.generate import LevelKind, generate, share
from envsuite.sokoban.level import read_level
from envsuite.sokoban.source import BUILTIN, GeneratedLevels, LevelFolder, LevelSet
from envsuite.sokoban.world import Sokoban

WON = "######\n#@$. #\n######\n"


def folder(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / f"{name.replace('__', '/')}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.slow
def test_the_built_in_levels_are_what_the_code_makes():
    files = module.builtin_files()
    assert {path.relative_to(BUILTIN).as_posix(): path.read_text() for path in BUILTIN.rglob("*.txt")} == files


def test_no_built_in_level_is_another_turned_or_mirrored_and_each_is_solved_within_the_horizon():
    levels, tasks = module.load("builtin")
    every = [levels.level(task_id) for task_id in tasks.types]
    assert len({level.canonical() for level in every}) == len(every) == 2 * sum(module.COUNTS.values())
    assert all(0 < len(SokobanExpert().moves(Sokoban(level))) <= module.HORIZON for level in every)
    assert {split: len(ids) for split, ids in tasks.splits.items()} == {k: 2 * n for k, n in module.COUNTS.items()}


Images = dict[str, set[tuple[str, ...]]]


def rooms(levels: LevelSet) -> Images:
    """Walls and targets of the levels of each split, turned and mirrored alike."""
    found: Images = {"train": set(), "validation": set(), "test": set()}
    for task_id, (split, _) in levels.listed.items():
        found[split].add(levels.level(task_id).canonical(pieces=False))
    return found


def apart(*images: Images) -> bool:
    """Whether no split of one has a room with its targets in common with another split of any."""
    return all(
        one[split].isdisjoint(other[another])
        for one in images for other in images for split in one for another in other if split != another
    )  # fmt: skip


def test_rooms_with_their_targets_are_in_one_split_alone_built_in_and_generated():
    builtin, tiny = rooms(LevelFolder(BUILTIN)), rooms(GeneratedLevels(LevelKind(5, 5, 2, (1, 9)), 3, 300))
    like_builtin = rooms(GeneratedLevels(LevelKind(6, 6, 1), 3, 500))
    assert all(tiny.values()) and len(tiny["train"]) < 240, "so small that many are alike"
    assert apart(builtin, tiny, like_builtin)


@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 3), st.booleans())
def test_share_and_canonical_rows_of_a_level_are_those_of_every_image_of_it(seed, boxes, turns, mirror):
    level, _ = generate(LevelKind(7, 6, boxes), Draw(f"{seed}"))
    rows = level.text().split("\n")
    for _ in range(turns):
        rows = ["".join(column) for column in zip(*rows[::-1], strict=True)]
    image = read_level(rows[::-1] if mirror else rows, "a test")
    kinds = (LevelKind(7, 6, boxes), LevelKind(image.width, image.height, boxes))
    assert share(kinds[0], level.floor, level.targets) == share(kinds[1], image.floor, image.targets)
    assert image.canonical() == level.canonical()


def test_an_id_is_the_same_level_however_many_there_are():
    few, many = GeneratedLevels(LevelKind(), 0, 20), GeneratedLevels(LevelKind(), 0, 1000)
    assert few.version == many.version and set(few.listed) < set(many.listed)
    assert all(few.level(i) == many.level(i) and few.listed[i] == many.listed[i] for i in few.listed)


def test_a_key_gives_this_level_for_ever():
    assert generate(LevelKind(), Draw("fixed"))[0].text() == "######\n#+$. #\n#$ ###\n#    #\n# ## #\n######"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"width": 3}, "4 to 32 columns"),
        ({"width": 40}, "4 to 32 columns"),
        ({"width": 4, "height": 4, "boxes": 1}, "at least 5 of one"),
        ({"boxes": 5}, "room for 1 to 4 boxes"),
        ({"pushes": (4, 2)}, "fewest and the most pushes"),
    ],
)
def test_levels_that_cannot_be_are_refused(arguments, said):
    with pytest.raises(UsageError, match=said):
        LevelKind(**arguments)


def test_levels_that_are_hardly_ever_are_given_up(monkeypatch):
    monkeypatch.setattr("envsuite.sokoban.generate._EFFORT", 10_000)
    with pytest.raises(UsageError, match=r"none of \d+ rooms of 5x4 cells with 1 boxes has .* 9 to 9 pushes; ask"):
        generate(LevelKind(5, 4, 1, (9, 9)), Draw("any"))
    with pytest.raises(UsageError, match=r"9 pushes for this split; ask"):
        generate(LevelKind(5, 4, 1, (9, 9)), Draw("any"), range(50))


def test_a_folder_of_level_files_is_read_as_boxoban_lays_it_out(tmp_path):
    two = f"; 0\n{WON}\n; 1\n{WON.replace('@$. ', ' @$.')}"
    place = folder(tmp_path, unfiltered__train__000=two, unfiltered__valid__000=WON, hard__000=WON, medium__test_1=WON)
    levels = LevelFolder(place)
    assert levels.listed == {
        "hard/000#0": ("test", "hard"),
        "medium/test_1#0": ("test", "medium"),
        "unfiltered/train/000#0": ("train", "unfiltered"),
        "unfiltered/train/000#1": ("train", "unfiltered"),
        "unfiltered/valid/000#0": ("validation", "unfiltered"),
    }
    assert levels.level("unfiltered/train/000#1").text() == "######\n# @$.#\n######"
    changed = folder(tmp_path, hard__000=f"{WON}\n{WON}")
    assert LevelFolder(changed).version != levels.version


@pytest.mark.parametrize(
    ("folder", "name", "split", "kind"),
    [
        ("levels", "training/000", "train", "levels"),
        ("levels", "trainset1/easy/7", "train", "easy"),
        ("levels", "sets/Val_2/a", "validation", "sets"),
        ("levels", "hard/000", "test", "hard"),
        ("levels", "a", "test", "levels"),
        ("levels", "train/test/a", "test", "levels"),
        ("unfiltered/train", "000", "train", "train"),
    ],
)
def test_split_and_type_of_a_level_are_said_by_names_above_it(folder, name, split, kind, tmp_path):
    path = tmp_path / folder / f"{name}.txt"
    path.parent.mkdir(parents=True)
    path.write_text(WON)
    assert list(LevelFolder(tmp_path / folder).listed.values()) == [(split, kind)]


@pytest.mark.parametrize(
    "text",
    [
        f"Title: easy\n\n{WON}\nAuthor: me\n; note # 2\n{WON}",
        f"Level #1\n\n{WON}\nLevel #2\n\n{WON}",
        f"Level #1\n{WON}Level #2\n{WON}",
        f"...\n{WON}\n***\n\n{WON}",
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_titles_remarks_and_line_ends_of_other_collections_are_no_rows(text, end, tmp_path):
    (tmp_path / "collection.txt").write_bytes(text.replace("\n", end).encode())
    levels = LevelFolder(tmp_path)
    assert len(levels.listed) == 2 and levels.level("collection#1") == levels.level("collection#0")


def test_a_damaged_level_is_named_and_left_out_and_the_others_are_played(tmp_path):
    levels = LevelFolder(folder(tmp_path, one=f"{WON}\n{WON.replace('@', ' ')}\n{WON}"))
    assert levels.level("one#2") == levels.level("one#0") and [*levels.listed] == ["one#0", "one#2"]
    assert len(levels.left_out) == 1 and "one.txt, level 1: the level has 0 players" in levels.left_out[0]
    with pytest.raises(DataError, match=r"one\.txt, level 1: the level has 0 players"):
        levels.level("one#1")


def test_files_that_change_or_cannot_be_read_are_named(tmp_path):
    (tmp_path / "folder.txt").mkdir()
    levels = LevelFolder(folder(tmp_path, short=f"{WON}\n{WON}"))
    (tmp_path / "short.txt").write_text(WON)
    with pytest.raises(DataError, match=r"short\.txt: level 1 was there"):
        levels.level("short#1")
    gone = LevelFolder(folder(tmp_path / "gone", away=WON))
    (tmp_path / "gone" / "away.txt").unlink()
    with pytest.raises(DataError, match=r"away\.txt: cannot be read"):
        gone.level("away#0")


def test_official_levels_are_played(shared):
    env = SokobanEnv(source=str(shared / "data" / "sokoban"), split="train", tasks=["medium"])
    assert len(env.tasks.ids("train")) == 1000
    observation, info = env.reset(options={"task_id": "medium/train_000#1"})
    assert observation["text"].startswith("##########\n# .@######\n#$$#######")
    assert (info["split"], info["task_type"]) == ("train", "medium")
    with pytest.raises(UnknownTask):
        env.reset(options={"task_id": "medium/train_000#1000"})
