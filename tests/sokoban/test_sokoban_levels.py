"""Sources of levels: built-in, generated, folders; their splits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from envsuite.core import DataError, ToolEnv, UnknownTask, UsageError
from envsuite.core.draws import Draw
from envsuite.core.tasks import TaskSet
from envsuite.sokoban import tasks as module
from envsuite.sokoban.expert import Expert
from envsuite.sokoban.generate import Kind, generate
from envsuite.sokoban.source import BUILTIN, Folder, Generated, folder_levels
from envsuite.sokoban.world import Sokoban

WON = "######\n#@$. #\n######\n"


def folder(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / f"{name.replace('__', '/')}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_the_built_in_levels_and_their_manifest_are_what_the_code_makes() -> None:
    files = module.builtin_files()
    assert {path.relative_to(BUILTIN).as_posix(): path.read_text() for path in BUILTIN.rglob("*.txt")} == files
    assert TaskSet.from_manifest(module.MANIFEST) == module.load("builtin", Kind(), 0, 0)[1]


def test_no_built_in_level_is_another_turned_or_mirrored_and_each_is_solved_within_the_horizon() -> None:
    levels, tasks = module.load("builtin", Kind(), 0, 0)
    every = [levels.level(task_id) for task_id in tasks.types]
    assert len({level.canonical for level in every}) == len(every) == 2 * sum(module.COUNTS.values())
    assert all(0 < len(Expert().moves(Sokoban(level))) <= module.HORIZON for level in every)
    assert {split: len(ids) for split, ids in tasks.splits.items()} == {k: 2 * n for k, n in module.COUNTS.items()}


def test_generated_levels_of_different_splits_differ_even_if_turned_and_mirrored() -> None:
    levels = Generated(Kind(5, 5, 1, (1, 9)), 3, 300)  # so small that many are alike
    images: dict[str, set[tuple[str, ...]]] = {split: set() for split in ("train", "validation", "test")}
    for task_id, (split, kind) in levels.listed.items():
        assert kind == "boxes-1"
        images[split].add(levels.level(task_id).canonical)
    assert all(images.values()) and len(images["train"]) < 240
    assert images["train"].isdisjoint(images["validation"] | images["test"])
    assert images["validation"].isdisjoint(images["test"])


def test_the_same_arguments_give_the_same_levels() -> None:
    one, same, other = (Generated(Kind(7, 6, 2), seed, 20) for seed in (1, 1, 2))
    assert [one.level(i) for i in one.listed] == [same.level(i) for i in same.listed]
    assert {one.level(i) for i in one.listed}.isdisjoint(other.level(i) for i in other.listed)
    assert generate(Kind(), Draw("fixed"))[0].text() == "######\n#+$. #\n#$ ###\n#    #\n# ## #\n######"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"width": 3}, "at least 4 columns"),
        ({"width": 40, "height": 40}, "at most 1024 cells"),
        ({"boxes": 5}, "room for 1 to 4 boxes"),
        ({"pushes": (4, 2)}, "fewest and the most pushes"),
    ],
)
def test_levels_that_cannot_be_are_refused(arguments: dict[str, int], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Kind(**arguments)


def test_levels_that_are_hardly_ever_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envsuite.sokoban.generate._EFFORT", 10_000)
    with pytest.raises(UsageError, match=r"none of \d+ rooms of 4x4 cells with 1 boxes has a level of 9 to 9 pushes"):
        generate(Kind(4, 4, 1, (9, 9)), Draw("any"))


def test_a_folder_of_level_files_is_read_as_boxoban_lays_it_out(tmp_path: Path) -> None:
    two = f"; 0\n{WON}\n; 1\n{WON.replace('@$. ', ' @$.')}"
    place = folder(tmp_path, unfiltered__train__000=two, unfiltered__valid__000=WON, hard__000=WON, medium__test_1=WON)
    levels = Folder(place)
    assert levels.listed == {
        "hard/000#0": ("test", "hard"),
        "medium/test_1#0": ("test", "medium"),
        "unfiltered/train/000#0": ("train", "unfiltered"),
        "unfiltered/train/000#1": ("train", "unfiltered"),
        "unfiltered/valid/000#0": ("validation", "unfiltered"),
    }
    assert levels.level("unfiltered/train/000#1").text() == "######\n# @$.#\n######"
    changed = folder(tmp_path, hard__000=f"{WON}\n{WON}")
    assert Folder(changed).version != levels.version


def test_titles_remarks_and_line_ends_of_other_collections_are_no_rows(tmp_path: Path) -> None:
    text = f"Title: easy\r\n\r\n{WON}\nAuthor: me\n; note # 2\n{WON}".replace("\n", "\r\n")
    levels = Folder(folder(tmp_path, collection=text))
    assert list(levels.listed.values()) == [("test", "levels")] * 2
    assert levels.level("collection#1") == levels.level("collection#0")


def test_a_damaged_level_is_named_when_it_is_played_and_the_others_are_played(tmp_path: Path) -> None:
    levels = Folder(folder(tmp_path, one=f"{WON}\n{WON.replace('@', ' ')}\n{WON}"))
    assert levels.level("one#2") == levels.level("one#0")
    with pytest.raises(DataError, match=r"one\.txt, level 1: the level has 0 players"):
        levels.level("one#1")


def test_a_folder_without_levels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no level files"):
        Folder(folder(tmp_path, readme="Nothing here."))
    with pytest.raises(DataError, match="no folder"):
        folder_levels(tmp_path / "missing")


def test_official_levels_are_played(shared: Path, make_env: Callable[..., ToolEnv]) -> None:
    env = make_env("Sokoban-v0", source=str(shared / "data" / "sokoban"), split="train", tasks=["medium"])
    assert len(env.tasks.ids("train")) == 1000
    observation, info = env.reset(options={"task_id": "medium/train_000#1"})
    assert observation["text"].startswith("##########\n# .@######\n#$$#######")
    assert (info["split"], info["task_type"]) == ("train", "medium")
    with pytest.raises(UnknownTask):
        env.reset(options={"task_id": "medium/train_000#1000"})
