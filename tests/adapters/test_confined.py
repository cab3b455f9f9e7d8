"""What a model says reaches packages' code only in confined processes, and no action breaks an episode."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from adapted import called, made
from hypothesis import given
from hypothesis import strategies as st

from envsuite.adapters.base import AdaptedWorld, ConfinedEnv
from envsuite.adapters.reasoning_gym import GymQuestions, ReasoningGym
from envsuite.core import Outcome, Tool, ToolCall, UsageError, WorkerLost
from envsuite.interpreter import confined

EVALUATED = (
    *("countdown", "puzzle24", "n_queens", "binary_matrix", "spiral_matrix", "string_insertion"),
    *("simple_integration", "intermediate_integration", "polynomial_multiplication"),
)
"""Data sets of reasoning-gym whose scorers evaluate an answer."""
JUNK = (
    *r"""0 -1 1e999 nan NaN inf None True ٣ ½ [ ] [] [[ [5] [1,1] [a] [-1] [999999999999] [up] { {} () 1/0 9**9**9
    exit() ' " \ \boxed{ %s \boxed{} \boxed{5} \boxed{1/0} \boxed{nan} \frac{1}{0} <answer> </think> [1][2][3] a,b null
    Integral(x) [cancel] [1-2]""".split(),
    *("", " ", "\n", "\x00", "\ud800", "🙂" * 99, "(" * 999, "x" * 100_000, "9" * 5_000, "[1 2]", "import os"),
    *("lambda: 0", "1\n2\n3", '{"a": [1]}', "[[1, 2], [3]]", "x**2 +", "[A B C]"),
)
PLACES = {"reasoning_gym": "answer", "textarena": "say", "gem": "say"}
"""Adapter -> the tool that says a text."""


class Evaluation(AdaptedWorld):
    """Evaluates what is said, as the worst scorer does."""

    def prepare(self) -> None:
        """Needs no package."""

    def begin(self, task_id: str) -> tuple[str, str]:
        self.said = 0
        return "Say something.", ""

    def call(self, name: str, arguments: dict[str, Any]) -> tuple[Outcome, bool]:
        self.said += 1
        space: dict[str, Any] = {"world": self}
        exec(arguments["text"], space)
        return Outcome(f"{self.said} {space.get('value')}", reward=space.get("reward", 0.0)), False


class Evaluating(ConfinedEnv):
    package, name, world = "gymnasium", "Evaluating", Evaluation
    takes: Any = type("Takes", (ConfinedEnv.takes,), {"env_id": "test/Evaluating"})

    def _tools(self, about: Any) -> tuple[Tool, ...]:
        return (Tool.of_string("say", "Says.", "text", "What."),)

    def _propose(self, rng: Any) -> ToolCall:
        return ToolCall("say", {"text": "value = 1"})


class Numbers(GymQuestions):
    """Questions whose scorer fails at what is no number."""

    def prepare(self) -> None:
        """Needs no package."""
        self._questions = self

    def __getitem__(self, place: int) -> Any:
        return {"question": "?", "answer": self.options.settings["right"]}

    def score_answer(self, answer: str, entry: Any) -> float:
        return float(int(answer) == int(entry["answer"]))


class Scored(ReasoningGym):
    package, name, world = "gymnasium", "Scored", Numbers
    takes: Any = type("Takes", (ReasoningGym.takes,), {"env_id": "test/Scored"})


@pytest.fixture(autouse=True)
def seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConfinedEnv, "seconds", 0.5)


@pytest.fixture
def env() -> Iterator[Any]:
    env = Evaluating()
    env.reset(seed=0)
    yield env
    env.close()


def said(env: Any, text: str) -> Any:
    return env.step([ToolCall("say", {"text": text})])


FORBIDDEN = {
    "network": "import socket; socket.create_connection(('127.0.0.1', PORT), 1)",
    "name server": "import socket; socket.getaddrinfo('localhost', 80)[0]; socket.socket(2, 2)",
    "file": "open('FOLDER/new', 'w').write('x')",
    "file again": "open('FOLDER/old', 'a').write('x')",
    "emptied file": "open('FOLDER/old', 'w')",
    "truncated file": "import os; os.truncate('FOLDER/old', 0)",
    "removed file": "import os; os.remove('FOLDER/old')",
    "shared memory": "open('/dev/shm/x', 'w').write('x')",
    "secret file": "value = open('FOLDER/old').read()",
    "environment of the program": "value = open('/proc/%d/environ' % __import__('os').getppid()).read()",
    "process": "import os; os.fork()",
    "program": "import subprocess; subprocess.run(['true'])",
    "signal to the origin": "import os; os.kill(os.getppid(), 9)",
    "signal to the program": "import os; os.kill(PROGRAM, 9)",
    "memory": "x = bytearray(2**31)",
    "leaving": "raise SystemExit",
    "NaN": "reward = float('nan')",
    "infinity": "reward = float('inf')",
    "no number": "reward = 'much'",
    "long leaving": "import os; os._exit(0)",
    "killing itself": "import os; os.kill(os.getpid(), 9)",
    "breaking": "import ctypes; ctypes.string_at(0)",
    "endless loop": "while True: pass",
    "forged answer": "import os, struct; os.write(3, struct.pack('<Q', 2**40))",
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_evaluated_text_does_nothing_outside_its_process_and_the_episode_goes_on(what, env, tmp_path):
    (tmp_path / "old").write_text("old")
    assert said(env, "value = 1")[0]["text"] == "1 1"
    with socket.create_server(("127.0.0.1", 0)) as there:
        there.settimeout(0.01)
        text = FORBIDDEN[what].replace("FOLDER", str(tmp_path)).replace("PROGRAM", str(os.getpid()))
        _, reward, ended, cut, info = said(env, text.replace("PORT", str(there.getsockname()[1])))
        with pytest.raises(TimeoutError):
            there.accept()
    assert (reward, ended, cut, info["valid"]) == (0.0, False, False, False) and info["error"]
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("old", "old")]
    assert said(env, "value = 2")[0]["text"] == "2 2", "as if the action had not been"


def test_nothing_is_inherited_and_nothing_reaches_other_episodes(env, monkeypatch):
    monkeypatch.setenv("A_TOKEN", "secret")
    confined.origin("envsuite.adapters.base:load").close()  # the next one is started with the token
    assert said(env, "import os; value = os.environ.get('A_TOKEN')")[0]["text"] == "1 None"
    files = "import os; value = [n for n in range(3, 99) if os.path.exists(f'/dev/fd/{n}')]"
    assert said(env, files)[0]["text"] == "2 [3]", "the socket of the process alone"
    said(env, "world.said = 99; type(world).begin = type(world).call = None")
    other = Evaluating()
    other.reset(seed=0)
    assert said(other, "value = 1")[0]["text"] == "1 1"
    other.close()


def test_an_episode_goes_on_where_somebody_ends_its_process(env):
    for number in range(1, 4):
        assert said(env, f"value = {number}")[0]["text"] == f"{number} {number}"
        os.kill(env._process._process, 9)
    token = env.snapshot()
    confined.origin("envsuite.adapters.base:load").close()
    assert said(env, "value = 4")[0]["text"] == "4 4"
    env.restore(token)
    assert said(env, "value = 5")[0]["text"] == "4 5"


def test_what_cannot_be_confined_is_refused(monkeypatch, env):
    del env
    with monkeypatch.context() as patch:
        patch.setattr("sys.platform", "plan9")
        assert "cannot be confined on this machine (it is not Linux)" in str(confined._limit((), True))
    pytest.importorskip("gem", reason="needs the package: pip install gem-llm")
    with pytest.raises(UsageError, match=r"gem/code\.CodeContest runs programs that the model wrote"):
        made("gem/code.CodeContest")


def adapted_ids() -> list[str]:
    """The environments of packages that are installed, and that read texts."""
    found = []
    for package in PLACES:
        try:
            module = __import__(f"envsuite.adapters.{package}", fromlist=["names"])
            found += [
                f"{package}/{name}" for name in sorted(module.names()) if not name.startswith(("math", "code", "qa"))
            ]
        except ImportError:
            pass
    return found


FEW = {"textarena/Countdown-v0", "textarena/Cryptarithm-v0", "textarena/Slitherlink-v0", "gem/rg.countdown"} | {
    f"reasoning_gym/{name}" for name in EVALUATED
}


@pytest.mark.parametrize(
    "env_id",
    [pytest.param(one, marks=pytest.mark.seconds if one in FEW else pytest.mark.slow) for one in adapted_ids()],
)
def test_no_text_breaks_an_episode_of_an_environment_that_is_installed(env_id):
    try:
        env = made(env_id)
        env.reset(options={"task_id": "seed-0"})
    except Exception as error:  # it needs words, several players, or another Python
        pytest.skip(f"{type(error).__name__}: {error}")
    valid = 0
    for text in JUNK:
        if env.unwrapped.done:
            env.reset(options={"task_id": "seed-0"})
        _, reward, _, _, info = called(env.unwrapped, PLACES[env_id.partition("/")[0]], text=text)
        valid += info["valid"]
        assert reward == reward and info["valid"] == (info["error"] is None)
    assert valid, "an environment at which every action fails is broken"
    env.close()


def test_a_scorer_that_fails_at_the_right_answer_too_breaks_the_episode():
    for right, said in (("1", "x"), ("x", "y")):
        env = Scored(settings={"right": right})
        env.reset(seed=0)
        if right == "1":
            assert called(env, "answer", text=said)[1:3] == (0.0, True)
            continue
        with pytest.raises(WorkerLost, match=r"test/Scored cannot play seed-\d+: ValueError: invalid literal"):
            called(env, "answer", text=said)


@pytest.mark.seconds
@pytest.mark.parametrize("env_id", ["reasoning_gym/countdown", "textarena/Countdown-v0", "gem/rg.puzzle24"])
def test_no_text_at_all_breaks_one(env_id):
    pytest.importorskip(env_id.partition("/")[0], reason="needs the package")
    env = made(env_id).unwrapped

    @given(st.text() | st.text("[](){}0123456789+-*/^xy.,=' ", max_size=40))
    def play(text: str) -> None:
        env.reset(options={"task_id": "seed-1"})
        called(env, PLACES[env_id.partition("/")[0]], text=text)

    play()
    env.close()


@pytest.mark.seconds
@pytest.mark.parametrize("env_id", [*(f"reasoning_gym/{name}" for name in EVALUATED), "gem/rg.countdown"])
def test_a_scorer_that_evaluates_answers_writes_no_file(env_id, tmp_path):
    pytest.importorskip(env_id.partition("/")[0], reason="needs the package")
    env, file = made(env_id), tmp_path / "written"
    for code in (f"open({str(file)!r}, 'w')", f"__import__('os').system('touch {file}')"):
        for form in ("{}", "[{}]", "[[{}]]", r"\boxed{{{}}}", "[[{0}, {0}], [{0}, {0}]]", "{} + x"):
            env.reset(seed=0)
            called(env, PLACES[env_id.partition("/")[0]], text=form.format(code))
            assert not file.exists()
    env.close()
