"""Reads from the files of a game, without playing it, the task that it states, and its identity."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from envsuite.alfworld import prompts
from envsuite.alfworld.game_file import GAME, REMEDY, TRAJECTORY, read_game
from envsuite.alfworld.grammar import parse_grammar
from envsuite.alfworld.pddl import MalformedPDDL
from envsuite.alfworld.source import LAYOUT, Games
from envsuite.core.errors import DataError
from envsuite.data.part import sha256_of


def task_statement(path: Path) -> str:
    """Returns the sentence that states the task of a game, as the game's first text ends with it.

    Raises:
        DataError: The file is not a game, or its grammar does not state the task as a plain sentence.
    """
    return statement(read_game(path).grammar, path)


def statement(grammar: str, path: Path) -> str:
    """Returns the sentence that states the task in the text of a grammar; ``path`` is the game, for messages.

    Raises:
        DataError: It is not a grammar, or states no task as a plain sentence.
    """
    try:
        rules = parse_grammar(grammar).rules.get("task", ())
    except MalformedPDDL as error:
        raise DataError(f"{path}: {error}. {REMEDY}") from error
    texts = [part for rule in rules[:1] if rule.condition is None for part in rule.parts]
    sentence = "".join(text for text in texts if isinstance(text, str)).strip()
    if len(texts) != 1 or not sentence.startswith(prompts.GOAL):
        raise DataError(f"{path}: the game does not state its task ({prompts.GOAL!r}). {REMEDY}")
    return sentence


def identity_of(games: Games, task_id: str) -> dict[str, Any]:
    """Returns the game file below the data folder, family, task, trial, and the SHA-256 of both files.

    Raises:
        DataError: The game has been removed or edited since it was listed.
    """
    path = games.path(task_id)
    place = games.place(task_id)
    _, task, trial = place.split("/")
    try:
        hashes = sha256_of(path), sha256_of(path.with_name(TRAJECTORY))
    except OSError as error:
        raise DataError(f"{error.filename}: cannot be read ({error.strerror}). {REMEDY}") from error
    return {
        "game": f"{LAYOUT}/{place}/{GAME}",
        "family": games.families[task_id],
        "task": task,
        "trial": trial,
        "game_sha256": hashes[0],
        "traj_data_sha256": hashes[1],
    }
