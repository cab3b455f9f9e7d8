"""The command ``envsuite serve bridge``."""

from __future__ import annotations

import argparse
import logging

from envsuite.core.errors import UsageError, require_extra
from envsuite.core.escaping import log_to_stderr
from envsuite.core.naming import resolve_id
from envsuite.core.registration import ENVIRONMENTS
from envsuite.remote.arguments import add_server_arguments
from envsuite.remote.tokens import read_token

EXAMPLES = """examples:
  envsuite serve bridge TextCraft-v0
  envsuite serve bridge ALFWorld-v0 WebShop-v0 --url http://server:8080 --port 9000
  envsuite serve bridge TextCraft-v0 --stdio
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("environments", nargs="*", metavar="ENV", help="ids to offer (default: all)")
    add_server_arguments(parser, port=8000, sessions=256, idle="environment")
    parser.add_argument(
        "--url",
        action="append",
        default=[],
        help="address of an `envsuite serve http` that plays them; may be repeated (default: none, play here)",
    )
    parser.add_argument(
        "--stdio", action="store_true", help="speak MCP on stdin and stdout, for one client and one environment"
    )


def run(arguments: argparse.Namespace) -> int:
    """Serves until a signal or, over stdin and stdout, the client ends it.

    Raises:
        EnvsuiteError: The bridge cannot start.
    """
    with require_extra("envsuite serve bridge needs mcp, starlette and uvicorn", "bridges"):
        from envsuite.serving.bridges import mcp, server
    from envsuite.serving.bridges.players import offer
    from envsuite.serving.bridges.settings import BridgeSettings

    log_to_stderr(logging.INFO, "%(asctime)s %(name)s %(message)s")
    for name in ("mcp", "uvicorn"):
        logging.getLogger(name).setLevel(logging.ERROR)
    settings = BridgeSettings(
        environments=tuple(map(resolve_id, arguments.environments or ENVIRONMENTS)),
        urls=tuple(arguments.url),
        host=arguments.host,
        port=arguments.port,
        token=read_token(arguments.token_file),
        max_sessions=arguments.max_sessions,
        idle_seconds=arguments.idle_seconds,
    )
    if not arguments.stdio:
        server.bridge(settings)
        return 0
    if len(settings.environments) != 1:
        raise UsageError("--stdio plays one environment: name one, e.g. envsuite serve bridge TextCraft-v0 --stdio")
    mcp.stdio(offer(settings.environments[0], settings.urls))
    return 0
