"""Generates ALFWorld games from a seed: the built-in source.

The files and their folders have ALFWorld's own format, so every program that plays its games plays these.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import selectors
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen

from envsuite.alfworld.families import FAMILIES, draw_game, walkthrough
from envsuite.alfworld.game_writer import folder_name, game_file, problem_text, record_file, scene_names
from envsuite.alfworld.scenes import EDITION, SceneDifficulty, layouts
from envsuite.core.draws import Draw
from envsuite.core.errors import EnvsuiteError, UsageError
from envsuite.core.escaping import log_to_stderr
from envsuite.data.files import write_atomically
from envsuite.data.locks import hold_lock
from envsuite.data.places import WRITABLE
from envsuite.data.progress import track

logger = logging.getLogger(__name__)

SPLITS = ("train", "valid_seen", "valid_unseen")
FEWEST = len(SPLITS) * len(FAMILIES)
MANIFEST = "manifest.json"
DEFAULT = SceneDifficulty()
ALONE = 120
"""Number of games below which starting other processes takes longer than it saves."""
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from envsuite.alfworld.generate import work; work(**json.loads(sys.argv[2]))"
)


@dataclass(frozen=True)
class GameSet:
    """The settings from which a set of games is generated."""

    seed: int
    games: int
    difficulty: SceneDifficulty = DEFAULT

    def __post_init__(self) -> None:
        if self.games < FEWEST:
            raise UsageError(f"at least {FEWEST} games: one of each family for each split; got {self.games}")

    @property
    def name(self) -> str:
        """Name of the folder of the games."""
        name = f"alfworld-{EDITION}-{self.seed}-{self.games}"
        if self.difficulty == DEFAULT:
            return name
        return name + "".join(f"-{key}{value}" for key, value in asdict(self.difficulty).items() if value is not None)

    @property
    def splits(self) -> dict[str, int]:
        """Number of games in each split."""
        held_out = max(len(FAMILIES), self.games // 10)
        return {"train": self.games - 2 * held_out, "valid_seen": held_out, "valid_unseen": held_out}

    def all(self) -> Iterator[tuple[str, int]]:
        """Yields split and index of every game; the families take turns."""
        for split, number in self.splits.items():
            for index in range(number):
                yield split, index


@dataclass(frozen=True)
class GameFiles:
    """The files of a generated game."""

    path: str
    """Its folder, relative to the one that holds the splits."""
    game: str
    """``game.tw-pddl``."""
    record: str
    """``traj_data.json``."""


def make(seed: int, split: str, index: int, difficulty: SceneDifficulty = DEFAULT) -> GameFiles:
    """Generates the game of a seed, split and index: the same on every machine, and won by its walkthrough."""
    seen_layouts, unseen_layouts = layouts(seed, difficulty.receptacles)
    key = f"game {EDITION} {seed} {split} {index} {asdict(difficulty)}"
    family = FAMILIES[index % len(FAMILIES)]
    goal, scene = draw_game(Draw(key), family, unseen_layouts if split == "valid_unseen" else seen_layouts, difficulty)
    number = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")
    name = f"trial_T{number % 10**8:08d}_{SPLITS.index(split)}{index:05d}_{number // 10**8 % 10**6:06d}"
    problem = problem_text(name, goal, scene)
    commands = walkthrough(goal, scene, scene_names(scene))
    path = f"{split}/{folder_name(goal, scene)}/{name}"
    return GameFiles(path, game_file(goal, problem, commands), record_file(name, goal, scene))


def ensure(root: Path, seed: int, games: int, difficulty: SceneDifficulty = DEFAULT) -> Path:
    """Generates ``games`` games below ``root`` unless they exist; returns the folder that holds ``json_2.1.1``.

    A tenth of the games is valid_seen, and a tenth valid_unseen, with layouts that no other game has; the six families
    are equally frequent. The games are the same on every machine, and a larger number starts, in each split, with the
    games of a smaller one. The folder appears once it is complete; processes that need it meanwhile wait for the one
    that generates it.

    Args:
        root: Folder of all generated games.
        seed: Determines rooms and games.
        games: Number of games, all splits together.
        difficulty: Difficulty of the games.

    Raises:
        UsageError: Too few games, or ``root`` can't be written to.
    """
    game_set = GameSet(seed, games, difficulty)
    folder = root / game_set.name
    if _complete(folder):
        return folder
    try:
        with hold_lock(root / f".{game_set.name}.lock") as lock:
            if not _complete(folder):
                _build(folder, game_set, lock)
    except OSError as error:
        raise UsageError(f"can't write ALFWorld games to {root}: {error}. {WRITABLE}") from error
    return folder


def _complete(folder: Path) -> bool:
    try:
        paths = json.loads((folder / MANIFEST).read_bytes())["games"]
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return False
    return all((folder / "json_2.1.1" / path / "game.tw-pddl").is_file() for path in paths)


def _build(folder: Path, game_set: GameSet, lock: int) -> None:
    logger.info("making %d ALFWorld games in %s", game_set.games, folder)
    partial = folder.with_name(f".{folder.name}.partial")
    for leftover in (partial, folder):
        if leftover.exists():
            shutil.rmtree(leftover)
    workers = min(_cores(), game_set.games // ALONE)
    counts = _share(partial, game_set, 0, 1) if workers < 2 else _run_workers(partial, game_set, workers, lock)
    for _ in track(chain.from_iterable(map(range, counts)), "ALFWorld: making games", game_set.games):
        pass
    top = partial / "json_2.1.1"
    manifest = {
        "edition": EDITION,
        "seed": game_set.seed,
        "difficulty": asdict(game_set.difficulty),
        "splits": game_set.splits,
        "games": sorted(file.parent.relative_to(top).as_posix() for file in top.glob("*/*/*/game.tw-pddl")),
    }
    write_atomically(partial / MANIFEST, json.dumps(manifest, indent=1).encode())
    partial.rename(folder)
    logger.info("made %d ALFWorld games in %s", game_set.games, folder)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _share(folder: Path, game_set: GameSet, first: int, step: int) -> Iterator[int]:
    """Writes every ``step``-th game, from ``first`` on; yields 1 after each."""
    for split, index in islice(game_set.all(), first, None, step):
        files = make(game_set.seed, split, index, game_set.difficulty)
        target = folder / "json_2.1.1" / files.path
        target.mkdir(parents=True, exist_ok=True)
        (target / "game.tw-pddl").write_text(files.game, encoding="utf-8")
        (target / "traj_data.json").write_text(files.record, encoding="utf-8")
        yield 1


def _run_workers(folder: Path, game_set: GameSet, workers: int, lock: int) -> Iterator[int]:
    """Writes all games in worker processes that import nothing of the program; yields how many are new.

    The workers hold the lock too: where this process is killed, no other begins while one of them still writes.
    """
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        processes = []
        for first in range(workers):
            share = {"folder": str(folder), **asdict(game_set), "first": first, "step": workers}
            command = [sys.executable, "-c", _BOOT, json.dumps(sys.path), json.dumps(share)]
            process = stack.enter_context(Popen(command, stdin=DEVNULL, stdout=PIPE, bufsize=0, pass_fds=(lock,)))
            processes.append(process)
            stack.callback(process.kill)
            assert process.stdout is not None
            selector.register(process.stdout, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                if new := os.read(key.fd, 4096):
                    yield len(new)
                else:
                    selector.unregister(key.fileobj)
        for process in processes:
            if process.wait():
                raise RuntimeError(f"a process that made ALFWorld games exited with code {process.returncode}")


def work(folder: str, seed: int, games: int, difficulty: dict[str, int | None], first: int, step: int) -> None:
    """Generates a worker process's share of the games; writes a dot for each."""
    game_set = GameSet(seed, games, SceneDifficulty(**difficulty))  # type: ignore[arg-type]  # two of the fields are never None
    for _ in _share(Path(folder), game_set, first, step):
        sys.stdout.write(".")
        sys.stdout.flush()


