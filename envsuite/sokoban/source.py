"""Where levels come from: folders of level files, and generated ones."""

from __future__ import annotations

import hashlib
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from envsuite.core.draws import Draw
from envsuite.core.errors import DataError
from envsuite.data.files import file_errors
from envsuite.data.places import data_root
from envsuite.sokoban.generate import LevelKind, generate
from envsuite.sokoban.level import SYMBOLS, Level, read_level

LOG = logging.getLogger(__name__)
BUILTIN = Path(__file__).parent / "levels"
"""Folder of the built-in levels, which :func:`envsuite.sokoban.tasks.builtin_files` makes."""
GENERATOR = "sokoban-1"
"""Version of the generator: the same arguments give the same levels."""
SHARES = {"train": range(80), "validation": range(80, 90), "test": range(90, 100)}
"""The :func:`~envsuite.sokoban.generate.share` of a split's levels, so that no two splits have one in common."""
_SPLITS = (("train", "train"), ("val", "validation"), ("test", "test"))
_ROW = re.compile(f"[{re.escape(SYMBOLS)}]*")


class LevelSet(ABC):
    """A set of levels with ids."""

    version: str
    """Hash of the files, or the arguments of the generator; determines the level of an id."""

    listed: Mapping[str, tuple[str, str]]
    """Split and type of every id, in their order."""

    left_out: Sequence[str] = ()
    """Why boards of the files are no levels."""

    @abstractmethod
    def level(self, task_id: str) -> Level:
        """Returns the level of an id in :attr:`listed`; reads or generates it if need be."""

    @abstractmethod
    def identity(self, task_id: str) -> dict[str, Any]:
        """Returns where the level of an id in :attr:`listed` comes from, and its board, as plain JSON."""


class GeneratedLevels(LevelSet):
    """Levels drawn from a seed, each when it is first played: 80 % of them in train, 10 % in validation.

    The levels of different splits differ in room or targets, even if they are turned or mirrored. An id is the same
    level however many there are.

    Args:
        kind: Their size and difficulty.
        seed: Determines them.
        count: How many there are.
    """

    def __init__(self, kind: LevelKind, seed: int, count: int) -> None:
        self.kind = kind
        low, high = kind.pushes
        stem = f"{kind.width}x{kind.height}-{kind.boxes}-{low}-{high}-{seed}"
        self.version = f"{GENERATOR}-{stem}"
        first, second = count * 80 // 100, count * 90 // 100
        counts = {"train": first, "validation": second - first, "test": count - second}
        self.listed = {
            f"{stem}/{split}#{number}": (split, f"boxes-{kind.boxes}")
            for split, size in counts.items()
            for number in range(size)
        }

    def level(self, task_id: str) -> Level:
        """Generates the level, or returns one of the last that were.

        Raises:
            UsageError: No such level was found; see :func:`generate`.
        """
        return _generate_level(self.kind, task_id, self.listed[task_id][0])

    def identity(self, task_id: str) -> dict[str, Any]:
        """Returns the arguments of the generator, the number of the level, and its board."""
        stem, _, number = task_id.rpartition("#")
        return {"generated": stem, "index": int(number), **_board(self.level(task_id).text())}


@lru_cache(maxsize=4096)
def _generate_level(kind: LevelKind, task_id: str, split: str) -> Level:
    return generate(kind, Draw(f"{GENERATOR} {task_id}"), SHARES[split])[0]


