"""Every registered environment passes the checker, and the checker fails environments that do not."""

from __future__ import annotations

import inspect
import itertools
import random
import threading
from dataclasses import replace
from typing import Any

import gymnasium
import pytest

import envsuite  # noqa: F401  (registers the ids)
from envsuite import testing
from envsuite.core import ToolCall, ToolEnv, UsageError
from envsuite.core.registration import ENVIRONMENTS, builtin
from envsuite.remote import RemoteEnv
from envsuite.remote.making import make_player, practice_of
from envsuite.testing import Check, checks
from envsuite.textcraft.env import TextCraft
from envsuite.textcraft.expert import TextCraftExpert
from envsuite.textcraft.milestones import TextCraftMilestones

numbers = itertools.count()


OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("ALFWorld-v0", {"source": "generated", "games": 18}),
    ("TextCraft-v0", {"source": "generated", "goals": 200, "spare": 1}),
    ("Sokoban-v0", {"source": "generated", "levels": 20, "max_episode_steps": 200}),
    ("Sokoban-v0", {"max_calls": 3, "observation": "both"}),
    ("Bifurcation-v0", {"source": "generated", "mistake": "recoverable", "aliasing": "different", "slip": 0.3}),
    ("PythonMath-v0", {"source": "generated", "problems": 20}),
    ("PaperSearch-v0", {"papers": 800}),
    ("PaperSearchTeam-v0", {"papers": 800}),
    ("SearchQA-v0", {"source": "generated", "entities": 300, "questions": 60, "open_pages": True}),
    ("WebShop-v0", {"source": "generated", "products": 300, "mode": "structured"}),
    ("BabyAI-v0", {"source": "generated", "worlds": 20, "level": "GoToObjS4"}),
    ("BabyAI-v0", {"view": "full", "level": "MiniBossLevel", "max_episode_steps": 200}),
    ("TextWorld-v0", {"level": "coin/5", "source": "generated", "games": 20, "reward": "intermediate"}),
    ("TextWorld-v0", {"level": "cooking/recipe1+take1+cook+go1", "reward": "score"}),
    ("BFCL-v0", {"tasks": ["miss_func", "long_context"], "reward": "turn"}),
    ("Wordle-v0", {"source": "generated", "game_seed": 3, "words": 120}),
    ("Countdown-v0", {"source": "generated", "numbers": 5, "target": [100, 500]}),
    ("TextFrozenLake-v0", {"source": "generated", "size": 8, "frozen": 0.9, "slip": 0.02}),
    ("Game2048-v0", {"source": "generated", "goal": 64, "size": 3}),
    ("RushHour-v0", {"source": "generated", "cars": 11, "moves": [3, 9]}),
]
"""Environments that are made otherwise than by default."""


@pytest.mark.parametrize("check", [check for env_id in ENVIRONMENTS for check in checks(env_id)], ids=str)
def test_every_registered_environment_passes(check):
    check()


@pytest.mark.seconds
@pytest.mark.parametrize("check", [check for env_id, kwargs in OTHERS for check in checks(env_id, **kwargs)], ids=str)
def test_environments_with_other_sources_pass(check):
    check()


@pytest.mark.slow
@pytest.mark.parametrize("env_id", ENVIRONMENTS)
def test_none_of_20_000_actions_raises(env_id):
    testing.any_actions(Check(env_id, testing.any_actions), 20_000)


def test_horizons_are_those_of_the_papers():
    horizons = {spec.id: spec.max_episode_steps for spec in builtin()}  # other tests register more
    assert horizons == {
        "ALFWorld-v0": 50, "TextCraft-v0": 50, "Sokoban-v0": 15, "PythonMath-v0": 8,
        "PaperSearch-v0": 5, "PaperSearchTeam-v0": 10, "SearchQA-v0": 5, "WebShop-v0": 15, "BabyAI-v0": 64,
        "Bifurcation-v0": 50, "BFCL-v0": 168, "TextWorld-v0": 50,
        "Wordle-v0": 12, "Countdown-v0": 10, "TextFrozenLake-v0": 100, "Game2048-v0": 200, "RushHour-v0": 25,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("env_id", "player"), [(env_id, name) for env_id, spec in ENVIRONMENTS.items() for name in spec.players]
)
def test_a_player_refuses_another_environment(env_id, player):
    other = gymnasium.make("Sokoban-v0" if env_id != "Sokoban-v0" else "TextCraft-v0")
    with pytest.raises(UsageError, match=f"this plays {env_id}, not |this needs the state of {env_id} itself"):
        make_player(env_id, player).act(other)


