from __future__ import annotations

import io

from envsuite.data.progress import Shown


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
    assert out.getvalue() == "\rlamps  2,000 lamps of 5,000 lamps  500 lamps/s  0:06 left"
    shown.done("lamps", 5000)
    assert out.getvalue().endswith("lamps  5,000 lamps\n")
