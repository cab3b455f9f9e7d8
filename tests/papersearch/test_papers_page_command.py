"""``envsuite play papersearch --browser``: the command that serves the page."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import orjson
import pytest
from served_pages import opened

from envsuite.cli import main


def begun(address: str) -> dict[str, object]:
    """The state of a new episode."""
    request = urllib.request.Request(f"{address}api/visit", b"{}", {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        state: dict[str, object] = orjson.loads(response.read())["state"]
    return state


def test_the_page_opens_on_this_machine_alone_says_so_and_closes_with_ctrl_c(hundred: Path) -> None:
    with opened("papersearch", "--source", str(hundred)) as (said, address, process):
        assert said.startswith("The search for papers (102 papers, 2 tasks) is open at http://127.0.0.1:")
        assert "for this machine alone" in said
        with urllib.request.urlopen(address, timeout=60) as response:
            assert "<title>PaperSearch</title>" in response.read().decode()
        state = begun(address)
        assert isinstance(state["task"], dict) and (state["task"]["id"], state["horizon"]) == ("all", 5)
        other = urllib.request.Request(address, headers={"Host": "elsewhere.example"})
        with pytest.raises(urllib.error.HTTPError, match="421"):
            urllib.request.urlopen(other, timeout=60)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60)[0] == "The search for papers is closed.\n"
        assert process.returncode == 0


def test_task_split_steps_and_arguments_of_the_environment_are_taken(hundred: Path) -> None:
    given = ["--source", str(hundred), "--split", "test", "--task", "other", "--steps", "0", "--option", "max_calls=2"]
    with opened("papersearch", *given) as (_, address, _):
        state = begun(address)
    assert isinstance(state["task"], dict) and (state["task"]["id"], state["task"]["split"]) == ("other", "test")
    assert (state["horizon"], state["max_calls"]) == (None, 2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["papersearch", "--browser", "--split", "validation"], "has no such task; give another: --split train, test"),
        (["papersearch", "--browser", "--type", "nothing"], "nothing"),
        (["papersearch", "--browser", "--task", "nothing"], "nothing"),
        (["papersearch", "--browser", "--url", "http://127.0.0.1:1"], "--url is for play in a terminal"),
        (["papersearch", "--browser", "--save", "mine.jsonl"], "--save is for play in a terminal"),
    ],
)
def test_what_a_user_can_mend_is_one_message(
    hundred: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(["play", *arguments, "--source", str(hundred), "--port", "0"]) == 2
    told = capsys.readouterr().err
    assert said in told and told.startswith("envsuite: ") and "Traceback" not in told


@pytest.mark.parametrize(("page", "extra"), [("papersearch", "serve"), ("webshop", "webshop-play")])
@pytest.mark.parametrize("missing", ["flask", "uvicorn"])
def test_without_the_extra_the_message_is_the_command_that_mends_it(missing: str, page: str, extra: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from envsuite.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "play", page, "--browser"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    needs = f"envsuite: `envsuite play {page} --browser` needs Flask and uvicorn (import of {missing} "
    assert run.returncode == 2 and run.stderr.startswith(needs)
    assert run.stderr.endswith(f"): pip install 'envsuite[{extra}]'\n") and run.stderr.count("\n") == 1


def test_help_says_how_the_page_and_the_terminal_are_opened(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["play", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "there is one of PaperSearch-v0, WebShop-v0" in said and "envsuite play papersearch --browser" in said
