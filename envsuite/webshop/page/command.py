"""The command ``envsuite play webshop --browser``: serves the shop to a browser."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from envsuite.core.env import ToolEnv
from envsuite.core.errors import UsageError
from envsuite.webshop.catalogue import ENV_ID


def add_arguments(parser: argparse._ArgumentGroup) -> None:
    """Adds the options of the shop alone to the group ``parser`` of ``envsuite play``."""
    parser.add_argument(
        "--remote-images",
        action="store_true",
        help="let browsers fetch the products' own pictures from other servers; by default the shop draws pictures",
    )


def run(arguments: argparse.Namespace, make: Callable[[], ToolEnv]) -> int:
    """Serves the shop until Ctrl-C; returns the exit code.

    Args:
        arguments: The arguments of ``envsuite play``.
        make: Makes the environment.

    Raises:
        MissingExtra: Flask, uvicorn or rapidfuzz is not installed.
        DataError: The source has no shop.
        UnknownTask: The split or task does not exist.
        UsageError: The split has no task, or the address is not available.
    """
    # Imported here, since other commands need neither Flask nor rapidfuzz.
    from envsuite.webshop.env import WebShop
    from envsuite.webshop.page.app import create_app, serve_page
    from envsuite.webshop.page.customers import Customers

    def shop() -> WebShop:
        env = make()
        if not isinstance(env, WebShop):
            raise UsageError(f"the page plays {ENV_ID} of this package; here {ENV_ID} is a {type(env).__name__}")
        return env

    env = shop()
    ids = env.tasks.ids(arguments.split)
    if arguments.task is not None:
        env.tasks.split_of(arguments.task)
    if not ids:
        splits = ", ".join(name for name, task_ids in env.tasks.splits.items() if task_ids)
        raise UsageError(f"split {arguments.split!r} of {env.tasks.env_id} has no task; give another: --split {splits}")
    customers = Customers(shop, ids, arguments.task)
    contents = f"{len(env.catalogue):,} products, {len(ids):,} tasks"
    return serve_page(
        arguments,
        "The shop",
        contents,
        lambda hosts, port: create_app(env.catalogue, customers, f"webshop-{port}", hosts, arguments.remote_images),
    )
