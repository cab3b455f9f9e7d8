"""Ids and checksums of published games, as far as they are known: ``published.json``.

Known is ``valid_seen``, whole, in release 0.4.2 (``json_2.1.3_tw-pddl.zip``). Of the other splits the number of games
is published. ``python -m envsuite.alfworld.published DIR --write`` writes the file from the games in DIR; without
``--write`` it compares them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import orjson

from envsuite.alfworld.game_file import GAME
from envsuite.alfworld.source import find_root, games_of
from envsuite.data.files import write_atomically
from envsuite.data.part import sha256_of

FILE = Path(__file__).parent / "published.json"
SPLITS = ("valid_seen",)
"""The splits whose games are all known."""


@cache
def published_checksums() -> Mapping[str, Mapping[str, str]]:
    """Returns split -> ``<task>/<trial>`` -> SHA-256 (hex) of ``game.tw-pddl``, of the splits that are known."""
    checksums: Mapping[str, Mapping[str, str]] = orjson.loads(FILE.read_bytes())
    return checksums


def main() -> None:
    """Compares the record with the games in a folder, or writes it."""
    parser = argparse.ArgumentParser(prog="python -m envsuite.alfworld.published", description=main.__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR", help="the folder that holds json_2.1.1")
    parser.add_argument("--write", action="store_true", help="write the record instead of comparing")
    arguments = parser.parse_args()
    root = find_root(arguments.folder)
    ids = games_of(root).splits
    checksums = {s: {i: sha256_of(root / s / i / GAME) for i in sorted(ids.get(s, ()))} for s in SPLITS}
    if arguments.write:
        write_atomically(FILE, orjson.dumps(checksums, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    same = orjson.loads(FILE.read_bytes()) == checksums
    counts = ", ".join(f"{split} {len(games)}" for split, games in checksums.items())
    sys.stdout.write(f"{FILE.name}: {counts}; {'matches the folder' if same else 'differs: run with --write'}\n")
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
