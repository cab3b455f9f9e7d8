"""Where levels come from: folders of level files, and generated ones."""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path

from envsuite.core.draws import Draw
from envsuite.core.errors import DataError
from envsuite.data import data_root
from envsuite.sokoban.generate import Kind, generate
from envsuite.sokoban.level import Level, read_level

BUILTIN = Path(__file__).parent / "levels"
"""Folder of the built-in levels; ``python -m envsuite.sokoban.tasks --write`` makes it."""
GENERATOR = "sokoban-1"
"""Version of the generator: the same arguments give the same levels."""
_SHARES = {"train": range(80), "validation": range(80, 90), "test": range(90, 100)}
_NAMES = {"train": "train", "valid": "validation", "validation": "validation", "val": "validation", "test": "test"}


class Levels(ABC):
    """A set of levels with ids."""

    version: str
    """What determines the levels: a hash of the files, or the generator's arguments."""

    listed: Mapping[str, tuple[str, str]]
    """Split and type of every id, in their order."""

    @abstractmethod
    def level(self, task_id: str) -> Level:
        """Returns the level of an id in :attr:`listed`; reads or generates it if need be."""


class Generated(Levels):
    """Levels drawn from a seed, each when it is first played: 80 % of them in train, 10 % in validation.

    The levels of different splits differ in room or targets, even if they are turned or mirrored.

    Args:
        kind: Their size and difficulty.
        seed: Determines them.
        count: How many there are.
    """

    def __init__(self, kind: Kind, seed: int, count: int) -> None:
        self.kind = kind
        low, high = kind.pushes
        stem = f"{kind.width}x{kind.height}-{kind.boxes}-{low}-{high}-{seed}"
        self.version = f"{GENERATOR}-{stem}"
        first, second = count * 80 // 100, count * 90 // 100
        split = ["train"] * first + ["validation"] * (second - first) + ["test"] * (count - second)
        self.listed = {f"{stem}-{number}": (split[number], f"boxes-{kind.boxes}") for number in range(count)}

    def level(self, task_id: str) -> Level:
        """Generates the level, or returns one of the last that were."""
        return _generated(self.kind, task_id, self.listed[task_id][0])


@lru_cache(maxsize=4096)
def _generated(kind: Kind, task_id: str, split: str) -> Level:
    return generate(kind, Draw(f"{GENERATOR} {task_id}"), _SHARES[split])[0]


class Folder(Levels):
    """The level files ``*.txt`` in a folder and in those below it, as Boxoban lays them out.

    The id of a level is its file and its number in it, ``unfiltered/train/000#12``; its type is the uppermost folder;
    its split is ``train``, ``validation`` (from ``valid``) or ``test``, with which its file's name or that of a folder
    above it begins, else ``test``.

    Raises:
        DataError: There is no such folder, or it has no level files.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise DataError(
                f"Sokoban-v0: there is no folder {folder}. source= takes 'builtin', 'generated', 'official' (the "
                "folder boxoban in $ENVSUITE_DATA), or the path of a folder of level files (*.txt)"
            )
        paths = sorted(folder.rglob("*.txt"))
        found, hashed = {}, hashlib.sha256()
        for path in paths:
            content = path.read_bytes()
            count = len(_numbered(content.decode(errors="replace")))
            if count:
                hashed.update(f"{path.relative_to(folder).as_posix()} {len(content)} ".encode() + content)
                found[path.relative_to(folder).with_suffix("").as_posix()] = (path, count)
        if not found:
            raise DataError(
                f"{folder}: there are no level files (*.txt with rows of '# .$@*+'); Boxoban's are at "
                "https://github.com/google-deepmind/boxoban-levels"
            )
        self._files = {name: path for name, (path, _) in found.items()}
        self.version = hashed.hexdigest()[:12]
        self.listed = {
            f"{name}#{number}": (_split(name), name.partition("/")[0] if "/" in name else "levels")
            for name, (_, count) in found.items()
            for number in range(count)
        }

    def level(self, task_id: str) -> Level:
        """Reads the level.

        Raises:
            DataError: It is no level; see :func:`read_level`.
        """
        name, _, number = task_id.rpartition("#")
        return _read(self._files[name], int(number))


def _split(name: str) -> str:
    for part in reversed(name.split("/")):
        if (known := _NAMES.get(re.split(r"[_\-.\d]", part)[0].lower())) is not None:
            return known
    return "test"


@lru_cache(maxsize=16384)
def _read(path: Path, number: int) -> Level:
    return read_level(_boards(path)[number], f"{path}, level {number}")


@lru_cache(maxsize=64)
def _boards(path: Path) -> list[list[str]]:
    return _numbered(path.read_text(encoding="utf-8", errors="replace"))


def _numbered(text: str) -> list[list[str]]:
    """Returns the rows of each board in a level file; titles, remarks and empty lines are between boards."""
    boards: list[list[str]] = [[]]
    for line in text.splitlines():
        if line[:1] != ";" and line.strip() and ("#" in line or not set(line) - set("# .$@*+")):
            boards[-1].append(line)
        elif boards[-1]:
            boards.append([])
    return [rows for rows in boards if rows]


@cache
def folder_levels(folder: Path) -> Folder:
    """Returns the levels of a folder, listed once per process."""
    return Folder(folder)


def official_folder() -> Path:
    """Returns the folder of ``source="official"``: ``boxoban/levels`` or ``boxoban`` in the data folder."""
    folder = data_root() / "boxoban"
    return folder / "levels" if (folder / "levels").is_dir() else folder
