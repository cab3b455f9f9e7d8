"""The figures of ALFWorld-v0: the native engine beside the reference, in one run, on the same games and commands."""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import psutil

from benchmarks.envs.measure import Row, seconds, step_rates
from envsuite.alfworld.engine import GameEngine, GameTurn
from envsuite.alfworld.env import ALFWorld
from envsuite.alfworld.game_file import GAME, TRAJECTORY, read_game
from envsuite.alfworld.pool import ReferencePool
from envsuite.alfworld.reference import TextWorldEngine
from envsuite.alfworld.source import Games
from envsuite.alfworld.tasks import PUBLISHED, load
from envsuite.alfworld.world import NativeEngine
from envsuite.core.errors import MissingExtra
from envsuite.core.tools import ToolCall

PLAYED = 12
"""Games that are played, of all families in turn."""
COMMANDS = 40
"""Commands in each: the walkthrough, then random ones, a tenth of them nonsense."""

GROUP = 8
"""Episodes of one game, each with other commands, as training plays them."""


@dataclass(frozen=True)
class Episode:
    """A game, and what is typed."""

    task_id: str
    path: Path
    commands: tuple[str, ...]


def alfworld(folder: Path | None = None, episodes: int = 128) -> list[Row]:
    """The figures of both engines.

    Args:
        folder: Holds ``json_2.1.1``; ``None`` is the built-in games.
        episodes: Episodes whose memory is measured.

    Raises:
        EnvsuiteError: The folder has no games.
    """
    source = "builtin" if folder is None else folder
    games, _ = load(source)
    chosen = _episodes(games, seed=0)
    rows, native_steps, answers = _native([chosen, *(_episodes(games, seed) for seed in range(1, GROUP))])
    plays = {e.task_id: [(ToolCall("env_step", {"command": command}),) for command in e.commands] for e in chosen}
    whole = "native: whole contract, ALFWorld.step up to the end of the walkthrough"
    rows += step_rates({whole: ALFWorld(source=source, split=None)}, plays)
    rows.append((f"native: memory of {episodes} episodes more", _memory("native", source, episodes)))
    try:
        reference = TextWorldEngine(ReferencePool(workers=1, deadline=600))
    except MissingExtra as missing:
        rows.append(("reference", f"not measured: {missing}"))
    else:
        rows += _reference(reference, chosen, native_steps, answers)
        memory = _memory("textworld", source, episodes)
        rows.append((f"reference: memory of {episodes} episodes more, workers included", memory))
    return rows + _starting(games)


def _episodes(games: Games, seed: int) -> list[Episode]:
    """Games of all families in turn, from every split, with commands that ``seed`` draws from those admitted."""
    draw = random.Random(0)
    by_family: dict[str, list[str]] = {}
    for task_id in sorted(games.families):
        by_family.setdefault(games.families[task_id], []).append(task_id)
    for ids in by_family.values():
        draw.shuffle(ids)
    turns = [task_id for rank in range(PLAYED) for ids in by_family.values() for task_id in ids[rank : rank + 1]]
    engine = NativeEngine()
    draw = random.Random(seed)
    episodes = []
    for task_id in turns[:PLAYED]:
        path = games.path(task_id)
        game = engine.open(path)
        turn = game.reset()
        commands = list(read_game(path).walkthrough)
        for command in commands:
            turn = game.step(command)
        while len(commands) < COMMANDS:
            commands.append("put it there" if draw.random() < 0.1 else draw.choice(turn.commands))
            turn = game.step(commands[-1])
        episodes.append(Episode(task_id, path, tuple(commands)))
    return episodes


def _play(engine: GameEngine, episodes: Sequence[Episode], clock: Callable[[], float]) -> tuple[float, list[GameTurn]]:
    """Seconds of all steps, resets not counted, and all answers."""
    spent, answers = 0.0, []
    for episode in episodes:
        game = engine.open(episode.path)
        answers.append(game.reset())
        start = clock()
        answers += [game.step(command) for command in episode.commands]
        spent += clock() - start
        game.close()
    return spent, answers


def _native(groups: Sequence[Sequence[Episode]]) -> tuple[list[Row], float, list[GameTurn]]:
    episodes = groups[0]
    steps = sum(len(episode.commands) for episode in episodes)
    warm = NativeEngine()
    first, answers = _play(warm, episodes, time.process_time)
    whole = first + sum(_play(warm, others, time.process_time)[0] for others in groups[1:])
    spent = min(_play(warm, episodes, time.process_time)[0] for _ in range(5))

    def milliseconds(engine: GameEngine) -> str:
        times = [seconds(lambda path=episode.path: engine.open(path).reset(), 1) for episode in episodes]  # type: ignore[misc]
        return f"{statistics.median(times) * 1e3:.2f} ms, at most {max(times) * 1e3:.2f}"

    with _data_folder():
        cold = milliseconds(NativeEngine())
    rows = [
        ("native: steps of one thread, in games never played", f"{steps / first:,.0f} steps/s"),
        (f"native: steps of one thread, {GROUP} different episodes a game", f"{GROUP * steps / whole:,.0f} steps/s"),
        ("native: steps of one thread, the same commands again", f"{steps / spent:,.0f} steps/s"),
        ("native: reset, game not compiled (median)", cold),
        ("native: reset, game compiled in this process (median)", milliseconds(warm)),
    ]
    return rows, GROUP * steps / whole, answers


