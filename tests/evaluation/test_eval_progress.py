"""The line that shows how an evaluation goes."""

from __future__ import annotations

import io
import logging

import pytest
from console import Terminal
from hypothesis import given
from hypothesis import strategies as st
from test_results import BROKEN, result

from envsuite.evaluation.progress import EvaluationDisplay, Notes


def shown(out: io.StringIO, label: str, ended: int, waits: str | None = None) -> str:
    """What is written of ten episodes, the first solved, the second broken, as ``ended`` have ended."""
    clock = [0.0]
    display = EvaluationDisplay(out, lambda: clock[0])
    display.begin(label, 10, 0)
    for number in range(ended):
        clock[0] += 2
        display.add_result(result(success=number == 0) if number != 1 else result(**BROKEN))
    clock[0] += 100
    display.waits(waits)
    return out.getvalue()


@given(label=st.text("abc, -", max_size=120), columns=st.integers(80, 200), ended=st.integers(0, 9))
def test_a_line_fits_into_the_terminal_and_keeps_its_counts(label, columns, ended):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(columns))
        line = shown(Terminal(), label, ended).rpartition("\r")[2]
    assert len(line) < columns and f": {ended} of 10 episodes" in line
    assert line.endswith(" left") if ended else line.endswith("episodes")
    assert label[:11].rstrip(" ,") in line and (label in line or "…" in line)


def test_what_is_waited_for_is_said_in_what_room_there_is(monkeypatch):
    waits = "an answer from http://127.0.0.1:8000/v1"
    monkeypatch.setenv("COLUMNS", "80")
    line = shown(Terminal(), "TextCraft-v0 test, a model", 0, waits).rpartition("\r")[2]
    assert line == "TextCraft-v0 test, a model: 0 of 10 episodes, waits for an answer from http://12"[:79]
    line = shown(Terminal(), "WebShop-v0 test, some model, reflexion, native", 0, waits).rpartition("\r")[2]
    assert line == "WebShop-v0 test, some model, reflexion…: 0 of 10 episodes, waits for an answer "[:79]
    monkeypatch.setenv("COLUMNS", "200")
    assert shown(Terminal(), "TextCraft-v0 test, a model", 2, waits).endswith(f" left, waits for {waits}")


def test_a_file_has_whole_lines(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    text = shown(io.StringIO(), "TextCraft-v0 test, a model", 2, "an answer")
    first, last = text.splitlines()
    assert first == "TextCraft-v0 test, a model: 0 of 10 episodes"
    assert last.startswith("TextCraft-v0 test, a model: 2 of 10 episodes, 100.0 % of 1 solved, 1 broken, about ")
    assert last.endswith(" left, waits for an answer")


def test_a_warning_that_is_repeated_is_written_once_in_half_a_minute():
    clock, out = [0.0], io.StringIO()
    notes = Notes(EvaluationDisplay(out), lambda: clock[0])

    def warn(text: str) -> None:
        notes.handle(logging.LogRecord("envsuite", logging.WARNING, "", 0, text, (), None))

    for wait in range(30):  # two seconds apart
        warn(f"http://h/v1: HTTP 503; trying again in {wait} s")
        clock[0] += 2
    warn("http://h/v1: HTTP 429; trying again in 3 s")
    warn("http://h/v1: HTTP 429; tried for 60 s; nothing more is asked")
    written = [line.removeprefix("warning: http://h/v1: ") for line in out.getvalue().splitlines()]
    again = [f"HTTP 503; trying again in {wait} s" for wait in (0, 15)]
    assert written == [*again, "HTTP 429; trying again in 3 s", "HTTP 429; tried for 60 s; nothing more is asked"]
