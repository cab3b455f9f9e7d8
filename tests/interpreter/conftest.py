"""Interpreters for the tests, and what must hold after each of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sandboxes import QUICK, opened, processes
from waiting import until

from envsuite.interpreter import Interpreter, InterpreterSession


@pytest.fixture(params=["namespaces", "landlock"])
def sandbox(request: pytest.FixtureRequest) -> str:
    """The name of each sandbox of this machine."""
    name: str = request.param
    opened(name)
    return name


@pytest.fixture
def box(sandbox: str) -> Iterator[Interpreter]:
    """Each sandbox; whatever a test does in it, no process is left, and the next session is as if nothing had been."""
    interpreter = opened(sandbox)
    with interpreter.open() as session:
        session.run("1")  # starts what all sessions share, also where a test has killed it
    before = processes()
    yield interpreter
    until(lambda: processes() <= before, 20.0)
    with interpreter.open() as session:
        assert session.run("[n for n in dir() if n[0] != '_'], 6 * 7").stdout == "([], 42)\n"


@pytest.fixture
def session(box: Interpreter) -> Iterator[InterpreterSession]:
    """A session that must be usable after what a test does in it."""
    with box.open() as session:
        yield session
        assert session.run("print(6 * 7)").stdout == "42\n"


@pytest.fixture
def quick(box: Interpreter, sandbox: str) -> Iterator[InterpreterSession]:
    """As ``session``, with half a second for a call, which on a busy machine is too little for some."""
    with opened(sandbox, QUICK).open() as session:
        yield session
        assert any(session.run("print(6 * 7)").stdout == "42\n" for _ in range(3))
