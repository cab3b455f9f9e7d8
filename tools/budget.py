"""The size of each folder, held against ``budget.toml``.

A line counts if it has code: blank lines, comments and docstrings (those under attributes, too) are free. Tokens are
counted beside lines, so that longer lines save nothing. A folder is over its budget if its lines or its tokens are.

    python tools/budget.py            prints the folders that are over, and fails if there is one
    python tools/budget.py --table    prints every folder
    python tools/budget.py --write    writes what there is, rounded up, into budget.toml
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
BUDGET = ROOT / "budget.toml"
ROOMS = ("envsuite", "trainers")
"""Folders whose subfolders have budgets of their own, besides the folder's."""
STEP = (50, 500)
"""Lines and tokens to which ``--write`` rounds up."""
NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT),
    *(tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER),
}
HEAD = """\
# Lines of code (without blank lines, comments and docstrings) and tokens that each folder may have.
# `make check` reads it. Whoever adds code beyond it raises the figure, and tells in the changelog what and why.
# `python tools/budget.py --table` prints what there is.
"""


class Size(NamedTuple):
    """Lines and tokens of code."""

    lines: int = 0
    tokens: int = 0

    def plus(self, other: Size) -> Size:
        """Returns the sum."""
        return Size(self.lines + other.lines, self.tokens + other.tokens)


def _docstrings(source: str) -> set[int]:
    """Returns the numbers of the lines of strings that stand alone in a module, class or function."""
    texts = [
        statement
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        for statement in node.body
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if isinstance(statement.value.value, str)
    ]
    return {line for text in texts for line in range(text.lineno, (text.end_lineno or text.lineno) + 1)}


def size(source: str) -> Size:
    """Returns the lines and tokens of the code of a module."""
    free = _docstrings(source)
    lines: set[int] = set()
    tokens = 0
    for kind, _, start, end, _ in tokenize.generate_tokens(iter(source.splitlines(keepends=True)).__next__):
        if kind not in NO_CODE and not (start[0] in free and end[0] in free):
            lines.update(range(start[0], end[0] + 1))
            tokens += 1
    return Size(len(lines), tokens)


def _folders(file: Path) -> Iterator[str]:
    """Yields the folders with a budget that ``file`` counts for."""
    top = file.parts[0]
    yield top
    if top in ROOMS and len(file.parts) > 2:
        yield f"{top}/{file.parts[1]}"


def _counted(file: Path) -> Size:
    text = file.read_text(encoding="utf-8")
    return size(text) if file.suffix == ".py" else Size(len(text.splitlines()))


def sizes(root: Path = ROOT) -> dict[str, Size]:
    """Returns the size of each folder; ``Markdown`` has the lines of all pages, and no tokens."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py", "*.md"],
        cwd=root, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    files = sorted(Path(name) for name in listed if (root / name).exists())  # all but those that were just removed
    with ProcessPoolExecutor() as pool:
        counted = pool.map(_counted, [root / file for file in files], chunksize=32)
        result: dict[str, Size] = {}
        for file, one in zip(files, counted, strict=True):
            for folder in _folders(file) if file.suffix == ".py" else ["Markdown"]:
                result[folder] = result.get(folder, Size()).plus(one)
    return dict(sorted(result.items()))


def over(found: dict[str, Size], budget: dict[str, list[int]]) -> list[str]:
    """Returns a line for each folder that is over its budget, or has none."""
    said = []
    for folder, (lines, tokens) in found.items():
        if folder not in budget:
            said.append(f"{folder} has no budget; enter it into {BUDGET.name}, with the reason")
        elif lines > (most := budget[folder])[0] or tokens > most[1]:
            said.append(f"{folder}: {lines:,} lines and {tokens:,} tokens of {most[0]:,} and {most[1]:,}")
    gone = sorted(set(budget) - set(found))
    return said + [f"{folder} is gone; take it out of {BUDGET.name}" for folder in gone]


def _rounded(figure: int, step: int) -> int:
    return -(-figure // step) * step


def main() -> None:
    """Prints what the arguments ask for; exits with 1 if a folder is over its budget."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--table", action="store_true", help="print every folder")
    parser.add_argument("--write", action="store_true", help=f"write what there is into {BUDGET.name}")
    args = parser.parse_args()
    found = sizes()
    if args.write:
        limits = {name: [_rounded(n, step) for n, step in zip(one, STEP, strict=True)] for name, one in found.items()}
        rows = [f'"{name}" = {limit}' for name, limit in limits.items()]
        BUDGET.write_text("\n".join([HEAD, *rows, ""]), encoding="utf-8")
    budget = tomllib.loads(BUDGET.read_text(encoding="utf-8"))
    if args.table:
        print(f"| {'folder':24} | {'lines':>7} | {'budget':>7} | {'tokens':>9} |\n|---|---:|---:|---:|")
        for name, (lines, tokens) in found.items():
            most = f"{budget[name][0]:,}" if name in budget else ""
            print(f"| {name:24} | {lines:7,} | {most:>7} | {tokens:9,} |")
    if said := over(found, budget):
        sys.exit("\n".join([*said, f"Remove what nobody would miss, or raise {BUDGET.name} and say why."]))


if __name__ == "__main__":
    main()
