"""Finds games in a folder of the official layout, which is indexed once and checked at every start.

The layout is ``json_2.1.1/<split>/<task>/<trial>/`` with ``game.tw-pddl`` and ``traj_data.json``. Reading all games
takes a while, so the cache has an index of them, with size and times (modification, status change) of both files. Every
start lists all folders and compares these: only games that were added or edited since are read again.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import orjson

from envsuite.alfworld.game_file import GAME, REMEDY, TRAJECTORY, parse_family, parse_game
from envsuite.core.errors import DataError
from envsuite.data.files import write_atomically
from envsuite.data.places import cache_root, data_root
from envsuite.data.progress import track

LAYOUT = "json_2.1.1"
"""Name of the folder that holds a folder for each split."""
SPLITS = ("train", "valid_seen", "valid_unseen")
"""The published splits; others follow in alphabetical order."""
LEFT_OUT = ("movable", "Sliced")
"""Parts of folder names that mark games which ALFWorld leaves out."""
FORMAT = 1
"""Version of the index; an index of another version is rebuilt."""
FRESH_SECONDS = 2.0
"""A file that changed so shortly before it was read may change again within one tick of the file system's clock, so it
is read again at the next start."""
READERS = 8
"""Number of threads that read games."""

_log = logging.getLogger(__name__)

Stamp = tuple[int, int, int]
"""Size of a file, and its times of modification and of status change in ns."""


@dataclass(frozen=True)
class GameTrial:
    """The index entry of one game folder."""

    stamps: tuple[Stamp, Stamp]
    """Stamps of game and trajectory."""
    family: str
    digest: str
    """SHA-256 (hex) of the game file."""
    solvable: bool | None


@dataclass(frozen=True, eq=False)
class Games:
    """The games below a folder."""

    root: Path
    """The folder that holds a folder for each split."""
    splits: Mapping[str, tuple[str, ...]]
    """Split -> task ids, sorted."""
    families: Mapping[str, str] = field(repr=False)
    """Task id -> family."""
    left_out: Mapping[str, str] = field(repr=False)
    """Task id -> reason why the game is not played."""
    version: str
    """``json_2.1.1-…`` with a digest of ids, splits, families and contents of all games."""
    _trials: Mapping[str, tuple[str, GameTrial]] = field(repr=False)

    def place(self, task_id: str) -> str:
        """Returns the folder of a task below :attr:`root`: ``<split>/<task>/<trial>``."""
        return self._trials[task_id][0]

    def path(self, task_id: str) -> Path:
        """Returns the game file of a task, after checking that it is still the one indexed.

        Raises:
            DataError: The file has been removed or edited since.
        """
        place, trial = self._trials[task_id]
        path = self.root / place / GAME
        try:
            if _stamp(str(path)) == trial.stamps[0] or hashlib.sha256(path.read_bytes()).hexdigest() == trial.digest:
                return path
        except OSError as error:
            games_of.cache_clear()
            raise DataError(f"{path}: cannot be read any more ({error.strerror}). {REMEDY}") from error
        games_of.cache_clear()
        raise DataError(f"{path}: the game has changed since it was indexed; make the environment anew")


def official_folder() -> Path:
    """Returns the folder of ``source="official"``: ``alfworld`` in :func:`envsuite.data.places.data_root`."""
    return data_root() / "alfworld"


def has_official() -> bool:
    """Whether the official games are present."""
    return (official_folder() / LAYOUT).is_dir()


def find_root(folder: Path) -> Path:
    """Returns the folder that holds a folder for each split: ``json_2.1.1`` in ``folder``, or ``folder`` itself.

    Raises:
        DataError: There is no such folder.
    """
    if not folder.is_dir():
        raise DataError(
            f"ALFWorld-v0: there is no folder {folder}. source= takes 'builtin', 'official' (the folder alfworld in "
            f"$ENVSUITE_DATA; `envsuite data fetch alfworld` fills it), or the path of the folder that holds {LAYOUT}"
        )
    inner = folder / LAYOUT
    return (inner if inner.is_dir() else folder).resolve()


@lru_cache(maxsize=8)
def games_of(root: Path) -> Games:
    """As :func:`read_games`; scans a folder once per process."""
    return read_games(root)


def read_games(root: Path) -> Games:
    """Returns the games in ``root``, a folder from :func:`find_root`.

    Raises:
        DataError: There is no game, or some file is truncated, not of ALFWorld, or contradicts its folder; the message
            names up to three of them, and nothing is loaded.
        MissingExtra: Standard error is a terminal, and the package for progress bars is not installed.
    """
    began = time.time_ns()
    stamps = dict(_survey(root))
    index = _read_index(root)
    trials = {place: trial for place, trial in index.items() if stamps.get(place) == trial.stamps}
    news = [place for place in stamps if place not in trials]
    trials.update(zip(news, _read(root, news, stamps), strict=True))
    if news or index.keys() - stamps.keys():
        edge = began - int(FRESH_SECONDS * 1e9)
        _write_index(root, {place: t for place, t in trials.items() if max(max(s[1:]) for s in t.stamps) < edge})
    return _games(root, trials)


def _games(root: Path, trials: Mapping[str, GameTrial]) -> Games:
    rank = {split: number for number, split in enumerate(SPLITS)}
    places = sorted(trials, key=lambda place: (rank.get(place.split("/")[0], len(SPLITS)), place))
    splits: dict[str, list[str]] = {}
    families: dict[str, str] = {}
    left_out: dict[str, str] = {}
    tasks: dict[str, tuple[str, GameTrial]] = {}
    digest = hashlib.sha256()
    for place in places:
        trial = trials[place]
        split, _, name = place.partition("/")
        task_id = place if name in tasks else name  # the split valid_train repeats games of train
        if trial.solvable:
            splits.setdefault(split, []).append(task_id)
            left_out.pop(task_id, None)  # left out under the same id in another split
            families[task_id] = trial.family
            tasks[task_id] = (place, trial)
            digest.update(f"{split} {task_id} {trial.family} {trial.digest}\n".encode())
        else:
            why = "is marked as not solvable" if trial.solvable is False else "was never checked to be solvable"
            left_out[task_id] = f"{root / place / GAME} {why}"
    if not tasks:
        raise DataError(f"{root}: none of its {len(trials)} games is marked as solvable. {REMEDY}")
    ids = {split: tuple(sorted(names)) for split, names in splits.items()}
    return Games(root, ids, families, left_out, f"{LAYOUT}-{digest.hexdigest()[:12]}", tasks)


def _survey(root: Path) -> Iterator[tuple[str, tuple[Stamp, Stamp]]]:
    """Yields every folder with both files of a game, as ``<split>/<task>/<trial>``, and their stamps."""
    games = trajectories = 0
    try:
        for split in _folders(str(root)):
            for task in _folders(split.path):
                if any(word in task.name for word in LEFT_OUT):
                    continue
                for trial in _folders(task.path):
                    trajectory = _stamp_or_none(f"{trial.path}/{TRAJECTORY}")
                    game = _stamp_or_none(f"{trial.path}/{GAME}")
                    trajectories += trajectory is not None
                    if trajectory is not None and game is not None:
                        games += 1
                        yield f"{split.name}/{task.name}/{trial.name}", (game, trajectory)
    except OSError as error:
        raise DataError(f"{error.filename}: cannot be read ({error.strerror})") from error
    if games:
        return
    hint = f"`envsuite data fetch alfworld` gets them; source= takes the folder that holds {LAYOUT}"
    if trajectories:
        hint = f"there are {trajectories} trajectories without game, as in ALFRED's own data set. {hint}"
    elif any(root.glob(f"*/{GAME}")) or any(root.glob(f"*/*/{GAME}")):
        hint = f"it looks like a single split or task; source= takes the folder that holds {LAYOUT}"
    raise DataError(f"{root}: no game of ALFWorld (<split>/<task>/<trial>/{GAME} with {TRAJECTORY}): {hint}")


def _folders(place: str) -> list[os.DirEntry[str]]:
    with os.scandir(place) as entries:
        folders = [entry for entry in entries if entry.name[0] != "." and entry.is_dir()]
    for entry in folders:
        if not entry.name.isprintable():  # not even UTF-8, perhaps
            raise DataError(f"{entry.path!a}: not a folder of ALFWorld's, by its name. Remove it")
    return folders


def _stamp(path: str) -> Stamp:
    about = os.stat(path)
    return about.st_size, about.st_mtime_ns, about.st_ctime_ns


def _stamp_or_none(path: str) -> Stamp | None:
    try:
        return _stamp(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _read(root: Path, places: Sequence[str], stamps: Mapping[str, tuple[Stamp, Stamp]]) -> list[GameTrial]:
    """Reads the games in ``places``; shows the progress on a terminal."""

    def read(place: str) -> GameTrial | DataError:
        game, trajectory = root / place / GAME, root / place / TRAJECTORY
        try:
            content = game.read_bytes()
            solvable = parse_game(game, content).solvable
            family = parse_family(trajectory, trajectory.read_bytes())
        except DataError as error:
            return error
        except OSError as error:
            return DataError(f"{error.filename}: cannot be read ({error.strerror}). {REMEDY}")
        return GameTrial(stamps[place], family, hashlib.sha256(content).hexdigest(), solvable)

    if not places:
        return []
    with ThreadPoolExecutor(READERS) as readers:
        outcomes = list(track(readers.map(read, places), "ALFWorld: reading games", len(places)))
    errors = [str(outcome) for outcome in outcomes if isinstance(outcome, DataError)]
    if errors:
        more = [f"and {len(errors) - 3} more"] if len(errors) > 3 else []
        raise DataError("\n".join(errors[:3] + more))
    return [outcome for outcome in outcomes if isinstance(outcome, GameTrial)]


def index_file(root: Path) -> Path:
    """Returns the path of the index of the games in ``root``."""
    name = hashlib.sha256(os.fsencode(root)).hexdigest()[:16]
    return cache_root() / "alfworld" / "index" / f"{name}.json"


def _write_index(root: Path, trials: Mapping[str, GameTrial]) -> None:
    body = orjson.dumps({place: (t.stamps, t.family, t.digest, t.solvable) for place, t in trials.items()})
    path = index_file(root)
    try:
        write_atomically(path, f"{_seal(body)}\n".encode() + body)
    except OSError as error:  # the cache is not writable: every start reads all games
        _log.warning("%s: the index of games cannot be kept (%s); set ENVSUITE_DATA", path, error.strerror)


def _read_index(root: Path) -> dict[str, GameTrial]:
    """Reads the index; empty where it is missing, damaged, or of another version."""
    try:
        seal, _, body = index_file(root).read_bytes().partition(b"\n")
    except OSError:
        return {}
    if seal.decode("ascii", "replace") != _seal(body):
        return {}
    return {
        place: GameTrial((_triple(game), _triple(trajectory)), family, digest, solvable)
        for place, ((game, trajectory), family, digest, solvable) in orjson.loads(body).items()
    }


def _seal(body: bytes) -> str:
    return f"envsuite alfworld index {FORMAT} {hashlib.sha256(body).hexdigest()}"


def _triple(stamp: Sequence[int]) -> Stamp:
    size, mtime, ctime = stamp
    return size, mtime, ctime
