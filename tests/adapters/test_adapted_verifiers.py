"""Environments of verifiers, played by its own rollouts."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from adapted import called, made

from envsuite.core import MissingExtra, UsageError
from envsuite.testing import checks

FILE = '''
import random
import verifiers as vf
from datasets import Dataset

def rows(count):
    return Dataset.from_list([{"question": f"{n} + 1 = ?", "answer": str(n + 1)} for n in range(count)])

def right(completion, answer, **kwargs):
    return float(completion[-1].content == answer) if completion[-1].role == "assistant" else 0.0

def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b

class Guess(vf.MultiTurnEnv):
    async def setup_state(self, state):
        state["number"] = random.randint(0, 9)
        return state

    async def env_response(self, messages, state, **kwargs):
        if messages[-1].content == "fail":
            raise RuntimeError("a bug")
        if messages[-1].content == str(state["number"]):
            state["won"], state["final_env_response"] = 1.0, [vf.UserMessage(content="Right.")]
        return [vf.UserMessage(content=f"No, but {random.random()}.")]

def won(state, **kwargs):
    return state.get("won", 0.0)

def load_environment(kind):
    if kind == "guess":
        return Guess(dataset=rows(4), max_turns=20, rubric=vf.Rubric(funcs=[won]))
    if kind == "tools":
        return vf.ToolEnv(tools=[add], dataset=rows(4), eval_dataset=rows(2), rubric=vf.Rubric(funcs=[right]))
    if kind == "judge":
        return vf.SingleTurnEnv(dataset=rows(4), rubric=vf.RubricGroup([vf.JudgeRubric(judge_client=object())]))
    return vf.SingleTurnEnv(dataset=rows(4), system_prompt="Add.", rubric=vf.Rubric(funcs=[right]))
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(
        "verifiers", reason="needs the package, apart from the extra bridges: pip install 'verifiers<0.4'"
    )
    monkeypatch.chdir(tmp_path)
    Path("sums.py").write_text(FILE)


def of(kind: str, **more: Any) -> Any:
    return made("verifiers/sums", settings={"kind": kind}, **more)


@pytest.mark.usefixtures("folder")
def test_a_single_turn_is_scored_by_the_rubric():
    env = of("single", train=3)
    assert env.unwrapped.tasks.splits == {"train": ("train-0", "train-1", "train-2")}
    for text, reward in (("3", 1.0), ("4", 0.0)):
        seen, _ = env.reset(options={"task_id": "train-2"})
        assert seen["task"] == "Add.\n\n2 + 1 = ?"
        *_, earned, ended, cut, info = called(env, "answer", text=text)
        assert (earned, ended, cut, info["success"], info["metrics"]["right"]) == (
            reward,
            True,
            False,
            reward == 1,
            reward,
        )


@pytest.mark.usefixtures("folder")
def test_tools_are_the_environments_and_random_numbers_those_of_the_task():
    env = of("tools")
    assert [tool.name for tool in env.unwrapped.tools] == ["answer", "add"]
    assert [*env.unwrapped.tasks.splits] == ["train", "test"]
    env.reset(options={"task_id": "test-1"})
    assert called(env, "add", a=1, b=1)[0]["text"] == "2"
    assert called(env, "answer", text="2")[1:3] == (1.0, True)
    one, other = of("guess"), of("guess")
    assert one.reset(seed=1)[0] == other.reset(seed=1)[0]
    for number in range(10):
        result = called(one, "answer", text=str(number))
        assert result[:4] == called(other, "answer", text=str(number))[:4]
        if result[2]:
            break
    assert result[0]["text"] == "Right." and result[4]["success"]


@pytest.mark.usefixtures("folder")
def test_what_fails_is_told():
    env = of("guess")
    env.reset(seed=0)
    *_, ended, _, info = called(env, "answer", text="fail")
    assert not ended and "a bug" in info["error"] and called(env, "answer", text="0")[4]["valid"]
    with pytest.raises(UsageError, match="verifiers/sums asks a judge, which a confined process may not"):
        of("judge")
    of("judge", confined=False).close()
    with pytest.raises(UsageError, match="verifiers/sums cannot be loaded: TypeError"):
        made("verifiers/sums")
    with pytest.raises(UsageError, match="verifiers/none cannot be loaded: ValueError: Could not import 'none'"):
        made("verifiers/none")


@pytest.mark.seconds
@pytest.mark.usefixtures("folder")
def test_verifiers_keeps_the_contract_and_the_programs_signals():
    import signal

    before = signal.getsignal(signal.SIGTERM)
    Path("sums.json").write_text('{"settings": {"kind": "guess"}}')
    for check in checks("verifiers/sums"):
        check()
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.skipif(find_spec("verifiers") is not None, reason="verifiers is installed")
def test_verifiers_that_is_missing_is_named():
    with pytest.raises(MissingExtra, match=r"pip install .verifiers<0\.4."):
        made("verifiers/sums")
