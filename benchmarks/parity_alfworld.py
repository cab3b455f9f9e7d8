"""ALFWorld-v0's engines against recorded episodes, and against each other.

    python -m benchmarks.parity alfworld --games DIR --transcripts FILE... [--engine native|textworld|both]
    python -m benchmarks.parity alfworld --games DIR --against textworld [--commands N] [--jobs N] [--limit N]

The first replays recordings of the original (JSON lines: gamefile, reset with feedback and admissible_commands, steps
with command, feedback, score, done, won, admissible_commands). The second plays every game on both engines side by
side: its walkthrough, or else what the expert does, then random commands, a tenth of them nonsense. Compared at every
step: the text, the admissible commands in their order, score and end, and whether the command was admissible.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.progress import track

from benchmarks.parity_report import Report
from envsuite.alfworld.engine import GameEngine, GameTurn
from envsuite.alfworld.game_file import GAME, read_game
from envsuite.alfworld.pool import ReferencePool
from envsuite.alfworld.reference import TextWorldEngine
from envsuite.alfworld.seeking import Seeker
from envsuite.alfworld.sentences import SentenceGoal
from envsuite.alfworld.world import NativeEngine
from envsuite.core.errors import DataError, EnvsuiteError, MissingExtra, UsageError

LAYOUT = "json_2.1.1"
EXPERT_STEPS = 200
"""Steps that the expert gets in a game without a walkthrough."""
NONSENSE = (
    *("go to nowhere 1", "open the door", "take all", "put it", "examine", "xyzzy", "help me", "look around"),
    *("{r}", "#task#"),
)
"""Commands that no game has."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--games", type=Path, required=True, help=f"folder of games: the one with {LAYOUT}, or {LAYOUT}"
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--transcripts", type=Path, nargs="+", help="recorded episodes (JSON lines) to replay")
    what.add_argument("--against", choices=["textworld"], help="play native and this engine side by side")
    parser.add_argument("--engine", choices=["native", "textworld", "both"], help="with --transcripts (default: both)")
    parser.add_argument("--commands", type=int, default=200, help="random commands after each plan (default: 200)")
    parser.add_argument("--jobs", type=int, default=2, help="processes that run textworld (default: 2)")
    parser.add_argument("--limit", type=int, help="compare so many games or recorded episodes only")


def run(args: argparse.Namespace) -> Report:
    """Compare what the options name.

    Raises:
        DataError: Games or recordings are missing or damaged.
        MissingExtra: The reference engine is not installed.
        UsageError: There is nothing to compare, or options do not go together.
    """
    if args.jobs < 1 or args.commands < 0 or (args.limit is not None and args.limit < 1):
        raise UsageError("--jobs and --limit must be at least 1, --commands at least 0")
    if args.against and args.engine:
        raise UsageError("--engine goes with --transcripts; --against always plays native and textworld")
    pool = ReferencePool(args.jobs, deadline=600.0)  # a machine that does much else, or slept, is no difference
    try:
        if args.transcripts:
            return replay(args.games, args.transcripts, args.engine or "both", pool, args.limit)
        return side_by_side(args.games, pool, args.commands, args.limit)
    finally:
        pool.close()


def replay(
    games: Path, transcripts: Sequence[Path], engine: str, pool: ReferencePool, limit: int | None = None
) -> Report:
    """Replay recorded episodes.

    Args:
        games: The folder of the games, or the one that holds ``json_2.1.1``.
        transcripts: Recorded episodes, one a line.
        engine: ``"native"``, ``"textworld"`` or ``"both"``.
        pool: Processes for ``textworld``.
        limit: Replay so many episodes only.
    """
    engines: list[GameEngine] = [NativeEngine()] if engine != "textworld" else []
    if engine != "native":
        engines.append(_reference(pool))
    episodes = list(_episodes(transcripts))[:limit]
    root = _root(games)
    for where, episode in episodes:
        _game(root, where, episode)
    jobs = [partial(_replay, root, one, where, episode) for one in engines for where, episode in episodes]
    return _together(jobs, pool.size, "recorded episodes")


def _replay(root: Path, engine: GameEngine, where: str, episode: Mapping[str, Any]) -> Report:
    """One recorded episode on one engine, up to the first difference."""
    report = Report()
    where = f"{where} ({episode['gamefile']})"
    game = engine.open(_game(root, where, episode))
    try:
        turn = game.reset()
        start = episode["reset"]
        ours = {"feedback": turn.feedback, "admissible_commands": list(turn.commands)}
        recorded = {key: start[key] for key in ours}
        if not _same(report, f"resets, {engine.name}", where, ours, recorded):
            return report
        for number, step in enumerate(episode["steps"]):
            admissible = step["command"].strip() in turn.commands
            turn = game.step(step["command"])
            ours = _seen(turn)
            recorded = {key: step[key] for key in ours if key != "valid"} | {"valid": admissible}
            if not _same(
                report, f"steps, {engine.name}", f"{where}, step {number} {step['command']!r}", ours, recorded
            ):
                break
    finally:
        game.close()
    return report


def side_by_side(games: Path, pool: ReferencePool, commands: int, limit: int | None = None) -> Report:
    """Play every game on both engines at once.

    Args:
        games: The folder of the games, or the one that holds ``json_2.1.1``.
        pool: Processes for ``textworld``.
        commands: Random commands after each plan.
        limit: Play so many games only, those first whose names have the least hash.
    """
    root = _root(games)
    names = sorted(
        (str(path.relative_to(root)) for path in root.glob(f"*/*/*/{GAME}")),
        key=lambda name: hashlib.sha256(name.encode()).hexdigest(),
    )[:limit]
    if not names:
        raise DataError(f"{root}: no games (SPLIT/TASK/TRIAL/{GAME}). Fetch them with: envsuite data fetch alfworld")
    native, reference = NativeEngine(), _reference(pool)
    return _together([partial(_play, root, name, native, reference, commands) for name in names], pool.size, "games")


