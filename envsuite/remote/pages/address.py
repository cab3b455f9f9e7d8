"""Options of the command line for the address of a page."""

from __future__ import annotations

import argparse

HOST = "127.0.0.1"
PORT = 8765


def add_arguments(parser: argparse._ArgumentGroup) -> None:
    """Adds the options ``--host`` and ``--port``."""
    parser.add_argument("--host", default=HOST, help=f"the address to listen at (default: {HOST}, this machine only)")
    parser.add_argument("--port", type=_port, default=PORT, help=f"port, 0 for any free one (default: {PORT})")


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; ports are 0 to 65535")
    return int(text)
