"""Arguments of an environment on the command line."""

from __future__ import annotations

import argparse
from typing import Any

from envsuite.core.env import ToolEnv
from envsuite.core.errors import UsageError
from envsuite.core.naming import spec_of
from envsuite.core.settings import read_option
from envsuite.remote.making import make


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say where tasks come from, and how the environment is made."""
    parser.add_argument("--split", default="train", help="the split of the tasks (default: %(default)s)")
    parser.add_argument(
        "--source", help="source of the tasks: builtin, generated, official or a path (default: the environment's own)"
    )
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE",
        help="another argument of the environment, its value as JSON or as text; may be repeated",
    )  # fmt: skip


def options_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the arguments of the environment, besides its split."""
    options = dict(map(read_option, arguments.option))
    return options if arguments.source is None else {"source": arguments.source, **options}


def make_tool_env(env_id: str, **arguments: Any) -> ToolEnv:
    """Makes an environment, without a limit of steps.

    Raises:
        UnknownName: There is no such environment, or it has no such argument.
        UsageError: It is none of envsuite's, or does not take a value.
        EnvsuiteError: As the environment's own.
    """
    env = make(spec_of(env_id).id, **arguments)
    if not isinstance(env, ToolEnv):
        raise UsageError(f"{env_id} is a {type(env).__name__}, not a ToolEnv")
    return env
