"""``envsuite new NAME``: writes an environment, an agent, a method or an engine that works, with what to type next."""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from envsuite.core.errors import UsageError
from envsuite.data.files import write_atomically

KINDS = ("environment", "agent", "method", "engine")
"""What is made; the folder of each has its files, and ``next.txt``: what it is, and what to type."""
TEMPLATES = Path(__file__).parent
"""Where these folders are."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("kind", nargs="?", default=KINDS[0], choices=KINDS, help="(default: %(default)s)")
    parser.add_argument("name", metavar="NAME", help="of what is made, and of its folder")
    parser.add_argument("--package", action="store_true", help="an environment as a class, in a package to install")


def run(arguments: argparse.Namespace) -> int:
    """Writes the folder, and prints what to type next.

    Raises:
        UsageError: The name is no word, that of a kind or of a module, or there is such a file.
    """
    kind, name, folder = arguments.kind, arguments.name, Path(arguments.name)
    if name in KINDS:
        raise UsageError(f"{name!r} is what is made; give it a name: envsuite new {name} NAME")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise UsageError(f"{name!r} is no name for a file of Python; take small letters, digits and _")
    if folder.exists():
        raise UsageError(f"{name} is there already; take another name, or another folder")
    if importlib.util.find_spec(name) is not None:
        raise UsageError(f"{name} is a module of Python or of an installed package; take another name")
    if arguments.package and kind != "environment":
        raise UsageError(f"--package is for an environment; leave it out: envsuite new {kind} {name}")
    what, commands = write_folder(kind, name, arguments.package)
    sys.stdout.write(f"{name}/ has {what}\n\nnext, in the folder {name}:\n{commands}")
    return 0


def write_folder(kind: str, name: str, package: bool = False) -> tuple[str, str]:
    """Writes the folder ``name`` below the working folder; returns what it has, and the commands to type there."""
    texts = dict(template_texts("package" if package else kind))
    if package:  # the same game, so the same settings
        settings = dict(template_texts("environment"))
        texts |= {file: settings[file].replace("errand.py", "Errand-v0") for file in ("imitate.yaml", "train.yaml")}
    texts = {rename(path, name): rename(text, name) for path, text in texts.items()}
    what, _, commands = texts.pop("next.txt").partition("\n")
    for path, text in texts.items():
        file = Path(name, path)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, text.encode())
    return what, commands


def rename(text: str, name: str) -> str:
    """Returns the text of a template under another name."""
    return text.replace("Errand", name.title().replace("_", "")).replace("errand", name)


def template_texts(kind: str) -> Iterator[tuple[str, str]]:
    """Yields the path and the text of each file of a kind."""
    root = TEMPLATES / kind
    for file in sorted(root.rglob("*.*")):
        if file.suffix != ".pyc":
            yield file.relative_to(root).as_posix(), file.read_text(encoding="utf-8")
