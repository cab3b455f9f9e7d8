"""A table of measurements, in Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from envsuite.core.latex import escape_latex


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> str:
    """Returns the lines of a table in Markdown; its first ``words`` columns are of words, the others of numbers."""
    rule = "|" + "---|" * words + "---:|" * (len(heads) - words)
    return "".join(f"{line}\n" for line in (_line(heads), rule, *map(_line, rows)))


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


@dataclass(frozen=True)
class Table:
    """A table, for Markdown and LaTeX."""

    name: str
    """File name without suffix."""
    title: str
    note: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    family: str = "lab"
    """Prefix of the LaTeX label."""

    def markdown(self) -> str:
        """Returns heading, table and note in Markdown."""
        return f"### {self.title}\n\n{markdown_table(self.heads, self.rows)}\n{self.note}\n"

    def latex(self) -> str:
        """Returns a LaTeX ``table`` with a ``tabular`` (package booktabs)."""
        lines = [
            r"\begin{table}",
            rf"\caption{{{_latex(self.title)}. {_latex(self.note)}}}",
            rf"\label{{tab:{self.family}-{self.name}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(self.heads) - 1)}}}",
            r"\toprule",
            " & ".join(map(_latex, self.heads)) + r" \\",
            r"\midrule",
        ]
        lines += [" & ".join(map(_latex, row)) + r" \\" for row in self.rows]
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


def _latex(text: str) -> str:
    return escape_latex(text).replace("Â", r"$\hat{A}$")
