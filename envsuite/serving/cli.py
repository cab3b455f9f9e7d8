"""The command ``envsuite serve http``."""

from __future__ import annotations

import argparse
import logging
import os
from pathlib import Path

from envsuite.core.errors import require_extra
from envsuite.core.escaping import log_to_stderr
from envsuite.core.naming import resolve_id
from envsuite.core.registration import ENVIRONMENTS
from envsuite.remote.arguments import add_server_arguments
from envsuite.remote.tokens import read_token
from envsuite.retrieval.servers import JsonServer

EXAMPLES = """examples:
  envsuite serve http TextCraft-v0
  envsuite serve http TextCraft-v0 ALFWorld-v0 --port 9000 --workers 4
  ENVSUITE_TOKEN=$(openssl rand -hex 32) envsuite serve http --host 0.0.0.0

  python -c 'import gymnasium, envsuite; env = gymnasium.make("TextCraft-v0", url="http://127.0.0.1:8080")'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("environments", nargs="*", metavar="ENV", help="ids to offer (default: all)")
    add_server_arguments(parser, port=8080, sessions=4096)
    parser.add_argument(
        "--workers",
        type=int,
        default=max(1, (os.cpu_count() or 1) - 1),
        help="processes that play the environments which need CPU (default: %(default)s); 0: none, the HTTP process "
        "plays all, and cannot end a call that hangs",
    )
    parser.add_argument(
        "--deadline", type=float, default=60.0, help="seconds that a call may take (default: %(default)g)"
    )
    parser.add_argument(
        "--source-folder",
        type=Path,
        action="append",
        default=[],
        help="let clients choose a path below this folder as source, or in a search; may be repeated (default: none)",
    )
    parser.add_argument(
        "--search-server",
        action="append",
        default=[],
        metavar="URL",
        help="let clients name this server in a search, as search-r1; may be repeated (default: none)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Serves until a signal ends it.

    Raises:
        EnvsuiteError: The server cannot start.
    """
    with require_extra("envsuite serve http needs Flask and uvicorn", "serve"):
        from envsuite.serving.server import serve
        from envsuite.serving.settings import ServerSettings
    log_to_stderr(logging.INFO, "%(asctime)s %(name)s %(message)s")
    settings = ServerSettings(
        environments=tuple(map(resolve_id, arguments.environments or ENVIRONMENTS)),
        host=arguments.host,
        port=arguments.port,
        workers=arguments.workers,
        token=read_token(arguments.token_file),
        max_sessions=arguments.max_sessions,
        idle_seconds=arguments.idle_seconds,
        deadline=arguments.deadline,
        source_folders=tuple(arguments.source_folder),
        search_servers=tuple(JsonServer(url).url for url in arguments.search_server),
    )
    serve(settings)
    return 0
