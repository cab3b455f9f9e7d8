"""Interpreters for the tests, and what must hold after each of them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import psutil
import pytest
from waiting import until

from envsuite.core.errors import UsageError
from envsuite.interpreter import Interpreter, Limits, Session, open_interpreter

LIMITS = Limits(seconds=5.0, memory=128 * 2**20, processes=8, disk=2**20, output=2000)
QUICK = Limits(seconds=0.5, memory=128 * 2**20, processes=8, disk=2**20, output=2000)
"""For code that never ends by itself."""


def opened(name: str, limits: Limits = LIMITS) -> Interpreter:
    """The interpreter of that name, or a skipped test where this machine cannot have it."""
    try:
        return open_interpreter(name, limits)
    except UsageError as error:
        pytest.skip(str(error))


def processes(parent: int | None = None) -> set[int]:
    """All processes of interpreters of a process: a fork has the command line of what it was forked from."""
    mark = f'"parent": {parent or os.getpid()}'
    found = set()
    for process in psutil.process_iter(["cmdline", "status"]):
        if process.info["status"] != psutil.STATUS_ZOMBIE and any(
            mark in word for word in process.info["cmdline"] or []
        ):
            found.add(process.pid)
    return found


@pytest.fixture(params=["namespaces", "landlock"])
def sandbox(request: pytest.FixtureRequest) -> str:
    """The name of each sandbox of this machine."""
    name: str = request.param
    opened(name)
    return name


@pytest.fixture
def box(sandbox: str) -> Iterator[Interpreter]:
    """Each sandbox; whatever a test does in it, no process is left, and the next session is as if nothing had been."""
    before = processes()
    interpreter = opened(sandbox)
    yield interpreter
    until(lambda: processes() <= before, 20.0)
    with interpreter.open() as session:
        assert session.run("[n for n in dir() if n[0] != '_'], 6 * 7").stdout == "([], 42)\n"


@pytest.fixture
def session(box: Interpreter) -> Iterator[Session]:
    """A session that must be usable after what a test does in it."""
    with box.open() as session:
        yield session
        assert session.run("print(6 * 7)").stdout == "42\n"


@pytest.fixture
def quick(box: Interpreter, sandbox: str) -> Iterator[Session]:
    """As ``session``, with half a second for a call."""
    with opened(sandbox, QUICK).open() as session:
        yield session
        assert session.run("print(6 * 7)").stdout == "42\n"
