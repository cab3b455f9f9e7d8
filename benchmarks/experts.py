"""Let the experts play: how often and how fast they solve what.

    python -m benchmarks.experts alfworld --games DIR [--split valid_seen] [--engine native]
    python -m benchmarks.experts textcraft
    python -m benchmarks.experts webshop [--source DIR] [--goals human] [--split dev] [--products 1000]

Prints a table in Markdown. Exits with 1 if an expert does not solve a task.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.progress import track

from benchmarks import experts_webshop
from envsuite.alfworld.env import ENGINES, ALFWorld
from envsuite.alfworld.expert import ALFWorldExpert as Housekeeper
from envsuite.alfworld.expert import Seeker
from envsuite.alfworld.game_file import read_game
from envsuite.alfworld.tasks import load
from envsuite.core.env import ToolEnv
from envsuite.core.errors import EnvsuiteError, UsageError
from envsuite.core.tools import Action
from envsuite.evaluation.statistics import wilson
from envsuite.textcraft.env import TextCraft
from envsuite.textcraft.expert import TextCraftExpert as Crafter
from envsuite.webshop.catalogue import KINDS

LIMIT = 200
"""Steps after which an expert has failed."""
HORIZON = 50
"""Steps that an episode has by default."""


class Expert(Protocol):
    """Whoever plays an environment."""

    def act(self, env: ToolEnv) -> Action:
        """The next action."""


@dataclass(frozen=True)
class Game:
    """One task as it was played."""

    stratum: str
    """Split, or family."""
    steps: int | None
    """Steps until it was solved; ``None`` if it was not."""
    plain: int | None = None
    """The same for who searches in alphabetical order."""
    walkthrough: int | None = None
    """Length of the game's own walkthrough, if it has one."""


class Alphabetical(Seeker):
    """Looks everywhere in alphabetical order."""

    def order(self, places: Sequence[str], wanted: Mapping[str, float]) -> list[str]:
        """The names, sorted."""
        return sorted(places)


def steps_of(expert: Expert, env: ToolEnv, task_id: str) -> int | None:
    """Steps in which ``expert`` solves a task; ``None`` if it takes more than :data:`LIMIT` or gives up."""
    env.reset(options={"task_id": task_id})
    for number in range(1, LIMIT + 1):
        try:
            action = expert.act(env)
        except UsageError as error:
            sys.stderr.write(f"{task_id}: {error}\n")
            return None
        _, _, done, _, info = env.step(action)
        if done:
            return number if info["success"] else None
    return None


def alfworld(arguments: argparse.Namespace) -> list[Game]:
    """ALFWorld-v0: every game of a folder (``--split``: of one split) or of the built-in set."""
    source = arguments.games or "builtin"
    splits = [arguments.split] if arguments.split else list(load(source)[1].splits)
    env = ALFWorld(source=source, engine=arguments.engine, split=splits[0])
    ids = [task_id for split in splits for task_id in env.tasks.ids(split)]
    games = []
    for task_id in track(ids, "playing", console=Console(stderr=True)):
        own = read_game(env.games.path(task_id)).walkthrough
        games.append(
            Game(
                env.tasks.types[task_id],
                steps_of(Housekeeper(), env, task_id),
                steps_of(Housekeeper(Alphabetical), env, task_id),
                len(own) or None,
            )
        )
    env.close()
    return games


def textcraft(arguments: argparse.Namespace) -> list[Game]:
    """TextCraft-v0: every task of the built-in recipes."""
    env, expert = TextCraft(), Crafter()
    ids = [task_id for split in env.tasks.splits for task_id in env.tasks.ids(split)]
    return [Game(env.tasks.types[task_id], steps_of(expert, env, task_id)) for task_id in ids]


def table(games: Iterable[Game]) -> str:
    """A row per stratum, and one for all, in Markdown."""
    ordered = sorted(games, key=lambda game: game.stratum)
    strata = [(name, list(group)) for name, group in itertools.groupby(ordered, key=lambda game: game.stratum)]
    head = (
        "",
        "games",
        f"solved within {HORIZON} (95 % interval)",
        f"within {LIMIT}",
        "mean steps",
        "most",
        "in alphabetical order",
        "walkthrough, and steps there (games)",
    )
    rows = [
        head,
        ("---", *["---:"] * (len(head) - 1)),
        *(row(name, group) for name, group in [*strata, ("all", ordered)]),
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def row(name: str, games: Sequence[Game]) -> tuple[str, ...]:
    """The cells of one stratum."""
    solved = [game.steps for game in games if game.steps is not None]
    soon = sum(steps <= HORIZON for steps in solved)
    low, high = wilson(soon, len(games))
    plain = [game.plain for game in games if game.plain is not None]
    own = [(game.walkthrough, game.steps) for game in games if game.walkthrough and game.steps]
    soon_plain = sum(steps <= HORIZON for steps in plain)
    return (
        name,
        f"{len(games)}",
        f"{100 * soon / max(len(games), 1):.1f} % ({100 * low:.1f}–{100 * high:.1f})",  # noqa: RUF001
        f"{100 * len(solved) / max(len(games), 1):.1f} %",
        mean(solved),
        f"{max(solved, default=0)}",
        f"{mean(plain)}, {100 * soon_plain / len(games):.1f} % within {HORIZON}" if plain else "–",  # noqa: RUF001
        f"{mean([a for a, _ in own])}, {mean([b for _, b in own])} ({len(own)})" if own else "–",  # noqa: RUF001
    )


def mean(numbers: Sequence[int]) -> str:
    """The mean with one decimal; a dash if there is nothing."""
    return f"{sum(numbers) / len(numbers):.1f}" if numbers else "–"  # noqa: RUF001


ENVIRONMENTS = {"alfworld": alfworld, "textcraft": textcraft}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table of the environment that ``argv`` names; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.experts", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="environment", required=True)
    parsers = {name: commands.add_parser(name, help=play.__doc__) for name, play in ENVIRONMENTS.items()}
    parsers["alfworld"].add_argument("--games", type=Path, help="folder that holds json_2.1.1; else the built-in games")
    parsers["alfworld"].add_argument("--split", help="one split only; all by default")
    parsers["alfworld"].add_argument("--engine", choices=ENGINES, default=ENGINES[0])
    shop = commands.add_parser("webshop", help="WebShop-v0: every goal, beside the lexical baseline")
    shop.add_argument("--source", default="builtin", help="the built-in shop by default")
    shop.add_argument("--goals", choices=KINDS, default=KINDS[0])
    shop.add_argument("--split", help="one split only; all by default")
    shop.add_argument("--products", type=int, default=1000, help="of the built-in shop")
    arguments = parser.parse_args(argv)
    try:
        if arguments.environment == "webshop":
            shop_given = (arguments.source, arguments.goals, arguments.split, arguments.products)
            played = experts_webshop.trials(*shop_given)
            sys.stdout.write(f"{experts_webshop.table(played)}\n")
            return int(any(trial.expert.reward < 1 for trial in played))
        games = ENVIRONMENTS[arguments.environment](arguments)
    except EnvsuiteError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.stdout.write(f"{table(games)}\n")
    return int(any(game.steps is None for game in games))


if __name__ == "__main__":
    sys.exit(main())
