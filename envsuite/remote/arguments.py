"""Arguments that the commands of all servers share."""

from __future__ import annotations

import argparse
from pathlib import Path

from envsuite.remote.protocol import TOKEN_VARIABLE


def add_server_arguments(parser: argparse.ArgumentParser, port: int, sessions: int, idle: str = "session") -> None:
    """Adds address, token file and limits of sessions.

    Args:
        parser: The command's parser.
        port: Default of the port.
        sessions: Default of the most sessions.
        idle: What is ended when it has had no calls for a while, for the help.
    """
    host = "address to listen at (default: %(default)s, only this machine)"
    token = f"file with the bearer token (default: ${TOKEN_VARIABLE}, or none)"
    seconds = f"seconds until an idle {idle} is closed (default: %(default)g)"
    parser.add_argument("--host", default="127.0.0.1", help=host)
    parser.add_argument("--port", type=int, default=port, help="(default: %(default)s; 0: any free one)")
    parser.add_argument("--token-file", type=Path, help=token)
    parser.add_argument("--max-sessions", type=int, default=sessions, help="(default: %(default)s)")
    parser.add_argument("--idle-seconds", type=float, default=900.0, help=seconds)
