"""``Sokoban-v0``: boxes to push onto targets, as an environment of tool calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from envsuite.core.env import Observation, Outcome, StepInfo, ToolEnv
from envsuite.core.images import Pixels
from envsuite.core.options import SEED, EnvOptions, option, source
from envsuite.core.players import require_episode
from envsuite.core.tools import Tool, ToolCall
from envsuite.sokoban import prompts
from envsuite.sokoban.generate import LevelKind
from envsuite.sokoban.level import DIRECTIONS
from envsuite.sokoban.tasks import load
from envsuite.sokoban.tiles import image
from envsuite.sokoban.world import BLOCKED, Sokoban

MOST_CALLS = 50
MOST_LEVELS = 10_000
REWARDS = ("sparse", "ragen", "gym-sokoban")
VIEWS = ("text", "image", "both")


@dataclass(frozen=True, kw_only=True)
class SokobanOptions(EnvOptions):
    """The options of ``Sokoban-v0``."""

    env_id: ClassVar[str] = "Sokoban-v0"
    source: str | Path = source(
        about='"builtin" (levels of 6x6 cells with one or two boxes), "generated" (drawn from level_seed), "official" '
        "(Boxoban's, in the folder boxoban in $ENVSUITE_DATA), or the path of a folder of level files"
    )
    level_seed: int = option(0, "seed of the generated levels", **SEED)
    levels: int = option(1000, "number of generated levels", minimum=1, maximum=MOST_LEVELS)
    width: int = option(6, "columns of generated levels, walls included", clients={"minimum": 4, "maximum": 10})
    height: int = option(6, "rows of generated levels, walls included", clients={"minimum": 4, "maximum": 10})
    boxes: int = option(2, "number of boxes of generated levels", clients={"minimum": 1, "maximum": 4})
    pushes: Sequence[int] = option(
        (2, 30),
        "fewest and most pushes of a best solution of generated levels",
        minItems=2,
        maxItems=2,
        clients={"items": {"minimum": 1, "maximum": 100}},
    )
    observation: str = option(
        "text", "how the board is shown: as text, as an image of 16 pixels a cell, or both", enum=VIEWS
    )
    style: str = option("symbols", 'how boards are written; "symbols" is as in level files', enum=tuple(prompts.STYLES))
    reward: str = option(
        "sparse",
        '"sparse": 1 when solved; "ragen": -0.1 a move, +1 for a box that comes onto a target, -1 for one that leaves '
        'it, +10 when solved; "gym-sokoban": the same, but its count of boxes on targets begins at 0, so the first '
        "move of an episode earns +1 more if a box is on a target then",
        enum=REWARDS,
    )
    max_calls: int = option(1, "most moves in one step", minimum=1, maximum=MOST_CALLS)
    end_on_deadlock: bool = option(False, "whether a level ends when it is known to be lost")


class SokobanEnv(ToolEnv):
    """Levels of Sokoban: push every box onto a target.

    Args:
        given: Values of :class:`SokobanOptions`. ``render_mode`` may be ``"ansi"`` or ``"rgb_array"`` (16 pixels a
            cell).
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}  # noqa: RUF012
    tools = (Tool.of_string("move", prompts.TOOL, "direction", prompts.DIRECTION, [*DIRECTIONS]),)
    takes = SokobanOptions

    def __init__(self, **given: Any) -> None:
        options = SokobanOptions.of(given)
        low, high = options.pushes
        kind = LevelKind(options.width, options.height, options.boxes, (low, high))
        self.levels, task_set = load(str(options.source), kind, options.level_seed, options.levels)
        image_alone = options.observation == "image"
        self._style = prompts.PICTURE if image_alone else prompts.STYLES[options.style]
        self.reward, self.max_calls, self.end_on_deadlock = options.reward, options.max_calls, options.end_on_deadlock
        left_out = self.levels.left_out
        versions = {"data_problems": f"{len(left_out):,} boards that are no levels; {left_out[0]}"} if left_out else {}
        tasks, images = task_set.select(options.tasks), options.observation != "text"
        super().__init__(tasks, options.split, options.render_mode, versions, images)
        self._world: Sokoban | None = None
        self._moves = 0

    @property
    def world(self) -> Sokoban:
        """The world of the current episode.

        Raises:
            UsageError: No episode has been started.
        """
        return require_episode(self._world, "Sokoban-v0")

    def _goal(self, task_id: str) -> str:
        """Returns the instruction of a task in the style ``symbols``, whichever the environment writes.

        So a panel is the same for agents that read other styles, or see images.
        """
        return prompts.task(self.levels.level(task_id), prompts.STYLES["symbols"])

    def _identity(self, task_id: str) -> dict[str, Any]:
        """Returns level file and index, the board's rows joined by line feeds, and their SHA-256.

        A generated level has the arguments of the generator in place of the file.
        """
        return self.levels.identity(task_id)

    def _begin(self, task_id: str) -> tuple[str, Outcome]:
        level = self.levels.level(task_id)
        self._world, self._moves = Sokoban(level), 0
        return prompts.task(level, self._style), Outcome("", commands=self._world.moves())

    def _call(self, call: ToolCall) -> Outcome:
        world, direction = self.world, call.arguments["direction"]
        before = 0 if self.reward == "gym-sokoban" and not self._moves else world.placed_boxes
        effect = world.move(direction)
        self._moves += 1
        reward = 0.0
        if self.reward != "sparse":
            change = (world.placed_boxes > before) - (world.placed_boxes < before)
            reward = -0.1 + change + (10.0 if world.solved else 0.0)
        elif world.solved:
            reward = 1.0
        if effect == BLOCKED:
            return self._outcome(prompts.blocked_text(direction, world.box_at(direction)), reward, refused=True)
        return self._outcome("", reward)

    def _outcome(self, text: str, reward: float, refused: bool = False) -> Outcome:
        world = self.world
        is_solved = world.solved
        is_lost = self.end_on_deadlock and world.is_deadlocked() and not is_solved
        over = is_solved or is_lost
        return Outcome(
            text=prompts.SOLVED if is_solved else prompts.LOST if is_lost else text,
            reward=reward,
            done=over,
            error=text if refused else None,
            commands=() if over else world.moves(),
            success=is_solved,
        )

    def _info(self, outcome: Outcome) -> StepInfo:
        world = self.world
        deadlock = world.is_deadlocked() and not world.solved
        info = super()._info(outcome)
        info["score"] = world.placed_boxes / world.level.boxes.bit_count()
        info["metrics"] = {"pushes": float(world.pushes), "moves": float(self._moves), "deadlock": float(deadlock)}
        return info

    def _observe(self, outcome: Outcome) -> Observation:
        """Writes the board once, after what the calls of a step said, once each."""
        world = self.world
        text = self._style.board(world.level, world.boxes, world.player)
        if outcome.text:
            text = "\n".join((*dict.fromkeys(filter(None, outcome.text.split("\n\n"))), text))
        self._last = Observation(task=self._instruction, text=text, commands=outcome.commands)
        if self.images:
            self._last["images"] = self._view()
        return self._last

    def _state_key(self) -> str:
        world = self.world
        return f"{world.player:x} {world.boxes:x}"

    def _propose(self, rng: np.random.Generator) -> ToolCall:
        return ToolCall("move", {"direction": DIRECTIONS[int(rng.integers(len(DIRECTIONS)))]})

    def render(self) -> str | Pixels | None:  # type: ignore[override]
        """Returns the task and the last text, or the board's image of shape (16 * rows, 16 * columns, 3)."""
        if self.render_mode == "rgb_array" and self._world is not None:
            return self._view()[0]
        return super().render() if self.render_mode == "ansi" else None

    def _view(self) -> tuple[Pixels, ...]:
        world = self.world
        return (image(world.level, world.boxes, world.player),)

    def _save(self) -> list[int]:
        return [self.world.boxes, self.world.player, self.world.pushes, self._moves]

    def _resume(self, task_id: str, world: list[int]) -> None:
        self._begin(task_id)
        self.world.boxes, self.world.player, self.world.pushes, self._moves = world
