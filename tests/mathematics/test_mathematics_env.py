"""PythonMath-v0: its tools, rewards, what it counts, and what it keeps apart.

docs/environments/mathematics.md says what is so.
"""

from __future__ import annotations

import json
import pickle
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from teaching import Acting, played

from envsuite.core import EnvsuiteError, ToolCall, ToolEnv, WorkerLost
from envsuite.interpreter import Limits, open_interpreter
from envsuite.mathematics import judge, prompts
from envsuite.mathematics.env import PythonMathEnv
from envsuite.mathematics.expert import MathExpert
from envsuite.mathematics.generate import BY_STRATUM, KINDS, LEVELS
from envsuite.mathematics.player import Calculator
from envsuite.mathematics.source import COUNTS, ProblemFiles
from envsuite.mathematics.tasks import load

TASK = "arithmetic-1/test#0"


@pytest.fixture
def made() -> Iterator[Callable[..., PythonMathEnv]]:
    """Makes environments here, and closes them after the test."""
    envs: list[PythonMathEnv] = []

    def make(**arguments: Any) -> PythonMathEnv:
        envs.append(PythonMathEnv(**arguments))
        return envs[-1]

    yield make
    for env in envs:
        env.close()


def python(code: str) -> tuple[ToolCall, ...]:
    return (ToolCall("python", {"code": code}),)


def answer(text: str) -> tuple[ToolCall, ...]:
    return (ToolCall("answer", {"text": text}),)


def begun(env: ToolEnv, task_id: str = TASK) -> ToolEnv:
    env.reset(options={"task_id": task_id})
    return env


def right(task_id: str = TASK) -> str:
    env = PythonMathEnv()
    env.reset(options={"task_id": task_id})
    return env.problem.answer


def test_variables_stay_in_an_episode_and_what_is_printed_is_shown_with_a_hint(made):
    env = begun(made())
    texts = [
        env.step(python(code))[0]["text"] for code in ("x = 17 * 23", "print(x)", "x + 1", "import math", "math.pi > 3")
    ]
    assert texts == [prompts.NOTHING_PRINTED, "391", "392", prompts.NOTHING_PRINTED, "True"]
    begun(env)
    observation, _, _, _, info = env.step(python("print(x)"))
    assert "NameError" in observation["text"] and observation["text"].endswith(prompts.CHECK)
    assert info["valid"] and info["metrics"] == {"tool_calls": 1.0, "tool_errors": 1.0}
    code = "import sys\nprint('seen')\nprint('warned', file=sys.stderr)"
    assert env.step(python(code))[0]["text"] == f"seen\nstderr:\nwarned\n{prompts.CHECK}"
    text = env.step(python("print(1"))[0]["text"]
    assert text.startswith("stderr:\n") and "SyntaxError" in text
    env.step(python("x = 41"))
    env.close()
    env.close()
    assert env.step(python("x + 1"))[0]["text"] == "42", "a closed environment goes on where it was"


@pytest.mark.seconds
def test_a_run_without_end_is_stopped_and_the_episode_goes_on(made):
    env = begun(made(seconds=2.0))
    env.step(python("x = 1"))
    observation, _, done, _, info = env.step(python("while True: pass"))
    assert "timeout" in observation["text"] and not done and info["metrics"]["tool_errors"] == 1.0
    assert "NameError" in env.step(python("x"))[0]["text"]
    assert env.step(python("1 + 1"))[0]["text"] == "2"


@pytest.mark.parametrize(
    ("reward", "rewards"), [("exact", (1.0, 0.0)), ("signed", (1.0, -1.0)), ("format", (1.1, 0.1))]
)
def test_an_answer_ends_the_episode_with_its_reward(reward, rewards, made):
    env = made(reward=reward)
    for text, wanted, success in ((right(), rewards[0], True), ("-1", rewards[1], False)):
        begun(env)
        observation, got, done, _, info = env.step(answer(text))
        assert got == pytest.approx(wanted) and done and info["success"] == success and info["score"] == float(success)
        assert observation["text"] == (prompts.RIGHT if success else prompts.WRONG)
        assert right() not in observation["text"]


