"""Measure interpreters: calls and sessions per second, and many sessions at once: ``python -m benchmarks.interpreter``.

    python -m benchmarks.interpreter [--interpreters namespaces landlock server] [--sessions 200]

*cold* is the first session of a process, with the start of everything; *open* is a further session with its first call
and its end. *at once* are sessions that exist together, each with a state of its own, called in turns by twice as many
threads as there are processors. Memory is the sum of the proportional shares (PSS) of all processes of the interpreter,
as the kernel tells them, less that of an interpreter without sessions, per session.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil

from envsuite.interpreter import Interpreter, InterpreterSession, open_interpreter
from envsuite.interpreter.base import Limits
from envsuite.interpreter.registry import close_interpreters
from envsuite.interpreter.server import InterpreterSettings, serving

SECONDS = 3.0
"""Seconds of each measurement."""
LIMITS = Limits(seconds=30.0)
CALLS = {
    "1 + 1": "1 + 1",
    "numpy": "import numpy\nnumpy.linalg.inv(numpy.eye(20) * 2).trace()",
    "sympy": "import sympy\nx = sympy.Symbol('x')\nsympy.solve(x**2 - 3 * x + 2, x)",
}


def report(what: str, figure: str) -> None:
    """Print one figure."""
    sys.stdout.write(f"  {what:42} {figure}\n")
    sys.stdout.flush()


def rate(call: Callable[[], object]) -> float:
    """How often ``call`` runs in a second."""
    call()
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        call()
        count += 1
    return count / (time.perf_counter() - began)


def memory() -> int:
    """Bytes of all processes that this one has started."""
    total = 0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            total += process.memory_full_info().pss
    return total


@contextlib.contextmanager
def opened(name: str) -> Iterator[Interpreter]:
    """The interpreter of that name; ``server`` is one in this process that uses the best sandbox."""
    if name == "server":
        with serving(InterpreterSettings(port=0, limits=LIMITS)) as running:
            yield open_interpreter(running.url, LIMITS)
    else:
        yield open_interpreter(name, LIMITS)
    close_interpreters()


def once(interpreter: Interpreter) -> None:
    """A session with one call."""
    with interpreter.open() as session:
        session.run("1 + 1")


def crowd(interpreter: Interpreter, sessions: int) -> None:
    """Open ``sessions`` of them, call each twice, and close them."""
    before = memory()
    began = time.perf_counter()
    with ThreadPoolExecutor(2 * (os.cpu_count() or 1)) as threads:
        held: list[InterpreterSession] = list(threads.map(lambda _: interpreter.open(), range(sessions)))
        report(f"{sessions} sessions at once: opened in", f"{time.perf_counter() - began:.2f} s")
        list(threads.map(lambda pair: pair[1].run(f"x = {pair[0]}"), enumerate(held)))
        began = time.perf_counter()
        answers = list(threads.map(lambda session: session.run("x").stdout, held))
        assert answers == [f"{number}\n" for number in range(sessions)]
        report("  calls of all", f"{sessions / (time.perf_counter() - began):,.0f}/s")
        report("  memory per session", f"{(memory() - before) / sessions / 2**20:.2f} MiB")
        list(threads.map(lambda session: session.run(CALLS["sympy"]), held))
        report("  memory per session after sympy", f"{(memory() - before) / sessions / 2**20:.2f} MiB")
        began = time.perf_counter()
        list(threads.map(lambda session: session.close(), held))
        report("  closed in", f"{time.perf_counter() - began:.2f} s")


def main() -> int:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--interpreters", nargs="+", default=["namespaces", "landlock", "server"])
    parser.add_argument("--sessions", type=int, default=200)
    arguments = parser.parse_args()
    for name in arguments.interpreters:
        sys.stdout.write(f"{name}\n")
        began = time.perf_counter()
        with opened(name) as interpreter:
            once(interpreter)
            report("cold: first session", f"{time.perf_counter() - began:.2f} s")
            report("memory without sessions", f"{memory() / 2**20:.0f} MiB")
            report("open: session, call, end", f"{rate(lambda: once(interpreter)):.0f}/s")
            with interpreter.open() as session:
                for what, code in CALLS.items():
                    report(f"warm: {what}", f"{rate(lambda: session.run(code)):,.0f} calls/s")  # noqa: B023
            crowd(interpreter, arguments.sessions)
    return 0


if __name__ == "__main__":
    sys.exit(main())
