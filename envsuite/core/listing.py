"""The commands ``envsuite envs list``, ``envsuite envs options`` and ``envsuite envs tasks``."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import fields
from textwrap import fill
from typing import Any

import gymnasium
from gymnasium.envs.registration import load_env_creator

from envsuite.core.env import ToolEnv
from envsuite.core.errors import UsageError, unknown
from envsuite.core.naming import spec_of
from envsuite.core.options import values_of
from envsuite.core.registration import ENVIRONMENTS
from envsuite.core.tasks import TaskSet

EXAMPLES = """examples:
  envsuite envs tasks TextCraft-v0 --split test
  envsuite envs tasks TextCraft-v0 --split test --type depth-3 | shuf -n 5
  envsuite envs tasks TextCraft-v0 --source path/to/recipes > tasks.tsv
"""


def environments(words: Sequence[str]) -> int:
    """Prints the environments; returns the exit status."""
    argparse.ArgumentParser(prog="envsuite envs list", description="Lists the environments.").parse_args([*words])
    width = max(map(len, ENVIRONMENTS))
    sys.stdout.write(f"{'id':{width}}  horizon  package\n")
    for spec in ENVIRONMENTS.values():
        sys.stdout.write(f"{spec.id:{width}}  {spec.max_episode_steps:7}  {spec.package}\n")
    return 0


def options(words: Sequence[str]) -> int:
    """Prints the options of environments; returns the exit status.

    Raises:
        UnknownName: There is no such environment.
    """
    about = "Lists what an environment can be made with: gymnasium.make(ENV, NAME=VALUE), or --option NAME=VALUE."
    parser = argparse.ArgumentParser(prog="envsuite envs options", description=about)
    parser.add_argument("env_id", metavar="ENV", nargs="*", help="an environment's id (default: all)")
    for env_id in parser.parse_args([*words]).env_id or ENVIRONMENTS:
        kind = env_class(env_id).takes
        for field in fields(kind):
            values = values_of(kind.schema()[field.name])
            text = f"{field.metadata['about']} (default {json.dumps(field.default)}; {values})"
            sys.stdout.write(fill(text, 110, initial_indent=f"{field.name:16}", subsequent_indent=" " * 16) + "\n")
    return 0


def env_class(env_id: str) -> type[ToolEnv]:
    """Returns the class of an environment.

    Raises:
        UnknownName: There is no such environment.
    """
    kind: Any = load_env_creator(spec_of(env_id).entry_point)
    return kind  # type: ignore[no-any-return]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``envsuite envs tasks``."""
    parser.add_argument("env_id", metavar="ENV", help="an id that `envsuite envs list` shows, e.g. TextCraft-v0")
    parser.add_argument("--split", help="only this split, e.g. test")
    parser.add_argument("--type", help="only tasks of this type, e.g. depth-3")
    parser.add_argument(
        "--source", help="source of the tasks: builtin, generated, official or a path (default: the environment's own)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the tasks of an environment; returns the exit status.

    Raises:
        EnvsuiteError: The environment, its source, the split or the type does not exist.
    """
    env_id, split, task_type = arguments.env_id, arguments.split, arguments.type
    tasks = _task_set(env_id, arguments.source)
    if task_type is not None:
        if task_type not in (types := set(tasks.types.values())):
            raise unknown(f"task type of {env_id}", task_type, types)
        tasks = tasks.select([task_type])
    splits = {split: tasks.ids(split)} if split is not None else tasks.splits
    sys.stderr.write(f"{tasks.env_id}  source {tasks.source}  version {tasks.version}  manifest {tasks.hash}\n")
    for name, ids in splits.items():
        counts = sorted(Counter(tasks.types[task_id] for task_id in ids).items())
        sys.stderr.write(f"{name}: {len(ids)} tasks ({', '.join(f'{kind}: {n}' for kind, n in counts)})\n")
    for name, ids in splits.items():
        sys.stdout.writelines(f"{name}\t{tasks.types[task_id]}\t{task_id}\n" for task_id in ids)
    return 0


def _task_set(env_id: str, source: str | None) -> TaskSet:
    """Returns the task set of a registered environment.

    Raises:
        UnknownName: The environment does not exist.
        UsageError: It does not accept the source.
    """
    env_id = spec_of(env_id).id
    choice: dict[str, Any] = {"split": None} | ({} if source is None else {"source": source})
    with closing(gymnasium.make(env_id, disable_env_checker=True, **choice)) as env:
        if not isinstance(env.unwrapped, ToolEnv):
            raise UsageError(f"{env_id} is registered by something else: it is not one of envsuite's environments")
        return env.unwrapped.tasks
