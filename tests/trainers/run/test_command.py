"""``envsuite train``: its pages of help, names of other frameworks, and errors on several processes."""

from __future__ import annotations

import re
import sys

import pytest
from tiny_runs import train, write_settings

from envsuite.core.errors import UnknownName
from trainers.run.cli import TRAIN, parse
from trainers.run.config import TrainConfig
from trainers.run.help_page import FOREIGN, MAIN
from trainers.settings.words import describe_settings

PATHS = [setting.path for setting in describe_settings(TrainConfig)]
PROGRAM = ("-m", "envsuite.cli", "train")


def _page(capsys: pytest.CaptureFixture[str], *words: str) -> set[str]:
    """The settings on a page of the help."""
    return {*re.findall(r"^  (?:--)?([\w.\[\]]+) \(", _printed(capsys, *words), re.MULTILINE)}


def _printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        parse(words, TRAIN)
    assert not ended.value.code
    return capsys.readouterr().out


def test_the_first_page_has_the_settings_that_people_change_and_others_have_the_rest(capsys):
    assert _page(capsys, "--help") == {*MAIN} and len(MAIN) <= 35
    assert _page(capsys, "--help-all") == {*PATHS}
    text = " ".join(_printed(capsys, "--help-all").split())
    for said in ("--optim.lr (float > 0; default: 1.0e-06) Peak learning rate.", "--resume", "accelerate launch"):
        assert said in text, said
    listed = _printed(capsys, "--list-recipes")
    assert all(name in listed for name in ("gigpo", "dr_grpo", "rloo", "grpo"))
    assert _page(capsys, "--help", "optim") == {path for path in PATHS if path.startswith("optim.")}
    assert _page(capsys, "--help", "rollout.sampling") == {
        path for path in PATHS if path.startswith("rollout.sampling.")
    }
    with pytest.raises(UnknownName, match=r"unknown section of settings 'optin'\. Nearest: 'optim'"):
        parse(["--help", "optin"], TRAIN)


@pytest.mark.parametrize("name", FOREIGN)
def test_a_name_of_another_framework_leads_to_a_setting_that_is_there(name):
    assert FOREIGN[name] in PATHS
    for word in (f"--{name}", f"--{name.replace('_', '-')}", f"--actor_rollout_ref.actor.{name}"):
        if word.removeprefix("--") not in PATHS:
            with pytest.raises(UnknownName, match=f"there is no such setting; here it is --{FOREIGN[name]}"):
                parse([word, "1"], TRAIN)


def test_a_name_of_another_framework_in_a_file_does_too(tmp_path):
    (tmp_path / "a.yaml").write_text("learning_rate: 0.001")
    with pytest.raises(UnknownName, match=r"a.yaml: there is no setting 'learning_rate'; here it is optim.lr"):
        parse(["--config", str(tmp_path / "a.yaml")], TRAIN)


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--optim.lr", "fast"), "error: optim.lr is 'fast'; it must be a valid number"),
        (("--processes", "none"), "error: --processes none: it must be a whole number of at least 1"),
        pytest.param(
            ("--rollout.tasks", "3"),
            "error: rollout.tasks is 3, which 2 processes cannot share",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_an_error_on_two_processes_is_one_line(tmp_path, words, said):
    config = write_settings(tmp_path)
    run = train("--processes", "2", "--config", str(config), *words, program=_program())
    assert run.returncode == 2 and run.stderr.startswith(said) and run.stderr.count("\n") == 1, run.stderr


def test_a_process_of_a_launcher_takes_no_number_of_processes(tmp_path):
    run = train("--config", str(write_settings(tmp_path)), "--processes", "2")
    assert run.returncode == 2 and "--processes" in run.stderr and "Traceback" not in run.stderr


def _program() -> tuple[str, ...]:
    return (sys.executable, *PROGRAM)
