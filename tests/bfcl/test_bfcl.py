"""BFCL-v0 judges as the original does, keeps episodes apart, and evaluates nothing that an agent writes."""

from __future__ import annotations

import builtins
import decimal
import importlib.metadata
import random
import shutil
from typing import Any

import pytest

original = pytest.importorskip(
    "bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker",
    reason="needs the conversations: pip install --no-deps bfcl-eval==2026.3.23",
)

import mpmath  # noqa: E402
from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils  # noqa: E402

from envsuite import testing  # noqa: E402
from envsuite.bfcl import package  # noqa: E402
from envsuite.bfcl.env import BFCL, TOO_LONG  # noqa: E402
from envsuite.bfcl.expert import BFCLExpert  # noqa: E402
from envsuite.core import DataError, MissingExtra, ToolCall  # noqa: E402
from envsuite.evaluation.demonstrations.demonstration import Demonstration  # noqa: E402
from envsuite.evaluation.demonstrations.file import row_of  # noqa: E402
from envsuite.evaluation.demonstrations.playing import demonstrate, replay  # noqa: E402
from envsuite.testing import Check  # noqa: E402

Steps = list[list[list[ToolCall]]]
"""Calls by turn and step."""
IDS = [f"{category}_{number}" for category in package.CATEGORIES for number in range(200)]
LONG = ["long_context_0", "long_context_100", "long_context_150"]
MATHEMATICS = next(task for task, talk in package.conversations().items() if "MathAPI" in talk.services)
REPLY = (ToolCall("reply", {"text": "Done."}),)


def written(call: ToolCall) -> str:
    """A call as the original has it: Python, which it evaluates."""
    return f"{call.name}({','.join(f'{name}={value!r}' for name, value in call.arguments.items())})"


def judged_by_the_original(task_id: str, steps: Steps) -> bool:
    talk = package.conversations()[task_id]
    entry = {"id": f"multi_turn_{task_id}", "initial_config": talk.config, "involved_classes": [*talk.services]}
    calls = [[[written(call) for call in step] for step in turn if step] for turn in steps]
    answers = [[written(call) for call in turn] for turn in talk.answers]
    try:
        return bool(original.multi_turn_checker(calls, answers, entry, "", "model")["valid"])
    finally:
        for name in [name for name in vars(multi_turn_utils) if name.endswith("_instance")]:
            delattr(multi_turn_utils, name)  # it would go on with them


def play(env: BFCL, task_id: str, steps: Steps) -> tuple[bool, Steps]:
    """Plays calls and a reply a turn; returns whether that is a success, and the calls that were executed."""
    env.reset(options={"task_id": task_id})
    for action in [action for turn in steps for action in (*turn, REPLY)]:
        *_, terminated, _, info = env.step(action)
        if terminated:
            break
    return info["success"], [[calls] for calls in env.dialogue.turns[: len(steps)]]


def answers_of(task_id: str) -> Steps:
    """The answer sequence, in steps of ten calls at most."""
    turns = package.conversations()[task_id].answers
    return [[list(turn[start : start + 10]) for start in range(0, len(turn), 10)] for turn in turns]


def damaged(task_id: str, env: BFCL, draw: random.Random) -> Steps:
    """The answer sequence with one to three damages."""
    turns = [[call for step in turn for call in step] for turn in answers_of(task_id)]
    for _ in range(draw.choice((1, 1, 2, 3))):
        full = [turn for turn in turns if turn]
        if not full:
            break
        turn = draw.choice(full)
        at = draw.randrange(len(turn))
        match draw.randrange(7):
            case 0:
                del turn[at]
            case 1:
                turn.insert(draw.randrange(len(turn) + 1), draw.choice(draw.choice(full)))
            case 2:
                draw.shuffle(turn)
            case 3:
                draw.choice(turns).append(turn.pop(at))
            case 4:
                env.reset(options={"task_id": task_id})
                env.action_space.seed(draw.randrange(2**31))
                turn.insert(at, env.action_space.sample()[0])
            case _:
                arguments = {name: changed(value, draw) for name, value in turn[at].arguments.items()}
                turn[at] = ToolCall(turn[at].name, arguments)
    size = draw.randrange(1, 11)
    return [[turn[start : start + size] for start in range(0, len(turn), size)] for turn in turns]


def changed(value: Any, draw: random.Random) -> Any:
    """Another value, or the same."""
    if draw.random() < 0.4:
        return value
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return draw.choice((value + 1, -value, 0, float(value), str(value)))
    return draw.choice((f"{value}x", "", value.upper())) if isinstance(value, str) else draw.choice(([], value, "x"))


def differences(cases: int, seed: int) -> tuple[int, int, int]:
    """Of damaged sequences: those that still pass, those with a refused call, and those judged otherwise."""
    env, draw, passing, refused, different = BFCL(split=None), random.Random(seed), 0, 0, 0
    for case in range(cases):
        task_id = IDS[case * 7 % len(IDS)]
        steps = damaged(task_id, env, draw)
        here, executed = play(env, task_id, steps)
        passing += here
        refused += [calls for (calls,) in executed] != [[call for step in turn for call in step] for turn in steps]
        whole = len(env.dialogue.turns) > len(steps)  # the original, too, fails one with a turn of too many steps
        different += here != (whole and judged_by_the_original(task_id, executed))
    return passing, refused, different


