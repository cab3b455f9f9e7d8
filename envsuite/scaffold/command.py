"""``envsuite new NAME``: writes an environment that works, and the settings with which an agent learns in it."""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
from importlib.resources import files
from pathlib import Path

from envsuite.core.errors import UsageError
from envsuite.data.files import write_atomically

NAME = "errand"
"""The name that the files have here."""
EXAMPLES = """next, in the folder NAME:
  envsuite play NAME.py
  envsuite eval run NAME.py --policy expert --policy random
  pytest test_NAME.py
  envsuite imitate --config imitate.yaml
  envsuite train --config train.yaml
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("name", metavar="NAME", help="of the environment and of its folder, which is made here")


def run(arguments: argparse.Namespace) -> int:
    """Writes the folder, and prints what to type next.

    Raises:
        UsageError: The name is no word, that of a module, or there is such a file.
    """
    name, folder = arguments.name, Path(arguments.name)
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise UsageError(f"{name!r} is no name for a file of Python; take small letters, digits and _")
    if folder.exists():
        raise UsageError(f"{name} is there already; take another name, or another folder")
    if importlib.util.find_spec(name) is not None:
        raise UsageError(f"{name} is a module of Python or of an installed package; take another name")
    folder.mkdir()
    for file in sorted(files("envsuite.scaffold.files").iterdir(), key=lambda file: file.name):
        if file.name.endswith((".py", ".yaml")) and file.name != "__init__.py":
            text = file.read_text(encoding="utf-8").replace(NAME, name)
            write_atomically(folder / file.name.replace(NAME, name), text.encode())
    sys.stdout.write(f"{name}/ has an environment, its tests, and the settings of an agent that learns in it\n\n")
    sys.stdout.write(EXAMPLES.replace("NAME", name))
    return 0
