"""Demonstrations in the prompt: episodes of the environment's expert as text (``prompt.examples``)."""

from __future__ import annotations

import hashlib
import random
from contextlib import closing
from dataclasses import replace

from envsuite.core import ToolEnv
from envsuite.core.errors import EnvsuiteError
from trainers.imitation.worlds import practice
from trainers.rollout.config import EnvConfig, PromptConfig
from trainers.rollout.environments import chat_codec_of, factory_of, tasks_of
from trainers.settings import ConfigError

SPLIT = "train"
"""Split whose tasks are demonstrated, whichever is played."""
_TRIES = 20
"""Tasks that are tried for each example, where the expert does not solve all."""


def examples_of(env: EnvConfig, prompt: PromptConfig) -> str:
    """Returns ``prompt.examples`` episodes that the environment's expert solves, as text; empty for none.

    The tasks are those of the training split whose ids have the greatest SHA-256: the same in all runs, and not those
    that an evaluation of a sample plays, which have the smallest.

    Raises:
        ConfigError: The environment has no expert, or no training split, or the expert solves too few tasks.
    """
    if not prompt.examples:
        return ""
    where = f"prompt.examples is {prompt.examples}, but {env.id}"
    here = replace(env, split=SPLIT, url=None, max_episode_steps=None)
    try:
        player = practice(env.id).player()
        ids = sorted(tasks_of(here, env.id).ids(SPLIT), key=lambda task: hashlib.sha256(task.encode()).digest())[::-1]
        found: list[str] = []
        with closing(factory_of(here).make()) as made:
            for task in ids[: _TRIES * prompt.examples]:
                observation, _ = made.reset(options={"task_id": task})
                world = made.unwrapped
                assert isinstance(world, ToolEnv)
                lines, codec, solved = [observation["task"], ""], chat_codec_of(prompt), False
                for move in player.turns(made, random.Random(0)):
                    thought = move.thought if prompt.think or prompt.codec == "tools" else ""
                    answer = codec.write(move.action, thought, world.tools)
                    lines += [f"Observation: {observation['text']}", f"Answer: {answer}"]
                    observation, _, terminated, truncated, info = made.step(move.action)
                    solved = bool(info["success"])
                    if terminated or truncated:
                        break
                if solved:
                    lines.append(f"Observation: {observation['text']}")
                    found.append(f"Example {len(found) + 1}\n" + "\n".join(lines))
                if len(found) == prompt.examples:
                    return "\n\n".join(found)
    except EnvsuiteError as error:
        raise ConfigError(f"{where}: {error}") from error
    raise ConfigError(f"{where} has an expert that solves {len(found)} of the tasks that were tried; set fewer")
