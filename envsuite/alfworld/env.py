"""``ALFWorld-v0``: household tasks as an environment of tool calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from envsuite.alfworld import prompts
from envsuite.alfworld.engine import ALFWorldGame, GameEngine, GameTurn
from envsuite.alfworld.identity import identity_of, task_statement
from envsuite.alfworld.scenes import SceneDifficulty
from envsuite.alfworld.tasks import load
from envsuite.core.env import Outcome, ToolEnv
from envsuite.core.errors import DataError, UnknownTask, UsageError, unknown
from envsuite.core.options import SEED, EnvOptions, option, source
from envsuite.core.settings import settings_of
from envsuite.core.tools import Tool, ToolCall

ENGINES = ("native", "textworld")


@dataclass(frozen=True, kw_only=True)
class ALFWorldOptions(EnvOptions):
    """The options of ``ALFWorld-v0``."""

    env_id: ClassVar[str] = "ALFWorld-v0"
    source: str | Path | None = source(
        None,
        '"official" (the folder alfworld in $ENVSUITE_DATA), "builtin" or "generated" (games made from a seed on first '
        "use), or the path of the folder that holds json_2.1.1; null: official where it is there, else built-in; "
        'info["versions"] says which',
    )
    engine: str = option("native", '"textworld" is the reference; it needs the extra alfworld-reference', enum=ENGINES)
    scene_seed: int = option(0, "seed of the built-in games", **SEED)
    games: int = option(600, "number of built-in games, of all splits together", clients={"maximum": 4_000})
    difficulty: Mapping[str, int] | None = option(
        None,
        'difficulty of the built-in games, e.g. {"receptacles": 40} for rooms with two fifths of the usual number; '
        "keys are the fields of envsuite.alfworld.scenes.SceneDifficulty",
    )


class ALFWorld(ToolEnv):
    """Household tasks: find objects, clean, heat or cool them, put them in a receptacle, or examine them under a lamp.

    Splits are ``"train"``, ``"valid_seen"``, ``"valid_unseen"``, or other folders.

    Args:
        given: Values of :class:`ALFWorldOptions`.

    A task id is ``<task folder>/<trial folder>``. The text is exactly the game's; to a command that is not admissible
    it is "Nothing happens.", and ``info["error"]`` lists similar admissible commands.
    """

    tools = (Tool.of_string("env_step", prompts.TOOL, "command", prompts.COMMAND),)

    takes = ALFWorldOptions

    def __init__(self, **given: Any) -> None:
        options = ALFWorldOptions.of(given)
        self.engine = engine_of(options.engine)
        difficulty = settings_of(SceneDifficulty, "difficulty of ALFWorld-v0", options.difficulty or {})
        self.games, task_set = load(options.source, options.scene_seed, options.games, difficulty)
        versions = {"engine": self.engine.version}
        super().__init__(task_set.select(options.tasks), options.split, options.render_mode, versions)
        self._game: ALFWorldGame | None = None

    def _describe(self, task_id: str) -> tuple[str, str]:
        if (why := self.games.left_out.get(task_id)) is not None:
            raise UnknownTask(f"{self.tasks.env_id} does not play task {task_id!r}: {why}")
        return super()._describe(task_id)

    def _goal(self, task_id: str) -> str:
        return task_statement(self.games.path(task_id))

    def _identity(self, task_id: str) -> dict[str, Any]:
        """Returns game file, family, trial, and the SHA-256 of both files."""
        return identity_of(self.games, task_id)

    def _begin(self, task_id: str) -> tuple[str, Outcome]:
        path = self.games.path(task_id)
        game = self.engine.open(path)
        turn = game.reset()
        goal = turn.feedback.find(prompts.GOAL)
        if goal < 0:
            game.close()
            raise DataError(f"{path}: the game does not state its task ({prompts.GOAL!r}); remove its folder")
        self._play(game)
        return turn.feedback[goal:].strip(), _outcome(turn)

    def _call(self, call: ToolCall) -> Outcome:
        assert self._game is not None
        command: str = call.arguments["command"]
        turn = self._game.step(command)
        return _outcome(turn, None if turn.valid else refusal(command, turn.commands))

    def _state_key(self) -> str:
        return "" if self._last is None else "\n".join((self._last["text"], *self._last["commands"]))

    def _propose(self, rng: np.random.Generator) -> ToolCall:
        commands = ("look",) if self._last is None else self._last["commands"]
        return ToolCall("env_step", {"command": commands[int(rng.integers(len(commands)))]})

    def _save(self) -> object:
        if self._game is None:
            raise UsageError("ALFWorld.snapshot called after close; call reset() first")
        return self._game.snapshot()

    def _resume(self, task_id: str, world: object) -> None:
        game = self.engine.open(self.games.path(task_id))
        game.restore(world)
        self._play(game)

    def close(self) -> None:
        """Closes the game and ends the episode."""
        self._play(None)
        self._done = True

    def _play(self, game: ALFWorldGame | None) -> None:
        """Replaces the current game, which is closed."""
        if self._game is not None:
            self._game.close()
        self._game = game


@cache
def engine_of(name: str) -> GameEngine:
    """Returns the engine called ``name``, which all environments of this process share.

    Raises:
        UnknownName: There is no engine of that name.
        MissingExtra: The engine needs packages that are not installed.
    """
    if name == "native":
        from envsuite.alfworld.world import NativeEngine

        return NativeEngine()
    if name == "textworld":
        from envsuite.alfworld.reference import TextWorldEngine

        return TextWorldEngine()
    raise unknown("engine of ALFWorld-v0", name, ENGINES)


def refusal(command: str, commands: Sequence[str]) -> str:
    """Explains why ``command`` is refused, and names up to three similar admissible ``commands``."""
    words = set(command.split())
    matches = sorted((-len(common), c) for c in commands if any(map(str.isalpha, common := words & set(c.split()))))
    near = [repr(c) for _, c in matches[:3]]
    hint = f"Nearest: {', '.join(near)}" if near else f"Admissible are e.g. {', '.join(map(repr, commands[:3]))}"
    excerpt = command if len(command) <= 80 else command[:79] + "…"
    return f"{excerpt!r} is not an admissible command now. {hint}; observation['commands'] lists all {len(commands)}"


def _outcome(turn: GameTurn, error: str | None = None) -> Outcome:
    won = float(turn.won)
    return Outcome(turn.feedback, won, turn.won, error, turn.commands, success=turn.won, score=won)
