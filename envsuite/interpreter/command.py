"""The command ``envsuite interpreter``."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from envsuite.core.errors import MissingExtra
from envsuite.interpreter.base import Limits
from envsuite.interpreter.registry import NAMES
from envsuite.remote.protocol import TOKEN_VARIABLE
from envsuite.remote.tokens import read_token


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    most = Limits()
    parser.add_argument("--interpreter", choices=NAMES, default="auto", help="the sandbox (default: %(default)s)")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen at (default: %(default)s, only this machine)"
    )
    parser.add_argument("--port", type=int, default=8080, help="(default: %(default)s; 0: any free one)")
    parser.add_argument(
        "--token-file", type=Path, help=f"file with the bearer token (default: ${TOKEN_VARIABLE}, or none)"
    )
    parser.add_argument("--max-sessions", type=int, default=1024, help="(default: %(default)s)")
    parser.add_argument(
        "--idle-seconds",
        type=float,
        default=900.0,
        help="seconds until an idle session is ended (default: %(default)g)",
    )
    parser.add_argument(
        "--seconds", type=float, default=30.0, help="most seconds that clients may give a call (default: %(default)g)"
    )
    parser.add_argument(
        "--memory",
        type=int,
        default=most.memory // 2**20,
        metavar="MIB",
        help="most memory that clients may give a session (default: %(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Serves until a signal ends it.

    Raises:
        EnvsuiteError: The server cannot start.
    """
    try:
        from envsuite.interpreter.server import Settings, serve
    except ImportError as error:
        raise MissingExtra(f"envsuite interpreter needs {error.name}: pip install 'envsuite[serve]'") from error
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    serve(
        Settings(
            interpreter=arguments.interpreter,
            host=arguments.host,
            port=arguments.port,
            token=read_token(arguments.token_file),
            limits=Limits(seconds=arguments.seconds, memory=arguments.memory * 2**20),
            max_sessions=arguments.max_sessions,
            idle_seconds=arguments.idle_seconds,
        )
    )
    return 0
