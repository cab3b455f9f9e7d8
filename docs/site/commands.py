"""A page for every command, made from the command's own ``--help``.

The commands are found, not listed: those of ``envsuite`` as it finds them, and every module below trainers and envsuite
that runs with ``python -m`` and reads a command line.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import os
import pkgutil
import re
import runpy
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from unittest import mock

from docs.site.pages import ROOT
from envsuite import cli

READS_COMMAND_LINE = re.compile(r"argparse\.ArgumentParser|trainers\.run\.cli import|trainers\.settings\.words import")
INSIDE = ("envsuite/interpreter/inside/", "trainers/rollout/vllm/server/")
"""Programs that the packages themselves start in sandboxes and servers."""
WIDTH = "100"


@dataclass(frozen=True)
class CommandPage:
    """A command and what it says of itself."""

    name: str
    """As it is typed: ``envsuite serve http``, ``python -m trainers.train``."""
    summary: str
    help: str

    @property
    def page(self) -> str:
        """Name of its page."""
        return "commands/" + self.name.removeprefix("python -m ").replace(" ", "-")

    def markdown(self) -> str:
        """The page."""
        fence = "`" * max(3, 1 + max((len(ticks) for ticks in re.findall("`+", self.help)), default=0))
        return f"# {self.name}\n\n{self.summary}\n\n{fence}text\n$ {self.name} --help\n{self.help.rstrip()}\n{fence}\n"


def programs() -> list[str]:
    """Modules that are run with ``python -m`` and read a command line."""
    found = []
    for path in sorted([*(ROOT / "envsuite").rglob("*.py"), *(ROOT / "trainers").rglob("*.py")]):
        name, text = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
        if '\nif __name__ == "__main__":' not in text or name.startswith(INSIDE) or name == "envsuite/cli.py":
            continue
        beside = (
            "".join(file.read_text("utf-8") for file in path.parent.glob("*.py")) if path.stem == "__main__" else ""
        )
        if READS_COMMAND_LINE.search(text + beside):
            found.append(name.removesuffix(".py").removesuffix("/__main__").replace("/", "."))
    return found


def envsuite_commands() -> list[CommandPage]:
    """The command ``envsuite`` and its commands, in the order of its help."""
    known = cli.available()
    found = [CommandPage("envsuite", "Environments, evaluation and training.", cli.page("", known))]
    with mock.patch.dict(os.environ, COLUMNS=WIDTH):
        for name, command in known.items():
            if ":" not in command.entry:
                found += _described(cli.parser_of(name, command), sentence(command.help))
            else:
                run = functools.partial(pkgutil.resolve_name(command.entry), ["--help"])
                found.append(CommandPage(f"envsuite {name}", sentence(command.help), _said(f"envsuite {name}", run)))
    return found


def _said(name: str, run: Callable[[], object]) -> str:
    """What a program prints for ``--help``.

    Raises:
        RuntimeError: The program does not end with status 0 there.
    """
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            run()
        status: object = 0
    except SystemExit as ended:
        status = ended.code
    if status not in (0, None) or not said.getvalue():
        raise RuntimeError(f"{name} --help ended with status {status}")
    return said.getvalue()


def _described(parser: argparse.ArgumentParser, summary: str) -> Iterator[CommandPage]:
    yield CommandPage(parser.prog, summary, parser.format_help())
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            said = {choice.dest: choice.help for choice in action._choices_actions}
            for name, inner in action.choices.items():
                text = said.get(name) or inner.description or ""
                yield from _described(inner, sentence(text))


def sentence(text: str) -> str:
    """The first sentence of a text, with a capital letter and a full stop."""
    first = re.split(r"(?<=[.:])\s", " ".join(text.split()), maxsplit=1)[0].rstrip(".:")
    return f"{first[:1].upper()}{first[1:]}."


def program_page(module: str) -> CommandPage:
    """The page of a program, from what it prints for ``--help``."""
    arguments = mock.patch.object(sys, "argv", [module, "--help"])
    columns = mock.patch.dict(os.environ, COLUMNS=WIDTH)
    sys.modules.pop(module, None)  # else runpy warns that it runs what is imported
    with arguments, columns:
        said = _said(f"python -m {module}", lambda: runpy.run_module(module, run_name="__main__", alter_sys=True))
    return CommandPage(f"python -m {module}", _summary(said), said)


def _summary(text: str) -> str:
    """The first paragraph below the usage of a help text, as one sentence."""
    paragraphs = [part for part in re.split(r"\n\s*\n", text) if not part.lstrip().startswith("usage:")]
    return sentence(paragraphs[0])


def command_pages() -> list[CommandPage]:
    """The pages of all commands."""
    return [*envsuite_commands(), *map(program_page, programs())]


def index(pages: list[CommandPage]) -> str:
    """The page that lists the commands."""
    rows = "".join(f"| [`{page.name}`](/{page.page}.md) | {page.summary} |\n" for page in pages)
    return f"# Commands\n\nMade from the commands' own `--help`.\n\n| command | what it does |\n|---|---|\n{rows}"
