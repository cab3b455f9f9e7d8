"""The process in which the code of a session runs. Nothing that it says is trusted."""

from __future__ import annotations

import ast
import builtins
import linecache
import os
import resource
import signal
import struct
import sys
import traceback
import types
from io import TextIOWrapper
from typing import Any

FILES = 128
"""Files that a process of a session may have open."""
CONTROL, SPARE_OUT, SPARE_ERR = FILES - 1, FILES - 2, FILES - 3
"""Descriptors of the socket to the guard, and of copies of stdout and stderr."""
OK, ERROR, MEMORY = 0, 1, 2
NO_MEMORY = 86
"""Exit code of a session that has not even the memory to say so."""
RESERVE = 32 * 2**20
"""Bytes of addresses beyond the limit, for telling that it was reached."""
ANSWER = struct.Struct("<QB")
"""Number and status of a call."""
REQUEST = struct.Struct("<QQ")
"""Number of a call, and bytes of its code, which follow."""
_RECURSION = 1000


def arrange(control: int, out: int, err: int) -> None:
    """Puts the session's files at their descriptors, and closes all others."""
    for source, target in ((control, CONTROL), (out, SPARE_OUT), (err, SPARE_ERR)):
        os.dup2(source, target, inheritable=False)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (SPARE_OUT, 1), (SPARE_ERR, 2)):
        os.dup2(source, target)
    os.closerange(3, SPARE_ERR)
    os.closerange(FILES, 4096)


class CellRunner:
    """Runs one call after the other in one namespace.

    Code may have changed everything in this process. What is needed between calls is therefore held here, and not
    looked up: a call that breaks the process is answered as its end.
    """

    def __init__(self) -> None:
        for name in [name for name in sys.modules if name.partition(".")[0] == "envsuite"]:
            del sys.modules[name]
        self.module = types.ModuleType("__main__")
        sys.modules["__main__"] = self.module
        self.space: dict[str, Any] = vars(self.module)
        self.space["__builtins__"] = builtins
        self.cells = 0
        self.process = os.getpid()
        self.restore, self.standard = vars(builtins).update, dict(vars(builtins))
        self.stdout, self.stderr = _stream(1), _stream(2)

    def serve(self) -> None:
        """Answers requests until the guard ends the process."""
        read, write, getpid, leave = os.read, os.write, os.getpid, os._exit
        pack, unpack = ANSWER.pack, REQUEST.unpack
        write(CONTROL, pack(0, OK))
        while True:
            number, size = unpack(self._exactly(read, REQUEST.size))
            code = self._exactly(read, size).decode("utf-8", "surrogatepass")
            status = self._run(code)
            if getpid() != self.process:  # a copy that the code has made of this process
                leave(0)
            write(CONTROL, pack(number, status))

    def _exactly(self, read: Any, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            part = read(CONTROL, size - len(parts))
            if not part:
                os._exit(0)
            parts += part
        return bytes(parts)

    def _run(self, code: str) -> int:
        """Runs ``code`` as the next cell; whatever it raises is printed."""
        self._reset_streams()
        self.cells += 1
        name = f"<cell {self.cells}>"
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        try:
            try:
                first, last = _compile_cell(code, name)
            except MemoryError as error:  # the parser's, for code that is nested too deeply
                raise SyntaxError(f"too long or too deeply nested to be compiled. {error}") from None
            try:
                exec(first, self.space)
                value = eval(last, self.space) if last is not None else None
            finally:
                self.restore(self.standard)
            if value is not None:
                self.space["_"] = value
                sys.stdout.write(f"{value!r}\n")
            self._flush()
            return OK
        except BaseException as error:  # whatever the code raises, SystemExit and KeyboardInterrupt too, is its result
            self.restore(self.standard)
            return self._print_error(error)
        finally:
            self.restore(self.standard)
            sys.settrace(None)
            sys.setprofile(None)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            sys.setrecursionlimit(max(_RECURSION, sys.getrecursionlimit()))

    def _print_error(self, error: BaseException) -> int:
        """Prints what was raised; returns the status."""
        status = ERROR
        if isinstance(error, MemoryError):
            status = MEMORY
            _, most = resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
        try:
            self._flush()
            if isinstance(error, SystemExit):
                if error.code is None or error.code == 0:
                    return OK
                text = f"SystemExit: {error.code}\n"
            else:
                text = "".join(_of_cells(traceback.TracebackException.from_exception(error)).format())
            self._reset_streams()
            self.stderr.write(text)
            self.stderr.flush()
        except BaseException as another:  # the error is of a class of the code, whose own text may fail in any way
            os.write(2, f"{type(error).__name__}, which could not be printed: {type(another).__name__}\n".encode())
        return status

    def _flush(self) -> None:
        for stream in (self.stdout, self.stderr):
            if not stream.closed:
                stream.flush()

    def _reset_streams(self) -> None:
        """Makes stdout and stderr those of the session again, whatever the code has closed or replaced."""
        os.dup2(SPARE_OUT, 1)
        os.dup2(SPARE_ERR, 2)
        if self.stdout.closed:
            self.stdout = _stream(1)
        if self.stderr.closed:
            self.stderr = _stream(2)
        sys.stdout = sys.__stdout__ = self.stdout  # type: ignore[misc]
        sys.stderr = sys.__stderr__ = self.stderr  # type: ignore[misc]


def main() -> None:
    """Runs calls until the process is ended."""
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # type: ignore[misc]
    CellRunner().serve()


def _stream(descriptor: int) -> TextIOWrapper:
    return open(descriptor, "w", encoding="utf-8", errors="backslashreplace", closefd=False)


def _compile_cell(code: str, name: str) -> tuple[types.CodeType, types.CodeType | None]:
    """Compiles a cell: all of it but a last expression, and that expression."""
    tree = ast.parse(code, name)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = compile(ast.Expression(tree.body.pop().value), name, "eval", dont_inherit=True)  # type: ignore[attr-defined]
    return compile(tree, name, "exec", dont_inherit=True), last


def _of_cells(exception: traceback.TracebackException) -> traceback.TracebackException:
    """Leaves the frames of the session's own code in a traceback, and in those that it names as causes."""
    pending, visited_ids = [exception], set()
    while pending:
        link = pending.pop()
        if id(link) in visited_ids:
            continue
        visited_ids.add(id(link))
        link.stack = traceback.StackSummary.from_list([f for f in link.stack if f.filename.startswith("<cell ")])
        pending += [cause for cause in (link.__cause__, link.__context__) if cause is not None]
        pending += link.exceptions or []
    return exception
