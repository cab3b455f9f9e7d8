from __future__ import annotations

import random
from typing import Any

import pytest

from envsuite.bifurcation.env import Bifurcation
from envsuite.bifurcation.expert import BifurcationWalker
from envsuite.core import ToolCall
from envsuite.remote.making import practice_of
from trainers.imitation.vocabulary import word_tokenizer


@pytest.mark.parametrize(
    "dials",
    [
        {"map_seed": 5, "own_words": 4, "doors": 5, "forks": 32, "aliasing": "different", "slip": 0.2},
        {"own_words": 0, "mistake": "recoverable", "horizon": 40, "decisions": 6},
        {"own_words": 2, "aliasing": "alike", "reward": "each", "doors": 2},
    ],
    ids=["words of another map", "shared words", "alike"],
)
def test_every_word_of_a_valid_episode_is_known_whatever_the_dials(dials: dict[str, Any]) -> None:
    tokenizer = word_tokenizer(practice_of("Bifurcation-v0").texts(), 512)
    env, rng, seen = Bifurcation(**dials), random.Random(0), set[str]()
    for task in env.tasks.ids("test")[:60]:
        observation, _ = env.reset(options={"task_id": task})
        seen |= {observation["task"], observation["text"]}
        while not env.done:
            seen.add(env.step((ToolCall("take", {"command": rng.choice(env.commands)}),))[0]["text"])
    assert len(seen) > 30
    for text in seen:
        assert tokenizer.unk_token_id not in tokenizer.encode(text), text


def test_the_player_to_imitate_plays_as_the_expert_does() -> None:
    env = Bifurcation(mistake="recoverable", slip=0.3)
    env.reset(seed=3)
    for move in BifurcationWalker().turns(env, random.Random(0)):
        *_, info = env.step(move.action)
        assert info["valid"] and not move.slip and not move.thought
        if env.done:
            break
    assert info["success"]
