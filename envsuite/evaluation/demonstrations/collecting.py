"""Collects demonstrations of a player into a file, from where an interrupted run stopped."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from envsuite import __version__
from envsuite.core.draws import Draw
from envsuite.core.env import ToolEnv
from envsuite.core.errors import DataError, UsageError, WorkerLost
from envsuite.core.players import Player
from envsuite.data.files import file_errors, write_atomically
from envsuite.data.locks import try_locked
from envsuite.data.progress import ProgressReceiver, SilentProgress
from envsuite.evaluation.demonstrations.demonstration import Demonstration
from envsuite.evaluation.demonstrations.file import card_of, line_of, read_demonstrations
from envsuite.evaluation.demonstrations.messages import Form
from envsuite.evaluation.demonstrations.playing import demonstrate
from envsuite.remote.making import horizon_of, make, make_player


@dataclass(frozen=True)
class CollectionOrder:
    """Says which demonstrations are collected."""

    env_id: str
    count: int
    """Number of demonstrations."""
    player: str = "expert"
    split: str = "train"
    types: tuple[str, ...] = ()
    """Task types to play; all of them if there is none."""
    seed: int = 0
    """Seed of the order of tasks."""
    env_options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the environment besides its split."""
    form: Form = "native"
    commands: bool = True
    """Show the admissible commands."""
    unsolved: bool = False
    """Keep episodes that did not solve their task, too."""


@dataclass(frozen=True)
class CollectionCounts:
    """Numbers of episodes of a collection."""

    kept: int
    unsolved: int
    """Episodes left out since they did not solve their task."""
    broken: int
    """Episodes left out since the environment was lost, at the second attempt too."""
    resumed: int
    """Episodes of earlier runs among all these."""


def collect(order: CollectionOrder, path: Path, progress: ProgressReceiver | None = None) -> CollectionCounts:
    """Writes a file of demonstrations, and a data card beside it (``.md``).

    Each task is played once, in an order that the seed determines, until there are enough. What is played is kept in
    ``.NAME.partial`` beside the file until that is whole; the same order continues it.

    Raises:
        UnknownName: The environment, split, type, option or player does not exist.
        UsageError: The file or its card exists, the split has fewer tasks than demonstrations are asked for, the tasks
            end before there are enough, or an interrupted collection of another order is there.
        DataError: A file cannot be written, or another process writes it.
    """
    for file in (path, path.with_suffix(".md")):
        if file.exists():
            raise UsageError(f"{file} exists; remove it, or name another file")
    player = make_player(order.env_id, order.player)
    with closing(make(order.env_id, **order.env_options, split=order.split)) as env:
        tasks = _tasks(env, order)
        with _Partial(path, order) as partial:
            return _play(env, player, order, tasks, partial, progress or SilentProgress())


def _tasks(env: ToolEnv, order: CollectionOrder) -> list[str]:
    ids = env.tasks.select(order.types or None).ids(order.split)
    if order.count < 1 or order.count > len(ids):
        of = f" of the types {', '.join(order.types)}" if order.types else ""
        raise UsageError(
            f"{order.count} demonstrations of {order.env_id} are asked for; split {order.split!r} has {len(ids)} "
            f"tasks{of}. Give --n 1 to {len(ids)}" + (", or another --split or --types" if not ids else "")
        )
    return Draw(f"demonstrations {order.seed}").sample(ids, len(ids))


def _play(
    env: ToolEnv,
    player: Player,
    order: CollectionOrder,
    tasks: Sequence[str],
    partial: _Partial,
    progress: ProgressReceiver,
) -> CollectionCounts:
    resumed, horizon = len(partial.played), horizon_of(order.env_id, order.env_options)
    progress.start(order.env_id, order.count, partial.size)
    for task_id in tasks:
        if partial.size == order.count:
            break
        if task_id in partial.played:
            continue
        demonstration = _episode(env, player, order, task_id, horizon)
        if demonstration is None:
            partial.skip(task_id, "broken")
        elif not demonstration.success and not order.unsolved:
            partial.skip(task_id, "unsolved")
        else:
            partial.add(demonstration)
            progress.advance(1)
    counts = CollectionCounts(partial.size, partial.count("unsolved"), partial.count("broken"), resumed)
    if counts.kept < order.count:
        raise UsageError(
            f"all {len(tasks)} tasks are played, and {counts.kept} of {order.count} demonstrations are there: in "
            f"{counts.unsolved} episodes {order.player} did not solve its task, {counts.broken} broke. Give "
            f"--n {max(1, counts.kept)}, and the episodes played so far are used"
        )
    partial.finish()
    progress.finish(order.env_id, counts.kept)
    return counts


