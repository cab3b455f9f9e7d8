"""Demonstrations in the prompt: which episodes they are, and where they stand."""

from __future__ import annotations

import pytest
from tiny_runs import BOOK, tokenizer

from envsuite.core import ToolEnv
from envsuite.prompting import make_codec
from trainers.rollout.config import EnvConfig, PromptConfig
from trainers.rollout.environments import factory_of, make_conversation, prompt_file_of
from trainers.run.config import EvalConfig
from trainers.run.evaluation import chosen_tasks
from trainers.run.examples import examples_of
from trainers.settings import ConfigError

ENV = EnvConfig("TextCraft-v0", "test", dict(BOOK))


def _world() -> ToolEnv:
    world = factory_of(ENV).make().unwrapped
    assert isinstance(world, ToolEnv)
    return world


@pytest.mark.parametrize("codec", ["tags", "brackets", "tools"])
def test_examples_are_solved_episodes_of_training_tasks_in_the_form_of_the_codec(codec):
    text = examples_of(ENV, PromptConfig(codec=codec, examples=2))
    one, two = text.split("\n\nExample 2\n")
    assert one.startswith("Example 1\n") and examples_of(ENV, PromptConfig(codec=codec, examples=1)) == one
    world, reader = _world(), make_codec(codec)
    by_text = {}
    for task in world.tasks.ids("train"):
        by_text[world.reset(options={"task_id": task})[0]["task"]] = task
    for example in (one.removeprefix("Example 1\n"), two):
        task = next(task for said, task in by_text.items() if example.startswith(said))
        observation, _ = world.reset(options={"task_id": task})
        parts = example.split("Observation: ")[1:]
        for part in parts[:-1]:
            shown, _, answer = part.partition("\nAnswer: ")
            assert shown == observation["text"]
            action = reader.parse(answer, world.tools, world.max_calls).action
            assert action is not None
            observation, _, terminated, _, info = world.step(action)
        assert terminated and info["success"] and parts[-1].strip() == observation["text"].strip()


def test_thoughts_are_shown_where_the_codec_asks_for_them():
    shown = {think: examples_of(ENV, PromptConfig(examples=1, think=think)) for think in (True, False)}
    assert "<think>" in shown[True] and "<think>" not in shown[False]
    short = EnvConfig("TextCraft-v0", "test", dict(BOOK), max_episode_steps=1)
    assert examples_of(short, PromptConfig(examples=1)) == shown[True], "a short horizon does not cut them"


def test_they_are_not_the_tasks_of_a_small_evaluation():
    world = _world()
    ids = world.tasks.ids("train")
    played = chosen_tasks(ids, EvalConfig(episodes=len(ids) // 2), "x")
    texts = [world.reset(options={"task_id": task})[0]["task"] for task in played]
    shown = examples_of(EnvConfig("TextCraft-v0", "train", dict(BOOK)), PromptConfig(examples=3))
    assert not any(text in shown for text in texts)


@pytest.mark.parametrize("template", [None, "steps", "sections", "shared"])
def test_every_prompt_shows_them_once(template):
    prompt = PromptConfig(examples=1, template=template)
    world, text = _world(), examples_of(ENV, prompt)
    conversation = make_conversation(prompt, tokenizer(), world.tools, world.max_calls, text)
    observation, _ = world.reset(options={"task_id": world.tasks.ids("test")[0]})
    conversation.start(observation)
    for _ in range(2):
        shown = "\n".join(message["content"] for message in conversation.messages())
        assert shown.count(text) == 1
        conversation.add([3, 2], "nothing", observation)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"codec": "native"}, "prompt.examples is 2 and prompt.codec native"),
        ({"template": "FILE"}, "does not show them; write {{ examples }}"),
    ],
)
def test_prompts_without_a_place_for_them_are_refused(change, told, tmp_path):
    file = tmp_path / "own.jinja"
    file.write_text("{{ task }} {{ observation }}")
    made = {name: str(file) if value == "FILE" else value for name, value in change.items()}
    with pytest.raises(ConfigError) as caught:
        prompt_file_of(PromptConfig(examples=2, **made))
    assert told in str(caught.value)


def test_more_than_the_expert_can_show_are_refused():
    with pytest.raises(ConfigError, match=r"prompt.examples is 999, but TextCraft-v0: its expert solves"):
        examples_of(ENV, PromptConfig(examples=999))