@pytest.mark.parametrize("action", [(), answer(" "), python("x" * 20_001), (ToolCall("calculate", {}),)])
def test_the_reward_for_the_format_needs_every_step_to_be_valid(action, made):
    env = made(reward="format")
    for before, wanted in ((action, 1.0), (python("1/0"), 1.1)):
        begun(env)
        env.step(before)
        assert env.step(answer(right()))[1] == pytest.approx(wanted)


def test_results_name_the_version_of_the_checker(made):
    env = made()
    wanted = {"source": "builtin", "data": env.tasks.version, "math-verify": judge.version()}
    assert env.reset(seed=0)[1]["versions"] == wanted


def test_keys_of_states_are_the_history_of_calls_and_results(made):
    env, other = begun(made()), begun(made())
    keys = []
    for code in ("x = 1", "x", "x"):
        info = env.step(python(code))[4]
        assert other.step(python(code))[4]["state_key"] == info["state_key"]
        keys.append(info["state_key"])
    assert len(set(keys)) == 3
    other.step(())
    assert other.step(python("x = 2"))[4]["state_key"] != env.step(python("x = 3"))[4]["state_key"]


@pytest.mark.seconds
@pytest.mark.parametrize(
    "codes", [[], ["x = 1"], ["x = 1", "1/0", "x += 1"], ["x = 1", "while True: pass", "y = 5", "1/0"]]
)
def test_a_restored_snapshot_is_the_episode_and_goes_on_as_it_does(codes, made):
    seconds = 2.0 if "while True: pass" in codes else 5.0
    env, other = made(seconds=seconds), made(seconds=seconds)
    env.reset(seed=4)
    for code in codes:
        env.step(python(code))
    env.step(())
    token = pickle.loads(pickle.dumps(env.snapshot()))
    assert json.loads(json.dumps(token)) == token
    assert other.restore(token)["text"].startswith("Invalid action") and other.snapshot() == token
    assert (env.done, env.episode, env.ran) == (other.done, other.episode, other.ran)
    for code in ("x", "y", "1/0", "x = 7"):
        assert env.step(python(code)) == other.step(python(code))
    assert env.step(answer("5")) == other.step(answer("5")) and other.done


@pytest.mark.seconds
def test_an_episode_whose_code_no_longer_ends_in_time_is_not_restored_in_another_state(made):
    env = begun(made(seconds=2.0))
    token = env.snapshot()
    env.restore({**token, "world": {**token["world"], "ran": ["while True: pass"]}})
    with pytest.raises(WorkerLost, match="no longer ends within the limits"):
        env.step(python("1"))
    begun(env)
    assert env.step(python("1"))[0]["text"] == "1"


def test_code_cannot_reach_the_checker_of_answers(made):
    env = begun(made())
    for code in (
        "import envsuite.mathematics.answers as a\na.is_right = lambda *_: True",
        "import builtins, fractions\nfractions.Fraction.__eq__ = lambda *_: True\nbuiltins.int = lambda *_: 0",
        "import sympy\nsympy.Basic.__eq__ = lambda *_: True",
        "import gc\n[setattr(o, 'answer', '-1') for o in gc.get_objects() if type(o).__name__ == 'Problem']",
        "import sys\n[m for m in sys.modules if 'envsuite' in m]",
    ):
        observation, _, _, _, info = env.step(python(code))
        assert info["valid"]
    assert observation["text"] == "[]"
    assert not env.step(answer("-1"))[4]["success"]
    begun(env)
    assert env.step(answer(right()))[4]["success"]


def test_the_right_answer_is_nowhere_in_the_sandbox(made):
    env = begun(made(), "sequences-1/test#2")
    value = env.problem.answer
    assert len(value) > 6
    search = (
        f"import gc, os, sys\nprint('{value[::-1]}'[::-1] in str([globals(), sys.argv, os.environ, gc.get_objects()]))"
    )
    assert env.step(python(search))[0]["text"] == "False"


def test_the_expert_runs_its_code_again_where_something_came_between(made):
    env = begun(made())
    code = MathExpert().act(env)
    env.step(code)
    env.step(())
    assert MathExpert().act(env) == code
    env.step(code)
    assert env.step(MathExpert().act(env))[4]["success"]


