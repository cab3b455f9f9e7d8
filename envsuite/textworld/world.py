"""A game of ``textworld`` while it is played: the package's progression of the game, and what the game says."""

from __future__ import annotations

import hashlib
from typing import Any

from envsuite.textworld.package import GameProgression, Inform7Game, name_actions
from envsuite.textworld.text import StoryScene, describe_action, describe_points


class TextGame:
    """A game that is played.

    Args:
        game: The ``textworld.Game``, which is not changed.
    """

    def __init__(self, game: Any) -> None:
        self.game = game
        self.progress = GameProgression(game)
        """The package's own state of the game, with its quests."""
        self.played: list[str] = []
        """All commands so far."""
        self._writer = Inform7Game(game)
        declaration = [entity.id for kind in game.kb.types for entity in game.world.get_entities_per_type(kind)]
        start = StoryScene(game.infos, self.progress.state.facts, declaration)
        rooms = (game.world.player_room, *game.world.rooms)
        entities = [entity for room in rooms for entity in start.list_inside(room.id)]
        self._see(StoryScene(game.infos, self.progress.state.facts, [*dict.fromkeys((*entities, *declaration))]))

    def _see(self, scene: StoryScene) -> None:
        self.scene = scene
        """What is where."""
        self._actions = name_actions(self._writer, self.progress.valid_actions)
        self.commands = tuple(sorted(self._actions))
        """The admissible commands."""

    @property
    def score(self) -> float:
        """The points as a share of the most that the game gives."""
        return float(self.progress.score / self.game.max_score)

    def do(self, command: str) -> str:
        """Executes an admissible command; returns what the game says.

        Raises:
            KeyError: The command is not admissible.
        """
        action, points = self._actions[command], self.progress.score
        self.progress.update(action)
        self.played.append(command)
        self._see(self.scene.after(self.progress.state.facts))
        return describe_action(self.scene, action) + describe_points(self.progress, points)

    def advise(self) -> list[str]:
        """Returns the commands by which the package would win the game from here; none where it knows no way."""
        return list(self._writer.gen_commands_from_actions(self.progress.winning_policy or ()))

    def key(self) -> str:
        """Returns a hash of the facts, whose names are the game's own."""
        return _digest([*map(str, self.progress.state.facts)])


def content_of(game: Any) -> str:
    """Returns SHA-256 of a game's world, by the names that players read, and of the commands that its quests are of."""
    writer = Inform7Game(game)
    ways = [event.actions for quest in game.quests for event in quest.win_events]
    commands = [" > ".join(writer.gen_commands_from_actions(actions)) for actions in ways]
    return _digest([*map(str, map(writer.get_human_readable_fact, game.world.facts)), *commands])


def _digest(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()
