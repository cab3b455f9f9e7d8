"""The command ``envsuite play pythonmath``: problems to solve in a terminal, with the tools that an agent has."""

from __future__ import annotations

import argparse
import codeop
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from envsuite.core.errors import UsageError
from envsuite.core.tools import ToolCall

if TYPE_CHECKING:
    from envsuite.mathematics.env import PythonMathEnv

HELP = """Type Python code, as in Python's own prompt; it runs in the sandbox. Further lines:
  = 3/7    answers the problem with 3/7
  :show    shows the problem again
  :next    goes to the next problem
  :quit    ends (so does Ctrl-D)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options to ``parser``, that of ``envsuite play pythonmath``."""
    parser.add_argument(
        "--source", default="builtin", help="builtin (default), generated, official, or a file or folder"
    )
    parser.add_argument("--split", default="train", help="the split of the problems (default: train)")
    parser.add_argument("--type", help="only problems of this type, e.g. lattice-2")
    parser.add_argument("--task", metavar="ID", help="the first problem; `envsuite tasks PythonMath-v0` lists them")


def run(arguments: argparse.Namespace) -> int:
    """Plays until the player quits; returns the exit code.

    Raises:
        DataError: The source has no problems.
        UnknownTask: The split, type or task does not exist.
        UsageError: The split has no problem, there is no terminal, or code cannot be isolated on this machine.
    """
    from envsuite.mathematics.env import PythonMathEnv

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("play pythonmath needs a terminal; run it in one, without pipes")
    env = PythonMathEnv(arguments.source, arguments.split, None if arguments.type is None else [arguments.type])
    try:
        solved, seen = play(env, arguments.task, input, lambda text: sys.stdout.write(f"{text}\n"))
    finally:
        env.close()
    sys.stdout.write(f"\n{solved} of {seen} problems solved\n")
    return 0


def play(
    env: PythonMathEnv, task_id: str | None, read: Callable[[str], str], write: Callable[[str], object]
) -> tuple[int, int]:
    """Plays problems one after the other; returns how many were solved, and how many were seen.

    Args:
        env: The environment.
        task_id: The first problem; the first of the split by default.
        read: Shows a prompt and returns a line; raises ``EOFError`` at the end, as :func:`input` does.
        write: Shows a text.
    """
    write(HELP)
    solved, seen = 0, 0
    options = {} if task_id is None else {"task_id": task_id}
    while True:
        observation, info = env.reset(options=options)
        options, seen = {}, seen + 1
        write(f"{info['task_id']}\n{observation['task']}")
        while not env.done:
            try:
                line = read(">>> ")
                if line.strip() == ":quit":
                    return solved, seen
                if line.strip() == ":next":
                    break
                if line.strip() == ":show":
                    write(observation["task"])
                    continue
                if line.startswith("="):
                    call = ToolCall("answer", {"text": line.removeprefix("=").strip()})
                else:
                    call = ToolCall("python", {"code": _whole(line, read)})
            except EOFError:
                return solved, seen
            stepped, _, _, _, info = env.step((call,))
            write(stepped["text"])
            solved += info["success"]


def _whole(line: str, read: Callable[[str], str]) -> str:
    """Reads on until ``line`` is complete, as Python's own prompt does."""
    lines = [line]
    try:
        while codeop.compile_command("\n".join(lines)) is None:
            lines.append(read("... "))
    except (SyntaxError, ValueError, OverflowError):  # the interpreter will say so
        pass
    return "\n".join(lines)
