import io
import sys
from functools import partial
from itertools import count

import pytest
from console import Terminal

from envsuite.data import progress
from envsuite.data.progress import DownloadDisplay, format_size, track


@pytest.mark.parametrize(("out", "live"), [(Terminal(), True), (io.StringIO(), False)], ids=["terminal", "file"])
def test_a_moving_line_shows_amount_rate_and_time_left_in_its_unit_on_a_terminal_only(out, live):
    for unit, line, last in (
        (format_size, "50.0 MiB of 100.0 MiB  7.5 MiB/s  7 s left", "100.0 MiB"),
        (lambda number: f"{number >> 20} lamps", "50 lamps of 100 lamps  7 lamps/s  7 s left", "100 lamps"),
    ):
        out.truncate(out.seek(0))
        shown = DownloadDisplay(out, iter([0.0, 2.0, 2.1, 4.0]).__next__, unit)
        shown.start("set", 100 << 20, 20 << 20)
        for _ in range(3):
            shown.advance(10 << 20)
        shown.finish("set", 100 << 20)
        assert out.getvalue().endswith(f"set  {last}\n") and (f"set  {line}" in out.getvalue()) is live
        assert out.getvalue().count("\r") == (4 if live else 0)
    assert [format_size(n) for n in (5, 2048, 3 << 29, 5000 << 30)] == ["5 B", "2.0 KiB", "1.5 GiB", "5000.0 GiB"]


def test_work_that_is_tracked_shows_itself_on_a_terminal_after_a_second(monkeypatch):
    for out, seconds, last in ((Terminal(), 0.1, ""), (Terminal(), 1.0, "games  3\n"), (io.StringIO(), 1.0, "")):
        monkeypatch.setattr(sys, "stderr", out)
        ticks = count(0.0, seconds)
        monkeypatch.setattr(progress, "DownloadDisplay", partial(DownloadDisplay, clock=ticks.__next__))
        assert list(track(iter("abc"), "games", 3)) == ["a", "b", "c"]
        assert out.getvalue().endswith(last) and bool(out.getvalue()) is bool(last)
