"""The command ``envsuite play``: a person plays an environment."""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from envsuite.core.errors import UsageError, require_extra
from envsuite.core.naming import spec_of
from envsuite.core.registration import ENVIRONMENTS
from envsuite.evaluation.demonstrations.arguments import add_arguments as add_env_arguments
from envsuite.evaluation.demonstrations.arguments import options_of
from envsuite.play.session import PlaySession
from envsuite.remote.making import horizon_of, make
from envsuite.remote.pages import address

EXAMPLES = """examples:
  envsuite play TextCraft-v0
  envsuite play sokoban --split test --steps 0
  envsuite play pythonmath --type lattice-2 --save mine.jsonl
  envsuite play ALFWorld-v0 --url http://127.0.0.1:8080
  envsuite play webshop --browser
  envsuite play papersearch --browser --source vis.corpus --split test --task q-17 --port 0
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    names = "an environment by its name: sokoban, FILE.py, PACKAGE/NAME, an id of `envsuite envs list`"
    parser.add_argument("env", metavar="ENV", help=names)
    parser.add_argument("--task", metavar="ID", help="the first task; `envsuite envs tasks ENV` lists them")
    parser.add_argument("--type", help="only tasks of this type, e.g. depth-3")
    parser.add_argument("--seed", type=int, help="begin with a random task, which the seed chooses")
    parser.add_argument("--steps", type=_steps, help="most steps of an episode, 0: any number (default: as for agents)")
    parser.add_argument("--url", help="address of an `envsuite serve http` that plays the environment")
    parser.add_argument("--save", type=Path, metavar="FILE", help="add solved episodes to this file of demonstrations")
    parser.add_argument("--light", action="store_true", help="colours for a terminal with a light background")
    add_env_arguments(parser)
    group = parser.add_argument_group("pages in a browser")
    pages = _pages()
    browser = f"serve a page to a browser instead; there is one of {', '.join(pages)}"
    group.add_argument("--browser", action="store_true", help=browser)
    address.add_arguments(group)
    for page in pages.values():
        page.add_arguments(group)


def _pages() -> dict[str, ModuleType]:
    """Returns the page of each environment that has one."""
    return {spec.id: import_module(spec.page) for spec in ENVIRONMENTS.values() if spec.page}


def run(arguments: argparse.Namespace) -> int:
    """Plays until the person quits; returns the exit code.

    Raises:
        UnknownName: The environment, split, task, type or an argument does not exist.
        UsageError: The split has no task, or there is no terminal.
        MissingExtra: Textual, or a package of the environment, is not installed.
        WorkerLost: The server does not answer.
        EnvsuiteError: As the environment's own.
    """
    env_id = spec_of(arguments.env).id
    if arguments.browser:
        return _in_browser(env_id, arguments)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("play needs a terminal; run it in one, without pipes")
    with require_extra("`envsuite play` needs Textual", "play"):
        from envsuite.play.app import Play
    with ThreadPoolExecutor(1, "environment") as thread:  # environments are used in one thread
        session = thread.submit(_session, env_id, arguments).result()
        try:
            Play(session, thread, arguments.light).run()
        finally:
            thread.submit(session.env.close).result()
    where = f", {len(session.saved)} saved" if session.saved else ""
    sys.stdout.write(f"{len(session.solved)} of {len(session.seen)} tasks solved{where}\n")
    return 0


def _in_browser(env_id: str, arguments: argparse.Namespace) -> int:
    """Serves the page of an environment until Ctrl-C; returns the exit code."""
    pages = _pages()
    if env_id not in pages:
        names = " and ".join(pages)
        raise UsageError(f"--browser opens the pages of {names}; {env_id} is played in a terminal, without it")
    for option, value in (("--url", arguments.url), ("--save", arguments.save)):
        if value is not None:
            raise UsageError(f"{option} is for play in a terminal, without --browser")
    options = options_of(arguments)
    return int(pages[env_id].run(arguments, lambda: make(env_id, **options, split=arguments.split)))


def _steps(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of steps; give 1 or more, or 0 for no limit")
    return int(text)


def _session(env_id: str, arguments: argparse.Namespace) -> PlaySession:
    """Makes the environment, and begins the first episode."""
    options = options_of(arguments)
    where: dict[str, Any] = {} if arguments.url is None else {"url": arguments.url}
    env = make(env_id, **options, **where, split=arguments.split)
    try:
        horizon = horizon_of(env_id, options) if arguments.steps is None else arguments.steps or None
        seed, save = arguments.seed or 0, arguments.save
        session = PlaySession(env, arguments.split, arguments.type, horizon, seed, options, save)
        if arguments.task is not None or arguments.seed is None:
            session.start(arguments.task)
        else:
            session.random()
    except BaseException:
        env.close()
        raise
    return session
