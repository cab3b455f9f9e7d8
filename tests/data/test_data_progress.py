from __future__ import annotations

import io
import sys
from itertools import count

import pytest

from envsuite.data.progress import Shown, tracked


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_moving_line_shows_amount_rate_and_time_left_in_its_unit() -> None:
    now = [0.0]
    out = Terminal()
    shown = Shown(out, lambda: now[0], lambda number: f"{number:,} lamps")
    shown.start("lamps", 5000, 1000)
    now[0] = 2.0
    shown.advance(1000)
    assert out.getvalue() == "\rlamps  2,000 lamps of 5,000 lamps  500 lamps/s  6 s left"
    shown.done("lamps", 5000)
    assert out.getvalue().endswith("lamps  5,000 lamps\n")


def test_work_that_is_tracked_shows_itself_on_a_terminal_after_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    for out, seconds, last in ((Terminal(), 0.1, ""), (Terminal(), 1.0, "games  3\n"), (io.StringIO(), 1.0, "")):
        monkeypatch.setattr(sys, "stderr", out)
        ticks = count(0.0, seconds)
        assert list(tracked(iter("abc"), "games", 3, ticks.__next__)) == ["a", "b", "c"]
        assert out.getvalue().endswith(last) and bool(out.getvalue()) is bool(last)
