"""The terminal display."""

from __future__ import annotations

import io
import logging
import math
import re
import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from waiting import until

from envsuite.core.errors import DataError
from trainers.run.log import run_log
from trainers.run.progress import RunProgress, clock_text, sparkline

METRICS = {
    "train/success": 0.5, "train/return": 1.25, "train/valid_actions": 0.9, "train/episode_length": 6.2,
    "train/entropy": 0.71, "rate/tokens": 2345.0, "train/loss": 0.0123, "train/kl": 0.001, "train/grad_norm": 0.4,
}  # fmt: skip


class Screen:
    """What a terminal shows after the control codes that the display uses; reflows on resize as terminals do."""

    def __init__(self) -> None:
        self.lines = [""]
        self.row = 0

    def feed(self, text: str, width: int) -> None:
        for number, code, character in re.findall(r"\x1b\[([\d?]*)([A-Za-z])|([^\r])", text):
            if code == "A":
                self.row = max(0, self.row - int(number or 1))
            elif code == "K":
                self.lines[self.row] = ""
            elif character == "\n":
                self.row += 1
                self.lines += [""] * (self.row == len(self.lines))
            elif not code:
                self.lines[self.row] += character
                assert cell_len(self.lines[self.row]) <= width

    def narrow(self, width: int) -> None:
        at = len(self.lines) - self.row
        self.lines = [line[k : k + width] for line in self.lines for k in range(0, max(1, len(line)), width)]
        self.row = len(self.lines) - at


def display(width: int, stream: io.StringIO, **options: object) -> RunProgress:
    console = Console(file=stream, force_terminal=True, width=width, height=24, color_system=None)
    return RunProgress(60, console=console, **options)  # type: ignore[arg-type]


def redraw(progress: RunProgress, stream: io.StringIO, screen: Screen, width: int) -> None:
    with progress._lock:
        progress.console.print("", end="")
    text = stream.getvalue()
    stream.seek(0)
    stream.truncate()
    screen.feed(text, width)


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_every_line_of_the_display_fits_the_terminal(width):
    progress = display(width, io.StringIO())
    progress.stage("evaluation on valid_seen", 256)
    progress.advance(120, waiting="engine: 32 requests, environment worker 3: step 17 of episode 88 " * 3)
    for i in range(1, 60):
        progress.iteration(i, METRICS)
    lines = progress._lines(width)
    assert len(lines) == 4
    assert all(cell_len(line.plain) < width for line in lines)
    if width >= 80:
        assert "evaluation on valid_seen 120/256 episodes" in lines[1].plain
        assert "waiting for engine" in lines[1].plain
        assert "left" in lines[0].plain and "50.0%" in lines[2].plain
        facts = [label for label in progress._facts if f"  {label} " in lines[3].plain]
        assert facts == list(progress._facts)[: None if width >= 120 else 5]


@pytest.mark.parametrize("width", [80, 120])
def test_success_that_swings_is_shown_beside_its_mean_and_why_it_swings(width):
    progress = display(width, io.StringIO())
    shares = [0.2, 0.3, 0.3, 0.6, 0.4, 0.5, 0.6, 0.4, 0.5, 0.5, 0.6, 0.6, 0.5, 0.6, 0.5, 0.4, 0.64, 0.3]
    for i, share in enumerate(shares, 1):
        progress.iteration(i, {"train/success": share})
    shown = progress._lines(width)[2].plain
    for line in (shown, progress._iteration_line(18)):
        assert "success 30.0%" in line and "46.0%" in line and "mean of 4" in line
        assert "each iteration draws other tasks" in line
    assert "from 20.0%" in shown or width < 120


def test_a_terminal_that_gets_narrower_and_wider_has_one_display_and_all_messages():
    stream, screen = io.StringIO(), Screen()
    progress = display(100, stream)
    progress.console.push_render_hook(progress._region)
    for i in range(1, 4):
        progress.iteration(i, METRICS)
    progress.stage("rollout", 128)
    for width in (100, 60, 35, 90, 50, 120):
        screen.narrow(width)
        progress.console.width = width
        redraw(progress, stream, screen, width)
        progress.message(f"at {width}")
        redraw(progress, stream, screen, width)
        shown = [line for line in screen.lines if line.strip()]
        assert sum(line.startswith("  iteration") for line in shown) == 1
        assert shown[-4].startswith("  iteration") and shown[-3].startswith("  rollout")
    assert [line for line in shown if line.startswith("at ")] == [f"at {w}" for w in (100, 60, 35, 90, 50, 120)]


def test_what_others_print_and_warn_stays_above_the_display(capsys):
    stream, screen = io.StringIO(), Screen()
    with display(80, stream) as progress:
        progress.stage("rollout", 8)
        print("a stray print")
        logging.getLogger("trainers.rollout").warning("episode %d failed", 7)
        table = Table("depth", "success")
        table.add_row("1", "50 %")
        progress.table(table)
    screen.feed(stream.getvalue(), 80)
    shown = [line for line in screen.lines if line.strip()]
    assert shown[:2] == ["a stray print", "warning: episode 7 failed"]
    assert shown[-1].startswith("  rollout 0/8 episodes")
    assert stream.getvalue().rstrip("\n").endswith("\x1b[?25h"), "the cursor is shown again"


