"""Commands: usage, output that nobody reads, and Ctrl-C at every moment."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from envsuite.cli import COMMANDS, available, main, parser_of


def test_threads_that_wait_leave_the_cores_to_others_soon(monkeypatch):
    for before, after in ((None, "10000"), ("7", "7")):
        monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
        if before:
            monkeypatch.setenv("GOMP_SPINCOUNT", before)
        assert main(["--version"]) == 0 and os.environ["GOMP_SPINCOUNT"] == after


def test_tasks_prints_one_line_per_task_of_a_split_or_of_all_and_the_rest_on_stderr(console):
    out, err = console("envs tasks TextCraft-v0 --split test --type depth-3")
    rows = [line.split("\t") for line in out.splitlines()]
    assert f"test: {len(rows)} tasks (depth-3: {len(rows)})" in err
    assert {(split, kind) for split, kind, _ in rows} == {("test", "depth-3")}
    out, _ = console("envs tasks TextCraft-v0 --source generated")
    rows = [line.split("\t") for line in out.splitlines()]
    assert {split for split, *_ in rows} == {"train", "validation", "test"}
    assert len({task for *_, task in rows}) == len(rows)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("envs tasks TextCraf-v0", "unknown environment 'TextCraf-v0'. Nearest: 'TextCraft-v0'"),
        ("eval tabel", "unknown command 'eval tabel'. Nearest: 'eval table'"),
        ("envs tasks TextCraft-v0 --split tset", "Nearest: 'test'"),
        ("envs tasks TextCraft-v0 --type depht-2", "Nearest: 'depth-2'"),
        ("envs tasks TextCraft-v0 --source no/such/folder", "no/such/folder"),
    ],
)
def test_what_a_user_can_mend_is_one_message_and_exit_code_2(line, said, console):
    out, err = console(line, 2)
    assert not out and err.startswith("envsuite: ") and said in err


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path):
    command = f"{sys.executable} -m envsuite.cli envs tasks TextCraft-v0 --source generated 2> errors | head -n 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout.count("\n")) == (0, 1)
    assert "Error" not in (tmp_path / "errors").read_text()


def _options(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        for inner in action.choices.values() if isinstance(action, argparse._SubParsersAction) else ():
            yield from _options(inner)


@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if ":" not in command.entry])
def test_an_option_that_takes_several_values_keeps_them_when_it_is_given_again(name):
    parser = parser_of(name, COMMANDS[name])
    several = [one for one in _options(parser) if one.option_strings and one.nargs in ("+", "*")]
    assert [one.option_strings for one in several if type(one).__name__ != "_ExtendAction"] == []


@pytest.mark.parametrize(
    ("command", "rest"),
    [
        ("eval run", "TextCraft-v0 --tasks 3"),
        ("data fetch", "alfworld --wrong 3"),
        ("data build webshop", "--wrong"),
        ("envs panels list", "--wrong"),
        ("envs list", "wrong"),
    ],
)
def test_an_unknown_option_is_answered_with_the_usage_of_its_command(command, rest, capsys):
    with pytest.raises(SystemExit, match="2"):
        main([*command.split(), *rest.split()])
    said = capsys.readouterr().err
    assert said.startswith(f"usage: envsuite {command} ")
    assert f"envsuite {command}: error: unrecognized arguments: " in said


def test_the_help_lists_every_command_and_a_group_its_own(console):
    shown, _ = console("--help")
    assert all(f"  {name} " in shown and command.help in shown for name, command in available().items())
    shown, _ = console("eval --help")
    assert "eval run" in shown and "eval model" in shown and "doctor" not in shown
    assert "usage: envsuite COMMAND" in console("", 2)[1]


@pytest.mark.parametrize("name", available())
def test_every_command_shows_its_usage(name, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*name.split(), "--help"])
    assert ended.value.code in (0, None) and f"usage: envsuite {name}" in capsys.readouterr().out


def test_commands_of_a_package_that_lacks_another_say_what_to_install():
    code = "import sys; sys.modules['torch'] = None; from envsuite.cli import main; sys.exit(main(sys.argv[1:]))"
    shown = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True)
    assert shown.returncode == 0 and "eval run" in shown.stdout and "imitate" not in shown.stdout
    asked = subprocess.run([sys.executable, "-c", code, "train"], capture_output=True, text=True)
    assert asked.returncode == 2 and "unknown command 'train'" in asked.stderr
    assert "pip install 'envsuite[train]'" in asked.stderr and "Traceback" not in asked.stderr


def test_the_list_of_commands_imports_no_environment_and_no_trainer():
    code = "import sys, envsuite.cli; envsuite.cli.main(['--help']); print(*sorted(sys.modules), file=sys.stderr)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr.split()
    assert "envsuite.cli" in loaded and not {"torch", "envsuite.webshop.env", "envsuite.evaluation"} & {*loaded}


PRINTING = (
    "--version",
    "envs list",
    "envs options",
    "envs panels list",
    "data list",
    "eval power --rate 0.5 --tasks 9",
)
HELPS = [pytest.param(f"{name} --help", marks=pytest.mark.slow) for name in ("", *available())]


@pytest.mark.seconds
@pytest.mark.parametrize("stdout", ["without a reader", "closed"])
@pytest.mark.parametrize("words", [*PRINTING, *HELPS])
def test_a_command_ends_as_usual_where_its_output_goes_nowhere(words, stdout, root):
    reader, writer = os.pipe()
    os.close(reader)
    program = [sys.executable, "-m", "envsuite.cli", *words.split()]
    shell = ["sh", "-c", 'exec "$@" >&-', "sh", *program] if stdout == "closed" else program
    ended = subprocess.run(shell, stdout=writer, stderr=subprocess.PIPE, text=True, cwd=root, check=False)
    os.close(writer)
    assert ended.returncode == 0 and "Traceback" not in ended.stderr and "Exception" not in ended.stderr, ended.stderr


ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent / "interrupted"
SCRIPT = "import sys; from envsuite.cli import main; sys.exit(main())"
"""What pip writes into the file ``envsuite``."""


def _interrupted(at: str, *command: str, cwd: Path) -> tuple[int, str]:
    """Runs a command that gets a Ctrl-C when it imports ``at``; returns its status and what it said."""
    path = os.pathsep.join([str(HERE), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "INTERRUPTED_AT": at, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    return run.returncode, run.stderr


@pytest.mark.parametrize("at", ["gymnasium", "envsuite.core.registration", "envsuite.installation.probes"])
def test_a_command_that_is_interrupted_while_it_starts_ends_with_a_line(at, tmp_path):
    (tmp_path / "envsuite").write_text(SCRIPT)
    assert _interrupted(at, str(tmp_path / "envsuite"), "doctor", cwd=tmp_path) == (130, "interrupted\n")


@pytest.mark.parametrize(
    ("at", "command"),
    [
        ("gymnasium", "trainers.train"),
        ("pydantic", "trainers.train"),
        ("torch", "envsuite.cli show-prompt"),
        ("torch", "envsuite.cli report"),
    ],
)
def test_a_program_of_the_trainer_that_is_interrupted_while_it_imports_ends_with_a_line(at, command, tmp_path):
    pytest.importorskip("torch")
    assert _interrupted(at, "-m", *command.split(), cwd=tmp_path) == (130, "interrupted\n")


@pytest.mark.parametrize("command", [["-c", "import envsuite"], ["-m", "timeit", "-n1", "-r1", "import envsuite"]])
def test_in_other_programs_ctrl_c_stays_what_it_was(command, tmp_path):
    status, said = _interrupted("envsuite.core.registration", *command, cwd=tmp_path)
    assert status != 130 and said.endswith("KeyboardInterrupt\n")
