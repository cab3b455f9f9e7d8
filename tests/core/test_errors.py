from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsuite.core import DataError, EnvsuiteError, MissingExtra, UnknownName, UnknownTask, UsageError
from envsuite.core.errors import nearest, unknown

CLASSES = [DataError, MissingExtra, UnknownName, UnknownTask, UsageError]


@pytest.mark.parametrize("error", CLASSES)
def test_an_error_is_caught_as_its_builtin_kind_and_shown_as_written_in_any_process(error: type[EnvsuiteError]) -> None:
    builtin = {DataError: ValueError, MissingExtra: ImportError, UsageError: RuntimeError}.get(error, KeyError)  # type: ignore[call-overload]
    assert issubclass(error, EnvsuiteError) and issubclass(error, builtin)
    message = "line one,\n  \"quoted\" and 'quoted'"
    assert str(error(message)) == str(pickle.loads(pickle.dumps(error(message)))) == message


@given(st.text(min_size=1), st.lists(st.text(min_size=1), unique=True))
def test_an_unknown_name_is_quoted_and_what_exists_is_listed(name: str, known: list[str]) -> None:
    message = str(unknown("thing", name, known))
    assert f"unknown thing {name!r}" in message
    assert len(known) > 20 or all(each in message or repr(each) in message for each in known)


def test_the_nearest_name_comes_first_and_a_long_list_is_cut_and_counted() -> None:
    message = str(unknown("estimator", "gigop", ["dr_grpo", "gigpo", "grpo", "rloo"]))
    assert "Nearest: 'gigpo'" in message and "Known: gigpo, " in message
    assert (
        nearest("rlo", ["grpo", "rloo"])[0] == "rloo" and len(nearest("task-1", [f"task-{i}" for i in range(9)])) == 3
    )
    assert "Nearest" not in str(unknown("split", "zzz", ["train", "test"]))
    message = str(unknown("task", "x", (f"task-{i}" for i in range(100))))
    assert "(100 in all)" in message and message.count("task-") == 20