@pytest.mark.seconds
@pytest.mark.parametrize("every", [10, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("task_type", BY_STRATUM)
def test_the_expert_solves_builtin_problems(task_type, every, made):
    env = made(split="test", tasks=[task_type])
    for task_id in env.tasks.ids("test")[::every]:
        first, last = played(env, task_id, Acting(MathExpert()))
        assert not first.done and last.info["success"], task_id


def test_the_expert_knows_the_answers_of_files(tmp_path, made):
    (tmp_path / "test.jsonl").write_text('{"problem": "What is the root of 2?", "answer": "\\\\sqrt{2}"}\n')
    env = made(source=str(tmp_path), split="test")
    env.reset()
    assert env.step(MathExpert().act(env))[4]["success"]
    env.reset()
    assert env.step(answer("2^{1/2}"))[4]["success"]


@pytest.mark.parametrize(
    ("player", "solved", "calls"),
    [({}, 1.0, 1.0), ({"careless": 1.0}, 1.0, 2.0), ({"rash": 1.0}, 0.0, 0.0)],
)
def test_the_player_calculates_or_guesses(player, solved, calls, made):
    env, rng = made(tasks=["arithmetic-1"]), random.Random(0)
    for seed in range(5):
        env.reset(seed=seed)
        slips = []
        for move in Calculator(**player).turns(env, rng):
            _, _, done, _, info = env.step(move.action)
            slips.append(move.slip)
        assert done and info["score"] == solved and info["metrics"]["tool_calls"] == calls
        assert slips == [True, False, False][3 - len(slips) :] if player.get("careless") else not any(slips)


def test_the_players_code_without_print_fits_every_family(made):
    env, rng = made(), random.Random(0)
    for task_type in BY_STRATUM:
        begun(env, f"{task_type}/train#0")
        slip = next(Calculator(careless=1.0).turns(env, rng))
        assert env.step(slip.action)[0]["text"] == prompts.NOTHING_PRINTED, slip


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"interpreter": "none"}, "interpreter"),
        ({"source": "nowhere"}, "no file or folder"),
    ],
)
def test_arguments_that_cannot_be_are_refused(arguments, said):
    with pytest.raises(EnvsuiteError, match=said):
        PythonMathEnv(**arguments)


def test_clients_of_a_server_cannot_do_without_isolation(server):
    for name in ("unisolated", "http://127.0.0.1:1"):
        with pytest.raises(EnvsuiteError, match="interpreter"):
            gymnasium.make("PythonMath-v0", url=server, interpreter=name)


def test_environments_of_a_process_share_an_interpreter(made):
    one, other = begun(made()), begun(made())
    assert one._interpreter is other._interpreter is open_interpreter("auto", Limits(seconds=5.0))
    one.step(python("x = 1"))
    assert "NameError" in other.step(python("x"))[0]["text"]


def test_the_counts_on_the_page_are_those_of_the_task_sets(page):
    assert f"| `builtin`, each of the {len(BY_STRATUM)} types | {' | '.join(map(str, COUNTS.values()))} |" in page
    assert f"| {sum(COUNTS.values())} of each type below" in page
    splits = load("generated", 0, 1000, KINDS, LEVELS)[1].splits.values()
    assert f"| `generated` (default: `problems=1000`) | {' | '.join(str(len(ids)) for ids in splits)} |" in page
    assert all(f"| `{kind}` |" in page for kind in KINDS)


def test_the_code_for_parquet_makes_lines_that_are_read(page, tmp_path):
    row: dict[str, Any] = {
        "prompt": [{"role": "user", "content": "How many?"}],
        "reward_model": {"ground_truth": "34", "style": "rule"},
    }
    pq.write_table(pa.Table.from_pylist([row, row]), tmp_path / "dapo-math-17k.parquet")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    names["lines"](tmp_path / "dapo-math-17k.parquet", tmp_path)
    problems = ProblemFiles(tmp_path)
    assert list(problems.listed.values()) == [("train", "dapo-math-17k")]
    assert orjson.loads((tmp_path / "dapo-math-17k.jsonl").read_bytes()) == row
