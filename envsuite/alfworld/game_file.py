"""Reads and checks the files of a game."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from envsuite.alfworld import families
from envsuite.core.errors import DataError, unknown
from envsuite.data.files import file_errors

FAMILIES = tuple(sorted(family.name for family in families.FAMILIES))
"""The families of tasks: ALFRED's, except those with sliced objects or movable receptacles."""
GAME = "game.tw-pddl"
TRAJECTORY = "traj_data.json"
REMEDY = "Fetch it again (`envsuite data fetch alfworld`), or remove its folder"
_TEXTS = ("pddl_domain", "grammar", "pddl_problem")


@dataclass(frozen=True)
class GameFile:
    """The content of a ``game.tw-pddl`` file."""

    domain: str
    """PDDL domain."""
    grammar: str
    """TextWorld's grammar: commands and texts."""
    problem: str
    """PDDL problem: scene and goal."""
    solvable: bool | None
    """Whether ALFWorld could solve it; ``None`` if it has not tried."""
    walkthrough: tuple[str, ...]
    """Commands that win the game; empty if the file has none."""


def read_game(path: Path) -> GameFile:
    """Reads a game.

    Raises:
        DataError: The file is missing, truncated, or not a game.
    """
    with file_errors(path, remedy=REMEDY):
        content = path.read_bytes()
    return parse_game(path, content)


def parse_game(path: Path, content: bytes) -> GameFile:
    """Parses the ``content`` of a game file that was read from ``path``.

    Raises:
        DataError: The content is truncated or not a game.
    """
    body = parse_object(path, content)
    for key in _TEXTS:
        if not isinstance(body.get(key), str):
            raise DataError(f"{path}: not a game of ALFWorld: it has no text {key!r}. {REMEDY}")
    solvable = body.get("solvable")
    walkthrough = body.get("walkthrough") or []
    if not isinstance(solvable, bool | None):
        raise DataError(f"{path}: not a game of ALFWorld: 'solvable' is {solvable!r}. {REMEDY}")
    if not isinstance(walkthrough, list) or not all(isinstance(command, str) for command in walkthrough):
        raise DataError(f"{path}: not a game of ALFWorld: 'walkthrough' is not a list of commands. {REMEDY}")
    return GameFile(body["pddl_domain"], body["grammar"], body["pddl_problem"], solvable, tuple(walkthrough))


def parse_family(path: Path, content: bytes) -> str:
    """Returns the family of a game, from its ``traj_data.json`` and checked against its folder's name.

    Raises:
        DataError: The file is truncated or not a trajectory, the family is unknown, or the two differ.
    """
    family = parse_object(path, content).get("task_type")
    if not isinstance(family, str):
        raise DataError(f"{path}: not a trajectory of ALFRED: it has no text 'task_type'. {REMEDY}")
    if family not in FAMILIES:
        raise DataError(f"{path}: {unknown('family', family, FAMILIES)}. {REMEDY}")
    folder = path.parts[-3]
    if folder.partition("-")[0] != family:
        raise DataError(f"{path}: it is of the family {family}, but its folder is called {folder}. {REMEDY}")
    return family


def parse_object(path: Path, content: bytes) -> dict[str, Any]:
    """Parses the ``content`` of a JSON file that was read from ``path``.

    Raises:
        DataError: It is truncated, or is not an object.
    """
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise DataError(f"{path}: truncated, or not JSON ({error}). {REMEDY}") from error
    if not isinstance(body, dict):
        raise DataError(f"{path}: not an object of JSON but {type(body).__name__}. {REMEDY}")
    return body
