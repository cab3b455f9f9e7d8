import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lamps import TASKS

from envsuite.core import DataError, TaskSet, UnknownTask

HASH = "a57cb34483ce9c29246641f4928d17d734bccfce6f51c45b5c8ef2f758985476"

HASH_IN_A_SHELL = """
from envsuite.core import TaskSet
types = {"two": "small", "three": "small", "four": "large", "five": "large", "six": "large"}
ids = {"test": ("four", "five", "six"), "empty": (), "train": ("two", "three")}
print(TaskSet("Lamps-v0", "builtin", "1", ids, {k: types[k] for k in set(types)}).hash)
"""


@pytest.mark.parametrize("hash_seed", ["0", "1", "4711"])
def test_the_hash_is_the_stored_one_in_every_process(hash_seed):
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", HASH_IN_A_SHELL], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == HASH == TASKS.hash


@pytest.mark.parametrize(
    "other",
    [
        replace(TASKS, source="official"),
        replace(TASKS, version="2"),
        replace(TASKS, splits={**TASKS.splits, "train": ("three", "two")}),
        replace(TASKS, splits={**TASKS.splits, "train": ("two",)}),
        replace(TASKS, types={**TASKS.types, "two": "large"}),
    ],
    ids=["source", "version", "order", "ids", "types"],
)
def test_the_hash_covers_everything_that_results_depend_on(other):
    assert other.hash != TASKS.hash


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1), unique=True), st.data())
def test_a_manifest_reads_back_as_the_same_task_set(tmp_path_factory, names, data):
    cut = data.draw(st.integers(0, len(names)))
    splits = {"train": tuple(names[:cut]), "test": tuple(names[cut:])}
    tasks = TaskSet("Any-v0", "builtin", "1", splits, dict.fromkeys(names, "kind"))
    path = tmp_path_factory.getbasetemp() / "manifest.json"
    path.write_bytes(tasks.manifest())
    again = TaskSet.from_manifest(path)
    assert again == tasks and again.hash == tasks.hash


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"env_id": "x", "splits": 3}', b"\xff\xfe"])
def test_a_file_that_is_no_manifest_is_named(tmp_path, content):
    path = tmp_path / "manifest.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"manifest\.json: not a task manifest"):
        TaskSet.from_manifest(path)


@pytest.mark.parametrize(
    ("use", "error", "said"),
    [
        (lambda: TaskSet.from_manifest(Path("nowhere.json")), DataError, r"nowhere\.json"),
        (lambda: TASKS.split_of("thre"), UnknownTask, f"(?s){HASH[:8]}.*'thre'.*\"three\" .train.*envs tasks Lamps-v0"),
        (lambda: TASKS.ids("trian"), UnknownTask, "'trian'.*Nearest: 'train'.*Known: train, empty, test"),
        (lambda: TASKS.select(["lareg"]), UnknownTask, "large"),
        (lambda: TASKS.select(["fiv"]), UnknownTask, "five"),
    ],
)
def test_what_does_not_exist_is_named_with_the_nearest(use, error, said):
    with pytest.raises(error, match=said):
        use()


def test_a_task_in_two_splits_is_refused():
    with pytest.raises(DataError, match="'a' is in split 'train' and in 'test'"):
        TaskSet("Any-v0", "builtin", "1", {"train": ("a", "b"), "test": ("c", "a")}, dict.fromkeys("abc", "kind"))


def test_select_takes_ids_types_and_both_and_keeps_the_order():
    assert TASKS.select(None) is TASKS
    assert TASKS.select(["five", "two"]).splits == {"train": ("two",), "test": ("five",), "empty": ()}
    assert TASKS.select(["large"]).splits == {"train": (), "test": ("four", "five", "six"), "empty": ()}
    assert TASKS.select("large").splits == TASKS.select(["large"]).splits
    assert TASKS.select(["three", "large"]).splits == {**TASKS.splits, "train": ("three",)}
    assert set(TASKS.select(["small"]).types) == {"two", "three"}
    assert TASKS.select(["small"]).hash != TASKS.hash


def test_the_summary_says_which_tasks_a_result_came_from():
    assert TASKS.summary() == {
        "env_id": "Lamps-v0",
        "source": "builtin",
        "version": "1",
        "hash": HASH,
        "splits": {"train": 2, "test": 3, "empty": 0},
    }
