"""``envsuite envs panels``: the tasks of a split, listed, exported and compared, from a shell."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from envsuite.core import ToolEnv
from envsuite.core.listing import env_class
from envsuite.core.naming import resolve_id
from envsuite.core.registration import ENVIRONMENTS
from envsuite.core.settings import read_option
from envsuite.evaluation.demonstrations.arguments import add_source
from envsuite.evaluation.panels.computing import panel_of
from envsuite.evaluation.panels.exports import TARGETS, export
from envsuite.evaluation.panels.files import read_panel, shipped_panel, shipped_splits, write_content
from envsuite.evaluation.panels.panel import Panel, PanelTask
from envsuite.remote.making import make

SHOWN = 60
"""Characters of a value in a message."""


@dataclass(frozen=True)
class Difference:
    """A task of a panel that an environment does not play as it is listed."""

    task_id: str
    what: str
    """``"missing"``, or the fields that differ with both values."""


def differences(panel: Panel, env: ToolEnv) -> list[Difference]:
    """Returns the tasks of ``panel`` that ``env`` does not have, or has with other content.

    Args:
        panel: The panel; it may be of other data than those of ``env``.
        env: An environment with the tasks of all splits.

    Raises:
        DataError: A file of a task is damaged.
    """
    ids = [task.task_id for task in panel.tasks if task.task_id in env.tasks.types]
    contents = dict(zip(ids, env.identify_tasks(ids), strict=True))
    mismatches = []
    for task in panel.tasks:
        if task.task_id not in contents:
            mismatches.append(Difference(task.task_id, "missing"))
            continue
        here = PanelTask(task.task_id, env.tasks.types[task.task_id], *contents[task.task_id])
        changes = [*_describe_changes(task, here)]
        if (split := env.tasks.split_of(task.task_id)) != panel.split:
            changes.append(f"split: {panel.split!r} in the panel, {split!r} here")
        if changes:
            mismatches.append(Difference(task.task_id, "; ".join(changes)))
    return mismatches


def _describe_changes(task: PanelTask, here: PanelTask) -> Iterator[str]:
    old, new = ({"stratum": t.stratum, "goal": t.goal, **t.identity} for t in (task, here))
    for name in {**old, **new}:
        a, b = old.get(name), new.get(name)
        if a != b:
            pairs = zip(repr(a), repr(b), strict=False)
            start = next((place for place, (first, second) in enumerate(pairs) if first != second), 0)
            yield f"{name}: {_short(a, start)} in the panel, {_short(b, start)} here"


def _short(value: Any, start: int) -> str:
    """Returns the part of a value's text around ``start``."""
    text = repr(value)
    first = max(0, min(start - 20, len(text) - SHOWN))
    part = text[first : first + SHOWN]
    return f"{'…' if first else ''}{part}{'…' if first + SHOWN < len(text) else ''}"


