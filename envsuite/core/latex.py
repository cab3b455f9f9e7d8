"""Text for LaTeX."""

from __future__ import annotations

from collections.abc import Mapping

COMMANDS: Mapping[str, str] = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "–": "--",  # noqa: RUF001
    "±": r"$\pm$",
    "×": r"$\times$",  # noqa: RUF001
    "²": "$^2$",
    "≥": r"$\geq$",
    "≠": r"$\neq$",
    "β": r"$\beta$",
    "ε": r"$\varepsilon$",
    "λ": r"$\lambda$",
    "†": r"\textdagger{}",
    "…": r"\ldots{}",
    **{c: f"\\{c}" for c in "&%_#${}"},
}
"""Characters that LaTeX reads as something else, and signs that not every font has -> what gives them."""


def escape_latex(text: str, commands: Mapping[str, str] = COMMANDS) -> str:
    """Returns text in which LaTeX reads no command but those of ``commands``; other characters stay."""
    return "".join(commands.get(c, c) for c in text)
