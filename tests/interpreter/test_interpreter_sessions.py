"""What a session promises to code that means no harm, and to code that is none."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sandboxes import LIMITS, opened, processes
from waiting import until

from envsuite.core.errors import UsageError, WorkerLost
from envsuite.interpreter import (
    CodeResult,
    InterpreterSession,
    Limits,
    open_interpreter,
    registry,
)
from envsuite.interpreter.inside.output import Output
from envsuite.interpreter.local import StartFailed, Zygote


def test_what_a_call_defines_later_calls_see(session):
    assert session.run("x = 20\nimport math\ndef f(n): return n * x") == CodeResult("", "")
    assert session.run("f(math.floor(2.5))").stdout == "40\n"
    assert session.run("_ + 2").stdout == "42\n"


def test_the_value_of_a_last_expression_is_printed_unless_it_is_none(session):
    assert session.run("1; 2\n'3'").stdout == "'3'\n"
    for code in ("None", "x = 3", "if True:\n    4", "", "# nothing"):
        assert session.run(code).stdout == ""


def test_numpy_and_sympy_are_there(session):
    for code, shown in (
        ("import numpy as np\nnp.linalg.det(np.eye(3))", "np.float64(1.0)"),
        ("from sympy import *\nx = symbols('x')\nsolve(x**2 - 2, x)", "[-sqrt(2), sqrt(2)]"),
        ("integrate(exp(-x**2), (x, -oo, oo)), factorint(2**32 + 1)", "(sqrt(pi), {641: 1, 6700417: 1})"),
    ):
        assert session.run(code).stdout == f"{shown}\n"


def test_the_usual_parts_of_the_standard_library_run(session, sandbox):
    code = "import {0}\n{0}.__name__"
    names = "decimal statistics heapq bisect string textwrap datetime typing dataclasses enum copy operator time pprint"
    for name in f"{names} hashlib sqlite3 multiprocessing zlib csv queue contextlib io os pathlib tempfile".split():
        assert session.run(code.format(name)).stdout == f"'{name}'\n"
    for pool in ("multiprocessing.Pool", "concurrent.futures.ThreadPoolExecutor") if sandbox == "namespaces" else ():
        code = f"import multiprocessing, concurrent.futures\nwith {pool}(2) as p: print(list(p.map(abs, [-1, 2])))"
        assert session.run(code).stdout == "[1, 2]\n"


def test_a_traceback_has_the_code_s_own_lines_and_nothing_of_the_machine(session):
    session.run("def f(n):\n    return 1 / n")
    assert session.run("import sympy\ntry:\n    f(0)\nexcept Exception as e:\n    sympy.Integer('a')").stderr == (
        'Traceback (most recent call last):\n  File "<cell 2>", line 3, in <module>\n    f(0)\n'
        '  File "<cell 1>", line 2, in f\n    return 1 / n\n            ~~^~~\nZeroDivisionError: division by zero\n\n'
        "During handling of the above exception, another exception occurred:\n\n"
        "Traceback (most recent call last):\n  File \"<cell 2>\", line 5, in <module>\n    sympy.Integer('a')\n"
        "ValueError: invalid literal for int() with base 10: 'a'\n"
    )


def test_what_was_printed_before_an_error_is_kept_in_its_order(session):
    result = session.run("import sys\nprint('a')\nprint('b', file=sys.stderr)\nraise ValueError('c')")
    assert (result.stdout, result.status) == ("a\n", "error")
    assert result.stderr.startswith("b\nTraceback") and result.stderr.endswith("ValueError: c\n")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("x = ", "SyntaxError"),
        ("  x", "IndentationError"),
        ("print('a", "SyntaxError"),
        ("\0", "null bytes"),
        ("x = 1\0", "null bytes"),
        ("'\ud800", "surrogate"),
        ("\udcff", "surrogate"),
        ("(" * 100_000, "SyntaxError"),
        ("-" * 100_000 + "1", "SyntaxError"),
        ("[" * 150 + "]" * 150 + "x", "SyntaxError"),
        ("return", "SyntaxError"),
        ("await f()", "SyntaxError"),
        ("x" * 2**20 + "y", "at most 1,048,576"),
        ("raise Exception('\\ud800')", "Exception: \\ud800"),
        ("raise type('E', (BaseException,), {'__str__': lambda s: exit()})", "E: <exception str() failed>"),
        ("class M(type):\n    __name__ = property(lambda s: 1 / 0)\nclass E(Exception, metaclass=M): 0\nraise E", "E"),
        ("raise ExceptionGroup('g', [ValueError('v')])", "ValueError: v"),
        ("e = ValueError()\ne.__context__ = e\ne.__cause__ = e\nraise e", "ValueError"),
        ("1 / 0 if (x := 1) else 0", "ZeroDivisionError"),
    ],
)
def test_code_that_is_none_is_answered_as_an_error(session, code, kind):
    result = session.run(code)
    assert result.status == "error" and kind in result.stderr, result
    assert "/" not in result.stderr.replace("1 / 0", ""), "no path of the machine"


def test_output_that_is_no_text_is_made_some(session):
    result = session.run(
        "import sys\nsys.stdout.buffer.write(b'a\\xffb\\xc3')\nsys.stderr.buffer.write(b'\\x00\\xfe')\nNone"
    )
    assert (result.stdout, result.stderr) == ("a�b�", "\0�")
    assert session.run("print('\\ud800')").stdout == "\\ud800\n"


def test_output_is_cut_in_the_middle_which_is_said_there(session):
    result = session.run("for n in range(10**5): print(n)")
    assert len(result.stdout) == 2000
    assert result.stdout.startswith("0\n1\n2\n") and result.stdout.endswith("99998\n99999\n")
    assert "characters left out" in result.stdout
    long = session.run("raise ValueError('x' * 10**6)")
    assert len(long.stderr) == 2000 and long.stderr.startswith("Traceback") and long.stderr.endswith("xxx\n")
    lost = session.run("import sys, os\nprint('x' * 10**6, file=sys.stderr)\nos._exit(1)")
    assert len(lost.stderr) <= 2000 and "died" in lost.stderr and "left out" in lost.stderr


@given(st.lists(st.binary(max_size=30), max_size=20), st.integers(0, 120), st.integers(0, 40))
def test_output_within_the_limit_is_whole_and_other_output_is_its_ends(parts, limit, spare):
    output = Output(limit)
    for part in parts:
        output.feed(part)
    output.feed(b"", final=True)
    text = b"".join(parts).decode("utf-8", "replace")
    shown = output.text(spare)
    if len(text) <= limit - spare:
        assert shown == text
    elif limit - spare > 60:
        head, _, tail = shown.partition("\n… ")
        assert len(shown) <= limit - spare
        assert text.startswith(head) and text.endswith(tail.partition(" …\n")[2])


def test_large_integers_are_printed_within_limits_and_a_megabyte_of_code_is_run(session):
    assert session.run("len(str(2**100_000))").stdout == "30103\n"
    assert session.run(f"x = '{'é€𝄞' * 349_000}'\nlen(x)").stdout == "1047000\n"
    result = session.run("2**100_000")
    assert len(result.stdout) == 2000 and "left out" in result.stdout


def test_stdin_is_empty(session):
    assert "EOFError" in session.run("input()").stderr
    assert session.run("import sys\nsys.stdin.read()").stdout == "''\n"


SAME = """
import random, os, time, sys, numpy, sympy
import sympy.core.random
print(random.random(), numpy.random.rand(), sympy.core.random.random())
print(hash('a'), {'b', 'a', 'c'}, {object() for _ in '123'})
print(object(), time.tzname, time.localtime(0).tm_hour, sorted(os.environ), sys.argv, __name__, sorted(dir()))
print(os.getcwd(), sys.flags, sys.getrecursionlimit(), os.getpgid(0) == os.getpid())
def f(x): return f(x)
f(f)
"""


@pytest.mark.seconds
def test_the_same_code_gives_the_same_result_in_two_processes_and_in_each_session(sandbox):
    program = (
        "import sys\nfrom envsuite.interpreter import Limits, open_interpreter\n"
        "for _ in range(2):\n    with open_interpreter(sys.argv[1]).open() as s: print(ascii(s.run(sys.argv[2])))"
    )
    told = set()
    for _ in range(2):
        run = subprocess.run(
            [sys.executable, "-c", program, sandbox, SAME], capture_output=True, text=True, check=True, cwd="/"
        )
        told |= set(run.stdout.splitlines())
    assert len(told) == 1
    assert "Traceback" in told.pop()


def test_a_session_ends_when_it_is_closed_and_not_before(box):
    session = box.open()
    session.run("x = 1")
    session.close()
    session.close()
    with pytest.raises(UsageError, match="closed"):
        session.run("x")


def test_a_call_under_way_ends_when_its_session_is_closed(box):
    session = box.open()
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(session.run, "import time\ntime.sleep(4)")
        time.sleep(0.2)
        session.close()
        with pytest.raises(UsageError):
            call.result(3.0)


def test_many_sessions_run_at_once_from_many_threads(box):
    def play(number: int) -> str:
        with box.open() as session:
            session.run(f"x = {number}")
            return session.run("x * x").stdout

    with ThreadPoolExecutor(24) as pool:
        assert list(pool.map(play, range(24))) == [f"{number * number}\n" for number in range(24)]


@pytest.mark.seconds
def test_interpreters_are_shared_by_name_and_limits_and_end_with_the_process(sandbox):
    assert open_interpreter(sandbox, LIMITS) is open_interpreter(sandbox, LIMITS)
    assert open_interpreter(sandbox, Limits(seconds=1.0)) is not open_interpreter(sandbox, LIMITS)
    program = (
        "import os, sys, time\nfrom envsuite.interpreter import open_interpreter\n"
        "s = open_interpreter(sys.argv[1]).open()\ns.run('import os\\nos.fork()')\nprint(os.getpid(), flush=True)\n"
        "os.kill(os.getpid(), int(sys.argv[2])) if sys.argv[2] != '0' else None"
    )
    for number in ("0", "9"):
        run = subprocess.run([sys.executable, "-c", program, sandbox, number], capture_output=True, text=True, cwd="/")
        until(lambda run=run: not processes(int(run.stdout)), 10.0)


@pytest.mark.seconds
def test_a_sandbox_that_was_killed_is_an_error_and_the_next_session_starts_another(sandbox):
    box = opened(sandbox)
    session = box.open()
    for process in processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    with pytest.raises(WorkerLost, match="lost"):
        session.run("1")
    assert session.run("1").stdout == "1\n"
    session.close()


def test_unknown_names_and_limits_out_of_range_are_refused_with_what_there_is():
    with pytest.raises(KeyError, match="Nearest: 'namespaces'"):
        open_interpreter("namespace")
    limits: list[tuple[str, Any]] = [("seconds", 0), ("seconds", float("nan")), ("memory", 10), ("processes", 0)]
    for name, wrong in (*limits, ("disk", 1), ("output", 0)):
        with pytest.raises(UsageError, match=name):
            Limits(**{name: wrong})


def test_where_one_sandbox_does_not_work_the_next_is_taken_and_where_none_does_it_is_refused(monkeypatch):
    monkeypatch.setattr(registry, "_FAILED", {"namespaces": "not permitted"})
    limits = Limits(seconds=1.25)
    opened("landlock")
    assert open_interpreter("auto", limits).name == "landlock"
    monkeypatch.setattr(registry, "_FAILED", {"namespaces": "not permitted", "landlock": "not there"})
    with pytest.raises(UsageError, match=r"namespaces: not permitted; landlock: not there.*sysctl.*'unisolated'"):
        open_interpreter("auto", Limits(seconds=1.5))
    with pytest.raises(UsageError, match=r"'namespaces' does not work on this machine: not permitted.*compose"):
        open_interpreter("namespaces", Limits(seconds=1.5))


def test_a_sandbox_is_tried_before_it_is_used():
    with contextlib.closing(Zygote("unisolated")) as zygote:
        with pytest.raises(StartFailed, match=r"must not: \[.*'open sockets', 'read /etc/passwd'"):
            registry._try(zygote)


def test_who_names_it_gets_an_interpreter_without_isolation_and_nobody_else():
    assert open_interpreter("auto").name in ("namespaces", "landlock")
    box = open_interpreter("unisolated", LIMITS)
    assert "may do whatever this user may" in box.isolation[0]
    with box.open() as session:
        assert session.run("x = 41\nx + 1").stdout == "42\n"
        assert session.run("import os\nos._exit(1)").status == "died"
        assert "NameError" in session.run("x").stderr
        assert session.run("open('f', 'w').write('x')\nimport os\nos.listdir()").stdout.endswith("['f']\n")


@cache
def small() -> InterpreterSession:
    return opened("auto", Limits(seconds=1.0, memory=64 * 2**20, output=500)).open()


@settings(max_examples=30)
@given(
    st.one_of(
        st.text(max_size=200),
        st.text(st.sampled_from("()[]{}:=+-*/,.'\"\\\n\t 01xif"), max_size=80),
        st.binary(max_size=200).map(lambda b: f"import os\nos.write(1, {b!r})\nos.write(2, {b!r})"),
        st.binary(max_size=100).map(lambda b: f"import os\nos.write(127, {b!r})"),
        st.builds("{}({})".format, st.sampled_from(["int", "str", "list", "range", "bytes"]), st.integers()),
    )
)
def test_whatever_is_run_ends_as_a_result(code):
    result = small().run(code)
    assert isinstance(result, CodeResult)
    assert result.status in ("ok", "error", "timeout", "memory", "died")
    assert len(result.stdout) <= 500 and len(result.stderr) <= 500
    result.stdout.encode() + result.stderr.encode()
