"""The generator and the files of problems."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from brute_force import BRUTE
from hypothesis import given
from hypothesis import strategies as st

from envsuite.core import DataError, ToolCall, UsageError
from envsuite.core.draws import Draw
from envsuite.mathematics.env import PythonMathEnv
from envsuite.mathematics.files import read
from envsuite.mathematics.generate import BY_STRATUM, KINDS, LEVELS, SHARES, draw_problem, generate_problem, share
from envsuite.mathematics.kinds import FAMILIES
from envsuite.mathematics.source import COUNTS, ProblemFiles
from envsuite.mathematics.tasks import load

NAMES = [family.name for family in FAMILIES]


def run(code: str) -> Fraction:
    """What code prints, as a number."""
    printed: list[str] = []
    exec(code, {"print": lambda value: printed.append(str(value))})
    return Fraction(printed[-1])


@pytest.mark.parametrize("name", BRUTE)
def test_answers_are_those_of_brute_force(name):
    count, ranges = BRUTE[name]
    for values in itertools.product(*ranges.values()):
        parameters = dict(zip(ranges, values, strict=True))
        assert FAMILIES[NAMES.index(name)].answer(**parameters) == count(**parameters), parameters


@pytest.mark.parametrize("family", FAMILIES, ids=NAMES)
def test_code_prints_the_answer(family):
    draw = Draw("code")
    for _ in range(20):
        problem = family.problem(family.draw(draw))
        assert run(problem.code) == Fraction(problem.answer), problem


@pytest.mark.parametrize("family", FAMILIES, ids=NAMES)
def test_every_wording_says_every_number(family):
    parameters = family.draw(Draw("wording"))
    texts = [family.problem(parameters, wording).text for wording in range(len(family.wordings))]
    assert len(set(texts)) == len(texts) > 1
    for text in texts:
        assert "{" not in text and not Counter(map(str, parameters.values())) - Counter(numbers_in(text))


def numbers_in(text: str) -> list[str]:
    words = "".join(letter if letter.isdigit() or letter == "-" else " " for letter in text).split()
    return [*words, *(word.lstrip("-") for word in words), *("0" if part == "" else part for part in words)]


def test_arithmetic_of_level_one_is_short_and_small():
    for number in range(300):
        problem = generate_problem(f"short {number}", "arithmetic-1", "train")
        assert len(problem.text) <= 50 and len(problem.code) <= 20 and abs(int(problem.answer)) < 10_000


@pytest.mark.parametrize("task_type", BY_STRATUM)
def test_splits_have_nothing_in_common(task_type):
    draw = Draw("splits")
    for split in SHARES:
        for _ in range(20):
            family, parameters, _ = draw_problem(draw, task_type, split)
            assert share(family.content(parameters)) in SHARES[split]
    assert sorted(itertools.chain(*SHARES.values())) == list(range(100))


def test_no_builtin_problem_is_there_twice():
    problems, tasks = load("builtin", 0, 1, KINDS, LEVELS)
    texts = {task_id: problems.problem(task_id).text for task_id in tasks.types}
    assert len(set(texts.values())) == len(texts) == len(BY_STRATUM) * sum(COUNTS.values())


@pytest.mark.seconds
def test_the_version_of_the_builtin_problems_is_a_hash_of_what_the_code_makes():
    problems, tasks = load("builtin", 0, 1, KINDS, LEVELS)
    digest = hashlib.sha256()
    for task_id in tasks.types:
        problem = problems.problem(task_id)
        digest.update("\0".join((task_id, problem.text, problem.answer, problem.code, "")).encode())
    assert tasks.version.endswith(f"-{digest.hexdigest()[:12]}")


def test_an_id_is_the_same_problem_whatever_the_other_arguments_are():
    few, tasks = load("generated", 3, 30, ["lattice"], [2])
    many, more = load("generated", 3, 3000, KINDS, LEVELS)
    assert set(tasks.types) <= set(more.types) and set(tasks.types.values()) == {"lattice-2"}
    assert all(few.problem(task_id) == many.problem(task_id) for task_id in tasks.types)
    assert Counter(more.types.values()) == dict.fromkeys(BY_STRATUM, 200)


def test_a_space_of_problems_that_is_exhausted_is_said():
    class Everything:
        def __contains__(self, content: object) -> bool:
            return True

    with pytest.raises(UsageError, match="no further problem of type arithmetic-1 for test"):
        draw_problem(Draw(""), "arithmetic-1", "test", Everything())  # type: ignore[arg-type]


def write(folder: Path, name: str, *rows: Any) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


def test_layouts_of_files_are_recognised(tmp_path):
    asked = 'Solve it. The last line is Answer: $Answer.\n\nHow many?\n\nTwo lines.\n\nRemember to write "Answer:".'
    path = write(
        tmp_path, "all.jsonl",
        {"problem": "a", "answer": "1"},
        {"question": "b", "answer": 2},
        {"prompt": "c", "answer": -2.5, "problem_kind": []},
        "",
        {"prompt": [{"role": "user", "content": asked}], "reward_model": {"ground_truth": "34", "style": "rule"}},
        {"problem": "d", "answer": "\\pi", "subject": "Counting & Probability", "level": 3},
        {"problem": "e", "answer": "0", "subject": "Algebra", "level": "Level 5"},
    )  # fmt: skip
    found = [(number, problem.text, problem.answer, task_type) for number, problem, task_type in read(path)]
    assert found == [
        (1, "a", "1", ""),
        (2, "b", "2", ""),
        (3, "c", "-2.5", ""),
        (5, "How many?\n\nTwo lines.", "34", ""),
        (6, "d", "\\pi", "counting-probability-3"),
        (7, "e", "0", "algebra-5"),
    ]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("{", "not JSON"),
        ("[1]", "a problem is a JSON object, not list"),
        ({"answer": "1"}, "no question"),
        ({"prompt": [{"content": 3}], "answer": "1"}, "no question"),
        ({"problem": "a"}, "no answer"),
        ({"problem": "a", "answer": True}, "no answer"),
        ({"problem": "a", "answer": "1" * 1001}, "1,001 characters"),
        ({"problem": "a" * 2**20, "answer": "1"}, "longer than 1,048,576 bytes"),
        ('{"problem": "a", "answer": NaN}', "not JSON"),
        ('{"problem": "\\ud800", "answer": "1"}', "not JSON"),
    ],
)
def test_a_line_that_is_no_problem_is_named(row, said, tmp_path):
    path = write(tmp_path, "some.jsonl", {"problem": "a", "answer": "1"}, row)
    with pytest.raises(DataError, match="line 2") as raised:
        list(read(path))
    assert said in str(raised.value) and str(path) in str(raised.value) and len(str(raised.value)) < 500


@given(st.binary(max_size=200) | st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=9), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["problem", "prompt", "question", "answer", "content", "reward_model", "ground_truth", "subject", "level"]), inner, max_size=5)).map(lambda value: json.dumps(value).encode()))  # fmt: skip  # noqa: E501
def test_any_line_is_a_problem_or_an_error_that_names_it(line):
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.jsonl"
        path.write_bytes(line)
        try:
            for _, problem, task_type in read(path):
                assert problem.text and problem.answer and isinstance(task_type, str)
        except DataError as error:
            assert str(path) in str(error)


def test_splits_and_types_of_files_follow_from_their_names(tmp_path):
    rows = {
        "a": "dapo-math-17k.jsonl", "b": "AIME24.jsonl", "c": "mine/train/x.jsonl", "d": "validation/y.jsonl",
        "e": "train/aime2025-I.jsonl", "f": "devices.jsonl", "g": "train/dev_1.jsonl",
    }  # fmt: skip
    for text, name in rows.items():
        write(tmp_path, name, {"problem": text, "answer": "1"})
    problems = ProblemFiles(tmp_path)
    assert problems.listed == {
        "AIME24#1": ("test", "aime24"),
        "devices#1": ("test", "devices"),
        "train/aime2025-I#1": ("test", "aime2025-i"),
        "train/dev_1#1": ("validation", "dev_1"),
        "validation/y#1": ("validation", "y"),
        "dapo-math-17k#1": ("train", "dapo-math-17k"),
        "mine/train/x#1": ("train", "x"),
    }
    alone = ProblemFiles(tmp_path / "AIME24.jsonl")
    assert alone.problem("AIME24#1").text == "b" and list(alone.listed.values()) == [("test", "aime24")]


def test_a_problem_that_is_there_several_times_counts_once_and_rather_as_a_test(tmp_path):
    write(tmp_path, "train.jsonl", *({"problem": text, "answer": "1"} for text in "abcab"))
    write(tmp_path, "test.jsonl", {"problem": "b", "answer": "1"})
    assert list(ProblemFiles(tmp_path).listed) == ["test#1", "train#1", "train#3"]


def test_a_change_of_a_file_is_another_version(tmp_path):
    versions = set()
    for text, answer in (("a", "1"), ("a", "2"), ("b", "1")):
        write(tmp_path, "test.jsonl", {"problem": text, "answer": answer})
        versions.add(ProblemFiles(tmp_path).version)
    assert len(versions) == 3


@pytest.mark.parametrize(
    ("name", "said"),
    [("none", "no file or folder"), ("", "there are no problems"), ("empty.txt", "there are no problems")],
)
def test_missing_and_empty_files_are_said(name, said, tmp_path):
    write(tmp_path, "empty.txt", "", "")
    with pytest.raises(DataError, match=said):
        ProblemFiles(tmp_path / name)


def test_gsm8k_s_files_are_read(tmp_path):
    rows = [
        {"question": "How many clips?", "answer": "She sold 48/2 = <<48/2=24>>24 in May.\n48+24 = 72 in all.\n#### 72"},
        {"question": "How much?", "answer": f"{'Step. ' * 300}\n#### 1,450"},
        {"question": "Colder?", "answer": "#### -3"},
    ]
    path = write(tmp_path, "train.jsonl", *rows)
    assert [problem.answer for _, problem, _ in read(path)] == ["72", "1,450", "-3"]
    env = PythonMathEnv(source=str(path))
    env.reset(options={"task_id": "train#2"})
    assert env.step([ToolCall("answer", {"text": "1450"})])[1] == 1.0
    env.close()
    with pytest.raises(DataError, match="no answer"):
        list(read(write(tmp_path, "test.jsonl", {"question": "What?", "answer": "Nothing comes after this: ####"})))
