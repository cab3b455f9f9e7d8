"""Records multi-turn episodes: experts with noise in the real environments, in the prompts of a real tokenizer."""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from transformers import AutoTokenizer

import envsuite  # noqa: F401  (registers the environments)
from benchmarks.training.rows import Rows
from envsuite.alfworld.expert import ALFWorldExpert as Housekeeper
from envsuite.core import Action, Player, ToolEnv, UsageError
from envsuite.prompting import Conversation, PromptSpec, load_prompt_file, make_codec, make_memory
from envsuite.textcraft.expert import TextCraftExpert as Crafter

ENVIRONMENTS = {"TextCraft": ("TextCraft-v0", Crafter), "ALFWorld": ("ALFWorld-v0", Housekeeper)}
"""Id and expert by the name in the tables."""
NOISE = (0.3, 0.5, 0.7, 0.9)
"""Shares of random actions that are tried, the next one where episodes end too early."""
TRIES = 8
_THOUGHTS = (
    "I should look at what I have before I do anything else.", "The last step worked, so the plan still stands.",
    "That was not what I expected; let me try another way.", "The goal needs several parts, and some are missing.",
    "There may be something useful nearby that I have not checked.", "First things first: the base material.",
    "I remember that this place was empty.", "It is better to check twice than to waste a step.",
    "One of the listed commands should bring me closer.", "The shortest way goes through what I already know.",
    "If this fails I will go back to where I started.", "What is still missing can be found in a later step.",
)  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One set of recorded episodes."""

    env: str
    memory: str
    turns: int
    group: int
    groups: int = 1
    template: str | None = None
    """Prompt file; the literature's papers have ``steps``, ours for sharing is ``shared``."""


def record(cell: Cell, tokenizer_folder: Path, seed: int = 0) -> Rows:
    """Plays ``groups`` tasks ``group`` times each; every episode has exactly ``turns`` steps.

    Commands of an episode depend on environment, turns and seed alone, so that memories are compared on the same
    episodes. Thoughts differ between episodes, as sampled ones do.

    Raises:
        UsageError: No episode was long enough.
    """
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    codec, memory = make_codec("tags"), make_memory(cell.memory)
    file = None if cell.template is None else load_prompt_file(cell.template)
    prompts: list[list[int]] = []
    responses: list[list[int]] = []
    index: list[tuple[int, int, int]] = []
    for episode in range(cell.groups * cell.group):
        group = episode // cell.group
        env = _made(cell.env)
        actions = _actions(cell.env, group, episode - group * cell.group, cell.turns, seed)
        conversation = Conversation(tokenizer, PromptSpec(codec, memory, prompt_file=file), env.tools, env.max_calls)
        observation, _ = env.reset(options={"task_id": _task(env, group, cell.turns)})
        conversation.start(observation)
        rng = random.Random(f"{seed} {episode}")
        for t, action in enumerate(actions):
            text = codec.write(action, " ".join(rng.sample(_THOUGHTS, rng.randint(2, 4))), tools=env.tools)
            response = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
            prompts.append(list(conversation.prompt_ids()))
            responses.append(response)
            index.append((group, episode, t))
            observation, *_ = env.step(action)
            conversation.add(response, text, observation)
    groups, episodes, ts = (np.array(column, np.int64) for column in zip(*index, strict=True))
    advantage = np.random.default_rng(seed).normal(size=cell.groups * cell.group)[episodes]
    ragged = [[np.array(row, np.int64) for row in rows] for rows in (prompts, responses)]
    return Rows(*ragged, groups, episodes, ts, advantage)


@functools.cache
def _made(name: str) -> ToolEnv:
    env = gymnasium.make(ENVIRONMENTS[name][0], max_episode_steps=1000).unwrapped
    assert isinstance(env, ToolEnv)
    return env


def _task(env: ToolEnv, group: int, turns: int) -> str:
    """The ids are spread over the split, so that groups have tasks of several types."""
    ids = env.tasks.ids("train")
    return ids[(group * 7919 + turns * 104729) % len(ids)]


@functools.cache
def _actions(name: str, group: int, member: int, turns: int, seed: int) -> tuple[Action, ...]:
    """The actions of the first ``turns`` steps of an episode that is not over before."""
    env = _made(name)
    task_id = _task(env, group, turns)
    for noise in NOISE:
        for attempt in range(TRIES):
            rng = random.Random(f"{name} {group} {member} {turns} {seed} {noise} {attempt}")
            actions = _played(env, task_id, ENVIRONMENTS[name][1](), turns, noise, rng)
            if len(actions) == turns:
                return actions
    raise UsageError(f"{name}: no episode of task {task_id} lasts {turns} turns, whatever the noise; take fewer turns")


def _played(
    env: ToolEnv, task_id: str, expert: Player, turns: int, noise: float, rng: random.Random
) -> tuple[Action, ...]:
    """The actions until the episode's last step but one, or its step ``turns``."""
    env.reset(options={"task_id": task_id})
    env.action_space.seed(rng.randrange(2**31))
    actions: list[Action] = []
    while len(actions) < turns:
        action: Any = env.action_space.sample()
        if rng.random() >= noise:
            try:
                action = expert.act(env)
            except UsageError:  # it has searched everything in vain: noise has misled it
                pass
        _, _, terminated, truncated, _ = env.step(action)
        if (terminated or truncated) and len(actions) < turns - 1:
            break
        actions.append(tuple(action))
    return tuple(actions)
