"""The code blocks of the documentation, and the class of each, which says how it is tested.

==========  ==========================================================================================================
class       how the block is tested
==========  ==========================================================================================================
run         Python: executed, the blocks of a page one after another in one namespace, in a folder of their own
method      Python of a method's page: executed, and ``advantage`` compared with what the estimator returns
excerpt     Python of docs/methods that stands so in a file that the page links to
file        a file of an example package: compiled or parsed; the tests of its section install the package
named       Python that needs what is not here: compiled, and what it imports is imported; REASONS says why
commands    shell: each command by ``command_lines``
settings    YAML: checked as settings of a run, or of imitation
data        JSON, TOML: parsed
shown       text that a program prints, or a drawing
==========  ==========================================================================================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt

from docs.build import ROOT, pages

FILE = re.compile(r"# ([\w./-]+\.(?:py|toml))\n")
BY_LANGUAGE = {
    **dict.fromkeys(("bash", "sh", "console"), "commands"),
    **dict.fromkeys(("json", "toml"), "data"),
    **{"python": "run", "yaml": "settings", "text": "shown"},
}
REASONS = {
    ("docs/bridges.md", "from openenv.core import GenericEnvClient"): "openenv is no part of the extra dev; "
    "tests/serving/bridges/test_openenv.py runs it where it is installed",
    (
        "docs/data.md",
        "from envsuite.data.catalog import data_set",
    ): "fetches from the network; tests/data fetches from servers here",
    ("docs/demonstrations.md", "from datasets import load_dataset"): "datasets and trl are no part of the extra dev; "
    "test_demonstrations_trl.py uses them where they are installed",
    ("docs/your-environment.md", "env = Environment("): "parts of a file that envsuite new writes; "
    "tests/core/test_scaffold.py compares them",
}
"""Blocks that are not executed, by page and first line, each with the reason."""
EXCERPTS = ("docs/methods/dapo.md", "docs/methods/gspo.md", "docs/methods/scpo.md", "docs/methods/spear.md")
"""Pages of methods whose code has no ``advantage`` of its own: an estimator under another name, and additions."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    """Relative to the repository."""
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def first(self) -> str:
        """Its first line."""
        return self.text.partition("\n")[0]

    @property
    def kind(self) -> str:
        """The class of the block; empty if it has none."""
        kind = BY_LANGUAGE.get(self.language, "")
        if self.language in ("python", "toml") and FILE.match(self.text):
            return "file"
        if kind == "run" and (self.page, self.first) in REASONS:
            return "named"
        if kind == "run" and self.page.startswith("docs/methods/"):
            return "excerpt" if self.page in EXCERPTS else "method"
        return kind


@cache
def all_blocks() -> tuple[Block, ...]:
    """Every block of code of README.md, CONTRIBUTING.md, CHANGELOG.md and docs/, in order."""
    return tuple(block for page in pages() for block in blocks_of(page))


def blocks_of(path: Path) -> list[Block]:
    """The blocks of a page, those in lists and quotations, and those that are only indented, included."""
    page = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name
    return [
        Block(page, (token.map or [0])[0] + 1, token.info.strip(), token.content)
        for token in MarkdownIt().parse(path.read_text(encoding="utf-8"))
        if token.type in ("fence", "code_block")
    ]


def of_kind(kind: str) -> list[Block]:
    """The blocks of a class."""
    return [block for block in all_blocks() if block.kind == kind]
