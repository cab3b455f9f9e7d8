"""Verifies a download of ALFWorld's games: which are missing, altered or unsolvable."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import orjson

from envsuite.alfworld import prompts
from envsuite.alfworld.engine import ALFWorldGame, GameTurn
from envsuite.alfworld.game_file import GAME, TRAJECTORY, GameFile, parse_family, parse_object, read_game
from envsuite.alfworld.identity import statement
from envsuite.alfworld.pddl import GoalUnreachable
from envsuite.alfworld.seeking import Seeker
from envsuite.alfworld.sentences import SentenceGoal
from envsuite.alfworld.source import LEFT_OUT, find_root
from envsuite.alfworld.tasks import PUBLISHED
from envsuite.alfworld.world import NativeEngine
from envsuite.core.errors import DataError, UsageError
from envsuite.data.part import sha256_of
from envsuite.data.progress import ProgressReceiver, SilentProgress

Played = Literal["walkthrough", "expert", "lost", "unknown"]
"""Who won a game: its own walkthrough, the expert, or nobody; unknown where the expert cannot read the task."""
LONGEST = 1000
"""Most commands of the expert in one game; it searches everything at most twice."""


def play_game(path: Path, walkthrough: Sequence[str]) -> Played:
    """Plays a game with its own walkthrough, and if that does not win it, with the expert.

    Args:
        path: The game.
        walkthrough: Its commands; empty if it has none.

    Raises:
        DataError: The game cannot be played.
    """
    try:
        game = NativeEngine().open(path)
    except DataError as error:
        if isinstance(error.__cause__, GoalUnreachable):
            return "lost"
        raise
    with closing(game):
        if walkthrough and _follows(game, walkthrough):
            return "walkthrough"
        return _seek(game)


def _follows(game: ALFWorldGame, commands: Sequence[str]) -> bool:
    turn = game.reset()
    for command in commands:
        if turn.won:
            break
        turn = game.step(command)
        if not turn.valid:
            return False
    return turn.won


def _seek(game: ALFWorldGame) -> Played:
    turn: GameTurn = game.reset()
    try:
        seeker = Seeker(SentenceGoal.parse(turn.feedback[turn.feedback.find(prompts.GOAL) :].strip()))
    except UsageError:  # a sentence of its own, as people write them
        return "unknown"
    try:
        for _ in range(LONGEST):
            if turn.won:
                return "expert"
            seeker.observe(turn.feedback, turn.commands)
            turn = game.step(seeker.act())
    except UsageError:  # it has searched everything in vain
        return "lost"
    return "expert" if turn.won else "lost"


Kind = Literal["missing", "damaged", "altered", "unsolvable"]
_PROBLEM = re.compile(r"\(define\s*\(problem\s+plan_(trial_\w+)\s*\)")


@cache
def published_checksums() -> Mapping[str, Mapping[str, str]]:
    """Returns split -> ``<task>/<trial>`` -> SHA-256 (hex) of ``game.tw-pddl``, where known: ``published.json``.

    Known is ``valid_seen``, whole, in release 0.4.2 (``json_2.1.3_tw-pddl.zip``). Of the other splits the number of
    games is published.
    """
    checksums: Mapping[str, Mapping[str, str]] = orjson.loads((Path(__file__).parent / "published.json").read_bytes())
    return checksums


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a download."""

    path: Path
    kind: Kind
    what: str


@dataclass(frozen=True)
class Report:
    """The result of verifying a download."""

    root: Path
    games: Mapping[str, int]
    """Number of games that are played, by split."""
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    """Facts that are as published: folders without games, games that ALFWorld leaves out."""
    walkthroughs: int = 0
    """Number of games that were won with their own walkthrough."""
    solved: int = 0
    """Number of games that the expert won."""


