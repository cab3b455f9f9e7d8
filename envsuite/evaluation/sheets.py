"""Cells of tables as text, from rows: the same for the terminal, Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from envsuite.evaluation.groups import ALL, natural
from envsuite.evaluation.tables import TableRow

DASH = "–"  # noqa: RUF001
MARK = "†"
"""Stands behind the number of episodes of an incomplete evaluation."""
_NOTE = "in % of the finished episodes, ± standard deviation over seeds, [95 % interval, by task]"
_REASONS = 3
"""Most reasons that a note on broken episodes names."""


@dataclass(frozen=True)
class Name:
    """Text that is not ours, such as the name of a policy; formats escape it."""

    text: str


Cell = str | Name


@dataclass(frozen=True)
class Sheet:
    """A table as text."""

    title: Name
    heads: tuple[Cell, ...]
    blocks: tuple[tuple[tuple[Cell, ...], ...], ...]
    """Rows, in blocks that a line divides."""
    names: int
    """Number of columns, from the left, that hold names; the others are numbers."""
    notes: tuple[tuple[Cell, ...], ...] = ()
    """Sentences below the table, each of parts that are joined."""


def percent(value: float | None) -> str:
    """Formats ``0.634`` as ``63.4``."""
    return DASH if value is None else f"{100 * value:.1f}"


def rate(value: float | None, low: float | None, high: float | None, deviation: float | None) -> str:
    """Formats a rate with its deviation and interval, in percent, as ``63.4 ± 1.2 [57.3, 69.1]``."""
    spread = "" if deviation is None else f" ± {percent(deviation)}"
    bounds = "" if low is None or high is None else f" [{percent(low)}, {percent(high)}]"
    return percent(value) + spread + bounds


def quantity(value: float | None) -> str:
    """Formats a mean with three digits: ``12,345``, ``123``, ``12.3``, ``0.0123``."""
    if value is None:
        return DASH
    if value == 0:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:#.3g}".rstrip(".")


def _episodes(row: TableRow) -> str:
    if row.complete:
        return f"{row.tasks} × {row.seeds}" if row.seeds != 1 else str(row.tasks)  # noqa: RUF001
    return f"{row.episodes} of {row.episodes + row.broken + row.missing} {MARK}"


@dataclass(frozen=True)
class _Column:
    head: Cell
    cell: Callable[[TableRow], Cell]
    shown: Callable[[Sequence[TableRow]], bool] = lambda rows: True


def _some(value: Callable[[TableRow], object | None]) -> Callable[[Sequence[TableRow]], bool]:
    return lambda rows: any(value(row) is not None for row in rows)


def _tokens(row: TableRow) -> float | None:
    if row.prompt_tokens is None or row.answer_tokens is None:
        return None
    return row.prompt_tokens + row.answer_tokens


def _columns(rows: Sequence[TableRow]) -> Iterator[_Column]:
    """Yields the columns that say something of these rows."""
    has_strata = any(row.stratum != ALL for row in rows)
    candidates = [
        _Column("policy", lambda row: Name(row.policy)),
        _Column("tasks", lambda row: Name(row.stratum), lambda rows: has_strata),
        _Column("n", _episodes),
        _Column("success", lambda row: rate(row.success, row.success_low, row.success_high, row.success_std)),
        _Column(
            "score",
            lambda row: rate(row.score, row.score_low, row.score_high, row.score_std),
            lambda rows: any(row.score != row.success for row in rows),
        ),
        _Column(
            "reward",
            lambda row: quantity(row.reward),
            lambda rows: any(row.reward not in (row.success, row.score) for row in rows),
        ),
        *(_attempt(name) for name in dict.fromkeys(name for row in rows for name in row.attempts)),
        *(_metric(name) for name in dict.fromkeys(name for row in rows for name in row.metrics)),
        _Column("parsed", lambda row: percent(row.parsed), _some(lambda row: row.parsed)),
        _Column("valid", lambda row: percent(row.valid), _some(lambda row: row.valid)),
        _Column("cut", lambda row: percent(row.cut), _some(lambda row: row.cut)),
        _Column("steps", lambda row: quantity(row.steps)),
        _Column("tokens", lambda row: quantity(_tokens(row)), _some(_tokens)),
        _Column("cost", lambda row: quantity(row.cost), _some(lambda row: row.cost)),
        _Column("seconds", lambda row: quantity(row.seconds)),
    ]
    yield from (column for column in candidates if column.shown(rows))


def _attempt(name: str) -> _Column:
    return _Column(Name(name), lambda row: percent(row.attempts.get(name)))


def _metric(name: str) -> _Column:
    return _Column(Name(name), lambda row: quantity(row.metrics.get(name)))


def _tables(rows: Sequence[TableRow]) -> Iterator[tuple[Name, list[TableRow]]]:
    """Yields the rows of each split, with a title."""

    def key(row: TableRow) -> tuple[str, str, str]:
        return row.env_id, row.source, row.split

    for (env_id, source, split), own in groupby(sorted(rows, key=key), key):
        yield Name(f"{env_id}, {split} ({source})"), list(own)


def make_sheets(rows: Sequence[TableRow]) -> list[Sheet]:
    """Returns a table for each split: a row for each policy and stratum."""
    sheets = []
    for title, own in _tables(rows):
        columns = list(_columns(own))
        heads = tuple(column.head for column in columns)
        blocks = tuple(tuple(tuple(column.cell(row) for column in columns) for row in block) for block in _blocks(own))
        names = 1 + any(row.stratum != ALL for row in own)
        legend = (f"success and score {_NOTE}; parsed, valid and cut in % of the steps; the others per episode",)
        sheets.append(Sheet(title, heads, blocks, names, (legend, *_incomplete_notes(own))))
    return sheets


def _blocks(rows: Sequence[TableRow]) -> list[list[TableRow]]:
    """Returns one block for each policy where there are strata, and one for all where there are none."""
    if all(row.stratum == ALL for row in rows):
        return [list(rows)]
    return [list(own) for _, own in groupby(rows, lambda row: row.policy)]


def make_wide_sheets(rows: Sequence[TableRow], value: str = "success") -> list[Sheet]:
    """Returns a table for each split: a row for each policy, a column for each stratum, all tasks last.

    Args:
        rows: As :func:`~envsuite.evaluation.tables.make_rows` returns them.
        value: ``"success"`` or ``"score"``.
    """
    sheets = []
    for title, own in _tables(rows):
        strata = sorted({row.stratum for row in own if row.stratum != ALL}, key=natural)
        at = {(row.policy, row.stratum): row for row in own}
        block: list[tuple[Cell, ...]] = []
        for row in (row for row in own if row.stratum == ALL):
            cells = (_short(at.get((row.policy, stratum)), value) for stratum in (*strata, ALL))
            block.append((Name(row.policy), _episodes(row), *cells))
        heads: tuple[Cell, ...] = ("policy", "n", *map(Name, strata), ALL)
        notes = ((f"{value} in % of the finished episodes, ± standard deviation over seeds",), *_incomplete_notes(own))
        sheets.append(Sheet(title, heads, (tuple(block),), 1, notes))
    return sheets


def _short(row: TableRow | None, value: str) -> str:
    if row is None:
        return DASH
    mean, deviation = (row.score, row.score_std) if value == "score" else (row.success, row.success_std)
    return rate(mean, None, None, deviation)


def _incomplete_notes(rows: Iterable[TableRow]) -> Iterator[tuple[Cell, ...]]:
    for row in rows:
        if row.stratum != ALL or row.complete:
            continue
        why = sorted(row.why_broken.items(), key=lambda pair: -pair[1])
        reasons = "; ".join(f"{count} × {reason}" for reason, count in why[:_REASONS])  # noqa: RUF001
        more = "; …" if len(why) > _REASONS else ""
        parts: list[Cell] = [f"{MARK} incomplete: ", Name(row.policy), f": {row.missing} episodes missing"]
        parts += [f", {row.broken} broken (", Name(reasons + more), ")"] if row.broken else []
        yield tuple(parts)