def expert_solves(task_id: str, env: BFCL) -> bool:
    env.reset(options={"task_id": task_id})
    while not env.done:
        *_, info = env.step(BFCLExpert().act(env))
    return bool(info["success"]) and judged_by_the_original(task_id, answers_of(task_id))


@pytest.mark.parametrize("category", package.CATEGORIES)
def test_answer_sequences_pass_here_and_in_the_original(category):
    env = BFCL(split=None)
    assert all(expert_solves(f"{category}_{number}", env) for number in (*range(0, 200, 25), 49, 173))


def test_damaged_sequences_are_judged_as_in_the_original():
    passing, refused, different = differences(80, seed=0)
    assert different == 0 and 0 < passing < 60 and refused > 0


def test_episodes_leave_the_process_and_the_package_as_they_were(monkeypatch):
    modules = [importlib.import_module(place) for place in {*package._constants().CLASS_FILE_PATH_MAPPING.values()}
               if not place.endswith(("web_search", "kv", "vector", "rec_sum"))]  # fmt: skip

    def constants() -> str:
        return repr([(name, vars(module)[name]) for module in modules for name in dir(module) if name.isupper()])

    before, env, digits = constants(), BFCL(split=None), (mpmath.mp.dps, decimal.getcontext().prec)
    monkeypatch.setattr(builtins, "eval", lambda *_: pytest.fail("evaluates"))
    shown = [[env.reset(options={"task_id": task}), env.step(answers_of(task)[0][0])] for task in LONG * 2]
    assert shown[: len(LONG)] == shown[len(LONG) :]
    for name, arguments in (("logarithm", {"value": 9.0, "base": 3.0, "precision": 70}),
                            ("square_root", {"number": 2.0, "precision": 60})):  # fmt: skip
        env.reset(options={"task_id": MATHEMATICS})
        assert env.step((ToolCall(name, arguments),))[4]["valid"]
    assert (constants(), (mpmath.mp.dps, decimal.getcontext().prec)) == (before, digits)
    for call in (ToolCall("__init__", {}), ToolCall("_load_scenario", {}), ToolCall("cd(folder='a')", {})):
        assert env.step((call,))[4]["error"].startswith("unknown tool")
    text = env.step((ToolCall("power", {"base": 9, "exponent": 10**12}),))[0]["text"]
    assert text == "Error during execution: exponent is larger than 10000"


def test_a_reward_per_turn_adds_up_to_one_and_a_turn_has_at_most_20_steps():
    env = BFCL(split=None, reward="turn")
    env.reset(options={"task_id": "base_1"})
    turns = package.conversations()["base_1"].answers
    assert sum(env.step(action)[1] for turn in turns for action in (turn, REPLY)) == pytest.approx(1.0) and env.done
    env.reset(options={"task_id": "base_1"})
    assert env.step((*REPLY, *turns[0]))[4]["error"] == "reply ends your turn, so it comes last"
    texts = [env.step(turns[0])[0]["text"] for _ in range(21)]
    assert env.done and texts[-1] == TOO_LONG and texts[-2] == texts[0]


def test_what_is_missing_or_damaged_is_said_with_the_remedy_or_the_line(monkeypatch, tmp_path):
    shutil.copytree(package._data(), tmp_path, dirs_exist_ok=True)
    file = tmp_path / "multi_turn_func_doc" / "math_api.json"
    file.write_bytes(b"\n".join([*file.read_bytes().splitlines()[:2], b'{"name": "add"}']))
    monkeypatch.setattr(package, "_data", lambda: tmp_path)
    with pytest.raises(DataError, match=r"math_api\.json, line 3: not as bfcl-eval writes it \(KeyError"):
        package.service_tools.__wrapped__()
    monkeypatch.setattr(package, "version", lambda _: importlib.metadata.version("no-such-package"))
    with pytest.raises(MissingExtra, match="pip install --no-deps bfcl-eval==2026"):
        package.package_version.__wrapped__()


def test_a_demonstration_says_when_functions_come_and_plays_again():
    env = BFCL()
    played = demonstrate(env, "miss_func_0", BFCLExpert().act, None, env_options={}, player="expert")
    read = Demonstration.from_json(row_of(played, "tags")["episode"])
    assert read.success and replay(BFCL(), read) == read == played
    assert [step.observation["tools"][-2:] == ("sort", "reply") for step in played.steps].index(True) == 4


@pytest.mark.slow
def test_all_answer_sequences_pass_here_and_in_the_original():
    env = BFCL(split=None)
    assert [task_id for task_id in IDS if not expert_solves(task_id, env)] == []


@pytest.mark.slow
def test_5_000_damaged_sequences_are_judged_as_in_the_original(capsys):
    passing, refused, different = differences(5_000, seed=1)
    with capsys.disabled():
        print(f"\n5000 damaged: {passing} pass, {refused} with a refused call, {different} differ")
    assert different == 0


@pytest.mark.slow
def test_none_of_100_000_actions_raises():
    testing.any_actions(Check("BFCL-v0", testing.any_actions), 100_000)