def _reference(
    engine: TextWorldEngine, episodes: Sequence[Episode], native: float, answers: list[GameTurn]
) -> list[Row]:
    """CPU time is that of the worker process; ours beside it is the messages'."""
    pool = engine.pool
    resets: dict[str, list[float]] = {"first": [], "again": []}

    def clock() -> float:
        times = psutil.Process(pool.workers[0].child.process.pid).cpu_times()
        return times.user + times.system

    engine.open(episodes[0].path).reset()
    spent, theirs = _play(engine, episodes, clock)
    for episode in episodes:
        game = engine.open(episode.path)
        for times in resets.values():
            start = clock()
            game.reset()
            times.append(clock() - start)
        game.close()
    pool.close()
    steps = sum(len(episode.commands) for episode in episodes)
    differences = sum(ours != other for ours, other in zip(answers, theirs, strict=True))
    again, first = (statistics.median(resets[name]) for name in ("again", "first"))
    return [
        ("reference: steps of one worker", f"{steps / spent:,.1f} steps/s"),
        (f"native ({GROUP} different episodes a game) over reference", f"{native * spent / steps:,.0f} times"),
        ("answers compared, of both engines", f"{len(answers):,}, {differences} differ"),
        ("reference: reset, game not loaded (median)", f"{first * 1e3:,.0f} ms"),
        ("reference: reset, game loaded (median)", f"{again * 1e3:,.0f} ms"),
    ]


_HOLD = """
import json, sys, psutil
from envsuite.alfworld.env import ALFWorld
engine, source, count = json.loads(sys.argv[1])
def resident():
    me = psutil.Process()
    return sum(process.memory_info().rss for process in [me, *me.children(recursive=True)])
def make():
    return ALFWorld(source=source, split=None, engine=engine)
first = make()
ids = [task_id for split in first.tasks.splits.values() for task_id in split]
first.reset(options={"task_id": ids[-1]})
before = resident()
envs = [make() for _ in range(count)]
for number, env in enumerate(envs):
    env.reset(options={"task_id": ids[number % len(ids)]})
    for _ in range(5):
        env.step(env.action_space.sample())
print(before, resident())
"""


def _memory(engine: str, source: str | Path, episodes: int) -> str:
    """Resident memory that ``episodes`` episodes of different tasks add to a process that has played one."""
    arguments = json.dumps([engine, str(source), episodes])
    run = subprocess.run([sys.executable, "-c", _HOLD, arguments], capture_output=True, text=True, check=True)
    before, after = map(int, run.stdout.split())
    return f"{(after - before) / 1e6:,.1f} MB"


_START = """
import sys, time
from pathlib import Path
from envsuite.alfworld.tasks import load
wall, cpu = time.perf_counter(), time.process_time()
tasks = load(Path(sys.argv[1]))[1]
tasks.hash
print(time.perf_counter() - wall, time.process_time() - cpu)
assert sum(map(len, tasks.splits.values())) == int(sys.argv[2])
"""


def _starting(games: Games) -> list[Row]:
    """Start-up on as many games as the published splits have, copies of those that there are."""
    ids = sorted(games.families)
    total = sum(PUBLISHED.values())
    with tempfile.TemporaryDirectory() as place, _data_folder():
        root = Path(place)
        for number, split in enumerate(split for split, count in PUBLISHED.items() for _ in range(count)):
            folder = games.path(ids[number % len(ids)]).parent
            copy = root / "json_2.1.1" / split / folder.parent.name / f"{folder.name}_{number}"
            copy.mkdir(parents=True)
            for name in (GAME, TRAJECTORY):
                shutil.copyfile(folder / name, copy / name)
        time.sleep(2.5)  # what has changed within two seconds is not trusted, see envsuite.alfworld.source

        def start() -> tuple[float, float]:
            command = [sys.executable, "-c", _START, place, str(total)]
            wall, cpu = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
            return float(wall), float(cpu)

        first = start()
        later = min(start() for _ in range(5))
    name = f"tasks of {total:,} games"
    return [
        (f"{name}, first time (elapsed, CPU)", f"{first[0]:.1f} s, {first[1]:.1f} s"),
        (f"{name}, from the index (elapsed, CPU)", f"{later[0] * 1e3:,.0f} ms, {later[1] * 1e3:,.0f} ms"),
    ]


@contextmanager
def _data_folder() -> Iterator[None]:
    """Without what earlier runs have left in the cache."""
    with tempfile.TemporaryDirectory() as place, patch.dict(os.environ, ENVSUITE_DATA=place):
        yield
