"""What is imitated stands in the prompts that a rollout builds."""

from __future__ import annotations

import random

import gymnasium
import numpy as np
import pytest

from envsuite.core import Move, ToolCall, ToolEnv
from envsuite.core.errors import UsageError
from envsuite.textcraft.player import Planner
from envsuite.textcraft.practice import texts as textcraft_texts
from trainers.imitation.config import ImitateConfig, Play, Stage
from trainers.imitation.play import RESPONSE, SLIP, Game, transcribe
from trainers.imitation.training import Transcripts
from trainers.imitation.vocabulary import word_tokenizer
from trainers.programs.imitate import main
from trainers.rollout.config import EnvConfig, PromptConfig, RolloutConfig
from trainers.rollout.engine import Request, Sampling
from trainers.rollout.environments import make_conversation, make_manager
from trainers.rollout.episode import EpisodePlan
from trainers.rollout.scripted import ScriptedEngine
from trainers.steps import Episode

KWARGS = {"source": "generated", "goals": 60, "max_distractors": 0}
ENV = EnvConfig(kwargs=KWARGS)
MEMORIES = ("full", "compact(200)", "rendered", "window(0)", "window(2)")
PROMPTS = {memory: PromptConfig(memory=memory) for memory in MEMORIES} | {
    "file": PromptConfig(memory="window(2)", template="steps"),
    "left": PromptConfig(memory="full", max_tokens=150, truncate="left"),
    "cut": PromptConfig(memory="full", max_tokens=250),
    "thought": PromptConfig(memory="full", require_thought=True),
}


@pytest.fixture(scope="module")
def tokenizer():
    return word_tokenizer(textcraft_texts(), 2048)


def _world() -> ToolEnv:
    return gymnasium.make("TextCraft-v0", split="train", **KWARGS).unwrapped


def _imitated(prompt: PromptConfig, tokenizer, task: str) -> Game:
    env = _world()
    conversation = make_conversation(prompt, tokenizer, env.tools, env.max_calls)
    return transcribe(env, task, Planner(), conversation, 50, random.Random(0))


def _rolled_out(prompt: PromptConfig, tokenizer, task: str, answers: list[list[int]]) -> Episode:
    """The episode of a rollout whose engine gives ``answers``, in turn."""
    left = iter(answers)

    def answer(request: Request) -> list[int]:
        return next(left, [tokenizer.eos_token_id])

    manager = make_manager(RolloutConfig(), prompt, [ENV], 1, ScriptedEngine(answer), tokenizer)
    with manager.vector:
        (episode,) = manager.run([EpisodePlan(0, 0, 0, task)], Sampling(max_tokens=500), seed=0)
    return episode


def _answers(game: Game) -> list[list[int]]:
    """The player's answers: the runs of its tokens."""
    found = []
    for one in game.transcripts:
        edges = np.flatnonzero(np.diff(np.concatenate([[0], (one.parts == RESPONSE).astype(np.int8), [0]])))
        found += [one.tokens[a:b].tolist() for a, b in edges.reshape(-1, 2)]
    return found


@pytest.mark.parametrize("name", PROMPTS)
def test_the_player_s_answers_stand_after_the_prompts_of_a_rollout_token_by_token(tokenizer, name: str) -> None:
    prompt = PROMPTS[name]
    steps = 0
    for task in _world().tasks.ids("train")[:4]:
        game = _imitated(prompt, tokenizer, task)
        episode = _rolled_out(prompt, tokenizer, task, _answers(game))
        steps += len(episode.steps)
        assert game.success == episode.success and (game.success or name == "cut")
        rows = iter(episode.steps)
        for one in game.transcripts:
            mine = one.parts == RESPONSE
            assert not (one.parts == SLIP).any()
            learnt = np.zeros_like(mine)
            end = 0
            while end < np.flatnonzero(mine)[-1] + 1:
                row = next(rows)
                end = len(row.prompt_ids) + len(row.response_ids)
                assert one.tokens[:end].tolist() == [*row.prompt_ids.tolist(), *row.response_ids.tolist()]
                learnt[len(row.prompt_ids) : end] = True
            assert (learnt == mine).all(), "the loss is on the answers, and on nothing else"
        assert next(rows, None) is None, "no step is left out"
    assert steps > (4 if name == "cut" else 12)


def test_prompts_that_continue_each_other_are_one_sequence_and_others_one_for_each_step(tokenizer) -> None:
    task = _world().tasks.ids("train")[0]
    whole, apart = (_imitated(PROMPTS[memory], tokenizer, task) for memory in ("full", "window(2)"))
    assert len(whole.transcripts) == 1
    assert len(apart.transcripts) == len(_answers(whole)) == len(_answers(apart)) > 2
    compact = _imitated(PROMPTS["compact(200)"], tokenizer, task)
    assert 1 < len(compact.transcripts) < len(apart.transcripts)


def test_without_thoughts_the_actions_are_the_same(tokenizer) -> None:
    env, task = _world(), _world().tasks.ids("train")[0]
    written = []
    for thoughts in (True, False):
        conversation = make_conversation(PROMPTS["full"], tokenizer, env.tools, env.max_calls)
        game = transcribe(env, task, Planner(), conversation, 50, random.Random(0), thoughts=thoughts)
        written.append([tokenizer.decode(ids) for ids in _answers(game)])
    assert any("<think>" in text for text in written[0]) and not any("<think>" in text for text in written[1])
    assert [text[text.find("<action>") :] for text in written[0]] == written[1]


def test_an_answer_that_a_rollout_would_refuse_is_not_imitated(tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    look = ToolCall("env_step", {"command": "inventory"})
    monkeypatch.setattr(Planner, "turns", lambda *_: iter([Move("", (look, look))]))
    with pytest.raises(UsageError, match=r"prompt: the player's answer '<action>.* invalid in a rollout: 2 calls"):
        _imitated(PROMPTS["full"], tokenizer, _world().tasks.ids("train")[0])


def test_settings_of_prompts_that_contradict_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--prompt.memory", "summary(2)", "--stages", "[]"]) == 2
    assert "prompt.memory is 'summary(2)'" in capsys.readouterr().err


def test_where_no_first_prompt_has_room_it_says_so_and_does_not_play_for_ever(tokenizer) -> None:
    config = ImitateConfig(prompt=PromptConfig(memory="compact(20)"), batch=2)
    with pytest.raises(UsageError, match=r"prompt.memory compact\(20\).*no room for the first prompts"):
        next(Transcripts(config, tokenizer).batches(Stage(1, [Play(kwargs=KWARGS)])))
