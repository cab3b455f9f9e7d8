"""Code of others that fails: in each way to run it, its episode fails with task, function and reason, and no other."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from broken_worlds import FAILURES, FILE, NAMES
from driving import answers, one, reset_all

from envsuite.adapters.openenv import OpenEnv
from envsuite.core import ToolCall
from envsuite.core.boundary import CodeError, reason, text
from envsuite.core.naming import spec_of
from envsuite.core.registration import ENVIRONMENTS, NAMED
from envsuite.core.tools import Tool, with_integers
from envsuite.serving.server import serving
from envsuite.serving.settings import ServerSettings
from envsuite.vector import EnvFactory, make_vector

GYM = "gymnasium/BrokenGym-v0"
KINDS = ("broken.py", "broken_worlds:Broken-v0", GYM)


@pytest.fixture(scope="module", autouse=True)
def registered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Registers the environments while the module's tests run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("broken"))
        patch.setenv(NAMED, "")
        Path("broken.py").write_text(FILE)
        for env_id in ("broken.py", "gymnasium/broken_worlds:BrokenGym-v0"):
            spec_of(env_id)
        yield
    for env_id in ("broken.py", GYM):
        del ENVIRONMENTS[env_id], gymnasium.registry[env_id]


@pytest.fixture(scope="module", params=["here", "workers", "server", "server with workers"])
def run(request: pytest.FixtureRequest, registered: None) -> Iterator[Any]:
    """Makes a vector of two episodes of an environment."""
    if not request.param.startswith("server"):
        yield lambda env_id: make_vector([EnvFactory(env_id)], 2, workers=2 * (request.param == "workers"))
        return
    with serving(ServerSettings(KINDS, port=0, workers=2 * ("with" in request.param))) as running:
        yield lambda env_id: make_vector([EnvFactory(env_id, {"url": running.url})], 2)


def _action(env_id: str, where: str, kind: str) -> tuple[ToolCall, ...]:
    if env_id == GYM:
        return (ToolCall("act", {"action": str(NAMES.index(kind) if kind in NAMES else len(NAMES))}),)
    return (ToolCall("do", {"command": f"{where} {kind}"}),)


@pytest.mark.parametrize("env_id", KINDS)
def test_a_failure_ends_its_own_episode_and_is_told(run, env_id):
    with run(env_id) as vector:
        for where in ("reward", "tool", "key") if env_id == "broken.py" else ("reward",):
            for kind, (_, told) in FAILURES.items():
                if where != "reward" and (kind in NAMES[:4] or (where, kind) == ("tool", "json")):
                    continue  # what tools and state keys return is text; a tool refuses by ValueError
                for event in reset_all(vector).values():
                    assert event.error is None and event.observation["text"] == "half \ufffd a pair"
                error = one(vector, 0, partial(vector.step, 0, _action(env_id, where, kind))).error
                task = {"broken.py": "train-", GYM: "seed-"}.get(env_id, "task a")
                function = {"reward": "reward", "tool": "in do of", "key": "in key of"}[where]
                if kind not in NAMES[:4]:
                    function = {GYM: "in step of broken_worlds.py", "broken.py": function}.get(env_id, "in _call of")
                assert error and told in error and task in error and function in error, error
                other = one(vector, 1, partial(vector.step, 1, _action(env_id, "go", "on")))
                assert other.error is None and other.reward == 0.0 and "half \ufffd" in other.observation["text"]
                assert "\ud83d" not in repr(other)


def test_a_refusal_of_a_tool_stays_an_invalid_action(run):
    with run("broken.py") as vector:
        reset_all(vector)
        vector.step(0, _action("broken.py", "tool", "json"))
        info = answers(vector, 1)[0].info
        assert info and not info["valid"] and "Expecting property name" in str(info["error"])


def test_an_end_of_openenv_without_a_verdict_is_no_zero():
    env: Any = OpenEnv.__new__(OpenEnv)
    env._total = 0.0
    seen = {"text": "", "error": "verifier wrote no verdict"}
    with pytest.raises(CodeError, match="verifier wrote no verdict"):
        env._outcome({"observation": seen, "reward": None, "done": True})
    refused = env._outcome({"observation": seen, "reward": None, "done": False})
    assert refused.error == "verifier wrote no verdict"


@pytest.mark.parametrize(
    ("form", "given", "arrives"),
    [
        ({"type": "integer"}, 1.0, 1),
        ({"type": ["integer", "null"]}, 1.0, 1),
        ({"type": ["integer", "number"]}, 1.0, 1.0),
        ({"type": "number"}, 1.0, 1.0),
        ({"enum": ["a", 2]}, 2.0, 2),
        ({"enum": [True, 1.5]}, 1.5, 1.5),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, 3.0, 3),
        ({"type": "array", "items": {"type": "integer"}}, [1.0, 2], [1, 2]),
        ({"type": "object", "properties": {"k": {"type": "integer"}}}, {"k": 5.0, "l": 1.0}, {"k": 5, "l": 1.0}),
        ({"type": "string"}, "1.0", "1.0"),
        ({"$ref": "#/$defs/count"}, 1.0, 1),
        ({"anyOf": [{"$ref": "#/$defs/a~1b"}, {"type": "null"}]}, [2.0, [3.0]], [2, [3]]),
        ({"anyOf": [{"$ref": "#/$defs/nobody"}, {"type": "number"}]}, 1.0, 1.0),
    ],
)
def test_whole_floats_arrive_as_the_integers_of_the_schema(form, given, arrives):
    nested = {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/a~1b"}]}}
    parts = {"count": {"type": "integer"}, "a/b": nested, "nobody": {"$ref": "#/$defs/nobody"}}
    tool = Tool("t", "", {"type": "object", "properties": {"n": form}, "$defs": parts})
    assert tool.problem({"n": given}) is None
    (call,) = with_integers((ToolCall("t", {"n": given}),), (tool,))
    assert repr(call.arguments["n"]) == repr(arrives)


def test_a_text_is_repaired_and_a_reason_is_one_line():
    assert text("a\ud83d\ude00b\ude00") == "a\U0001f600b\ufffd" and text("ü") == "ü"
    assert reason(ValueError("x\ny \ud83d" + "z" * 999)).startswith("ValueError: x y \ufffdzz")
