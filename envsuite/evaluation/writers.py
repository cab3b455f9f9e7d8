"""Tables as text for the terminal, Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import csv
import io
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import orjson

from envsuite.core.escaping import cell as csv_cell
from envsuite.core.latex import COMMANDS, escape_latex
from envsuite.evaluation.sheets import Cell, Name, Sheet
from envsuite.evaluation.tables import TableRow

_MARKDOWN = frozenset("\\`*_{}[]<>()#|~$&!+")
_LATEX = {
    **COMMANDS,
    '"': r"\texttt{\char34}",
    "-": "{-}",
    "`": r"\textasciigrave{}",
    "'": r"\textquotesingle{}",
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
}
_LATEX_HEAD = "% \\usepackage{booktabs,textcomp}; XeLaTeX or LuaLaTeX for other letters than Latin ones\n"


def visible(text: str) -> str:
    """Returns text for one line: what is not printable (line ends, escapes, marks of direction) as an escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def _text(cell: Cell) -> str:
    return visible(cell.text) if isinstance(cell, Name) else cell


def _width(text: str) -> int:
    """Returns the number of columns that text takes in a terminal."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(bool(unicodedata.combining(c)) for c in text)


def as_text(sheets: Sequence[Sheet]) -> str:
    """Returns aligned columns for the terminal."""
    return "\n".join(_plain(sheet) for sheet in sheets)


def _plain(sheet: Sheet) -> str:
    heads = [_text(head) for head in sheet.heads]
    blocks = [[[_text(cell) for cell in row] for row in block] for block in sheet.blocks]
    widths = [max(_width(row[i]) for row in [heads, *(r for b in blocks for r in b)]) for i in range(len(heads))]

    def line(cells: Sequence[str]) -> str:
        texts = []
        for i, (cell, width) in enumerate(zip(cells, widths, strict=True)):
            gap = " " * (width - _width(cell))
            texts.append(cell + gap if i < sheet.names else gap + cell)
        return "  ".join(texts).rstrip()

    rule = "─" * (sum(widths) + 2 * (len(widths) - 1))
    lines = [_text(sheet.title), line(heads)]
    for block in blocks:
        lines += [rule, *map(line, block)]
    return "\n".join([*lines, rule, *("".join(map(_text, note)) for note in sheet.notes), ""])


def as_markdown(sheets: Sequence[Sheet]) -> str:
    """Returns tables of GitHub's Markdown."""
    return "\n".join(_markdown(sheet) for sheet in sheets)


def _escape_markdown(cell: Cell) -> str:
    """Returns a cell in which no character of a name is markup."""
    if not isinstance(cell, Name):
        return cell
    return "".join(f"\\{c}" if c in _MARKDOWN else c for c in visible(cell.text))


def _markdown(sheet: Sheet) -> str:
    alignments = ["---" if i < sheet.names else "---:" for i in range(len(sheet.heads))]
    rows = [sheet.heads, *(row for block in sheet.blocks for row in block)]
    head, *body = ("| " + " | ".join(map(_escape_markdown, row)) + " |" for row in rows)
    lines = [f"**{_escape_markdown(sheet.title)}**", "", head, f"|{'|'.join(alignments)}|", *body, ""]
    for note in sheet.notes:
        lines += ["".join(map(_escape_markdown, note)) + ".", ""]
    return "\n".join(lines)


def as_latex(sheets: Sequence[Sheet]) -> str:
    """Returns tables of LaTeX, for the packages booktabs and textcomp."""
    return _LATEX_HEAD + "\n" + "\n\n".join(_latex(sheet) for sheet in sheets)


def in_latex(text: str) -> str:
    """Returns text in which LaTeX reads no command, a ligature or an option neither."""
    return escape_latex(visible(text), _LATEX)


def _latex(sheet: Sheet) -> str:
    def line(cells: Iterable[Cell]) -> str:
        return " & ".join(in_latex(_text(cell)) for cell in cells) + r" \\"

    count = len(sheet.heads)
    columns = "l" * sheet.names + "r" * (count - sheet.names)
    lines = [
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        rf"\multicolumn{{{count}}}{{l}}{{{in_latex(_text(sheet.title))}}} \\",
        r"\midrule",
        line(sheet.heads),
    ]
    for block in sheet.blocks:
        lines += [r"\midrule", *map(line, block)]
    lines += [r"\bottomrule", r"\end{tabular}"]
    for note in sheet.notes:
        lines.append(rf"\par{{\footnotesize {in_latex(''.join(map(_text, note)))}.\par}}")
    return "\n".join(lines) + "\n"


def _flat(row: Any, mappings: Sequence[str]) -> dict[str, Any]:
    """Returns a row with the entries of its mappings as columns, named ``metrics:f1``."""
    body = asdict(row)
    flat = {name: value for name, value in body.items() if name not in mappings}
    for name in mappings:
        flat.update({f"{name}:{key}": value for key, value in body[name].items()})
    return flat


def as_csv(rows: Sequence[TableRow]) -> str:
    """Returns comma-separated values with a head, one line for each row, unrounded; ``None`` is an empty cell."""
    mappings = ("endings", "metrics", "attempts", "why_broken")
    return csv_of([{**_flat(row, mappings), "complete": row.complete} for row in rows])


def csv_of(records: Sequence[Mapping[str, Any]]) -> str:
    """Returns records as comma-separated values; the head has every key, in the order in which they appear."""
    names = list(dict.fromkeys(name for record in records for name in record))
    rows = [names, *([record.get(name, "") for name in names] for record in records)]
    return "".join(_csv_line(row) for row in rows)


def _csv_line(cells: Sequence[Any]) -> str:
    """Returns a line of comma-separated values; a carriage return is quoted only where it ends lines, too."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerow(map(csv_cell, cells))
    return text.getvalue().removesuffix("\r\n") + "\n"


def as_json(rows: Sequence[TableRow]) -> str:
    """Returns ``{"rows": [...]}``, unrounded."""
    return json_of({"rows": [{**asdict(row), "complete": row.complete} for row in rows]})


def json_of(body: Mapping[str, Any]) -> str:
    """Returns indented JSON, with an end of line."""
    return orjson.dumps(body, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode()


SHEETS: dict[str, Callable[[Sequence[Sheet]], str]] = {"text": as_text, "markdown": as_markdown, "latex": as_latex}
"""Formats for people."""
ROWS: dict[str, Callable[[Sequence[TableRow]], str]] = {"csv": as_csv, "json": as_json}
"""Formats for programs."""