def test_the_cursor_comes_back_and_the_thread_ends_when_the_run_fails():
    stream = io.StringIO()
    with pytest.raises(ZeroDivisionError), display(80, stream):
        _ = 1 / 0
    assert stream.getvalue().rstrip("\n").endswith("\x1b[?25h")
    assert "progress" not in [thread.name for thread in threading.enumerate()]


def test_a_display_that_nobody_ended_does_not_keep_the_program_alive():
    program = "import sys; from trainers.run.progress import RunProgress; "
    program += "RunProgress(3, plain=True).__enter__(); sys.exit(3)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 3


def test_a_pipe_gets_plain_lines_without_control_codes():
    stream = io.StringIO()
    with RunProgress(2, console=Console(file=stream, width=80)) as progress:
        progress.message("base model")
        for i in (1, 2):
            progress.stage("rollout", 4)
            progress.advance(4, waiting="engine")
            progress.iteration(i, METRICS)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "base model" and len(lines) == 3
    assert lines[1].startswith("iteration 1/2  success 50.0%  return 1.25  valid 90%")
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize("failed", [0.0, 3.0])
def test_a_plain_line_has_120_characters_at_most_and_the_log_has_all(failed, caplog):
    stream = io.StringIO()
    caplog.set_level(logging.INFO, "trainers.run.progress")
    with RunProgress(1000, console=Console(file=stream, width=80)) as progress:
        for i in range(990, 1000):
            progress.iteration(i, {**METRICS, "train/failed": failed})
    for line, record in zip(stream.getvalue().splitlines(), caplog.records, strict=True):
        assert 100 < len(line) <= 120 and re.search(r"valid 90%.*  elapsed 0:00  left 0:0\d$", line), line
        assert ("failed 3" in line) == bool(failed) and "grad 0.4" in record.getMessage()


def test_a_pipe_gets_a_sign_of_life_while_nothing_ends(monkeypatch):
    monkeypatch.setattr("trainers.run.progress.REFRESH_SECONDS", 0.01)
    now, stream, reads = 0.0, io.StringIO(), list[float]()

    def clock() -> float:
        reads.append(now)
        return now

    with RunProgress(9, console=Console(file=stream, width=80), clock=clock) as progress:
        progress.stage("rollout", 128)
        progress.advance(53, waiting="environment worker 3")
        for second, written in ((29.0, 0), (31.0, 1), (45.0, 1), (62.0, 2)):
            now, enough = second, len(reads) + 20  # a line alone takes some
            until(lambda enough=enough, n=written: len(reads) >= enough and stream.getvalue().count("\n") >= n)  # type: ignore[misc]
            assert stream.getvalue().count("\n") == written
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[0] == (
        "[iteration 1/9] rollout 53/128 episodes  0:31  waiting for environment worker 3  nothing finished for 0:31"
    )


def test_the_time_left_is_that_of_the_last_iterations_without_the_start():
    now = [0.0]
    progress = RunProgress(10, console=Console(quiet=True), clock=lambda: now[0])
    progress.resume_at(5)
    assert progress._left_text() == ""
    now[0] = 100.0  # loading, evaluation, iteration 6
    progress.iteration(6, {})
    for i in (7, 8):
        now[0] += 10.0
        progress.iteration(i, {})
    assert progress._left_text() == "  left 0:20"
    now[0] += 4.0
    assert progress._left_text() == "  left 0:16"


def test_the_run_log_has_what_was_said(tmp_path):
    path = tmp_path / "run" / "run.log"
    with run_log(path), RunProgress(3, console=Console(quiet=True)) as progress:
        progress.message("half a surrogate: \ud800")
        progress.iteration(1, METRICS)
        logging.getLogger("envsuite.vector").warning("worker 2 was replaced")
    logging.getLogger("trainers").error("after the run")
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 3
    assert lines[0].endswith(r"half a surrogate: \ud800") and "iteration 1/3" in lines[1] and "WARNING" in lines[2]
    with pytest.raises(DataError, match=r"run\.log"), run_log(path / "run.log"):
        pass


@given(st.lists(st.floats(0, 1) | st.just(math.nan), max_size=300), st.integers(1, 60), st.booleans())
def test_a_sparkline_is_never_wider_than_asked(values, width, ascii_only):
    line = sparkline(values, width, ascii_only)
    assert len(line) <= width and bool(line) == bool(values)
    assert line.isascii() or not ascii_only


def test_a_sparkline_rises_with_its_values_and_a_time_has_hours_where_there_are_some():
    assert sparkline([0.0, 0.3, 0.6, 1.0, math.nan], 10) == "▁▃▅█ "
    assert [clock_text(s) for s in (0, 59.6, 3599, 3600, 90061)] == ["0:00", "1:00", "59:59", "1:00:00", "25:01:01"]
