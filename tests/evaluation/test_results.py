from __future__ import annotations

import math
import resource
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsuite.core.errors import DataError, UsageError
from envsuite.evaluation.results import Conditions, EpisodeResult, ResultFile, read_results

CONDITIONS = Conditions("expert", "player", "TextCraft-v0", "builtin", "test", "ab" * 32, 3, None, 50)


def result(task: str = "boat", seed: int = 0, **changes: object) -> EpisodeResult:
    plain = EpisodeResult(CONDITIONS, task, "depth-2", seed, True, 1.0, 1.0, 3, "done", 3, 3, metrics={"calls": 2.0})
    return replace(plain, **changes)  # type: ignore[arg-type]


def added(path: Path, *results: EpisodeResult) -> Path:
    with closing(ResultFile(path, CONDITIONS)) as file:
        for one in results:
            file.add(one)
    return path


BROKEN = {"success": False, "score": 0.0, "ending": "broken", "broken": "HTTP 500"}


@given(cut=st.integers(1, 600))
def test_a_file_that_was_cut_anywhere_goes_on_with_its_whole_lines(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("cut") / "one.jsonl"
    lines = [result(str(i)).to_line() for i in range(3)]
    content = b"".join(lines)[:-cut]
    whole = content.count(b"\n")
    path.write_bytes(content)
    assert [one.task_id for one in read_results(path)] == [str(i) for i in range(whole)]
    with closing(ResultFile(path, CONDITIONS)) as file:
        assert file.missing(map(str, range(3)), [0]) == [(str(i), 0) for i in range(whole, 3)]
        for i in range(whole, 3):
            file.add(result(str(i)))
    assert path.read_bytes() == b"".join(lines)


def test_a_line_that_is_no_result_is_named_with_its_number(tmp_path):
    path = tmp_path / "one.jsonl"
    for bad in (b"{}", b"[1]", b"nonsense", b"\xff", orjson.dumps({**orjson.loads(result().to_line()), "steps": "3"})):
        path.write_bytes(result().to_line() + bad + b"\n")
        with pytest.raises(DataError, match="line 2: not the result"):
            read_results(path)
    with pytest.raises(DataError, match="has no results"):
        read_results(tmp_path / "nothing.jsonl" if (tmp_path / "nothing").mkdir() else tmp_path / "nothing")


@given(st.binary(max_size=200))
def test_no_line_raises_anything_else(line):
    try:
        EpisodeResult.from_line(line)
    except DataError:
        pass


def test_the_last_line_of_an_episode_counts_and_a_broken_one_is_missing(tmp_path):
    path = tmp_path / "one.jsonl"
    with closing(ResultFile(path, CONDITIONS)) as file:
        file.add(result(**BROKEN))
        assert file.missing(["boat", "bed"], [0]) == [("boat", 0), ("bed", 0)]
        file.add(result())
        assert file.missing(["boat", "bed"], [0]) == [("bed", 0)]
    assert [one.broken for one in read_results(path)] == [None]


def test_an_episode_that_finished_counts_before_one_that_broke_whichever_file_is_read_first(tmp_path):
    """Two processes write two files; the second one plays again what broke in the first one's."""
    for first, second in (("x.jsonl", "x.1.jsonl"), ("x.1.jsonl", "x.jsonl")):
        folder = tmp_path / first
        added(folder / first, result(**BROKEN))
        added(folder / second, result())
        assert read_results(folder) == [result()]
        assert read_results(folder / first, folder / second) == [result()]


def test_two_outcomes_of_one_episode_in_two_files_are_refused(tmp_path):
    """As of two models behind one name: one would silently stand for the other."""
    for name, one in (("a", result()), ("b", result(seconds=9.0)), ("c", result(steps=4))):
        added(tmp_path / f"{name}.jsonl", one)
    assert len(read_results(tmp_path / "a.jsonl", tmp_path / "b.jsonl")) == 1, "a copy is no other outcome"
    with pytest.raises(DataError, match=r"b\.jsonl and .*c\.jsonl have different outcomes of task 'boat', seed 0"):
        read_results(tmp_path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        *(({name: value}, "must be a finite number") for name, value in (("score", math.nan), ("reward", math.inf))),
        ({"metrics": {"f1": math.nan}}, "must be a finite number"),
        ({"ending": "broken"}, "both or neither"),
        ({"ending": "broken", "broken": "HTTP 500"}, "has no success"),
    ],
)
def test_what_is_no_result_is_refused_before_it_is_written(changes, said):
    with pytest.raises(UsageError, match=said):
        result(**changes)


def test_a_full_disk_is_told_and_leaves_whole_lines(tmp_path):
    path = tmp_path / "one.jsonl"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = len(result("0").to_line())
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * size + size // 2, before[1]))
    try:
        with pytest.raises(DataError, match="cannot be written"), closing(ResultFile(path, CONDITIONS)) as file:
            for number in range(3):
                file.add(result(str(number)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_bytes() == result("0").to_line() + result("1").to_line()


def test_results_of_other_conditions_are_refused_by_name(tmp_path):
    path = tmp_path / "one.jsonl"
    with closing(ResultFile(path, CONDITIONS)) as file:
        file.add(result())
        with pytest.raises(UsageError, match="budget 50 where now it is 15"):
            file.add(result(conditions=replace(CONDITIONS, budget=15)))
    with pytest.raises(UsageError, match=r"panel .* where now it is 'cd.*name another folder"):
        ResultFile(path, replace(CONDITIONS, panel="cd" * 32))
    with closing(ResultFile(path, CONDITIONS)) as file:  # the refusal let go of the file
        assert len(file.results) == 1


def test_one_process_at_a_time_writes_a_file(tmp_path):
    path = tmp_path / "one.jsonl"
    with closing(ResultFile(path, CONDITIONS)), pytest.raises(DataError, match="another process writes it"):
        ResultFile(path, CONDITIONS)
    ResultFile(path, CONDITIONS).close()


def test_fields_of_newer_versions_are_left_out():
    body = orjson.loads(result().to_line())
    body["mood"] = 1
    body["conditions"]["weather"] = "fine"
    assert EpisodeResult.from_line(orjson.dumps(body)) == result()