def _episode(
    env: ToolEnv, player: Player, order: CollectionOrder, task_id: str, horizon: int | None
) -> Demonstration | None:
    """Plays an episode, and once more if the environment is lost; returns ``None`` if it is lost again."""
    for _ in range(2):
        try:
            return demonstrate(
                env, task_id, player.act, horizon, env_options=order.env_options, player=order.player, seed=order.seed
            )
        except WorkerLost:
            continue
    return None


class _Partial:
    """The episodes of an unfinished collection: a line with the order, then one for each episode played."""

    def __init__(self, path: Path, order: CollectionOrder) -> None:
        self.path = path
        self.order = order
        self._name = path.with_name(f".{path.name}.partial")
        # How many there are to be may change from run to run, and the rest is what the episodes follow from.
        self._head = {**asdict(order), "types": list(order.types), "count": 0, "version": __version__}
        self.played: dict[str, str] = {}
        """Tasks, each with "kept", "unsolved" or "broken"."""
        self._lines: list[bytes] = []

    @property
    def size(self) -> int:
        """Returns the number of demonstrations."""
        return len(self._lines)

    def count(self, fate: str) -> int:
        """Returns the number of tasks with this fate."""
        return [*self.played.values()].count(fate)

    def add(self, demonstration: Demonstration) -> None:
        """Appends a demonstration."""
        line = line_of(demonstration, self.order.form, self.order.commands)
        self._write({"task": demonstration.task_id, "fate": "kept", "line": line.decode()})
        self._lines.append(line)

    def skip(self, task_id: str, fate: str) -> None:
        """Appends an episode that is no demonstration."""
        self._write({"task": task_id, "fate": fate})

    def finish(self) -> None:
        """Writes the file and its card, and removes what is not needed any more."""
        with file_errors(self.path, "written"):
            write_atomically(self.path, b"".join(self._lines))
            card = card_of(self.path.name, read_demonstrations(self.path), self.order.form)
            write_atomically(self.path.with_suffix(".md"), card.encode())
            self._name.unlink()

    def _write(self, body: dict[str, Any]) -> None:
        with file_errors(self._name, "written", "What was played before is there"):
            self._file.write(orjson.dumps(body, option=orjson.OPT_APPEND_NEWLINE))
            self._file.flush()
            os.fsync(self._file.fileno())
        if "task" in body:
            self.played[body["task"]] = body["fate"]

    def __enter__(self) -> _Partial:
        with file_errors(self._name, "read or written"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock = try_locked(self._name)
            if lock is None:
                raise DataError(f"{self.path}: another process writes it; wait for it, or name another file")
            with ExitStack() as stack:
                stack.callback(lock.close)
                self._file = stack.enter_context(self._name.open("r+b"))
                self._read()
                self._opened = stack.pop_all()
        return self

    def __exit__(self, *raised: object) -> None:
        self._opened.close()

    def _read(self) -> None:
        content = self._file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._file.seek(len(whole))
        self._file.truncate()
        if not whole:
            self._write({"order": self._head})
            return
        head, *lines = whole.splitlines()
        try:
            old_order = orjson.loads(head)["order"]
            for line in lines:
                body = orjson.loads(line)
                self.played[body["task"]] = body["fate"]
                if body["fate"] == "kept":
                    self._lines.append(body["line"].encode())
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{self._name}: damaged ({type(error).__name__}: {error}); remove it") from error
        if old_order != (order := orjson.loads(orjson.dumps(self._head))):
            pairs = [(name, old_order.get(name), new) for name, new in order.items()]
            changes = "; ".join(f"{name} {old!r}, now {new!r}" for name, old, new in pairs if old != new)
            raise UsageError(f"{self._name} has episodes of another order ({changes}); remove it, or name another file")
        del self._lines[self.order.count :]
