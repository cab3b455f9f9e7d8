"""A method that does nothing of its own is named, with the likely cause; one that works is not."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from accelerate import Accelerator
from corridor_world import ARMS
from credit_of_ranks import Random, Signals, by_state
from episodes import episode as made_episode
from episodes import step as made_step
from small_papers import WORLDS, save_model
from tiny_runs import write_settings

from envsuite.core import ToolCall
from envsuite.core.errors import UsageError
from envsuite.core.registration import ENVIRONMENTS
from envsuite.playing.step import Episode, Step
from envsuite.remote.making import make_player
from trainers.credit.config import MethodConfig
from trainers.credit.crediting import Crediting
from trainers.credit.inertness import PATIENCE
from trainers.credit.method import Method
from trainers.credit.providers import GreedyReturn
from trainers.credit.recipes import COMPOSITIONS, recipes
from trainers.credit.scpo import SCPO
from trainers.report.metrics import read_metrics
from trainers.rollout.config import EnvConfig
from trainers.rollout.environments import with_milestones
from trainers.run.cli import parse
from trainers.settings import checked
from trainers.settings.shipped import shipped_configs
from trainers.settings.words import Loader
from trainers.train import main

ITERATIONS = PATIENCE + 1


# -- a real run --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def arms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that pulls any of the arms."""
    return save_model(tmp_path_factory.mktemp("models") / "arms", ARMS)


def test_a_run_with_a_constant_state_key_warns_once_and_a_resumed_one_goes_on_counting(tmp_path, arms, caplog):
    changes: dict[str, Any] = {
        "envs": [{"id": "corridor_world:Corridor-v0", "kwargs": {"state": "constant"}}], "evaluation.envs": [],
        "prompt.think": True, "model.path": str(arms), "rollout.group_size": 6, "rollout.sampling.max_tokens": 16,
        "optim.lr": 1e-5, "checkpoint_every": 2,
        "method.shapers.invalid_action_penalty.coef": 0.0,  # a penalty gives returns that differ
    }  # fmt: skip
    found = []
    for iterations, resume in ((2, []), (ITERATIONS, ["--resume"])):
        config = write_settings(tmp_path, **changes, iterations=iterations)
        assert main(["--config", str(config), *resume]) == 0
        log = (tmp_path / "runs/tiny/run.log").read_text("utf-8").splitlines()
        found.append([line for line in log if "trainers.credit.crediting" in line])
    assert found[0] == []
    (line,) = found[1]
    assert "WARNING" in line and "gigpo: its term 'step' compared by state 0 of" in line
    assert "Likely cause: constant state key: in 100% of the steps the state key of corridor_world:Corridor-v0" in line
    records = [r for r in read_metrics(tmp_path / "runs/tiny/metrics.jsonl") if "term/step/touched" in r]
    assert len(records) == ITERATIONS and any(record["term/step/abs"] > 0.0 for record in records)
    for record in records:
        assert record["term/step/singletons"] == 0.0 and record["term/step/group_size"] == 3 * 6
        assert record["term/episode/group_size"] == 6.0


# -- causes, on tables -------------------------------------------------------------------------------------------------


def _step(t: int, key: str, reward: float = 0.0, command: str = "north", valid: bool = True, **info: Any) -> Step:
    action = (ToolCall("do", {"command": command}),)
    other = {"observation": f"room {key}", "state_key": key, "action": action, "valid": valid}
    return made_step(t, **other, reward=reward, info=info)


def _episode(number: int, group: int, steps: list[Step], success: bool) -> Episode:
    other = {"group_id": group, "env_id": "Tiny-v0", "task_id": f"t{group}"}
    return made_episode(number, *steps, **other, success=success, score=float(success))


