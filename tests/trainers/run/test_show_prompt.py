"""``envsuite show-prompt``: prompts as rollouts ask them, and counts of a model's own answers.

Demonstrations in the prompt: which episodes they are, and where they stand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import gymnasium
import pytest
from tiny_runs import BOOK, ROOT, tokenizer
from told import lacks

from envsuite.core import ToolEnv
from envsuite.core.registration import ENVIRONMENTS, EnvSpec, register
from envsuite.playing.engine import Request, Sampling
from envsuite.playing.episode import EpisodePlan
from envsuite.prompting import make_codec
from trainers.policy.loading import load_tokenizer
from trainers.programs.show_prompt import main
from trainers.rollout.config import EnvConfig, PromptConfig, RolloutConfig
from trainers.rollout.environments import factory_of, make_conversation, make_manager, prompt_file_of, tasks_of
from trainers.rollout.scripted import ScriptedEngine
from trainers.run.config import EvalConfig, ModelConfig
from trainers.run.evaluation import chosen_tasks
from trainers.run.examples import examples_of
from trainers.run.showing import mark_tokens, play_steps
from trainers.run.zero_shot import prompts_by_codec
from trainers.settings import ConfigError

MODEL = ModelConfig()
ENVS = {
    "TextCraft-v0": EnvConfig("TextCraft-v0", "train"),
    "ALFWorld-v0": EnvConfig("ALFWorld-v0", "train"),
    "WebShop-v0": EnvConfig("WebShop-v0", "train"),
}
PROMPTS = {
    "tags-full": PromptConfig(memory="full"),
    "brackets-window": PromptConfig(codec="brackets"),
    "tools-compact": PromptConfig(codec="tools", memory="compact(4000)"),
    "file": PromptConfig(template="steps"),
    "left": PromptConfig(max_tokens=50, truncate="left"),
}
Run = Callable[..., str]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(ROOT)

    def start(*arguments: str, code: int = 0) -> str:
        assert main(["--config", "configs/textcraft.yaml", *arguments]) == code
        said = capfd.readouterr()
        return said.err if code else said.out

    return start


@pytest.mark.seconds
@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS)
@pytest.mark.parametrize("env", ENVS.values(), ids=ENVS)
def test_prompts_are_those_that_a_rollout_asks_when_the_engine_answers_as_the_expert(env, prompt, smol):
    task = tasks_of(env, "env").ids(env.split)[1]
    shown = list(play_steps(env, prompt, smol, task, 4, expert=True))
    asked: list[tuple[int, ...]] = []

    def answer(request: Request) -> Sequence[int]:
        asked.append(tuple(request.prompt_ids.tolist()))
        return shown[len(asked) - 1].answer if len(asked) <= len(shown) else ()

    manager = make_manager(RolloutConfig(), prompt, [env], 1, ScriptedEngine(answer), smol)
    with manager.vector:
        (episode,) = manager.run([EpisodePlan(0, 0, 0, task)], Sampling(), 1)
    assert [step.prompt for step in shown] == asked[: len(shown)] and len(shown) > 1
    assert not episode.error


def test_only_control_tokens_are_marked(smol):
    ids = [*smol.encode("<|im_end|><|im_end|>"), *smol.encode("craft <|im_end|> 1", split_special_tokens=True)]
    assert mark_tokens(smol, ids) == "«<|im_end|>»«<|im_end|>»craft <|im_end|> 1"


@pytest.mark.seconds
def test_the_page_shows_each_step_with_its_tokens_and_what_is_new(run):
    text = run("--steps", "2", "--env", "1", "--task", "oak_button")
    heads = re.findall(r"^=== (.+) ===$", text, re.MULTILINE)
    first, answer, second, _ = heads
    assert re.fullmatch(r"step 1: prompt of \d+ tokens", first) and re.fullmatch(
        r"step 1: answer of \d+ tokens", answer
    )
    tokens = sum(int(re.findall(r"of (\d+)", head)[0]) for head in (first, answer))
    assert re.fullmatch(rf"step 2: prompt of \d+ tokens, the first {tokens} are the last prompt and its answer", second)
    assert "«<|user|>»" in text and "get 1 oak logs</action>«<|end|>»" in text
    assert re.search(r"\n2 prompts, the longest of \d+ tokens\n$", text)
    again = run("--steps", "2", "--prompt.memory", "window(2)", "--prompt.template", "steps")
    assert re.search(r"step 2: prompt of \d+ tokens, the first \d+ as in the last prompt ===", again)


def test_nobody_answers_with_nothing(run):
    text = run("--player", "nothing", "--steps", "3")
    assert text.count("answer of 1 tokens ===\n«<|end|>»\n") == 3 and "Invalid action" in text


def test_a_prompt_without_room_ends_the_page_and_says_so(run):
    text = run("--prompt.max_tokens", "100")
    assert re.search(
        r"=== the episode is truncated here: the prompt takes \d+ tokens, at most 100 are allowed ===", text
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--steps 0", "--steps 0 … whole number of at least 1"),
        ("--steps x", "--steps x"),
        ("--steps", "--steps needs a value"),
        ("--env 2", "--env 2 … 2 environments, numbered from 0"),
        ("--player me", "--player me … expert or nothing"),
        ("--task oak_buton", "oak_buton … Nearest"),
        ("--zero-shot many", "--zero-shot many"),
        ("--zero-shot 4 --task oak_button", "--task and --zero-shot"),
        ("--stps 3", "--stps"),
        ("--model.path nowhere/at/all/x", "nowhere/at/all/x"),
        ("--prompt.template nofile", "prompt.template … nofile"),
    ],
)
def test_what_cannot_be_shown_is_named(run, words, told):
    said = run(*words.split(), code=1 if words.startswith("--model.path") else 2)
    assert "Traceback" not in said and not lacks(said, told), said


def test_an_environment_with_an_expert_and_no_teacher_shows_the_experts_moves():
    env, prompt = EnvConfig("PaperSearchTeam-v0", kwargs={"papers": 2_000}), PromptConfig(codec="brackets")
    first, second = list(play_steps(env, prompt, load_tokenizer(MODEL), None, 2, expert=True))
    assert len(first.answer) > 1 and first.prompt != second.prompt


@pytest.fixture
def dull() -> Iterator[None]:
    """An environment of another package, without expert and teacher."""
    register(EnvSpec("Dull-v0", "envsuite.textcraft.env:TextCraft", max_episode_steps=5, players={"random": "a:B"}))
    yield
    del ENVIRONMENTS["Dull-v0"], gymnasium.registry["Dull-v0"]


@pytest.mark.usefixtures("dull")
def test_an_environment_without_an_expert_is_named(run):
    said = run("--envs", '[{"id": "Dull-v0", "split": "test"}]', code=2)
    assert said == "error: Dull-v0 has no expert; write players={'expert': 'module:Class'} in its EnvSpec\n"
    assert "nobody answers" not in run("--envs", '[{"id": "Dull-v0", "split": "test"}]', "--player", "nothing")
    assert run("--player", "nobody", code=2) == "error: --player nobody: it is expert or nothing\n"


@pytest.mark.seconds
def test_the_models_own_answers_are_counted_by_codec(run):
    text = run("--zero-shot", "8", "--steps", "1")
    rows = {row.split()[0]: row.split()[1:] for row in text.splitlines() if row.split()[:1] and "%" in row}
    assert set(rows) == {"tags", "brackets", "tools", "search-r1"}
    answers, parsed, _, valid, _, ended, _, tokens = rows["tags"]
    assert int(answers) == 8 and 0 < float(tokens) <= 160 and 0 <= float(ended) <= 100
    assert float(parsed) > 50 >= float(rows["tools"][1]) and float(valid) <= float(parsed), "it was trained with tags"
    assert "tools, 8 times: no <tool_call>" in text
    assert run("--zero-shot", "8", "--steps", "1") == text, "a function of the seed"


def test_a_prompt_file_with_instructions_of_its_own_is_tried_with_its_codec_alone(tmp_path):
    (tmp_path / "own.jinja").write_text("{{ observation }} Answer in <action> tags.")
    own = PromptConfig(template=str(tmp_path / "own.jinja"), lowercase=True)
    assert prompts_by_codec(own) == {"tags": own}
    general = prompts_by_codec(PromptConfig(template="steps", lowercase=True))
    assert {name: prompt.codec for name, prompt in general.items()} == {name: name for name in general}
    assert general["tags"].lowercase and not general["tools"].lowercase


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
