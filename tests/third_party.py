"""Packages of others, installed as pip would: those that ``envsuite new`` writes, and those of a page."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from envsuite.cli import main

FILE = re.compile(r"^```(?:python|toml)\n# (\S+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def files_of(page: Path, heading: str) -> dict[str, str]:
    """The files that a section of a page writes: code blocks whose first line is a comment with the file's name."""
    section = page.read_text("utf-8").split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return dict(FILE.findall(section))


def files_of_new(folder: Path, *words: str) -> dict[str, str]:
    """The files that ``envsuite new`` writes into an empty folder, by their paths in the folder of their name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["new", *words]) == 0
    (written,) = folder.iterdir()
    return {str(path.relative_to(written)): path.read_text("utf-8") for path in written.rglob("*") if path.is_file()}


def install(folder: Path, files: dict[str, str]) -> None:
    """What pip does with a package of pure Python: its files, and metadata with its entry points."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    project = tomllib.loads(files["pyproject.toml"])["project"]
    info = folder / f"{project['name']}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    entries = "".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in named.items())
        for group, named in project["entry-points"].items()
    )
    (info / "entry_points.txt").write_text(entries)
