from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from envsuite.cli import COMMANDS, available, main, parser_of
from envsuite.core.registration import ENVIRONMENTS


def test_list_shows_every_environment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs", "list"]) == 0
    shown = capsys.readouterr().out
    assert all(env_id in shown for env_id in ENVIRONMENTS)


def test_tasks_prints_one_line_per_task_and_the_rest_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs", "tasks", "TextCraft-v0", "--split", "test", "--type", "depth-3"]) == 0
    out, err = capsys.readouterr()
    rows = [line.split("\t") for line in out.splitlines()]
    assert f"test: {len(rows)} tasks (depth-3: {len(rows)})" in err
    assert {(split, kind) for split, kind, _ in rows} == {("test", "depth-3")}


def test_tasks_without_a_split_lists_all_splits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs", "tasks", "TextCraft-v0", "--source", "generated"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert {row.split("\t")[0] for row in rows} == {"train", "validation", "test"}
    assert len({row.split("\t")[2] for row in rows}) == len(rows)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["envs", "tasks", "TextCraf-v0"], "unknown environment 'TextCraf-v0'. Nearest: 'TextCraft-v0'"),
        (["envs", "tasks", "CartPole-v1"], "unknown environment 'CartPole-v1'"),
        (["envs", "tasks", "TextCraft-v0", "--split", "tset"], "Nearest: 'test'"),
        (["envs", "tasks", "TextCraft-v0", "--type", "depht-2"], "Nearest: 'depth-2'"),
        (["envs", "tasks", "TextCraft-v0", "--source", "no/such/folder"], "no/such/folder"),
    ],
)
def test_what_a_user_can_mend_is_one_message_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("envsuite: ") and said in err


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path) -> None:
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
def test_an_option_that_takes_several_values_keeps_them_when_it_is_given_again(name: str) -> None:
    parser = parser_of(name, COMMANDS[name])
    several = [one for one in _options(parser) if one.option_strings and one.nargs in ("+", "*")]
    assert [one.option_strings for one in several if type(one).__name__ != "_ExtendAction"] == []


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["eval", "run", "TextCraft-v0", "--tasks", "3"], "envsuite eval run"),
        (["data", "fetch", "alfworld", "--wrong", "3"], "envsuite data fetch"),
        (["data", "build", "webshop", "--wrong"], "envsuite data build webshop"),
        (["envs", "panels", "list", "--wrong"], "envsuite envs panels list"),
        (["envs", "list", "wrong"], "envsuite envs list"),
    ],
)
def test_an_unknown_option_is_answered_with_the_usage_of_its_command(
    words: list[str], command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.startswith(f"usage: {command} ") and f"{command}: error: unrecognized arguments: " in said


def test_the_help_lists_every_command_and_a_group_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown and command.help in shown for name, command in available().items())
    assert main(["eval", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "eval run" in shown and "eval model" in shown and "doctor" not in shown
    assert main([]) == 2 and "usage: envsuite COMMAND" in capsys.readouterr().err


@pytest.mark.parametrize("name", available())
def test_every_command_shows_its_usage(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*name.split(), "--help"])
    assert ended.value.code in (0, None) and f"usage: envsuite {name}" in capsys.readouterr().out


def test_an_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "tabel"]) == 2
    assert "unknown command 'eval tabel'. Nearest: 'eval table'" in capsys.readouterr().err


def test_commands_of_a_package_that_lacks_another_say_what_to_install() -> None:
    code = "import sys; sys.modules['torch'] = None; from envsuite.cli import main; sys.exit(main(sys.argv[1:]))"
    shown = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True)
    assert shown.returncode == 0 and "eval run" in shown.stdout and "imitate" not in shown.stdout
    asked = subprocess.run([sys.executable, "-c", code, "train"], capture_output=True, text=True)
    assert asked.returncode == 2 and "unknown command 'train'" in asked.stderr
    assert "pip install 'envsuite[train]'" in asked.stderr and "Traceback" not in asked.stderr


def test_the_list_of_commands_imports_no_environment_and_no_trainer() -> None:
    code = "import sys, envsuite.cli; envsuite.cli.main(['--help']); print(*sorted(sys.modules), file=sys.stderr)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr.split()
    assert "envsuite.cli" in loaded and not {"torch", "envsuite.webshop.env", "envsuite.evaluation"} & {*loaded}
