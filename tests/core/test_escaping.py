"""Text of models, environments and agents reaches no terminal, log or table as a control; messages of errors."""

from __future__ import annotations

import csv
import io
import json
import logging
import pickle
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from console import Terminal
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text

from envsuite.cli import main
from envsuite.core import DataError, EnvsuiteError, MissingExtra, UnknownName, UnknownTask, UsageError
from envsuite.core.errors import nearest, unknown
from envsuite.core.escaping import LogFormatter, cell, escape_controls, escape_lines, raw, streams
from envsuite.core.registration import ENVIRONMENTS, NAMED
from envsuite.data.progress import TerminalLine
from envsuite.evaluation.writers import csv_of
from envsuite.exits import status_of
from trainers.report.live import _LINE
from trainers.run.log import run_log
from trainers.settings.console import EscapingConsole

E = "\x1b]0;PWNED\x07\x1b[2J\x1b[31mESC\x1b]52;c;cHduZWQ=\x07\u202e\x00\u009b31m\u2028\rover"
FORGED = "x\n2026-11-29 09:09:09,000 ERROR trainers.run.progress: ended by an error: FORGED"
HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
FILE = f"""
from envsuite import Environment
E = {E!r}
TASKS = [{{"id": f"=HYPERLINK(1){{i}}{{E}}", "type": f"=k{{E}}", "x": i}} for i in range(3)]
env = Environment({{"train": TASKS}}, goal=f"Goal{{E}}", steps=3)

@env.start
def start(task):
    if task["x"] == 2:
        raise KeyError(f"broken{{E}}")
    return {{"x": 1}}, f"First{{E}}"

@env.tool
def turn(world, number: int):
    "Turns."
    if number % 2:
        raise ValueError(f"bad{{E}}")
    return f"Turned{{E}}"
"""


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The id of an environment whose every text has controls."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(NAMED, "")
    Path("hostile.py").write_text(FILE)
    yield "hostile.py"
    for env_id in [name for name in ENVIRONMENTS if name == "hostile.py"]:
        del ENVIRONMENTS[env_id], gymnasium.registry[env_id]


@given(st.text())
def test_an_escaped_text_has_no_controls_and_is_escaped_once(text):
    shown = escape_controls(text)
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]", shown)
    assert escape_controls(shown) == shown and (shown != text or not HIDDEN.search(text.replace("\r\n", "")))


def test_no_command_prints_a_control(hostile, capfd):
    results = ["eval", "table", "out"]
    commands = [
        ["envs", "tasks", hostile],
        ["envs", "tasks", hostile, "--type", f"no{E}"],
        ["envs", "tasks", f"no{E}"],
        ["envs", "options", hostile],
        ["envs", "panels", "export", hostile, "train", "--for", "json", "--out", "panel.json"],
        ["eval", "run", hostile, "--policy", "random", "--split", "train", "--out", "out"],
        *([*results, "--by", "stratum", "--format", form] for form in ("text", "markdown", "latex", "csv", "json")),
        ["eval", "compare", "out", "out"],
        ["export", "demos", hostile, "--player", f"no{E}", "--n", "1", "--out", "x.jsonl"],
        ["show-prompt", f"--envs.0.id={E}"],
        ["pool", "list", f"no{E}"],
        ["report", f"no{E}"],
    ]
    seen = ""
    for words in commands:
        main(words)
        out, err = capfd.readouterr()
        assert not HIDDEN.search(out + err), words
        seen += out + err
    assert "\\u001b]52;c;" in seen and "KeyError" in seen


def test_a_traceback_of_a_command_is_escaped(capfd):
    def fails() -> int:
        raise ZeroDivisionError(E)

    before = sys.stdout, sys.stderr
    with pytest.raises(ZeroDivisionError) as caught:
        status_of(fails)
    sys.excepthook(caught.type, caught.value, caught.tb)
    assert not HIDDEN.search(capfd.readouterr().err)
    sys.stdout, sys.stderr = before


def test_a_csv_file_has_no_formula():
    texts = ["=HYPERLINK(1)", "+1+2", "-2+3", "@SUM(1)", "\t=1", " =1", E]
    rows = list(csv.reader(io.StringIO(csv_of([{"=head": text, "n": -0.5} for text in texts]))))
    assert rows[0] == ["'=head", "n"] and {row[1] for row in rows[1:]} == {"-0.5"}
    assert all(row[0][0] == "'" for row in rows[1:-1]) and not HIDDEN.search(rows[-1][0])
    assert cell("plain") == "plain" and cell(None) is None


