"""Docstrings say what a thing does, returns or raises; none is a clause that begins with "What" or "Of"."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PLACES = ("envsuite", "trainers", "research")
"""Packages whose docstrings are checked."""


def _docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of every docstring, those under fields and constants included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for child in getattr(node, "body", []) if isinstance(node, ast.Module | ast.ClassDef) else []:
            if isinstance(child, ast.Expr):
                yield from _text(child)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for child in node.body:
                if isinstance(child, ast.Expr):
                    yield from _text(child)


def _text(node: ast.Expr) -> Iterator[tuple[int, str]]:
    if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        yield node.lineno, node.value.value


def _clauses(path: Path) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for line, text in _docstrings(path)
        if text.split()[0].strip(":,") in ("What", "Of")
    ]


@pytest.mark.seconds
@pytest.mark.parametrize("place", PLACES)
def test_no_docstring_begins_with_what_or_of(place: str) -> None:
    files = sorted((ROOT / place).rglob("*.py"))
    assert files
    found = [clause for path in files for clause in _clauses(path)]
    assert not found, "\n".join(["say what it does, returns or raises:", *found])
