"""Writes the repository's address into every file that has it.

    python tools/address.py https://HOST/OWNER/envsuite         replaces the present address, which pyproject.toml has
    python tools/address.py https://HOST/OWNER/envsuite v1.2.3  and has README's links lead to the files of that tag

The second is for a build: README is the page of the package in an index, where none of the repository's files lie.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

LINK = re.compile(r"(!?)(\[[^][]*\]\()(?!#|\w+:)(?=[^)\s]+\))")
"""The beginning of a link of Markdown to a file, up to the name of the file."""


def write_address(root: Path, address: str, tag: str | None = None) -> None:
    """Replaces the present address in all tracked files; with ``tag``, README's links get whole addresses."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    present = project["urls"]["Repository"]
    command = ["git", "grep", "-lIF", present]
    for name in subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.splitlines():
        text = (root / name).read_text(encoding="utf-8")
        (root / name).write_text(text.replace(present, address), encoding="utf-8")
    if tag:
        readme = root / project["readme"]
        text = readme.read_text(encoding="utf-8")
        text = LINK.sub(lambda m: f"{m[1]}{m[2]}{address}/{'raw' if m[1] else 'blob'}/{tag}/", text)
        readme.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    address, *tags = sys.argv[1:]
    write_address(Path(__file__).resolve().parents[1], address.rstrip("/"), *tags)