class LevelFolder(LevelSet):
    """The level files ``*.txt`` in a folder and in those below it, as Boxoban lays them out.

    The id of a level is its file and its number in it, ``unfiltered/train/000#12``. Its split is the one with which the
    name of its file or of a folder above it begins, ``train``, ``val`` or ``test``, the last of them first, else
    ``test``; its type is the uppermost folder that is not called so, else the folder itself.

    A board that is no level is left out, and counted.

    Raises:
        DataError: There is no such folder, it has no levels, or a file cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise DataError(
                f"Sokoban-v0: there is no folder {folder}. source= takes 'builtin', 'generated', 'official' (the "
                "folder boxoban in $ENVSUITE_DATA), or the path of a folder of level files (*.txt)"
            )
        hasher = hashlib.sha256()
        self._files: dict[str, Path] = {}
        self.listed: dict[str, tuple[str, str]] = {}
        left_out: list[str] = []
        for path in sorted(path for path in folder.rglob("*.txt") if path.is_file()):
            text = _text(path)
            inner = path.relative_to(folder).with_suffix("")
            description = _split_and_type((folder.name, *inner.parts))
            for number, board in enumerate(_boards(text)):
                if not number:
                    hasher.update(f"{inner.as_posix()} {len(text)} {text}".encode())
                    self._files[inner.as_posix()] = path
                try:
                    read_level(board.split("\n"), f"{path}, level {number}")
                    self.listed[f"{inner.as_posix()}#{number}"] = description
                except DataError as error:
                    left_out.append(str(error))
        self.left_out = left_out
        if left_out and not self.listed:
            raise DataError(f"{folder}: none of {len(left_out):,} boards is a level; {left_out[0]}")
        if left_out:
            LOG.warning("%s: left out are %d boards that are no levels; %s", folder, len(left_out), left_out[0])
        if not self.listed:
            raise DataError(
                f"{folder}: there are no level files (*.txt with rows of {SYMBOLS!r}); Boxoban's are at "
                "https://github.com/google-deepmind/boxoban-levels"
            )
        self.version = hasher.hexdigest()[:12]

    def level(self, task_id: str) -> Level:
        """Reads the level.

        Raises:
            DataError: It is no level, see :func:`read_level`, or is no longer there.
        """
        name, _, number = task_id.rpartition("#")
        return _read(self._files[name], int(number))

    def identity(self, task_id: str) -> dict[str, Any]:
        """Returns the file of the level, below the folder, its number in it from 0, and its board as the file has it.

        Raises:
            DataError: It is no longer there.
        """
        name, _, number = task_id.rpartition("#")
        return {"file": f"{name}.txt", "index": int(number), **_board(_rows(self._files[name], int(number)))}


def _split_and_type(parts: tuple[str, ...]) -> tuple[str, str]:
    """Returns split and type of the levels of a file, from the names of its folder, of those in it, and of the file."""
    splits = [next((split for start, split in _SPLITS if part.lower().startswith(start)), "") for part in parts]
    split = next((name for name in reversed(splits) if name), "test")
    kinds = (part for part, name in zip(parts[1:-1], splits[1:-1], strict=True) if not name)
    return split, next(kinds, parts[0])


@lru_cache(maxsize=16384)
def _read(path: Path, number: int) -> Level:
    return read_level(_rows(path, number).split("\n"), f"{path}, level {number}")


def _rows(path: Path, number: int) -> str:
    boards = _split(path)
    if number >= len(boards):
        raise DataError(f"{path}: level {number} was there when the file was listed, and is no longer; start again")
    return boards[number]


def _board(rows: str) -> dict[str, str]:
    return {"board": rows, "board_sha256": hashlib.sha256(rows.encode()).hexdigest()}


@lru_cache(maxsize=1024)
def _split(path: Path) -> list[str]:
    return list(_boards(_text(path)))


def _text(path: Path) -> str:
    with file_errors(path):
        return path.read_text(encoding="utf-8-sig", errors="replace")


def _boards(text: str) -> Iterator[str]:
    """Yields each board of a level file; titles, remarks and empty lines are between boards.

    A board begins with a row of a board's symbols that has a wall. Within it a line that begins like a row is one,
    though it may have other symbols, for which the level is then refused.
    """
    rows: list[str] = []
    for line in text.splitlines():
        row = _ROW.fullmatch(line) is not None and line.strip()
        if (row or line[:1] in ("#", " ")) if rows and line.strip() else row and "#" in line:
            rows.append(line)
        elif rows:
            yield "\n".join(rows)
            rows = []
    if rows:
        yield "\n".join(rows)


def official_folder() -> Path:
    """Returns the folder of ``source="official"``: ``boxoban/levels`` or ``boxoban`` in the data folder."""
    folder = data_root() / "boxoban"
    return folder / "levels" if (folder / "levels").is_dir() else folder
