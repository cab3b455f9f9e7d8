"""The command ``envsuite serve interpreter``."""

from __future__ import annotations

import argparse
import logging

from envsuite.core.errors import require_extra
from envsuite.core.escaping import log_to_stderr
from envsuite.interpreter.base import Limits
from envsuite.interpreter.registry import NAMES
from envsuite.remote.arguments import add_server_arguments
from envsuite.remote.tokens import read_token


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    memory = Limits().memory // 2**20
    parser.add_argument("--interpreter", choices=NAMES, default="auto", help="the sandbox (default: %(default)s)")
    add_server_arguments(parser, port=8080, sessions=1024)
    parser.add_argument("--seconds", type=float, default=30.0, help="longest call, in seconds (default: %(default)g)")
    parser.add_argument(
        "--memory", type=int, default=memory, metavar="MIB", help="most memory of a session (default: %(default)s)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Serves until a signal ends it.

    Raises:
        EnvsuiteError: The server cannot start.
    """
    with require_extra("envsuite serve interpreter needs Flask and uvicorn", "serve"):
        from envsuite.interpreter.server import InterpreterSettings, serve
    log_to_stderr(logging.INFO, "%(asctime)s %(name)s %(message)s")
    settings = InterpreterSettings(
        interpreter=arguments.interpreter,
        host=arguments.host,
        port=arguments.port,
        token=read_token(arguments.token_file),
        limits=Limits(seconds=arguments.seconds, memory=arguments.memory * 2**20),
        max_sessions=arguments.max_sessions,
        idle_seconds=arguments.idle_seconds,
    )
    serve(settings)
    return 0