def verify_games(folder: Path, play: bool = False, progress: ProgressReceiver | None = None) -> Report:
    """Verifies every game below ``folder``.

    A game is *missing* if it is published and not there, or its folder has no ``traj_data.json``, without which
    ALFWorld does not find it; *damaged* if a file cannot be read; *altered* if it has another SHA-256 than the
    published one, or its files, the name of its folder and the task that it states contradict each other; *unsolvable*
    if it was played and not won. Games that are not marked as solvable are counted apart: ALFWorld leaves them out.

    Args:
        folder: A folder in the official layout, or the one that holds it.
        play: Play every game too: its own walkthrough, or the expert where it has none or where that fails.
        progress: Receives the progress, in games.

    Raises:
        DataError: There is no such folder.
    """
    root, progress = find_root(folder), progress or SilentProgress()
    trials, audit = list(_trials(root)), _Audit()
    name = "playing games" if play else "reading games"
    progress.start(name, len(trials), 0)
    for split, trial in trials:
        audit.look_into(split, trial, play)
        progress.advance(1)
    progress.finish(name, len(trials))
    findings, wins = (*_missing(root, audit), *audit.findings), audit.outcomes
    return Report(root, dict(audit.games), findings, tuple(_notes(audit)), wins["walkthrough"], wins["expert"])


@dataclass
class _Audit:
    """The findings so far, and counts of the trials that were looked into."""

    findings: list[Finding] = field(default_factory=list)
    games: Counter[str] = field(default_factory=Counter)
    """Games that are played, by split."""
    damaged: Counter[str] = field(default_factory=Counter)
    unmarked: Counter[str] = field(default_factory=Counter)
    """Games that are not marked as solvable."""
    empty: dict[str, list[str]] = field(default_factory=dict)
    """Trials without a game."""
    outcomes: Counter[Played] = field(default_factory=Counter)

    def look_into(self, split: str, trial: Path, play: bool) -> None:
        """Inspects the files of a trial, and plays its game if ``play`` says so."""
        if not (trial / GAME).is_file():
            if (trial / TRAJECTORY).is_file():
                self.empty.setdefault(split, []).append(f"{trial.parent.name}/{trial.name}")
            return
        if not (trial / TRAJECTORY).is_file():
            what = "without it, ALFWorld does not find the game"
            self.findings.append(Finding(trial / TRAJECTORY, "missing", what))
            return
        findings = list(_inspect(split, trial))
        self.findings += findings
        if any(finding.kind == "damaged" for finding in findings):
            self.damaged[split] += 1
            return
        game = read_game(trial / GAME)
        if not game.solvable:
            self.unmarked[split] += 1
            return
        self.games[split] += 1
        if play:
            self.findings += _play(trial, game, self.outcomes)


def _trials(root: Path) -> Iterator[tuple[str, Path]]:
    """Yields split and folder of every trial that ALFWorld would look at."""
    try:
        for split in sorted(path for path in root.iterdir() if path.is_dir()):
            for task in sorted(path for path in split.iterdir() if path.is_dir()):
                if not any(word in task.name for word in LEFT_OUT):
                    yield from ((split.name, trial) for trial in sorted(task.iterdir()) if trial.is_dir())
    except OSError as error:
        raise DataError(f"{error.filename}: cannot be read ({error.strerror})") from error


def _inspect(split: str, trial: Path) -> Iterator[Finding]:
    """Yields what is wrong with the files of a trial that has both."""
    checksum = published_checksums().get(split, {}).get(f"{trial.parent.name}/{trial.name}")
    try:
        if checksum is not None and sha256_of(trial / GAME) != checksum:
            yield Finding(trial / GAME, "altered", "its SHA-256 is not the published one")
        game = read_game(trial / GAME)
        task = statement(game.grammar, trial / GAME)
    except (DataError, OSError) as error:
        yield Finding(trial / GAME, "damaged", _reason(error, trial / GAME))
        return
    contradictions: list[Finding] = []
    try:
        content = (trial / TRAJECTORY).read_bytes()
        trajectory = parse_object(trial / TRAJECTORY, content)
        contradictions = list(_contradictions(trial, game, task, trajectory))
        parse_family(trial / TRAJECTORY, content)
    except (DataError, OSError) as error:
        if not contradictions:
            yield Finding(trial / TRAJECTORY, "damaged", _reason(error, trial / TRAJECTORY))
    yield from contradictions


