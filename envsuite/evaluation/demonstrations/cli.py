"""The command ``envsuite export demos``."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import orjson

from envsuite.core.errors import UsageError
from envsuite.core.naming import resolve_id
from envsuite.data.files import write_file
from envsuite.data.progress import DownloadDisplay, resumable
from envsuite.evaluation.demonstrations.arguments import add_arguments as add_env_arguments
from envsuite.evaluation.demonstrations.arguments import options_of
from envsuite.evaluation.demonstrations.atif import trajectory_of
from envsuite.evaluation.demonstrations.collecting import CollectionOrder, collect
from envsuite.evaluation.demonstrations.demonstration import Demonstration
from envsuite.evaluation.demonstrations.file import read_demonstrations, write_demonstrations
from envsuite.evaluation.demonstrations.messages import FORMS

ATIF = "atif"
EXAMPLES = """examples:
  envsuite export demos TextCraft-v0 --n 500 --out textcraft.jsonl
  envsuite export demos ALFWorld-v0 --n 100 --types look_at_obj_in_light --form tags --out light.jsonl
  envsuite export demos textcraft.jsonl --form tags --out textcraft-tags.jsonl
  envsuite export demos textcraft.jsonl --form atif --out trajectories/

  python -c 'from datasets import load_dataset; print(load_dataset("json", data_files="textcraft.jsonl"))'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add = parser.add_argument
    add("what", metavar="ENV|FILE", help="environment to play, or a file of demonstrations to convert")
    add("--out", type=Path, required=True, help="the file; with --form atif a folder")
    add("--n", type=int, metavar="N", help="number of demonstrations (required with an environment)")
    add("--player", default="expert", help="who plays: expert, lexical, … (default: %(default)s)")
    add("--types", nargs="+", action="extend", default=[], metavar="TYPE", help="only tasks of these types")
    add("--seed", type=int, default=0, help="seed of the order of tasks (default: %(default)s)")
    add(
        "--form", choices=[*FORMS, ATIF], default="native",
        help="how messages hold calls: as tool_calls (native, default), or as text with the codec tags, brackets or "
        "tools; atif writes a document of the Agent Trajectory Interchange Format for each demonstration of a file",
    )  # fmt: skip
    add("--no-commands", action="store_true", help="leave admissible commands out of the messages")
    add("--unsolved", action="store_true", help="keep episodes that did not solve their task, too")
    add_env_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Writes demonstrations; returns the exit code: 130 if it was interrupted.

    Raises:
        EnvsuiteError: A name, argument or file is wrong, or a file cannot be written.
    """
    source = Path(arguments.what)
    if source.suffix == ".jsonl" or (source.is_file() and source.suffix != ".py"):
        return _convert(source, arguments)
    if arguments.form == ATIF:
        raise UsageError(
            "--form atif converts a file: write one first, then envsuite export demos FILE --form atif --out FOLDER"
        )
    if arguments.n is None:
        raise UsageError("--n is missing: how many demonstrations?")
    if arguments.out.suffix != ".jsonl":
        raise UsageError(f"--out {arguments.out}: give a name that ends in .jsonl")
    order = CollectionOrder(
        resolve_id(arguments.what), arguments.n, arguments.player, arguments.split, tuple(arguments.types),
        arguments.seed, options_of(arguments), arguments.form, not arguments.no_commands, arguments.unsolved,
    )  # fmt: skip
    with resumable():
        counts = collect(order, arguments.out, DownloadDisplay(sys.stderr, unit="{} demonstrations".format))
    left_out = counts.unsolved + counts.broken
    note = f"; {counts.unsolved} episodes not solved, {counts.broken} broken" if left_out else ""
    sys.stdout.write(f"{counts.kept} demonstrations in {arguments.out}{note}\n")
    return 0


def _convert(source: Path, arguments: argparse.Namespace) -> int:
    demonstrations = [d for d in read_demonstrations(source) if d.success or arguments.unsolved]
    if not demonstrations:
        raise UsageError(f"{source}: no demonstration in it solved its task; --unsolved takes the others, too")
    if arguments.form == ATIF:
        _write_trajectories(demonstrations, arguments.out)
    else:
        if arguments.out.suffix != ".jsonl":
            raise UsageError(f"--out {arguments.out}: give a name that ends in .jsonl")
        if arguments.out.exists():
            raise UsageError(f"{arguments.out} exists; remove it, or name another file")
        write_demonstrations(arguments.out, demonstrations, arguments.form, not arguments.no_commands)
    sys.stdout.write(f"{len(demonstrations)} demonstrations in {arguments.out}\n")
    return 0


def _write_trajectories(demonstrations: list[Demonstration], folder: Path) -> None:
    for number, demonstration in enumerate(demonstrations, 1):
        name = re.sub(r"[^A-Za-z0-9._-]+", "_", demonstration.task_id)[:80]
        content = orjson.dumps(trajectory_of(demonstration), option=orjson.OPT_INDENT_2)
        write_file(folder / f"{number:05}-{name}.json", content)
