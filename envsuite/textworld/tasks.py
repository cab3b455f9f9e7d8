"""Task sets: a task is a level and a number, from which its game follows."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

from envsuite.core.caches import made_once
from envsuite.core.errors import UsageError
from envsuite.textworld.package import ENV_ID, FAILURES, make_game
from envsuite.textworld.world import content_of

BUILTIN = {"train": range(400), "validation": range(400, 450), "test": range(450, 550)}
"""Numbers of the built-in tasks by split; the same for each level."""
PARTS = {"train": ("train", "01234567"), "validation": ("valid", "89ab"), "test": ("test", "cdef")}
"""Split -> its name in the package, and the first digits of the contents of its games: no two splits share a game."""
TRIES = 60
"""Seeds after which a task is given up."""


class TaskGame(NamedTuple):
    """The game of a task."""

    seed: int
    """The seed that the package makes it from."""
    content: str
    """:func:`content_of` the game."""
    game: Any
    """The ``textworld.Game``."""


@made_once(64)
def find_game(task_id: str, split: str) -> TaskGame:
    """Returns the game of a task: the first of the seeds that follow from its id whose content belongs to the split.

    Raises:
        UsageError: The package makes no game of the level from these seeds.
    """
    (name, digits), problem = PARTS[split], "too few games differ"
    for attempt in range(TRIES):
        seed = int(hashlib.sha256(f"{ENV_ID} {task_id} {attempt}".encode()).hexdigest()[:8], 16)
        try:
            game = make_game(task_id.rpartition("/")[0], seed, name)
            content = content_of(game)
        except FAILURES as error:
            problem = f"{type(error).__name__}: {error}"
            continue
        if content[0] in digits:
            return TaskGame(seed, content, game)
    raise UsageError(f"textworld makes no game of {task_id} from {TRIES} seeds ({problem}); take another level")