def _reason(error: Exception, path: Path) -> str:
    return str(error).removeprefix(f"{path}: ")


def _contradictions(trial: Path, game: GameFile, task: str, trajectory: Mapping[str, Any]) -> Iterator[Finding]:
    """Yields where game, trajectory and the name of the folder, which says the task, differ."""
    folder = trial.parent.name
    if (owner := trajectory.get("task_id")) != trial.name:
        yield Finding(trial / TRAJECTORY, "altered", f"it is of the trial {owner}, not of {trial.name}")
    if (names := _folder_name(trajectory)) is not None and names != folder:
        yield Finding(trial / TRAJECTORY, "altered", f"it is of the task {names}, not of {folder}")
    problem = _PROBLEM.search(game.problem)
    if problem is not None and problem[1] != trial.name:
        yield Finding(trial / GAME, "altered", f"it is of the trial {problem[1]}, not of {trial.name}")
    try:
        goal = SentenceGoal.parse(task)
    except UsageError:
        return  # annotations of people have any form
    family, item, _, place, *_ = (*folder.split("-"), "", "", "", "")
    if (goal.family, goal.item, goal.target or goal.lamp) != (family, item.lower(), place.lower()):
        yield Finding(trial / GAME, "altered", f"it states {task!r}, which is not the task {folder}")


def _folder_name(trajectory: Mapping[str, Any]) -> str | None:
    """Returns the name of a task's folder from its trajectory; ``None`` if that does not say it."""
    try:
        parameters = trajectory["pddl_params"]
        item = f"{parameters['object_target']}{'Sliced' if parameters['object_sliced'] else ''}"
        place = parameters["parent_target"] or parameters["toggle_target"]
        scene = trajectory["scene"]["scene_num"]
        return f"{trajectory['task_type']}-{item}-{parameters['mrecep_target'] or None}-{place}-{scene}"
    except (KeyError, TypeError):
        return None


def _play(trial: Path, game: GameFile, outcomes: Counter[Played]) -> Iterator[Finding]:
    try:
        outcome = play_game(trial / GAME, game.walkthrough)
    except DataError as error:
        yield Finding(trial / GAME, "damaged", _reason(error, trial / GAME))
        return
    outcomes[outcome] += 1
    if outcome == "lost":
        yield Finding(trial / GAME, "unsolvable", "neither its walkthrough nor the expert reaches the goal")
    elif outcome == "expert" and game.walkthrough:
        yield Finding(trial / GAME, "altered", "its own walkthrough does not reach the goal; the expert does")


def _missing(root: Path, audit: _Audit) -> Iterator[Finding]:
    """Yields the published games that are missing, judged by their ids, or by their number where ids are not known."""
    for split, count in PUBLISHED.items():
        paths = [root / split / task_id for task_id in published_checksums().get(split, {})]
        lacking = count - audit.games[split] - audit.damaged[split]
        if not (root / split).is_dir():
            yield Finding(root / split, "missing", f"the whole split, {count:,} games")
        elif paths:
            yield from (Finding(path, "missing", "a published game") for path in paths if not (path / GAME).is_file())
        elif lacking > 0:
            what = f"{lacking:,} of the {count:,} published games are not there, or not solvable"
            yield Finding(root / split, "missing", what)
            for name in audit.empty.get(split, ()):
                yield Finding(root / split / name, "missing", f"perhaps one of these: it has no {GAME}")


def _notes(audit: _Audit) -> Iterator[str]:
    for split, count in PUBLISHED.items():
        if audit.games[split] > count:
            yield f"{split}: {audit.games[split]:,} games, {audit.games[split] - count:,} more than published"
    for split, names in audit.empty.items():
        yield f"{split}: {len(names):,} folders have a trajectory and no game"
    for split, count in audit.unmarked.items():
        yield f"{split}: {count:,} games are not marked as solvable; ALFWorld does not play them"
    if unknown := audit.outcomes["unknown"]:
        yield f"{unknown:,} games have no walkthrough that wins, and tasks in words that the expert cannot read"
