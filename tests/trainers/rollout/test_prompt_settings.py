"""The settings of prompts, in the rollout manager: real environments, and an engine that answers by a script."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import BOOK
from tiny_runs import tokenizer as tiny

from envsuite.textcraft.tasks import load
from trainers.credit.shapers import InvalidActionPenalty
from trainers.rollout.config import EnvConfig, PromptConfig, RolloutConfig
from trainers.rollout.engine import Request, Sampling
from trainers.rollout.environments import make_manager
from trainers.rollout.episode import EpisodePlan
from trainers.rollout.scripted import ScriptedEngine
from trainers.settings import ConfigError
from trainers.steps import Episode, StepTable

TASK = load("generated", BOOK["book_seed"], BOOK["goals"])[1].ids("test")[0]
TINY = tiny()
TEMPLATE = (
    "Step {{ current_step }} of {{ step_count }}: {{ observation }}{% for p in history %} {{ p.action }}{% endfor %}"
)


def play(answers: Sequence[str], tokenizer: Any = TINY, **prompt: Any) -> tuple[Episode, list[str]]:
    """An episode in which the engine answers so, and its prompts as text."""
    asked: list[str] = []

    def answer(request: Request) -> Sequence[int]:
        asked.append(tokenizer.decode(request.prompt_ids.tolist()))
        return [*tokenizer.encode(answers[len(asked) - 1], add_special_tokens=False), 1]

    env = EnvConfig("TextCraft-v0", "test", dict(BOOK), max_episode_steps=len(answers))
    config = PromptConfig(**{"think": False, "instructions": False, **prompt})
    manager = make_manager(RolloutConfig(), config, [env], 1, ScriptedEngine(answer), tokenizer)
    with manager.vector:
        (episode,) = manager.run([EpisodePlan(0, 0, 0, TASK)], Sampling(), 1)
    return episode, asked


def test_prompts_are_those_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "mine.jinja").write_text(TEMPLATE)
    episode, asked = play(
        ["<action>inventory</action>", "no", "<action>inventory</action>"], template=str(tmp_path / "mine.jinja")
    )
    assert len(asked) == 3 and [step.valid for step in episode.steps] == [True, False, True]
    for number, prompt in enumerate(asked, 1):
        assert f"{number} of {number - 1}" in " ".join(prompt.split())
    assert "inventory <unk>" in " ".join(asked[2].split()), "the second answer is no action: none, no word of its own"


def test_an_answer_without_a_thought_is_not_carried_out_and_pays_the_penalty() -> None:
    answers = ["<action>inventory</action>", "<think>x</think><action>inventory</action>", "x"]
    strict, _ = play(answers, require_thought=True)
    assert [step.valid for step in strict.steps] == [False, True, False]
    assert strict.steps[0].parse_error == "no <think>…</think> in the completion"
    rewards = InvalidActionPenalty()(StepTable.from_episodes([strict])).reward
    assert rewards.tolist() == pytest.approx([-0.1, 0.0, -0.1])
    free, _ = play(answers[:2])
    assert all(step.valid for step in free.steps)


def test_a_prompt_that_is_too_long_is_cut_on_the_left_or_ends_its_episode() -> None:
    answers = ["<action>inventory</action>"] * 3
    whole, _ = play(answers, memory="full")
    lengths = [len(step.prompt_ids) for step in whole.steps]
    assert lengths[0] < lengths[1] < lengths[2]
    cut, _ = play(answers, memory="full", max_tokens=lengths[1], truncate="left")
    assert [step.prompt_ids.tolist() for step in cut.steps] == [
        step.prompt_ids[-lengths[1] :].tolist() for step in whole.steps
    ]
    ended, _ = play(answers, memory="full", max_tokens=lengths[1])
    assert (len(ended.steps), ended.truncated, ended.context_truncated, ended.error) == (2, True, True, None)
    none, _ = play(answers, memory="full", max_tokens=lengths[0] - 1)
    assert none.error == f"the prompt takes {lengths[0]} tokens, at most {lengths[0] - 1} are allowed"


def test_a_value_that_is_missing_in_a_step_fails_the_episode_with_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.jinja"
    file.write_text("{{ task }}\n{{ commands[0] }}")
    episode, asked = play(["x"], template=str(file))
    assert not asked and episode.error is not None
    assert episode.error.startswith(f"prompt file {file}, line 2: list object has no element 0")


def test_a_file_that_is_not_valid_is_refused_by_its_setting(tmp_path: Path) -> None:
    (tmp_path / "mine.jinja").write_text("{{ taks }}")
    with pytest.raises(ConfigError, match=r"prompt\.template: prompt file .*mine\.jinja, line 1: unknown variable"):
        play(["x"], template=str(tmp_path / "mine.jinja"))


@pytest.mark.parametrize("template", [None, "steps"])
def test_a_summary_is_sampled_in_the_answer_and_shown_in_the_next_prompt(template: str | None, smol: Any) -> None:
    first = "<think>x</think><summary>It takes two sticks.</summary><action>inventory</action>"
    answers = [first, "<action>inventory</action>", "x"]
    episode, asked = play(answers, smol, memory="summary(0)", template=template)
    assert [step.valid for step in episode.steps] == [True, True, False]
    assert [prompt.count("It takes two sticks.") for prompt in asked] == [0, 1, 1]
    assert first in smol.decode(episode.steps[0].response_ids.tolist()), "its tokens are trained as the rest"