def _play(root: Path, name: str, native: GameEngine, reference: GameEngine, count: int) -> Report:
    """One game on both engines, up to the first difference."""
    report, path, rng = Report(), root / name, random.Random(name)
    plan = list(read_game(path).walkthrough)
    ours, theirs = native.open(path), reference.open(path)
    try:
        left, right = ours.reset(), theirs.reset()
        if not _same(report, "resets", name, _seen(left), _seen(right)):
            return report
        planned = iter(plan) if plan else _expert(lambda: left)
        drawn = itertools.takewhile(lambda _: left.commands, range(count))
        for step, command in enumerate(itertools.chain(planned, (_command(rng, left.commands) for _ in drawn))):
            left, right = ours.step(command), theirs.step(command)
            if not _same(report, "steps", f"{name}, step {step} {command!r}", _seen(left), _seen(right)):
                break
    except EnvsuiteError as error:
        report.same("games not played to the end", name, str(error), "played to the end")
    finally:
        ours.close()
        theirs.close()
    return report


def _command(rng: random.Random, commands: Sequence[str]) -> str:
    """An admissible command or, one time in ten, nonsense."""
    if rng.random() >= 0.1:
        return rng.choice(commands)
    command = rng.choice(commands)
    kind, place = rng.randrange(7), rng.randrange(len(command))
    misspelt = command[:place] + rng.choice("abcxyz 19") + command[place + 1 :]
    reversed_words = " ".join(reversed(command.split()))
    return [command[:-1], misspelt, command.upper(), "", f"  {command} ", reversed_words, rng.choice(NONSENSE)][kind]


def _expert(turn: Callable[[], GameTurn]) -> Iterator[str]:
    """What the expert types until the game is won or it gives up.

    Args:
        turn: The turn that is current.
    """
    try:
        seeker = Seeker(SentenceGoal.parse(turn().feedback.rpartition("\n")[2]))
        for _ in range(EXPERT_STEPS):
            if turn().won:
                return
            seeker.observe(turn().feedback, turn().commands)
            yield seeker.act()
    except UsageError:
        return  # a task that the expert does not know: random commands will do


def _seen(turn: GameTurn) -> dict[str, Any]:
    """A turn in the words of a recording."""
    return {
        "feedback": turn.feedback,
        "score": int(turn.won),
        "done": turn.won,
        "won": turn.won,
        "admissible_commands": list(turn.commands),
        "valid": turn.valid,
    }


def _same(report: Report, kind: str, where: str, ours: Mapping[str, Any], recorded: Mapping[str, Any]) -> bool:
    """Count a comparison; a difference is told by what differs only."""
    differ = [key for key in ours if ours[key] != recorded[key]]
    report.same(kind, where, {key: ours[key] for key in differ}, {key: recorded[key] for key in differ})
    return not differ


def _reference(pool: ReferencePool) -> GameEngine:
    try:
        return TextWorldEngine(pool)
    except MissingExtra as error:
        raise MissingExtra(f"{error}\nOr compare recordings with our own engine alone: --engine native") from error


def _root(games: Path) -> Path:
    """The folder that holds the splits.

    Raises:
        DataError: There is none.
    """
    root = games / LAYOUT if (games / LAYOUT).is_dir() else games
    if not root.is_dir():
        raise DataError(f"{games}: no such folder of games. Fetch them with: envsuite data fetch alfworld")
    return root


def _game(root: Path, where: str, episode: Mapping[str, Any]) -> Path:
    path = root / str(episode["gamefile"])
    if not path.is_file():
        path = root / str(episode["gamefile"]).removeprefix(f"{LAYOUT}/")
    if not path.is_file():
        raise DataError(f"{where}: {path} is not there; --games must be the folder of the recorded games")
    return path


def _episodes(transcripts: Sequence[Path]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Recorded episodes, each with where it was read.

    Raises:
        DataError: A file is missing, a line is not a recorded episode, or there is none.
    """
    count = 0
    for path in transcripts:
        try:
            lines = path.read_bytes().splitlines()
        except OSError as error:
            raise DataError(f"{path}: not a readable recording ({error.strerror})") from error
        for number, line in enumerate(lines, 1):
            where = f"{path.name}, line {number}"
            try:
                episode = orjson.loads(line)
                for turn in (episode["reset"], *episode["steps"]):
                    turn["feedback"], turn["admissible_commands"]
                for step in episode["steps"]:
                    step["command"].strip(), step["score"], step["done"], step["won"]
                episode["gamefile"].strip()
            except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
                raise DataError(f"{where}: not a recorded episode ({type(error).__name__}: {error})") from error
            count += 1
            yield where, episode
    if not count:
        raise DataError(f"{', '.join(map(str, transcripts))}: no recorded episodes")


def _together(jobs: Sequence[Callable[[], Report]], threads: int, unit: str) -> Report:
    """Run jobs, as many at a time as there are threads; returns all that they compared."""
    report, console = Report(), Console(stderr=True)
    with ThreadPoolExecutor(threads) as executor:
        parts = executor.map(lambda job: job(), jobs)
        for part in track(parts, unit, len(jobs), console=console, transient=True):
            for kind, count in part.counts.items():
                report.counts[kind] = report.counts.get(kind, 0) + count
            report.differences += part.differences
    return report
