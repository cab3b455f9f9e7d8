"""The command ``envsuite play sokoban``: levels to solve in a terminal."""

from __future__ import annotations

import argparse
import sys

from envsuite.core.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options to ``parser``, that of ``envsuite play sokoban``."""
    parser.add_argument("--source", default="builtin", help="builtin (default), generated, official, or a folder")
    parser.add_argument("--split", default="train", help="the split of the levels (default: train)")
    parser.add_argument("--task", metavar="ID", help="the first level; `envsuite tasks Sokoban-v0` lists them")


def run(arguments: argparse.Namespace) -> int:
    """Plays until the player quits; returns the exit code.

    Raises:
        DataError: The source has no levels.
        UnknownTask: The split or task does not exist.
        UsageError: The split has no level, or there is no terminal.
    """
    from envsuite.sokoban.env import SokobanEnv

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("play sokoban needs a terminal; run it in one, without pipes")
    try:
        from envsuite.sokoban.terminal import Game, play
    except ImportError as error:
        raise UsageError(f"play sokoban needs the module curses, which this Python does not have ({error})") from error
    game = Game(SokobanEnv(arguments.source, arguments.split), arguments.task)
    play(game)
    sys.stdout.write(f"{game.solved} of {len(game.seen)} levels solved\n")
    return 0