@pytest.mark.parametrize("carrier", ["message", "exception"])
def test_no_record_of_a_log_forges_another(carrier, tmp_path):
    with run_log(tmp_path / "run.log"):
        try:
            raise ValueError(FORGED + E)
        except ValueError as error:
            logging.getLogger("trainers.gateway").warning(
                "it printed %s", error if carrier == "message" else "much", exc_info=carrier == "exception"
            )
    text = (tmp_path / "run.log").read_text()
    assert "FORGED" in text and not HIDDEN.search(text)
    assert sum(bool(_LINE.fullmatch(line)) for line in text.split("\n")) == 1


@pytest.mark.parametrize("terminal", [True, False])
def test_a_console_draws_its_own_colours_and_no_text_s(terminal):
    out = io.StringIO()
    console = EscapingConsole(file=out, force_terminal=terminal, color_system="standard", width=300)
    table = Table("name", title=f"[link=http://x]{E}")
    table.add_row(f"[red]{E}[/red]")
    console.print(table, Text(E, style="red"), f"[blink]{E}")
    text = out.getvalue()
    assert ("\x1b[31m" in text or not terminal) and "[red]" in text and "]8;" not in text
    assert not HIDDEN.search(re.sub("\x1b\\[[0-9;]*m", "", text))


def test_a_line_that_is_written_over_is_our_own_control_alone():
    out: Any = Terminal()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        with streams():
            assert raw(sys.stdout) is out
            line = TerminalLine(sys.stdout)
            line.show(f"now {FORGED}{E}")
            line.note(f"note {FORGED}{E}")
    assert not HIDDEN.search(out.getvalue().replace("\r", "", 3))


def test_every_writer_goes_through_the_escaper(root):
    own = {"envsuite/core/escaping.py", "trainers/settings/console.py"}
    wanted = re.compile(r"(?<!Escaping)\bConsole\((?!quiet=True\)``)|basicConfig\(|logging\.Formatter\(|csv\.writer\(")
    found = {
        str(file.relative_to(root))
        for folder in ("envsuite", "trainers")
        for file in (root / folder).rglob("*.py")
        if wanted.search(file.read_text()) and str(file.relative_to(root)) not in own
    }
    assert found == {"envsuite/evaluation/writers.py"}
    assert escape_lines("a\nb\x07") == "a\n  b\\u0007" and issubclass(LogFormatter, logging.Formatter)
    assert issubclass(UsageError, Exception) and json.loads(f'"{escape_controls(E)}"') == E


CLASSES = [DataError, MissingExtra, UnknownName, UnknownTask, UsageError]


@pytest.mark.parametrize("error", CLASSES)
def test_an_error_is_caught_as_its_builtin_kind_and_shown_as_written_in_any_process(error):
    builtin = {DataError: ValueError, MissingExtra: ImportError, UsageError: RuntimeError}.get(error, KeyError)  # type: ignore[call-overload]
    assert issubclass(error, EnvsuiteError) and issubclass(error, builtin)
    message = "line one,\n  \"quoted\" and 'quoted'"
    assert str(error(message)) == str(pickle.loads(pickle.dumps(error(message)))) == message


@given(st.text(min_size=1), st.lists(st.text(min_size=1), unique=True))
def test_an_unknown_name_is_quoted_and_what_exists_is_listed(name, known):
    message = str(unknown("thing", name, known))
    assert f"unknown thing {name!r}" in message
    assert len(known) > 20 or all(each in message or repr(each) in message for each in known)


def test_the_nearest_name_comes_first_and_a_long_list_is_cut_and_counted():
    message = str(unknown("estimator", "gigop", ["dr_grpo", "gigpo", "grpo", "rloo"]))
    assert "Nearest: 'gigpo'" in message and "Known: gigpo, " in message
    assert (
        nearest("rlo", ["grpo", "rloo"])[0] == "rloo" and len(nearest("task-1", [f"task-{i}" for i in range(9)])) == 3
    )
    assert "Nearest" not in str(unknown("split", "zzz", ["train", "test"]))
    message = str(unknown("task", "x", (f"task-{i}" for i in range(100))))
    assert "(100 in all)" in message and message.count("task-") == 20
