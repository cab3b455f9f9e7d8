"""The command ``envsuite``: it finds a command by its one or two words and runs it."""

from __future__ import annotations

import argparse
import itertools
import os
import pkgutil
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any

from envsuite import __version__
from envsuite.core.commands import GROUP, Command
from envsuite.core.errors import UnknownName, unknown
from envsuite.core.http import bypass_proxy_here
from envsuite.exits import status_of

COMMANDS = {
    "doctor": Command(
        "check the installation: packages, data, accelerators, sandbox, limits",
        "envsuite.installation.doctor",
        "Checks the installation and prints what mends what is missing.\n"
        "The exit code is 0 if the quick start can run, else 1.",
    ),
    "envs list": Command("list the environments", "envsuite.core.listing:environments"),
    "envs options": Command("list what an environment can be made with", "envsuite.core.listing:options"),
    "envs tasks": Command(
        "list the tasks of an environment",
        "envsuite.core.listing",
        "Lists the tasks of an environment, one a line: split, type and id, separated by tabs. Source, version, counts "
        "and\nthe hash of the manifest go to stderr, so that the list can be piped.",
    ),
    "envs panels": Command(
        "the tasks of a split, for everybody to play the same",
        "envsuite.evaluation.panels.cli",
        "Lists, exports and compares panels: the tasks of a split, with what identifies each.",
    ),
    "data": Command(
        "the benchmarks' own files: list, fetch, verify, build",
        "envsuite.data.cli",
        "Fetches the benchmarks' own files, verifies them, and builds files derived from them. Every environment has\n"
        "tasks built in, too.",
    ),
    "new": Command(
        "write an environment, an agent, a method or an engine of your own",
        "envsuite.scaffold.command",
        "Writes a folder with files that work as they are, and prints what to type next. An environment is a file of\n"
        "functions, or with --package a class, with its tests and the settings of an agent that learns in it.",
    ),
    "play": Command(
        "play an environment yourself, in the terminal or in a browser",
        "envsuite.play.cli",
        "Plays an environment as an agent would: with its tools, its observations and its budget.",
    ),
    "serve http": Command(
        "serve environments over HTTP",
        "envsuite.serving.cli",
        "Serves environments over HTTP, to gymnasium.make(…, url=…) and other clients.",
    ),
    "serve bridge": Command(
        "serve environments to clients of MCP and of OpenEnv",
        "envsuite.serving.bridges.cli",
        "Serves environments by the Model Context Protocol and by OpenEnv's contract.",
    ),
    "serve interpreter": Command(
        "serve a Python interpreter in a sandbox",
        "envsuite.interpreter.command",
        "Runs Python that a model wrote, in a sandbox, for clients over HTTP.",
    ),
    "eval run": Command(
        "measure experts, baselines and models behind endpoints",
        "envsuite.evaluation.command",
        "Plays every task of a split and writes one line for each episode. What was played is kept: the same command\n"
        "goes on where it stopped.",
    ),
    "eval table": Command(
        "make a table of results",
        "envsuite.evaluation.table_command",
        "Makes tables of results of evaluations, from their single episodes.",
    ),
    "eval compare": Command(
        "compare policies on the same tasks",
        "envsuite.evaluation.compare_command",
        "Compares policies on the same tasks, with paired tests.",
    ),
    "eval power": Command(
        "how many tasks and seeds show a difference",
        "envsuite.evaluation.power_command",
        "Computes how many tasks and seeds show a difference, or which difference given ones show.",
    ),
    "eval inspect": Command(
        "write results as logs of inspect_ai",
        "envsuite.evaluation.inspect_command",
        "Writes results of evaluations as logs of inspect_ai, for its viewer and its data frames.",
    ),
    "export demos": Command(
        "write demonstrations of a player, for supervised training",
        "envsuite.evaluation.demonstrations.cli",
        "Writes episodes of a player as messages and tools, which Hugging Face datasets and TRL read.",
    ),
}
"""The package's own commands; installed packages add others (:data:`~envsuite.core.commands.GROUP`)."""
ORDER = ("quickstart", "doctor", "new", "envs", "play", "serve", "data", "eval", "train")
"""First words of commands in the order of the help; others follow."""
EXAMPLES = """examples:
  envsuite quickstart
  envsuite new errand
  envsuite envs tasks TextCraft-v0 --split test --type depth-3 | shuf -n 5
  envsuite play sokoban
  envsuite eval run TextCraft-v0 --policy expert
  envsuite train --config configs/textcraft.yaml --recipe grpo
  envsuite serve http TextCraft-v0 --port 9000
"""


