"""Regenerate the generated pages, then check what all pages say: ``python -m docs.build``.

A page that is generated says so: "This page is made by `python -m … > docs/page.md`". Checked are links to files and
headings, that the index lists every page, and, in shell blocks, that make targets, modules and files of the repository
exist.
"""

from __future__ import annotations

import importlib.util
import itertools
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from trainers.papers.index import published_rows

ROOT = Path(__file__).resolve().parents[1]
INDEX = ROOT / "docs" / "README.md"
MADE_BY = re.compile(r"This page is made by `python (-m [^`>]+?) > (docs/[\w./-]+\.md)`")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)
OWN = ("envsuite", "trainers", "research", "benchmarks", "docs", "examples")
"""Packages whose modules must exist."""
OPTIONS_WITH_FILES = ("--config", "--config_file")


def pages() -> list[Path]:
    """Every Markdown page: those at the top of the repository, in ``docs/`` and in ``research/``."""
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("research/*.md")])


def generate() -> list[Path]:
    """Run the command of each generated page and write what it prints; returns the pages.

    Raises:
        subprocess.CalledProcessError: A command failed; its own message is on stderr.
    """
    made = []
    for page in pages():
        for command, target in MADE_BY.findall(page.read_text(encoding="utf-8")):
            run = subprocess.run([sys.executable, *shlex.split(command)], cwd=ROOT, stdout=subprocess.PIPE, check=True)
            (ROOT / target).write_bytes(run.stdout)
            made.append(ROOT / target)
    return made


def problems(page: Path) -> Iterator[str]:
    """What is wrong in ``page``, one line each."""
    text = page.read_text(encoding="utf-8")
    prose = FENCE.sub("", text)
    if page == INDEX:
        yield from (f"does not list {name}" for name in _unlisted(prose))
    for target in LINK.findall(prose):
        if "://" not in target and not target.startswith("mailto:"):
            yield from _broken_link(page, target)
    for language, body in FENCE.findall(text):
        if language in ("bash", "sh", "shell"):
            for line in body.replace("\\\n", " ").splitlines():
                yield from _broken_command(line)


def _unlisted(index: str) -> list[str]:
    """Pages of ``docs/`` that the index does not link to."""
    linked = {target.partition("#")[0] for target in LINK.findall(index)}
    return sorted(
        name
        for page in INDEX.parent.rglob("*.md")
        if (name := str(page.relative_to(INDEX.parent))) not in linked
        if page != INDEX
    )


def _broken_link(page: Path, target: str) -> Iterator[str]:
    name, _, anchor = target.partition("#")
    file = (page.parent / name).resolve() if name else page
    if not file.exists():
        yield f"link to {target}: no such file"
    elif anchor and anchor not in _anchors(file):
        yield f"link to {target}: no such heading"


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub names them."""
    headings = HEADING.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _broken_command(line: str) -> Iterator[str]:
    words = shlex.split(line, comments=True)
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    runs = {run.name for run in published_rows()}
    for before, word in itertools.pairwise(words):
        if before == "make" and "=" not in word and word not in targets:
            yield f"make {word}: no such target"
        if before == "-m" and word.split(".")[0] in OWN:
            if not is_module(word):
                yield f"python -m {word}: no such module"
        if before in OPTIONS_WITH_FILES and "/" in word and not (ROOT / word).exists() and word not in runs:
            yield f"{before} {word}: no such file"


def is_module(name: str) -> bool:
    """Whether a module can be found; its packages are imported for that."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def main() -> int:
    """Generate, check, and say what was done; exit code 1 if something is wrong."""
    made = generate()
    found = [f"{page.relative_to(ROOT)}: {problem}" for page in pages() for problem in problems(page)]
    sys.stdout.write(f"{len(pages())} pages, {len(made)} of them generated, {len(found)} problems\n")
    sys.stdout.writelines(f"{line}\n" for line in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