def _episodes(
    groups: int = 4, members: int = 4, length: int = 3, key: str = "{t}", success: Any = None, **step: Any
) -> list[Episode]:
    """Groups whose first episode alone succeeds, unless ``success`` says otherwise."""
    found, fresh = [], count()
    for number in range(groups * members):
        won = (number % members == 0) if success is None else success
        keys = [key.format(t=t, member=number % members, fresh=next(fresh)) for t in range(length)]
        steps = [_step(t, k, float(won and t == length - 1), **step) for t, k in enumerate(keys)]
        found.append(_episode(number, number // members, steps, won))
    return found


def _crediting(name: str = "gigpo", options: Mapping[str, Any] | None = None, **method: Any) -> Crediting:
    config = checked(MethodConfig, {"estimator": name, "options": dict(options or {}), **method}, "method")
    return Crediting(Method.of(config), Accelerator(cpu=True), [], ["Tiny-v0"])


def _said(crediting: Crediting, caplog: pytest.LogCaptureFixture, iterations: int = PATIENCE, **world: Any) -> str:
    """What is logged over some iterations of the same episodes."""
    caplog.clear()
    with caplog.at_level(logging.INFO, "trainers.credit.crediting"):
        for iteration in range(1, iterations + 1):
            crediting(_episodes(**world), iteration)
    return "\n".join(f"{record.levelname} {record.getMessage()}" for record in caplog.records)


@pytest.mark.parametrize(
    ("name", "options", "world", "cause"),
    [
        ("gigpo", {}, {"key": "room"}, "constant state key: in 100% of the steps the state key of Tiny-v0"),
        ("gigpo", {"similarity": 0.1}, {"key": "room {t}"}, "constant state key"),
        ("hgpo", {}, {"key": "room"}, "constant state key"),
        ("gagpo", {}, {"key": "room"}, "constant state key"),
        ("gigpo", {}, {"key": "{fresh}"}, "state key that never repeats: 100.0% of the steps"),
        ("hgpo", {}, {"key": "{fresh}"}, "state key that never repeats"),
        ("gagpo", {}, {"key": "{fresh}"}, "state key that never repeats"),
        ("pgpo", {}, {"key": "{fresh}"}, "state key that never repeats"),
        ("gigpo", {}, {"members": 1, "groups": 9}, "group of one: 27 of 27 tasks have one episode"),
        ("grpo", {}, {"members": 1, "groups": 9}, "group of one"),
        ("gigpo", {}, {"success": False}, "no success: so far none of 48 episodes succeeded"),
        ("grpo", {}, {"success": False}, "no success"),
        ("reinforce_pp", {}, {"success": False}, "no success"),
        ("grpo", {"compare": {"singleton": "raw"}}, {"success": False, "members": 1}, "no success"),
    ],
)
def test_the_likely_cause_is_named(name, options, world, cause, caplog):
    said = _said(_crediting(name, options), caplog, iterations=2 * PATIENCE, **world)
    assert said.count("Likely cause") == 1 and said.startswith(f"WARNING {name}: its "), said
    assert f"Likely cause: {cause}" in said, said


@pytest.mark.parametrize(
    ("name", "world"),
    [
        ("gigpo", {}),
        ("gigpo", {"length": 1, "key": "room"}),  # nothing moves in a single step
        ("gigpo", {"key": "room", "valid": False}),  # nor where no action is valid
        ("ppo", {"members": 1}),
    ],
)
def test_what_works_or_cannot_be_told_is_not_named(name, world, caplog):
    settings = {"critic": {}} if name == "ppo" else {}
    crediting = _crediting(name, **settings)
    crediting.providers = (Random(crediting.estimator),) if settings else ()
    assert _said(crediting, caplog, **world) == ""


def test_two_iterations_are_not_enough_and_a_cause_that_passes_is_said_to_have_passed(caplog):
    crediting = _crediting()
    assert _said(crediting, caplog, PATIENCE - 1, success=False) == ""
    state = json.loads(json.dumps(crediting.state()))
    said = _said(crediting, caplog, 1, success=False)
    assert "Likely cause: no success" in said
    resumed = _crediting()
    resumed.load(state)
    assert _said(resumed, caplog, 1, success=False) == said and resumed.state() == crediting.state()
    assert _said(crediting, caplog, 1).startswith("INFO gigpo: its term 'step' touches 48 of 48 steps now")
    assert _said(crediting, caplog, PATIENCE, success=False) == "", "a cause is named once"
    assert "state key that never repeats" in _said(crediting, caplog, PATIENCE, key="{fresh}"), "another cause"


def test_tasks_that_are_solved_are_no_reason_to_warn(caplog):
    for name in ("grpo", "pgpo"):
        said = _said(_crediting(name), caplog, success=True)
        assert said.startswith("INFO") and "solved tasks: all 48 episodes succeeded" in said


@pytest.mark.parametrize(
    ("name", "options"),
    [("gigpo", {"step_weight": 0.0}), ("graphgpo", {"graph_weight": 0.0}), ("g2po", {"step_weight": 0.0})],
)
def test_a_term_that_the_settings_leave_out_is_not_missed(name, options, caplog):
    assert _said(_crediting(name, options), caplog, key="{fresh}") == ""


def test_credit_of_scpo_that_matches_nothing_is_named(caplog):
    shaped: dict[str, Any] = {"shapers": {"scpo": {}}}
    assert _said(_crediting(**shaped), caplog) == "", "equal steps match"
    said = _said(_crediting(**shaped), caplog, key="{t} {member}")
    assert "scpo: its credit touched 0 of 108 steps" in said and "Likely cause: no match" in said
    assert _said(_crediting(shapers={"scpo": {"alpha": 0.0}}), caplog, key="{t}") == ""
    assert SCPO(alpha=0.0).effect is None


# -- silence on what is shipped ----------------------------------------------------------------------------------------


def _played(env: EnvConfig, tasks: int, members: int, seed: int, skill: float, greedy: bool) -> list[Episode]:
    """Groups of episodes of a player who does what the expert would with probability ``skill``, else anything."""
    rng = np.random.default_rng(seed)
    made = with_milestones(env, "world").make()
    expert = make_player(env.id, "expert")
    ids = made.unwrapped.tasks.ids(env.split)
    found = []
    for number in range(tasks * (members + greedy)):
        group, member = divmod(number, members + greedy)
        observation, info = made.reset(options={"task_id": ids[(seed * tasks + group) % len(ids)]})
        made.action_space.seed(seed * 1000 + number)
        steps: list[Step] = []
        ended, score = False, 0.0
        while not ended:
            action = made.action_space.sample()
            if rng.random() < skill:
                with suppress(UsageError):  # Sokoban's expert does not play a lost level
                    action = expert.act(made)
            key = info["state_key"]
            after, reward, over, cut, info = made.step(action)
            ids_of = rng.integers(0, 50, int(rng.integers(2, 6)))
            other = {"state_key": key, "action": action, "valid": bool(info["valid"]), "info": dict(info)}
            other |= {"response_ids": ids_of, "response_logprobs": np.full(len(ids_of), -1.0), "reward": float(reward)}
            steps.append(made_step(len(steps), observation=str(observation["text"]), **other))
            observation, ended, score = after, over or cut, info["score"]
        success = bool(info["success"])
        episode = _episode(number, group, steps, success)
        found.append(replace(episode, greedy=member == members, score=float(score)))
    made.close()
    return found


def _silent(method: MethodConfig, rounds: Iterator[list[Episode]], caplog: pytest.LogCaptureFixture) -> None:
    made = Method.of(method)
    greedy = [GreedyReturn()] if method.plays_greedily else []
    crediting = Crediting(made, Accelerator(cpu=True), [Random(made.estimator, by_state), Signals(), *greedy])
    watched = set()
    with caplog.at_level(logging.INFO, "trainers.credit.crediting"):
        for iteration, episodes in enumerate(rounds, 1):
            credit = crediting(episodes, iteration)
            watched |= {name for name, value in credit.terms.items() if name.endswith("/touched") and value >= 0.01}
    assert [r.getMessage() for r in caplog.records if r.name == "trainers.credit.crediting"] == []
    assert all(f"{term}/touched" in watched for term in crediting.estimator.distinguishing), watched


CONFIGS = shipped_configs()


def _training(name: str) -> bool:
    """Whether a configuration trains in an environment that is here: configs/own-environment.yaml has another's."""
    body = yaml.load(CONFIGS[name].read_text("utf-8"), Loader)
    here = all(env["id"] in ENVIRONMENTS for env in body.get("envs", []))
    return "recipe" in body and here


@pytest.mark.seconds
@pytest.mark.parametrize("name", [name for name in CONFIGS if _training(name)])
def test_every_configuration_is_silent(name, caplog):
    config = parse(["--config", str(CONFIGS[name])]).config
    env = config.envs[0]
    small = {"TextCraft-v0": {}, "Sokoban-v0": {"levels": 40}, "PythonMath-v0": {"problems": 40}}
    kwargs = {**env.kwargs, **small.get(env.id, WORLDS.get(env.id, {}))}
    horizon = min(env.max_episode_steps or 8, 20)
    env = replace(env, kwargs=kwargs, max_episode_steps=horizon)
    rounds = (_played(env, 4, 6, seed, 0.7, config.method.plays_greedily) for seed in range(ITERATIONS))
    _silent(config.method, rounds, caplog)


@pytest.fixture(scope="module")
def craft() -> dict[bool, list[list[Episode]]]:
    """Iterations in the world of configs/textcraft.yaml, without and with greedy episodes."""
    env = replace(parse(["--config", "configs/textcraft.yaml"]).config.envs[0], max_episode_steps=10)
    return {greedy: [_played(env, 4, 6, seed, 0.6, greedy) for seed in range(ITERATIONS)] for greedy in (False, True)}


@pytest.mark.seconds
@pytest.mark.parametrize("name", [*recipes(), *COMPOSITIONS])
def test_every_recipe_is_silent_in_the_world_of_textcraft(name, craft, caplog):
    method = parse(["--recipe", name]).config.method
    rounds = craft[method.plays_greedily]
    if name == "tree_grpo":  # as if three episodes each had one root
        rounds = [[replace(e, tree=e.episode_id - e.episode_id % 3) for e in episodes] for episodes in rounds]
    _silent(method, iter(rounds), caplog)
