"""The terminal in which a person plays, by Textual's own pilot, without a terminal."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from test_play_session import IDS, Tally, add, begun
from textual.pilot import Pilot
from textual.widgets import Input, OptionList, Static

from envsuite.cli import main
from envsuite.evaluation.demonstrations.file import read_demonstrations
from envsuite.play.app import Chooser, Play
from envsuite.play.prompt import Prompt
from envsuite.play.session import PlaySession

SMALL, LARGE = (80, 24), (160, 50)
QUICK = ("Sokoban-v0", "TextCraft-v0")


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def played(app: Play, script: Callable[[Pilot[None]], Awaitable[None]], size: tuple[int, int] = SMALL) -> None:
    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await script(pilot)

    asyncio.run(run())


async def typed(pilot: Pilot[None], text: str, *keys: str) -> None:
    """Types a text and keys, and waits until what they do is done."""
    where = pilot.app.focused
    if text:
        assert isinstance(where, Prompt | Input)
        (where.insert if isinstance(where, Prompt) else where.insert_text_at_cursor)(text)
    await pilot.press(*keys)
    app: Any = pilot.app
    await pilot.pause(0)
    async with app._busy:
        pass
    await pilot.pause(0)


def shown(app: Play) -> str:
    """Everything on the screen, as text."""
    return "\n".join("".join(segment.text for segment in line) for line in app.screen._compositor.render_strips())


@pytest.mark.seconds
@pytest.mark.parametrize("size", [SMALL, pytest.param(LARGE, marks=pytest.mark.slow)], ids=["80x24", "160x50"])
@pytest.mark.parametrize("env_id", [one if one in QUICK else pytest.param(one, marks=pytest.mark.slow) for one in IDS])
def test_hints_and_enter_solve_a_task_of_every_environment(env_id, size, tmp_path, thread, data_folder):
    path = tmp_path / "saved.jsonl"
    session = thread.submit(begun, env_id, save=path).result()
    app = Play(session, thread)

    async def script(pilot: Pilot[None]) -> None:
        assert env_id in shown(app) and "step 0 of" in shown(app) and "F2 Hint" in shown(app)
        while not session.over:
            await typed(pilot, "", "f2")
            assert app.message.startswith("The expert: ")
            await typed(pilot, "", "enter")
        assert "SOLVED" in shown(app) and "Saved to" in app.message
        await typed(pilot, "", "f3")
        assert not session.over and "SOLVED" not in shown(app)
        await typed(pilot, "", "f6")
        assert session.task_id == session.tasks[1] and "step 0 of" in shown(app)

    played(app, script, size)
    thread.submit(session.env.close).result()
    assert read_demonstrations(path)[0].success


def test_arrow_keys_push_boxes_and_recall_lines_where_something_is_typed(thread):
    session = begun("Sokoban-v0")
    app = Play(session, thread)

    async def script(pilot: Pilot[None]) -> None:
        await typed(pilot, "", "left")
        await typed(pilot, "right", "enter")
        directions = [step.action[0].arguments["direction"] for step in session.steps]
        assert directions == ["left", "right"] and "██" in shown(app)
        await typed(pilot, "u", "up")
        assert app.query_one(Prompt).text == "right" and len(session.steps) == 2
        await typed(pilot, "", "down")
        assert app.query_one(Prompt).text == ""

    played(app, script)


def test_lines_are_completed_recalled_and_refused_by_the_environment(thread):
    session = begun("WebShop-v0")
    app = Play(session, thread)

    async def script(pilot: Pilot[None]) -> None:
        prompt = app.query_one(Prompt)
        await typed(pilot, "se", "tab")
        assert prompt.text == "search "
        await typed(pilot, "chair", "enter")
        assert "Page 1" in shown(app) or "back to search" in shown(app)
        await typed(pilot, "nex", "tab")
        assert prompt.text == "next >"
        await typed(pilot, "", "tab")
        assert prompt.text == "nex"
        await typed(pilot, "", "tab", "enter")
        assert session.steps[-1].valid
        await typed(pilot, "buy it", "enter")
        assert not session.steps[-1].valid and "names no tool" in session.observation["text"]
        await typed(pilot, "", "up", "up")
        assert prompt.text == "next >"

    played(app, script)


def test_code_goes_on_until_it_is_whole_and_an_answer_ends(thread):
    session = begun("PythonMath-v0")
    app = Play(session, thread)

    async def script(pilot: Pilot[None]) -> None:
        await typed(pilot, "for i in range(2):", "enter")
        await typed(pilot, "print(i)", "enter")
        assert not session.steps
        await typed(pilot, "", "enter")
        assert session.observation["text"].strip() == "0\n1"
        await typed(pilot, "1 +", "enter")
        assert "SyntaxError" in session.observation["text"]
        await typed(pilot, "= -1", "enter")
        assert session.over and "ENDED, not solved" in shown(app)
        await typed(pilot, "", "f3")
        await typed(pilot, f"= {session.env.problem.answer}", "enter")  # type: ignore[attr-defined]
        assert "SOLVED" in shown(app)

    played(app, script)
    thread.submit(session.env.close).result()


def test_tasks_are_chosen_from_a_list_by_words(thread):
    session = begun("TextCraft-v0")
    app = Play(session, thread)

    async def script(pilot: Pilot[None]) -> None:
        await typed(pilot, "", "f7")
        assert isinstance(app.screen, Chooser)
        await typed(pilot, "depth-3 bed")
        options = app.screen.query_one(OptionList)
        assert 0 < options.option_count < 20
        await typed(pilot, "", "down", "enter")
        assert "bed" in session.task_id and session.info["task_type"] == "depth-3"
        await typed(pilot, "", "f7")
        await typed(pilot, "nothing like it", "enter")
        assert isinstance(app.screen, Chooser)
        task = session.task_id
        await typed(pilot, "", "escape")
        assert not isinstance(app.screen, Chooser) and session.task_id == task

    played(app, script)


def test_commands_of_the_program_do_what_they_say(thread, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    session = begun("TextCraft-v0")
    app = Play(session, thread)

    async def script(pilot: Pilot[None]) -> None:
        await typed(pilot, ":sa", "tab", "enter")
        assert "no step was taken" in app.message
        await typed(pilot, ":task chest", "enter")
        assert session.task_id == "chest"
        await typed(pilot, ":task no_such_item", "enter")
        assert "no task" in app.message and session.task_id == "chest"
        await typed(pilot, "inventory", "enter")
        await typed(pilot, "", "f8")
        assert read_demonstrations(Path("TextCraft-v0.jsonl"))[0].task_id == "chest" and "not solved" in app.message
        await typed(pilot, ":type depth-2", "enter")
        await typed(pilot, ":random", "enter")
        assert session.info["task_type"] == "depth-2"
        await typed(pilot, ":type depth-9", "enter")
        assert "depth-9" in app.message
        await typed(pilot, ":undo", "enter")
        assert app.message == "There is nothing to take back."
        await typed(pilot, ":frobnicate", "enter")
        assert "Unknown command :frobnicate" in app.message
        await typed(pilot, "", "f1")
        assert "takes the last step back" in shown(app)
        await typed(pilot, "", "ctrl+t", "pageup", "pagedown", "f1")  # with the help above
        assert "takes the last step back" not in shown(app)
        await typed(pilot, "", "ctrl+t", "pageup", "pagedown")
        await typed(pilot, ":quit", "enter")

    played(app, script)


def test_a_lost_environment_is_a_message_and_the_episode_stays(thread):
    env = Tally()
    session = PlaySession(env, "train")
    session.start()
    session.act(add(1))
    app = Play(session, thread, light=True)

    async def script(pilot: Pilot[None]) -> None:
        env.lose = True
        await typed(pilot, "add 2", "enter")
        assert "The environment is lost: the worker died" in app.message and "LOST" in shown(app)
        assert str(app.query_one("#past", Static).render()) == "0"
        assert str(app.query_one("#now", Static).render()) == "> 1\n1"
        env.lose = False
        await typed(pilot, "", "up", "enter")
        assert session.observation["text"] == "3" and "LOST" not in shown(app)

    played(app, script)


@pytest.mark.parametrize("steps", ["-1", "five"])
def test_a_limit_that_is_no_number_of_steps_is_refused(steps, capsys):
    with pytest.raises(SystemExit):
        main(["play", "sokoban", "--steps", steps])
    assert f"{steps!r} is not a number of steps; give 1 or more, or 0 for no limit" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("chess", "unknown environment 'chess'"),
        ("sokoban --browser", "--browser opens the pages of PaperSearch-v0 and WebShop-v0"),
        ("sokoban", "needs a terminal"),
    ],
)
def test_what_a_user_can_mend_is_one_message(words, said, console):
    assert said in console(f"play {words}", 2)[1]


def test_without_textual_the_message_is_the_command_that_mends_it_and_nothing_else_loads_it():
    code = (
        "import sys, envsuite.cli, envsuite.play.session; assert 'textual' not in sys.modules\n"
        "sys.modules['textual'] = None; sys.stdin.isatty = sys.stdout.isatty = lambda: True\n"
        "sys.exit(envsuite.cli.main(['play', 'TextCraft-v0']))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.returncode == 2 and "needs Textual (" in run.stderr and "): pip install 'envsuite[play]'" in run.stderr