EXAMPLES = """examples:
  python -m envsuite.alfworld.generate --out games
  python -m envsuite.alfworld.generate --out games --games 6000 --seed 7
  python -m envsuite.alfworld.generate --out hard --hidden 80 --decoys 3
  python -m envsuite.alfworld.generate --out easy --receptacles 40 --things 50 --hidden 0 --decoys 0

The folder that is printed holds json_2.1.1/<split>/<task>/<trial>/game.tw-pddl, as ALFWorld's own data do. The same
arguments make the same files on every machine; a folder that is there already is left as it is.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Generates games and prints their folder; returns 0, or 2 after an error that the user can correct."""
    parser = argparse.ArgumentParser(
        prog="python -m envsuite.alfworld.generate",
        description="Generates ALFWorld games: rooms, objects, and solvable tasks.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, help="parent of the folder of the games")
    parser.add_argument("--games", type=int, default=600, help="number: 80 %% train, 10 %% each valid split (600)")
    parser.add_argument("--seed", type=int, default=0, help="seed of rooms and games (0)")
    parser.add_argument("--receptacles", type=int, default=100, help="percentage of the number in ALFRED's rooms (100)")
    parser.add_argument("--things", type=int, default=100, help="percentage of the number in ALFRED's rooms (100)")
    parser.add_argument("--hidden", type=int, help="percentage of games with all goal objects shut away (as ALFWorld)")
    parser.add_argument("--decoys", type=int, help="number of further objects of the goal's type (as ALFWorld)")
    arguments = parser.parse_args(argv)
    log_to_stderr(logging.INFO, "%(message)s")
    try:
        difficulty = SceneDifficulty(arguments.receptacles, arguments.things, arguments.hidden, arguments.decoys)
        sys.stdout.write(f"{ensure(arguments.out, arguments.seed, arguments.games, difficulty)}\n")
    except EnvsuiteError as error:
        sys.stderr.write(f"envsuite: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