EXAMPLES = """examples:
  envsuite envs panels list
  envsuite envs panels show TextCraft-v0 test | cut -f 1,2
  envsuite envs panels show ALFWorld-v0 valid_seen --source official
  envsuite envs panels export WebShop-v0 dev --source official-1k --for verl-agent --out webshop_dev.json
  envsuite envs panels export TextCraft-v0 test --option max_distractors=5 --for json --out test.json.gz
  envsuite envs panels verify test.json.gz
"""
_SPECIAL = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
_COLUMNS = ("task_id", "stratum", "goal", "identity")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the subcommands to ``parser``."""
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    commands = parser.add_subparsers(dest="panels_command", required=True, metavar="COMMAND")
    commands.add_parser("list", help="list the panels of the built-in tasks", description="Lists the shipped panels.")
    show_parser = commands.add_parser(
        "show", help="list the tasks of a panel",
        description="Writes a line for each task: id, stratum, goal, and its identity as JSON, separated by tabs.",
    )  # fmt: skip
    _add_panel(show_parser)
    export_parser = commands.add_parser(
        "export", help="write a panel for another framework",
        description="Writes what another framework needs to play exactly these tasks, or the whole panel as JSON.",
    )  # fmt: skip
    _add_panel(export_parser)
    export_parser.add_argument("--for", dest="target", choices=TARGETS, required=True, help="the framework")
    export_parser.add_argument("--out", type=Path, metavar="FILE", help="default: standard output")
    verify_parser = commands.add_parser(
        "verify", help="check that the tasks of a panel are played here",
        description="Compares every task of a panel with the one of the same id here. The exit code is 1 if one is\n"
        "missing or differs; they are named on stdout.", formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    file_help = "as envsuite envs panels export --for json writes it"
    verify_parser.add_argument("file", type=Path, metavar="FILE", help=file_help)
    add_source(verify_parser, "the source that the panel names")


def _add_panel(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("env_id", metavar="ID", help=f"environment: {', '.join(ENVIRONMENTS)}")
    parser.add_argument("split", metavar="SPLIT", help="e.g. test")
    add_source(parser, "the built-in tasks, as the package lists them")


def run(arguments: argparse.Namespace) -> int:
    """Executes a subcommand; returns the exit code.

    Raises:
        EnvsuiteError: The environment, its split or its data do not exist, or a file cannot be read or written.
    """
    if arguments.panels_command == "list":
        return _list()
    if arguments.panels_command == "verify":
        return _verify(arguments.file, arguments.source, arguments.option)
    panel = _panel(arguments.env_id, arguments.split, arguments.source, arguments.option)
    if arguments.panels_command == "show":
        return _show(panel)
    return _export(panel, arguments.target, arguments.out)


def _list() -> int:
    rows = [("environment", "split", "tasks", "strata", "version", "hash")]
    for env_id, splits in shipped_splits().items():
        for split in splits:
            panel = shipped_panel(env_id, split)
            strata = len({task.stratum for task in panel.tasks})
            rows.append((env_id, split, str(len(panel.tasks)), str(strata), panel.version, panel.hash[:12]))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        sys.stdout.write(f"{line.rstrip()}\n")
    return 0


def _show(panel: Panel) -> int:
    _introduce(panel)
    rows = [_COLUMNS, *(_row(panel, number) for number in range(len(panel.tasks)))]
    if not sys.stdout.isatty():
        sys.stdout.writelines("\t".join(row) + "\n" for row in rows)
        return 0
    width = shutil.get_terminal_size().columns
    first, second = (min(max(len(row[place]) for row in rows), width // 4) for place in (0, 1))
    for row in rows:
        line = f"{_cut(row[0], first):{first}}  {_cut(row[1], second):{second}}  {row[2]}  {row[3]}"
        sys.stdout.write(f"{_cut(line, width)}\n")
    return 0


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _row(panel: Panel, number: int) -> tuple[str, ...]:
    task = panel.tasks[number]
    identity = orjson.dumps(task.identity, option=orjson.OPT_SORT_KEYS).decode()
    return task.task_id, task.stratum, task.goal.translate(_SPECIAL), identity


def _introduce(panel: Panel) -> None:
    strata = sorted(Counter(task.stratum for task in panel.tasks).items())
    sys.stderr.write(
        f"{panel.env_id} {panel.split}  source {panel.source}  version {panel.version}  hash {panel.hash}\n"
        f"{len(panel.tasks)} tasks ({', '.join(f'{name}: {count}' for name, count in strata)})\n"
    )


def _export(panel: Panel, target: str, out: Path | None) -> int:
    content = export(panel, target)
    if out is None:
        sys.stdout.write(content.decode())
        return 0
    write_content(content, out)
    sys.stderr.write(f"{out}: {len(panel.tasks)} tasks of {panel.env_id} {panel.split}, hash {panel.hash[:12]}\n")
    return 0


def _verify(file: Path, source: str | None, options: list[str]) -> int:
    panel = read_panel(file)
    env = _make_env(panel.env_id, source, options, panel.source)
    with closing(env):
        mismatches = differences(panel, env)
        here = None if mismatches else panel_of(env, panel.split)
    about = f"{panel.env_id} {panel.split}, source {env.tasks.source}, version {env.tasks.version}"
    if here is None:
        sys.stdout.writelines(f"{difference.task_id}: {difference.what}\n" for difference in mismatches)
        sys.stderr.write(f"{len(mismatches)} of {len(panel.tasks)} tasks differ here ({about})\n")
        return 1
    sys.stdout.write(f"{file}: all {len(panel.tasks)} tasks are the same here ({about}): {_relation(panel, here)}\n")
    return 0


def _relation(panel: Panel, here: Panel) -> str:
    """Says how two panels are related whose common tasks are the same."""
    if panel.hash == here.hash:
        return "the same panel"
    if len(panel.tasks) < len(here.tasks):
        return f"a part of the split, which has {len(here.tasks)}"
    return f"in another order, or listed with other data (version {panel.version}, source {panel.source})"


def _panel(env_id: str, split: str, source: str | None, options: list[str]) -> Panel:
    env_id = resolve_id(env_id)
    if source is None and not options and env_id in shipped_splits():
        return shipped_panel(env_id, split)
    with closing(_make_env(env_id, source, options)) as env:
        return panel_of(env, split)


def _make_env(env_id: str, source: str | None, options: list[str], default: str = "builtin") -> ToolEnv:
    """Makes an environment with the tasks of all splits; ``default`` is the source of one that has sources.

    Raises:
        UnknownName: The environment does not exist.
        UsageError: It does not take the options.
    """
    if source is None and "source" in env_class(env_id).takes.schema():
        source = default
    arguments = {} if source is None else {"source": os.path.expanduser(source)}
    return make(env_id, **{"split": None, **arguments, **dict(map(read_option, options))})
