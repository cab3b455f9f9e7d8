"""``TextWorld-v0``: rooms, entities and a quest in words, as an environment of tool calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from envsuite.core.env import Outcome, ToolEnv
from envsuite.core.errors import nearest
from envsuite.core.options import SEED, EnvOptions, option
from envsuite.core.players import require_episode
from envsuite.core.tasks import MOST_NUMBERED, number_tasks
from envsuite.core.tools import Tool, ToolCall
from envsuite.textworld.package import ENV_ID, VERSION, read_level
from envsuite.textworld.tasks import BUILTIN, TaskGame, find_game
from envsuite.textworld.world import TextGame

REWARDS = ("won", "score", "intermediate")
INVALID = "Invalid command."
"""The package's own answer to a command that is not admissible."""


@dataclass(frozen=True, kw_only=True)
class TextWorldOptions(EnvOptions):
    """The options of ``TextWorld-v0``."""

    env_id: ClassVar[str] = ENV_ID
    level: str = option(
        "custom/w2-o3-q4",
        "kind and level of the games: custom/w2-o3-q4 (2 rooms, 3 objects, a quest of 4 commands), coin/5, treasure/5 "
        "(textworld's numbers), or cooking/recipe2+take1+cook+cut+open+go6 (textworld's skills)",
        maxLength=100,
    )
    reward: str = option(
        "won", '"won": 1 when the game is won; "score": its points as they come, as shares of the most; '
        '"intermediate": textworld\'s: 1 for a step towards the end or the end, -1 for a step back or a lost game',
        enum=REWARDS,
    )  # fmt: skip
    source: str = option(
        "builtin", '"builtin" (numbers 0 to 549), or "generated" (numbers that follow from game_seed)',
        enum=("builtin", "generated"),
    )  # fmt: skip
    game_seed: int = option(0, "seed of the generated games", minimum=0, maximum=SEED["maximum"])
    games: int = option(
        1000, "number of generated games", minimum=1, maximum=MOST_NUMBERED, clients={"maximum": 100_000}
    )


class TextWorld(ToolEnv):
    """Games of rooms, entities and a quest; reward 1 when the quest is done, which ends the game, as losing it does.

    Args:
        given: Values of :class:`TextWorldOptions`.

    Raises:
        MissingExtra: The package textworld is not installed.
    """

    tools = (
        Tool.of_string("act", "Plays one command of the game.", "command", "a command, such as: take key from box"),
    )
    takes = TextWorldOptions

    def __init__(self, **given: Any) -> None:
        options = TextWorldOptions.of(given)
        read_level(options.level)
        generated = (options.game_seed, options.games) if options.source == "generated" else None
        tasks = number_tasks(ENV_ID, VERSION, options.level, BUILTIN, generated)
        super().__init__(tasks.select(options.tasks), options.split, options.render_mode)
        self._reward = options.reward
        self._game: TextGame | None = None

    @property
    def game(self) -> TextGame:
        """The game of the current episode.

        Raises:
            UsageError: No episode has been started.
        """
        return require_episode(self._game, ENV_ID)

    def _find(self, task_id: str) -> TaskGame:
        return find_game(task_id, self._describe(task_id)[0])

    def _goal(self, task_id: str) -> str:
        return str(self._find(task_id).game.objective)

    def _identity(self, task_id: str) -> dict[str, Any]:
        """Returns level, the package's seed, and SHA-256 of the world and of the way to win."""
        game = self._find(task_id)
        return {"level": task_id.rpartition("/")[0], "seed": game.seed, "content_sha256": game.content}

    def _begin(self, task_id: str) -> tuple[str, Outcome]:
        self._game = game = TextGame(self._find(task_id).game)
        return str(game.game.objective), Outcome(game.scene.room(), commands=game.commands)

    def _call(self, call: ToolCall) -> Outcome:
        game, command = self.game, call.arguments["command"]
        if command not in game.commands:
            count, near = len(game.commands), ", ".join(map(repr, nearest(command[:80], game.commands)))
            problem = f"not an admissible command now; nearest: {near}; observation['commands'] lists all {count}"
            return Outcome(INVALID, error=problem, commands=game.commands, score=game.score)
        score, way = game.score, self._way_length()
        text, success, end = game.do(command), game.progress.completed, game.progress.done
        reward = game.score - score if self._reward == "score" else float(success)
        if self._reward == "intermediate" and not success:
            reward = -1.0 if end else float(np.sign(way - self._way_length()))
        return Outcome(text, reward, end, None, game.commands, success=success, score=game.score)

    def _way_length(self) -> int:
        return len(self.game.advise()) if self._reward == "intermediate" else 0

    def _state_key(self) -> str:
        return self.game.key()

    def _propose(self, rng: np.random.Generator) -> ToolCall:
        commands = ("look",) if self._game is None else self._game.commands
        return ToolCall("act", {"command": commands[int(rng.integers(len(commands)))]})

    def _save(self) -> list[str]:
        return [*self.game.played]

    def _resume(self, task_id: str, world: list[str]) -> None:
        game = TextGame(self._find(task_id).game)
        for command in world:
            game.do(command)
        self._game = game