@pytest.mark.parametrize("env_id", [env_id for env_id, spec in ENVIRONMENTS.items() if spec.practice])
def test_a_teacher_refuses_what_is_no_probability_and_another_environment(env_id):
    make = practice_of(env_id).teacher
    for name, parameter in inspect.signature(make).parameters.items():
        for value in (1.5, -0.1) if "float" in str(parameter.annotation) else ():
            with pytest.raises(UsageError, match=f"{name}={value} is not a probability"):
                make(**{name: value})
    other = gymnasium.make("Sokoban-v0" if env_id != "Sokoban-v0" else "TextCraft-v0")
    other.reset(seed=0)
    with pytest.raises(UsageError, match=f"{env_id}, not "):
        next(make().turns(other, random.Random(0)))


def unlike(name: str, **changed: Any) -> Any:
    """A method whose info, or other dictionary, has other values."""
    method = getattr(TextCraft, name)
    return lambda *arguments: {**method(*arguments), **changed}


LOOK = (ToolCall("env_step", {"command": "inventory"}),)
WRONG = [
    ("contract", TextCraft, "_info", lambda env, outcome: {"valid": True}, "are missing"),
    ("splits", TextCraft, "_draw", lambda env, seed, options: env._split_ids[-1], "reset of 'train': expected"),
    ("goals", TextCraft, "goal", lambda env, task: "Sing.", "goal of task .* got 'Sing.'"),
    ("goals", TextCraft, "identity", lambda env, task: {"number": next(numbers)}, "identity of task"),
    ("episodes", TextCraft, "_state_key", lambda env: str(next(numbers)), "seed 0, reset: expected"),
    (
        "malformed_actions",
        TextCraft,
        "_refuse",
        lambda env, problem, shown: env.step(LOOK),
        "valid, commands: expected",
    ),
    ("malformed_actions", TextCraft, "_info", unlike("_info", error="Why?"), "expected the error 'Why\\?' in the text"),
    ("changing_tools", TextCraft, "tools_change", True, "has tools that do not change"),
    ("misuse", ToolEnv, "restore", lambda env, token: None, "expected restore of something else to raise"),
    ("misuse", TextCraft, "goal", lambda env, task: "Sing.", "goal of a task that does not exist to raise"),
    ("snapshots", TextCraft, "_resume", lambda env, task, world: env._begin(task), "restored: expected"),
    ("pickles", TextCraft, "_resume", lambda env, task, world: env._begin(task), "of a copy: expected"),
    ("threads", TextCraft, "_state_key", lambda env: str(threading.get_ident()), "beside others in threads: expected"),
    ("processes", TextCraft, "_state_key", lambda env: "x", "seed 0, episode in a fresh process: expected"),
    ("rendering", TextCraft, "render", lambda env: "", "seed 0: expected text, got ''"),
    ("players", TextCraftExpert, "act", lambda player, env: (), "success of the expert: expected True, got False"),
    (
        "milestones",
        TextCraftMilestones,
        "count_reached",
        lambda milestones, action, info: 0,
        "the last step reaches a milestone",
    ),
    ("server", RemoteEnv, "_see", lambda env, seen: None, "not within the observation space"),
]


def test_a_schema_may_have_optional_arguments_and_take_any(monkeypatch):
    (tool,) = TextCraft.tools
    properties = {**tool.parameters["properties"], "note": {}}
    loose = replace(tool, parameters={"type": "object", "properties": properties, "required": ["command"]})
    monkeypatch.setattr(TextCraft, "tools", (loose,))
    propose = TextCraft._propose

    def noted(env: TextCraft, rng: Any) -> ToolCall:
        call = propose(env, rng)
        return ToolCall(call.name, {**call.arguments, "note": "1"})

    monkeypatch.setattr(TextCraft, "_propose", noted)
    check = Check("TextCraft-v0", testing.malformed_actions)
    check()
    env = check.world()
    tried = [action for action in testing._unfit_actions(env) if action and isinstance(action, tuple)]
    lacking = [call for (call, *_) in tried if call.name == tool.name and "command" not in call.arguments]
    assert lacking, "a required argument is still left out"


@pytest.mark.parametrize(("name", "kind", "method", "wrong", "message"), WRONG, ids=lambda value: str(value)[:20])
def test_a_wrong_environment_fails_the_check_which_says_what_came(name, kind, method, wrong, message, monkeypatch):
    check = Check("TextCraft-v0", getattr(testing, name))
    monkeypatch.setattr(kind, method, wrong)
    with pytest.raises(Exception, match=message):
        check()
    monkeypatch.undo()
    check()