class _CommandParser(argparse.ArgumentParser):
    """A parser whose arguments name the last of the parsers that read them, whose usage an error shows.

    argparse lets the first one complain of what a subcommand does not know.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.set_defaults(parser=self)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line ``argv`` (default: that of the process) and returns its exit code.

    0: success. 1: ``data verify`` or ``envs panels verify`` found something missing or changed. 2: an error that
    users can correct (an unknown name, a missing file or extra, a full disk), with one message on stderr and no
    traceback. 130: Ctrl-C. 3: ``eval run`` left episodes out, or the infrastructure broke some.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    bypass_proxy_here()
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # torch's threads wait briefly where other programs need the cores
    return status_of(lambda: _run(words), "envsuite")


def _run(words: Sequence[str]) -> int:
    if words[:1] == ["--version"]:
        sys.stdout.write(f"envsuite {__version__}\n")
        return 0
    known = available()
    rest = [word for word in words if word not in ("-h", "--help")]
    inside = {name: command for name, command in known.items() if not rest or name.startswith(f"{rest[0]} ")}
    if inside and len(rest) < 2:
        (sys.stdout if words != rest else sys.stderr).write(page(rest[0] if rest else "", inside))
        return 0 if words != rest else 2
    name, command, arguments = find(words, known)
    run = pkgutil.resolve_name(command.entry)
    if ":" in command.entry:
        status: int = run(arguments)
        return status
    return int(run.run(parse_words(name, command, arguments)))


def available() -> Mapping[str, Command]:
    """Returns all commands by their words.

    Raises:
        EnvsuiteError: As a package raises whose commands cannot be loaded, unless they lack another package: then
            those commands alone are missing.
    """
    found = dict(COMMANDS)
    for entry in entry_points(group=GROUP):
        try:
            found |= entry.load()
        except ImportError:  # MissingExtra is one; find() says what to install
            continue
    first = [*ORDER, *(name.split()[0] for name in found)]
    return MappingProxyType(dict(sorted(found.items(), key=lambda item: first.index(item[0].split()[0]))))


def find(words: Sequence[str], known: Mapping[str, Command]) -> tuple[str, Command, list[str]]:
    """Returns the name of the command that ``words`` begin with, the command, and the words after its name.

    Raises:
        UnknownName: There is no such command; the message lists what there is.
        MissingExtra: The package that would have it lacks others; the message says what to install.
    """
    for length in (2, 1):
        if (command := known.get(" ".join(words[:length]))) is not None:
            return " ".join(words[:length]), command, list(words[length:])
    group = any(name.startswith(f"{words[0]} ") for name in known)
    error = unknown("command", " ".join(words[: 2 if group else 1]), known)
    for entry in entry_points(group=GROUP):
        try:
            entry.load()
        except ImportError as lacking:
            raise UnknownName(f"{error}. Those of {entry.name} are not there: {lacking}") from None
    raise error


def parse_words(name: str, command: Command, words: Sequence[str]) -> argparse.Namespace:
    """Reads the words of a command; exits with the usage of the subcommand that does not know an argument."""
    arguments, more = parser_of(name, command).parse_known_args(words)
    if more:
        arguments.parser.error(f"unrecognized arguments: {' '.join(more)}")
    return arguments


def parser_of(name: str, command: Command) -> argparse.ArgumentParser:
    """Returns the parser of a command whose entry is a module."""
    module = pkgutil.resolve_name(command.entry)
    parser = _CommandParser(
        prog=f"envsuite {name}",
        description=command.description or command.help,
        epilog=vars(module).get("EXAMPLES", ""),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_arguments(parser)
    return parser


def page(group: str, commands: Mapping[str, Command]) -> str:
    """Returns the list of ``commands``: all of them, or those of a ``group``."""
    what = f"Gymnasium environments for language agents, and their training (version {__version__})."
    lines = [f"usage: envsuite {f'{group} ' * bool(group)}COMMAND ...", "", *([] if group else [what, ""])]
    width = max(map(len, commands))
    for _, names in itertools.groupby(commands, lambda name: name.split()[0]):
        lines += [f"  {name:{width}}  {commands[name].help}" for name in names]
    return "\n".join([*lines, "", f"envsuite {f'{group} ' * bool(group)}COMMAND --help shows its options.", ""]) + (
        "" if group else f"\n{EXAMPLES}"
    )


if __name__ == "__main__":
    sys.exit(main())
