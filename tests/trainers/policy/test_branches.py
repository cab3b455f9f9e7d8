"""Episodes that start at a step of another one: they go on as it did, in every environment and memory."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from byte_tokens import byte_tokenizer

from envsuite.core import Action, ToolEnv, UsageError
from envsuite.playing.dialog import TokenDialogs
from envsuite.playing.engine import Request, Sampling
from envsuite.playing.episode import Branch, EpisodePlan
from envsuite.playing.manager import RolloutManager
from envsuite.playing.step import Episode
from envsuite.prompting import PromptSpec, ToolsCodec, make_memory
from envsuite.vector import EnvFactory, make_vector
from trainers.rollout.scripted import ScriptedEngine

SMALL: dict[str, dict[str, Any]] = {
    "TextCraft-v0": {"source": "generated", "goals": 40, "book_seed": 3},
    "ALFWorld-v0": {"source": "generated"},
    "WebShop-v0": {"source": "generated", "products": 100},
    "Sokoban-v0": {"source": "generated"},
    "PythonMath-v0": {"source": "generated", "problems": 40},
}
MEMORIES = ("full", "window(2)", "window(0)", "summary(1)", "rendered", "compact(2500)")
CODEC = ToolsCodec()
STEPS = 6
SAMPLING = Sampling(max_tokens=4000)


TOKENIZER = byte_tokenizer()


class Played:
    """An environment, and answers of a player who does what comes to mind, and sometimes nothing sensible."""

    def __init__(self, env_id: str, where: dict[str, Any], seed: int, workers: int = 0, **options: Any) -> None:
        self.factory = EnvFactory(env_id, {"split": "train", **SMALL[env_id], **options, **where})
        self.workers = workers
        world = self.factory.make().unwrapped
        assert isinstance(world, ToolEnv)
        self.task = world.tasks.ids("train")[seed % len(world.tasks.ids("train"))]
        world.close()
        self.seed = seed

    def lines(self, seed: int) -> list[str]:
        """Answers to the steps of an episode."""
        env = EnvFactory(self.factory.env_id, {k: v for k, v in self.factory.kwargs.items() if k != "url"}).make()
        world, rng, draw = env.unwrapped, np.random.default_rng(seed), random.Random(seed)
        assert isinstance(world, ToolEnv)
        env.reset(options={"task_id": self.task})
        found: list[str] = []
        for t in range(STEPS):
            if draw.random() < 0.2:
                found.append("nothing sensible")
                world.refuse(f"{t}")
                continue
            action: Action = (world._propose(rng),)
            found.append(f"<think>Step {t}.</think><summary>{t} steps</summary>" + CODEC.write(action))
            if world.step(action)[2]:
                break
        env.close()
        return found

    def manager(self, memory: str, answer: Any, max_steps: int | None = None) -> RolloutManager:
        factory = self.factory
        if max_steps is not None:
            factory = EnvFactory(factory.env_id, {**factory.kwargs, "max_episode_steps": max_steps})
        vector = make_vector([factory], 3, self.workers, snapshots=True)
        return RolloutManager(
            ScriptedEngine(answer),
            vector,
            [factory.env_id],
            TokenDialogs(TOKENIZER, PromptSpec(CODEC, make_memory(memory))),
            episode_tokens=100_000,
        )


class Script:
    """Answers of episodes, by their ids; those of a branch begin with the step where it starts."""

    def __init__(self, lines: dict[int, Sequence[str]]) -> None:
        self.lines = {episode: list(some) for episode, some in lines.items()}

    def __call__(self, request: Request) -> list[int]:
        assert request.session is not None
        return [*TOKENIZER.encode(self.lines[request.session].pop(0), add_special_tokens=False), TOKENIZER.eos_token_id]


def _branched(played: Played, memory: str, max_steps: int) -> tuple[Episode, list[Branch], list[Episode]]:
    """An episode, its steps as points, and a branch from each of them that answers the same."""
    lines = played.lines(played.seed)
    script = Script({0: lines})
    manager = played.manager(memory, script, max_steps)
    with manager.vector:
        points: dict[int, list[Branch]] = {}
        (parent,) = manager.run([EpisodePlan(0, 0, 0, played.task)], SAMPLING, 5, branches=points)
        assert parent.error is None, parent.error
        plans = [EpisodePlan(1 + t, 0, 0, played.task, branch=point) for t, point in enumerate(points[0])]
        script.lines |= {1 + t: lines[t:] for t in range(len(plans))}
        return parent, points[0], manager.run(plans, SAMPLING, 5)


def _same(parent: Episode, branch: Episode) -> None:
    assert branch.error is None, branch.error
    for one, other in zip(parent.steps, branch.steps, strict=True):
        assert one == other, f"step {one.t}"
    for name in ("task", "task_type", "split", "terminated", "truncated", "success", "score"):
        assert getattr(parent, name) == getattr(branch, name), name


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("env_id", SMALL)
def test_a_branch_that_answers_the_same_is_the_same_episode(env_id, memory):
    for seed in range(2):
        _check(Played(env_id, {}, seed), memory)


@pytest.mark.parametrize("env_id", SMALL)
def test_that_holds_on_a_server_where_actions_are_played_again(env_id, server):
    _check(Played(env_id, {"url": server}, 1), "window(1)")


def test_a_branch_shows_the_images_of_its_past():
    played = Played("Sokoban-v0", {}, 0, observation="both")
    with make_vector([played.factory], 2, snapshots=True) as vector:
        vector.reset(0, 0, task_id=played.task)
        (first,) = vector.poll()
        assert first.snapshot is not None and first.observation is not None
        vector.restore(1, 0, first.snapshot)
        (again,) = vector.poll()
    assert again.observation is not None and again.info == first.info
    for one, other in zip(first.observation["images"], again.observation["images"], strict=True):
        assert np.array_equal(one, other)


def test_a_restored_environment_that_shows_something_else_fails_its_episode():
    played = Played("TextCraft-v0", {}, 0)
    script = Script({0: played.lines(0), 1: ["never asked"]})
    manager, points = played.manager("full", script, STEPS), dict[int, list[Branch]]()
    with manager.vector:
        manager.run([EpisodePlan(0, 0, 0, played.task)], SAMPLING, 5, branches=points)
        wrong = replace(points[0][1], observation={**points[0][1].observation, "text": "elsewhere"})
        (episode,) = manager.run([EpisodePlan(1, 0, 0, played.task, branch=wrong)], SAMPLING, 5)
    assert episode.error is not None and episode.error.startswith("SnapshotDiffers: TextCraft-v0 restored a snapshot")
    assert script.lines[1] == ["never asked"] and manager.timing.dropped_tokens == 0


def test_points_are_kept_of_a_vector_that_takes_snapshots_only():
    factory = EnvFactory("TextCraft-v0", {"split": "train", **SMALL["TextCraft-v0"]})
    with make_vector([factory], 1) as vector:
        engine = ScriptedEngine(Script({}))
        dialogs = TokenDialogs(TOKENIZER, PromptSpec(CODEC, make_memory("full")))
        manager = RolloutManager(engine, vector, ["TextCraft-v0"], dialogs)
        with pytest.raises(UsageError, match="of a vector that takes snapshots"):
            manager.run([], SAMPLING, 0, branches={})


def _check(played: Played, memory: str) -> None:
    parent, points, branches = _branched(played, memory, max_steps=len(played.lines(played.seed)))
    assert len(points) == len(parent.steps) > 1 and [len(point.steps) for point in points] == [*range(len(points))]
    for branch in branches:
        _same(parent, branch)
