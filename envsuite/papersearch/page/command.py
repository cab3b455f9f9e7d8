"""The command ``envsuite play papersearch --browser``: serves the search for papers to a browser."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from envsuite.core.env import ToolEnv
from envsuite.core.errors import UsageError
from envsuite.papersearch.tasks import ENV_ID
from envsuite.remote.making import horizon_of


def add_arguments(parser: argparse._ArgumentGroup) -> None:
    """Adds the options of this page alone, of which there is none, to the group ``parser`` of ``envsuite play``."""


def run(arguments: argparse.Namespace, make: Callable[[], ToolEnv]) -> int:
    """Serves the page until Ctrl-C; returns the exit code.

    Args:
        arguments: The arguments of ``envsuite play``.
        make: Makes the environment.

    Raises:
        MissingExtra: Flask or uvicorn is not installed.
        UnknownTask: The split, type or task does not exist.
        UsageError: There are no such tasks, or the address is not available.
        EnvsuiteError: As the environment's own.
    """
    # Imported here, since other commands do not need Flask.
    from envsuite.papersearch.env import PaperSearchEnv
    from envsuite.papersearch.page.app import create_app, serve_page
    from envsuite.papersearch.page.visits import PageTasks

    env = make()
    if not isinstance(env, PaperSearchEnv):
        raise UsageError(f"the page plays {ENV_ID} of this package; here {ENV_ID} is a {type(env).__name__}")
    task_set = env.tasks if arguments.type is None else env.tasks.select([arguments.type])
    ids = task_set.ids(arguments.split)
    if not ids:
        splits = ", ".join(name for name, tasks in task_set.splits.items() if tasks)
        raise UsageError(f"split {arguments.split!r} of {ENV_ID} has no such task; give another: --split {splits}")
    if arguments.task is not None:
        env.tasks.split_of(arguments.task)
    horizon = horizon_of(ENV_ID) if arguments.steps is None else arguments.steps or None
    tasks = PageTasks(arguments.split, ids, arguments.task, arguments.seed, horizon)
    contents = f"{len(env.collection.corpus):,} papers, {len(ids):,} tasks"
    return serve_page(arguments, "The search for papers", contents, lambda hosts, port: create_app(env, tasks, hosts))
