"""Progress display of a run on the terminal.

On a terminal: a few lines at the bottom that are redrawn in place (stage, what is waited for, time elapsed and left,
success rate). Elsewhere (a pipe, a log file): plain lines, one per iteration, and a sign of life every half minute.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, redirect_stderr, redirect_stdout
from statistics import fmean
from typing import IO, Any, cast

from rich.cells import cell_len
from rich.console import Console, ConsoleRenderable, RenderHook
from rich.control import Control
from rich.file_proxy import FileProxy
from rich.segment import ControlType, Segment, Segments
from rich.table import Table
from rich.text import Text

from envsuite.core.escaping import escape_lines
from envsuite.playing.activity import ACTIVITY
from trainers.report.run import window_of
from trainers.settings.console import EscapingConsole

REFRESH_SECONDS = 0.25
HEARTBEAT_SECONDS = 30.0
STALLED_SECONDS = 10.0
MOST = 120
"""Characters of a plain line about an iteration; the log has all that is known of it."""
FAILED = "train/failed"

_LOG = logging.getLogger(__name__)
_OTHER_TASKS = "each iteration draws other tasks"
_BARS = "▁▂▃▄▅▆▇█"
_ASCII_BARS = "_.-:=+*#"


class RunProgress:
    """The display of a run; a context manager.

    Args:
        total_iterations: Number of iterations of the whole run.
        plain: Plain lines instead of a display; by default wherever the output is no terminal.
        console: Where to write; ``Console(quiet=True)`` for silent ranks.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        total_iterations: int,
        plain: bool | None = None,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total = total_iterations
        self.console = console or EscapingConsole()
        self.plain = (not self.console.is_terminal or self.console.is_dumb_terminal) if plain is None else plain
        self._clock = clock
        self._start = self._stage_start = self._last_advance = self._spoke = clock()
        self._done = 0
        self._ends: list[float] = []
        self._stage, self._waiting, self._notice = "starting", "", ""
        self._count, self._stage_total = 0, 0
        self._success: list[float] = []
        self._facts: dict[str, str] = {}
        self._lock = threading.RLock()
        self._region = _Region(self.console, self._lines, self._lock)
        self._handler = _Above(self)
        self._redirects = ExitStack()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> RunProgress:
        """Start the display."""
        if not self.plain:
            # What other code prints must go above the display, not through it.
            self._redirects.enter_context(redirect_stdout(cast(IO[str], FileProxy(self.console, sys.stdout))))
            self._redirects.enter_context(redirect_stderr(cast(IO[str], FileProxy(self.console, sys.stderr))))
            self.console.show_cursor(False)
            self.console.push_render_hook(self._region)
        for name in ("trainers", "envsuite"):
            logging.getLogger(name).addHandler(self._handler)
        self._thread = threading.Thread(target=self._tick, name="progress", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the last state of the display on the screen."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        for name in ("trainers", "envsuite"):
            logging.getLogger(name).removeHandler(self._handler)
        if not self.plain:
            with self._lock:
                self.console.print(Control())
                self.console.pop_render_hook()
                self.console.print()
                self.console.show_cursor(True)
            self._redirects.close()

    def stage(self, name: str, total: int | None = None) -> None:
        """Begins a new stage.

        Args:
            name: Such as ``"rollout"``, ``"update"``, ``"evaluation on test"``, ``"checkpoint"``.
            total: Number of episodes that :meth:`advance` will count; ``None`` if nothing is counted.
        """
        ACTIVITY.begin(name)
        with self._lock:
            self._stage, self._stage_total, self._count, self._waiting = name, total or 0, 0, ""
            self._stage_start = self._last_advance = self._clock()

    def notice(self, text: str) -> None:
        """Shows ``text`` below the stage, or in the next sign of life, until the next call; empty for nothing."""
        with self._lock:
            self._notice = text

    def advance(self, n: int = 1, waiting: str = "") -> None:
        """Counts ``n`` more, and shows what is being waited for; ``n = 0`` only updates the latter."""
        with self._lock:
            self._count += n
            self._waiting = waiting
            if n:
                self._last_advance = self._clock()

    def iteration(self, i: int, metrics: Mapping[str, float]) -> None:
        """Reports the end of iteration ``i`` (from 1), with metrics of :data:`trainers.report.metrics.METRICS`."""
        with self._lock:
            self._done = i
            self._ends.append(self._clock())
            if "train/success" in metrics:
                self._success.append(float(metrics["train/success"]))
            present = [name for name in _FACTS if name in metrics and (name != FAILED or metrics[name])]
            self._facts = {label: form(metrics[name]) for name in present for label, form in [_FACTS[name]]}
            line, short = self._iteration_line(i), self._iteration_line(i, MOST)
        _LOG.info("%s", line)
        if self.plain:
            self._say(short)

    def resume_at(self, done: int) -> None:
        """Records that an earlier process finished ``done`` iterations."""
        with self._lock:
            self._done = done

    def message(self, text: str) -> None:
        """Prints text that stays on the screen, above the display, and in the log."""
        _LOG.info("%s", text)
        self._say(text)

    def table(self, table: Table) -> None:
        """Show a table that stays on the screen."""
        with self._lock:
            self._spoke = self._clock()
            self.console.print(table)

    def _say(self, text: str, style: str = "") -> None:
        with self._lock:
            self._spoke = self._clock()
            self.console.print(Text(text, style=style), soft_wrap=self.plain)

    def _tick(self) -> None:
        while not self._stop.wait(REFRESH_SECONDS):
            if not self.plain:
                with self._lock:
                    self.console.print(Control())  # the render hook adds the display
            elif self._clock() - self._spoke >= HEARTBEAT_SECONDS:
                notice = f"  {self._notice}" if self._notice else ""
                self._say(f"[{self._iteration_label()}] {self._stage_text()}{self._wait_text()}{notice}")

    # What the lines say

    def _iteration_label(self) -> str:
        return f"iteration {min(self._done + 1, self.total)}/{self.total}"

    def _iteration_line(self, i: int, most: int | None = None) -> str:
        """What an iteration gave; of at most so many characters, as far as that many hold the time, too."""
        line, end = f"iteration {i}/{self.total}", f"  elapsed {clock_text(self._elapsed_seconds())}{self._left_text()}"
        if self._success:
            window, mean = self._mean_success()
            line += f"  success {self._success[-1]:.1%}"
            why = f"; {_OTHER_TASKS}" if most is None else ""
            line += f" (mean of {window}: {mean:.1%}{why})" if window > 1 else ""
        for label, value in self._facts.items():
            if most is not None and len(f"{line}  {label} {value}{end}") > most:
                break
            line += f"  {label} {value}"
        return line + end

    def _mean_success(self) -> tuple[int, float]:
        """Number of the last iterations, and the mean of their success."""
        window = window_of(len(self._success))
        return window, fmean(self._success[-window:])

    def _elapsed_seconds(self) -> float:
        return self._clock() - self._start

    def state(self) -> dict[str, Any]:
        """Iteration, stage, counts and seconds of this moment, for ``activity.json``."""
        with self._lock:
            return {
                "iteration": self._done,
                "iterations": self.total,
                "stage": self._stage,
                "stage_s": self._clock() - self._stage_start,
                "count": self._count,
                "total": self._stage_total,
                "waiting": self._wait_text().strip(),
                "notice": self._notice,
                "elapsed_s": self._elapsed_seconds(),
                "left_s": self._seconds_left(),
            }

    def _seconds_left(self) -> float | None:
        """Seconds until the last iteration ends, as the latest ones took; ``None`` where that cannot be said."""
        remaining = self.total - self._done
        if not self._ends or remaining <= 0:
            return None
        recent = self._ends[-20:]
        # The first iteration's time has the start and the evaluation before training in it; use later ones if possible.
        pace = (recent[-1] - recent[0]) / (len(recent) - 1) if len(recent) > 1 else recent[0] - self._start
        return max(0.0, pace * remaining - (self._clock() - recent[-1]))

    def _left_text(self) -> str:
        seconds = self._seconds_left()
        return "" if seconds is None else f"  left {clock_text(seconds)}"

    def _stage_text(self) -> str:
        count = f" {self._count}/{self._stage_total} episodes" if self._stage_total else ""
        return f"{self._stage}{count}  {clock_text(self._clock() - self._stage_start)}"

    def _wait_text(self) -> str:
        idle = self._clock() - self._last_advance
        stall = f"  nothing finished for {clock_text(idle)}" if self._stage_total and idle > STALLED_SECONDS else ""
        return (f"  waiting for {self._waiting}" if self._waiting else "") + stall

    def _lines(self, width: int) -> list[Text]:
        ascii_only = self.console.options.ascii_only
        wide = width >= 120
        bar_width = max(10, min(40, width // 4))
        share = self._done / self.total if self.total else 1.0
        head = Text("  ").append(self._iteration_label().ljust(len("iteration /") + 2 * len(str(self.total))), "bold")
        head.append("  ").append(_bar(share, bar_width, ascii_only), "green")
        head.append(f"  {share:4.0%}  elapsed {clock_text(self._elapsed_seconds())}{self._left_text()}")
        stage = Text("  ").append(self._stage_text(), "cyan")
        waiting = self._wait_text()
        if self._stage_total and cell_len(stage.plain + waiting) + bar_width // 2 + 3 < width:
            stage.append("  ").append(_bar(self._count / self._stage_total, bar_width // 2, ascii_only), "cyan")
        stage.append(waiting, "yellow")
        lines = [head, stage, *([Text(f"  {self._notice}", "yellow")] if self._notice else [])]
        if self._success:
            window, mean = self._mean_success()
            success = Text("  success ").append(f"{self._success[-1]:.1%}", "bold green")
            success.append(f"  mean of {window} ").append(f"{mean:.1%}", "bold green").append("  ")
            success.append(sparkline(self._success, min(60, width // 5), ascii_only), "green")
            success.append(f"  {_OTHER_TASKS}").append(f"; from {self._success[0]:.1%}" if wide else "")
            lines.append(success)
        if self._facts:
            facts = list(self._facts.items())[: None if wide else 5]
            lines.append(Text("  " + "  ".join(f"{label} {value}" for label, value in facts), "dim"))
        for line in lines:
            line.truncate(width - 1, overflow="ellipsis" if not ascii_only else "crop")
        return lines


def _whole(value: float) -> str:
    return f"{value:,.0f}"


_FACTS: dict[str, tuple[str, Callable[[float], str]]] = {
    FAILED: ("failed", _whole),
    "train/return": ("return", "{:.2f}".format),
    "train/valid_actions": ("valid", "{:.0%}".format),
    "train/episode_length": ("steps", "{:.1f}".format),
    "train/entropy": ("entropy", "{:.2f}".format),
    "rate/tokens": ("tokens/s", _whole),
    "idle/engine": ("engine idle", "{:.0%}".format),
    "idle/device": ("device idle", "{:.0%}".format),
    "train/loss": ("loss", "{:.3g}".format),
    "train/kl": ("kl", "{:.2g}".format),
    "train/grad_norm": ("grad", "{:.2g}".format),
}


def clock_text(seconds: float) -> str:
    """``seconds`` as ``m:ss``, from an hour on as ``h:mm:ss``."""
    whole = max(0, round(seconds))
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def sparkline(values: Sequence[float], width: int, ascii_only: bool = False) -> str:
    """Shares (0 to 1) as at most ``width`` bars, each the mean of its slice; what is not finite is blank."""
    bars = _ASCII_BARS if ascii_only else _BARS
    per_bar = max(1, math.ceil(len(values) / width))
    text = ""
    for start in range(0, len(values), per_bar):
        part = [value for value in values[start : start + per_bar] if math.isfinite(value)]
        mean = sum(part) / len(part) if part else math.nan
        text += bars[min(len(bars) - 1, max(0, int(mean * len(bars))))] if part else " "
    return text


def _bar(share: float, width: int, ascii_only: bool) -> str:
    full = round(min(1.0, max(0.0, share)) * width)
    return ("#" if ascii_only else "━") * full + ("-" if ascii_only else "╌") * (width - full)


class _Above(logging.Handler):
    """Shows warnings above the display, where the default handler would write through it."""

    def __init__(self, progress: RunProgress) -> None:
        super().__init__(logging.WARNING)
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        text = escape_lines(record.getMessage())
        if record.exc_info and record.exc_info[1] is not None:
            text += f" ({record.exc_info[1]!r})"
        self._progress._say(f"{record.levelname.lower()}: {text}", "red" if record.levelno >= 40 else "yellow")


class _Region(RenderHook):
    """Keeps the display below everything that the console prints.

    Rich's own ``Live`` does the same, but leaves stale lines when the terminal gets narrower: the terminal then wraps
    the lines drawn before, so that they take more rows than were drawn. Here the rows are counted at the present width.
    """

    def __init__(self, console: Console, draw: Callable[[int], list[Text]], lock: AbstractContextManager[bool]) -> None:
        self._console, self._draw, self._lock = console, draw, lock
        self._drawn: list[int] = []

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Erase the display, print, and draw the display again, in one write."""
        with self._lock:
            width, height = self._console.size
            rows = sum(max(1, math.ceil(length / width)) for length in self._drawn)
            up = ((ControlType.CURSOR_UP, 1), (ControlType.ERASE_IN_LINE, 2)) * max(0, min(rows, height) - 1)
            erase = Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2), *up)
            lines = [line.render(self._console, end="") for line in self._draw(width)[: height - 1]]
            segments: list[Segment] = []
            self._drawn = []
            for line in lines:
                own = list(line)
                segments += [*([Segment.line()] if self._drawn else []), *own]
                self._drawn.append(Segment.get_line_length(own))
            return [erase, *renderables, Segments(segments)]
