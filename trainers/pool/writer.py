"""Writes a pool."""

from __future__ import annotations

import itertools
import json
import logging
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from envsuite.core.errors import DataError, UsageError
from envsuite.core.functions import function_in
from envsuite.core.tools import ToolCall
from envsuite.playing.step import Episode, Step
from trainers.pool.database import FILE, connect, naming_errors, no_room, write_lock
from trainers.pool.deltas import COLUMNS, StepPrefix, digest, encode
from trainers.pool.pool import Pool
from trainers.pool.records import SHARED, Ruling, SessionAbout, SessionEnding
from trainers.settings import checked, config_errors

Hook = Callable[[Any], Any]
"""Returns JSON with each text in it replaced; keys stay."""
_TEXTS = ("observation", "state_key", "parse_error", "prompt_text", "response_text", "info")


def load_hook(name: str) -> Hook:
    """Loads a function from a text to the one that is stored in its place, ``None`` for none.

    It returns equal texts for equal ones. Where it fails, the error names it, and nothing is stored.

    Args:
        name: ``file.py:function``.

    Raises:
        UsageError: There is no such file or function, or the file raises an error.
    """
    with config_errors("hook"):
        function = function_in(name)

    def rewrite(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: rewrite(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [*map(rewrite, value)]
        if not isinstance(value, str):
            return value
        try:
            text = function(value)
            if not isinstance(text, str | None):
                raise TypeError(f"it returned {type(text).__name__}, and has to return a text, or None to drop it")
        except Exception as error:
            raise UsageError(f"hook {name}: {type(error).__name__}: {error}; nothing was stored") from error
        return text or ""

    return rewrite


def rewrite_step(step: Step, hook: Hook) -> Step:
    """Returns a step with its texts replaced, those of its calls too."""
    texts = {name: hook(vars(step)[name]) for name in _TEXTS}
    if step.action is not None:
        texts["action"] = tuple(ToolCall(call.name, hook(call.arguments)) for call in step.action)
    return replace(step, **texts)


_LOG = logging.getLogger(__name__)
_BRANCHES = 8
"""Earlier steps of a session with which a new one is compared."""
_SESSIONS = 512
"""Sessions whose earlier steps are kept in memory; those of others are read again."""


class PoolWriter(Pool):
    """A pool, as the one process that writes it has it; its threads may share it.

    What a method has stored is on the disk when it returns. A call that is repeated stores nothing a second time, so
    whoever got no answer repeats it.

    Args:
        folder: Its folder, which is made if need be; on a disk of this machine.
        program: Name of the program, for the message of another process that would write.
        hook: ``file.py:function``, which sees each text before it is stored (:func:`load_hook`).
            From the first text on that it changes, the steps of a session are stored without tokens, which have the
            text in them; such a session is never trained on.

    Raises:
        UsageError: Another process writes the pool, or the hook cannot be loaded.
        DataError: The folder cannot be written, or has something else.
    """

    _writes = True

    def __init__(self, folder: Path | str, program: str = "a program", hook: str | None = None) -> None:
        self._hook = _same if hook is None else load_hook(hook)
        self._branches = lru_cache(_SESSIONS)(self._read_branches)
        with ExitStack() as stack:
            stack.enter_context(write_lock(Path(folder), program))
            super().__init__(folder)
            stack.callback(lambda: self._base.close())
            if self._rows("SELECT dirty FROM pool")[0]["dirty"]:  # a deletion was not ended
                self._erase()
            self._held = stack.pop_all()

    def close(self) -> None:
        """Closes the pool, which another process may write then."""
        with self._lock:
            self._held.close()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Stores what is given within the block as a whole, at its end, which costs as much as storing one thing.

        Other threads wait. An error in the block leaves the pool as it was.
        """
        try:
            with self._transaction("IMMEDIATE"):
                yield
        except BaseException:
            self._branches.cache_clear()  # it has steps that were not stored
            raise

    def open_session(self, session: str, **about: Any) -> None:
        """Begins a session.

        Args:
            session: Its name, which no other session of the pool has.
            about: Fields of :class:`~trainers.pool.records.SessionAbout`.

        Raises:
            UnknownName, ConfigError: A field does not exist, or has no such value.
            UsageError: There is a session of this name which began otherwise.
        """
        values = asdict(checked(SessionAbout, about, "field of a session"))
        task, values["task"] = values["task"], self._hook(values["task"])
        with self.together():
            if old := self._rows("SELECT about FROM sessions WHERE session = ?", session):
                if json.loads(old[0]["about"]) != values:
                    raise UsageError(f"session {session!r} was opened with other fields before; give it another name")
                return
            self._do(
                "INSERT INTO sessions (session, about, altered, source, env_id, task_id, group_name, group_id) VALUES "
                "(:session, :about, :altered, :source, :env_id, :task_id, :group_id, (SELECT group_id FROM sessions "
                "WHERE source = :source AND group_name = :group_id LIMIT 1))",
                **values, session=session, about=json.dumps(values), altered=values["task"] != task,
            )  # fmt: skip
            self._do("UPDATE sessions SET group_id = COALESCE(group_id, number) WHERE session = ?", session)
            self.tag([session], values["tags"])

    def add(self, session: str, request: int, step: Step) -> None:
        """Stores a step of a session that has not ended; :meth:`add_all` of one."""
        self.add_all([(session, request, step)])

    def add_all(self, steps: Iterable[tuple[str, int, Step]]) -> None:
        """Stores steps, all of them or none.

        Args:
            steps: Name of the session, number of the request in it, and the step. Requests may come in any order; an
                episode has them in that of their numbers.

        Raises:
            UsageError: There is no such session, it has ended, another step has the number, or training could not use
                the step.
        """
        with self.together():
            for session, request, step in steps:
                self._add(session, request, step)

    def end(self, session: str, **ending: Any) -> None:
        """Ends a session, which can be taken from now on.

        Args:
            session: Its name.
            ending: Fields of :class:`~trainers.pool.records.SessionEnding`.

        Raises:
            UnknownName, ConfigError: A field does not exist, or has no such value.
            UsageError: There is no such session, or it ended otherwise before.
        """
        values = asdict(checked(SessionEnding, ending, "field of an ending"))
        values |= {name: self._hook(values[name]) for name in ("error", "last_observation")}
        with self.together():
            if (old := self._row(session)["ending"]) is not None:
                if json.loads(old) != values:
                    raise UsageError(f"session {session!r} ended otherwise before; a reward changes what it earned")
                return
            self._do("UPDATE pool SET endings = endings + 1")
            self._do(
                "UPDATE sessions SET ended = (SELECT endings FROM pool), ending = :ending, failed = :failed, "
                "greedy = :greedy, success = COALESCE(success, :success), score = COALESCE(score, :score) "
                "WHERE session = :session",
                **values, ending=json.dumps(values), session=session, failed=values["error"] is not None,
            )  # fmt: skip

    def store(self, session: str, episode: Episode, **about: Any) -> None:
        """Stores an episode that has ended; requests are the places of its steps.

        Args:
            session: Name of the session.
            episode: The episode, which belongs to no tree.
            about: Fields of :class:`~trainers.pool.records.SessionAbout` beside the episode's, or in their place.

        Raises:
            UnknownName, ConfigError, UsageError: As the single methods raise them; or it belongs to a tree, whose
                episodes share steps.
        """
        if episode.tree >= 0:
            raise UsageError(f"session {session!r}: the episode belongs to a tree; a pool stores whole episodes alone")
        with self.together():
            self.open_session(session, **{name: vars(episode)[name] for name in (*SHARED, "group_id")} | about)
            self.add_all((session, number, step) for number, step in enumerate(episode.steps))
            self.end(session, **{field.name: vars(episode)[field.name] for field in fields(SessionEnding)})

    def reward(self, session: str, value: float, success: bool | None = None, score: float | None = None) -> None:
        """Sets what a session earned beyond its steps, in place of what was set before; its last step gets it.

        Args:
            session: Name of the session, which may have ended.
            value: The reward.
            success: Whether it solved its task, whatever is said at its end.
            score: The same of its score, 0 to 1.

        Raises:
            ConfigError: A value is not allowed.
            UsageError: There is no such session.
        """
        ruling = asdict(checked(Ruling, {"reward": value, "success": success, "score": score}))
        change = "reward = :reward, success = COALESCE(:success, success), score = COALESCE(:score, score)"
        with self.together():
            ruling["number"] = self._row(session)["number"]
            self._do(f"UPDATE sessions SET {change} WHERE number = :number", **ruling)

    def tag(self, sessions: Iterable[str], tags: Sequence[str], remove: bool = False) -> None:
        """Gives tags to sessions, or takes them away.

        Raises:
            UsageError: There is no such session; nothing is changed then.
        """
        sql = "DELETE FROM tags WHERE (number, tag) = (?, ?)" if remove else "INSERT OR IGNORE INTO tags VALUES (?, ?)"
        with self.together():
            for session, tag in itertools.product(sessions, tags):
                self._do(sql, self._row(session)["number"], tag)

    def delete(self, sessions: Iterable[str]) -> None:
        """Deletes sessions; their bytes are gone from the file when it returns.

        On a full disk, or while a reader holds the file, a warning says that bytes stay until the pool is written next.

        Raises:
            UsageError: There is no such session; none is deleted then.
        """
        sessions = [*sessions]
        try:
            self._forget(sessions)
        except DataError as error:
            if not no_room(error.__cause__):
                raise
            with self._lock:
                self._base.close()
                self._base = connect(self.folder, True, tight=True)
            self._forget(sessions)
        self._erase()

    def _erase(self) -> None:
        """Writes the file anew without what was deleted."""
        with self._lock, naming_errors(self.folder):
            reason = "a reader holds it"
            try:
                self._do("VACUUM")
                if not self._rows("PRAGMA wal_checkpoint(TRUNCATE)")[0]["busy"]:
                    self._do("UPDATE pool SET dirty = 0")
                    return
            except sqlite3.OperationalError as error:
                if not no_room(error):
                    raise
                reason = str(error)
            _LOG.warning("%s has what was deleted until it is opened for writing again: %s", self.folder / FILE, reason)

    def _forget(self, sessions: Iterable[str]) -> None:
        with self.together():
            self._do("UPDATE pool SET dirty = 1")
            for row in map(self._row, sessions):
                for table, key in (("steps", "session"), ("tags", "number"), ("sessions", "number")):
                    self._do(f"DELETE FROM {table} WHERE {key} = ?", row["number"])

    def _add(self, session: str, request: int, step: Step) -> None:
        where = f"session {session!r}, request {request}"
        own, row = digest(step, where), self._row(session)
        if old := self._rows("SELECT digest FROM steps WHERE session = ? AND request = ?", row["number"], request):
            if old[0]["digest"] != own:
                raise UsageError(f"{where}: another step is stored under this number; give each its own")
            return
        if row["ended"] is not None:
            raise UsageError(f"{where}: the session has ended; open another one")
        is_altered = row["altered"]
        if self._hook is not _same:
            step = rewrite_step(step, self._hook)
            is_altered |= digest(step, where) != own
        if is_altered:
            none: Any = ()
            step = replace(step, prompt_ids=none, response_ids=none, response_logprobs=none, policy_version=none)
        branches = self._branches(row["number"])
        columns, whole = encode(step, request, branches)
        columns |= {"session": row["number"], "digest": own}
        self._do(f"INSERT INTO steps ({', '.join(COLUMNS)}) VALUES (:{', :'.join(COLUMNS)})", **columns)
        stem = columns["parent"], columns["kept"]
        tips = [branch for branch in branches if (branch.request, len(branch.tokens)) != stem]
        branches[:] = [*tips, whole][-_BRANCHES:]  # a step that this one continues is part of it
        self._do(
            "UPDATE sessions SET steps = steps + 1, bare = bare + :bare, altered = :altered, "
            "earned = earned + :reward, oldest = COALESCE(MIN(oldest, :low), oldest, :low), "
            "newest = COALESCE(MAX(newest, :high), newest, :high) WHERE number = :session",
            session=row["number"], bare=not len(step.response_ids), altered=is_altered,
            reward=float(step.reward), low=min(step.policy_version.tolist(), default=None),
            high=max(step.policy_version.tolist(), default=None),
        )  # fmt: skip

    def _read_branches(self, number: int) -> list[StepPrefix]:
        """The last ones of the earlier steps of a session; what is added stays in memory while it is in use."""
        return [whole for _, whole in self._decode(number).values()][-_BRANCHES:]

    def _row(self, session: str) -> Any:
        if not (rows := self._rows("SELECT * FROM sessions WHERE session = ?", session)):
            raise UsageError(f"{self.folder} has no session {session!r}; open it first")
        return rows[0]

    def _do(self, query: str, *values: Any, **by_name: Any) -> None:
        self._base.execute(query, by_name or values)


def _same(value: Any) -> Any:
    return value
