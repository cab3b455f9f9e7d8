"""``envsuite play pythonmath``."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable

import pytest

from envsuite.cli import main
from envsuite.core import UnknownTask
from envsuite.mathematics import prompts
from envsuite.mathematics.command import play
from envsuite.mathematics.env import PythonMathEnv

TASK = "arithmetic-1/test#0"


def typed(*lines: str) -> tuple[Callable[[str], str], list[str]]:
    """What types these lines, and the prompts that it saw."""
    waiting, asked = list(lines), list[str]()

    def read(prompt: str) -> str:
        asked.append(prompt)
        if not waiting:
            raise EOFError
        return waiting.pop(0)

    return read, asked


def test_problems_are_solved_with_code_and_answers() -> None:
    env, shown = PythonMathEnv(split="test"), list[str]()
    env.reset(options={"task_id": TASK})
    text, right = env.problem.text, env.problem.answer
    read, asked = typed("for i in range(2):", "  print(i)", "", "1 +", ":show", f"= {right}", ":next", "= ", "= -1")
    try:
        assert play(env, TASK, read, shown.append) == (1, 4)
    finally:
        env.close()
    assert asked[:4] == [">>> ", "... ", "... ", ">>> "]
    assert shown[1] == f"{TASK}\n{text}" and shown[2] == "0\n1" and "SyntaxError" in shown[3] and shown[4] == text
    assert shown[5] == prompts.RIGHT and prompts.NO_ANSWER in shown and prompts.WRONG in shown


def test_quitting_ends_at_once_and_a_task_that_does_not_exist_is_said() -> None:
    env = PythonMathEnv(split="test")
    assert play(env, None, typed(":quit")[0], lambda text: None) == (0, 1)
    assert play(env, None, typed("while True:")[0], lambda text: None) == (0, 1)
    with pytest.raises(UnknownTask, match="arithmetic-1"):
        play(env, "arithmetic-1/test#99", typed()[0], lambda text: None)


def test_without_a_terminal_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["play", "pythonmath"]) == 2
    assert "needs a terminal" in capsys.readouterr().err


def test_in_a_terminal_it_plays() -> None:
    control, terminal = pty.openpty()
    command = [sys.executable, "-m", "envsuite.cli", "play", "pythonmath", "--split", "test", "--task", TASK]
    process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=subprocess.STDOUT)
    os.close(terminal)
    os.write(control, b"6 * 7\n:quit\n")
    seen = b""
    try:
        while part := os.read(control, 4096):
            seen += part
    except OSError:  # the terminal is closed
        pass
    os.close(control)
    assert process.wait(60) == 0 and b"42" in seen and b"0 of 1 problems solved" in seen
