"""From play to imitation: answers that were sampled as tokens are imitated with what was thought in them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from families import FAMILIES, codec_of
from protocol_server import ProtocolServer
from scripted_endpoint import AGENT, NAME, ScriptedEndpoint, completion

import trainers
from envsuite.core import ToolCall
from envsuite.core.errors import DataError
from envsuite.playing.episode import EpisodePlan
from envsuite.playing.step import Episode, Step
from envsuite.textcraft.env import TextCraft
from envsuite.vector import EnvFactory
from trainers.imitation.config import ImitateConfig
from trainers.imitation.demonstrations import demonstrations, episodes_in, thought_of
from trainers.imitation.play import RESPONSE
from trainers.imitation.training import Transcripts
from trainers.policy.config import ModelConfig
from trainers.policy.loading import load_model, load_tokenizer
from trainers.programs import evaluate, imitate
from trainers.rollout.config import EnvConfig, PromptConfig
from trainers.rollout.environments import answer_text, answers_of, check_vocabulary, facts_of, tasks_of
from trainers.rollout.hf_engine import HFEngine
from trainers.rollout.plain_engine import PlainEngine
from trainers.run.episode_folder import EpisodeFolder
from trainers.settings import ConfigError, checked
from trainers.steps.parquet import write_episodes

CRAFT = ModelConfig(path=str(Path(trainers.__file__).parent / "models/craft-1m"))
BOOK = {"source": "generated", "goals": 40, "book_seed": 3, "max_distractors": 0, "tasks": ["berries_bowl"]}
PLAN = (
    "berries bowl : A craft 1 berries bowl using 2 berries. 2 berries : B craft 4 quartz berries using 1 quartz dark ; "
    "1 times. 1 quartz dark : get. B 1 of 1"
)
MOVES = (
    (PLAN, "get 1 quartz dark"), ("", "craft 4 quartz berries using 1 quartz dark"),
    ("A 1 of 1", "craft 1 berries bowl using 2 quartz berries"),
)  # fmt: skip
"""What the model says and does in the task, at a temperature near 0."""
PROMPT = {"think": False, "instructions": False, "memory": "full"}


def test_kept_tokens_are_imitated_as_text_and_episodes_without_text_are_refused(tmp_path):
    tokenizer = load_tokenizer(CRAFT)
    ids = tokenizer.encode("<think>craft 1 stick</think><action>get 1 stick</action><|end|>", add_special_tokens=False)
    call = (ToolCall("env_step", {"command": "get 1 stick"}),)
    step = Step(0, [5], ids, [0.0] * len(ids), 0, "stop", "o", "k", call, None, True, 1.0)  # type: ignore[arg-type]
    episode = Episode(0, 0, "TextCraft-v0", "t", "x", "test", "Goal", (step,), True, False, True, 1.0)
    for name, text in (("texts", answers_of(PromptConfig(), tokenizer)), ("tokens", None)):
        folder = EpisodeFolder(tmp_path / name, {}, text)
        folder.add(EpisodePlan(0, 0, 0, "t"), episode, None)  # type: ignore[arg-type]
    ((_, player),) = demonstrations(tmp_path / "texts", "TextCraft-v0").players
    assert player.moves[0].thought == "craft 1 stick" and player.moves[0].action == call
    with pytest.raises(DataError, match="tokens alone"):
        demonstrations(tmp_path / "tokens", "TextCraft-v0")


@pytest.mark.parametrize("family", FAMILIES, ids=[family.name for family in FAMILIES])
def test_a_thought_in_the_model_s_own_form_is_found_in_the_text(smol, family):
    codec = codec_of(smol, family)
    written = codec.write([ToolCall("tool_name", {"argument": "value"})], "Think." if family.thinks else "")
    ids = [*codec.tokenizer.encode(written, add_special_tokens=False), *codec.end_ids(written, ())]
    text = answer_text(codec.tokenizer, codec, ids)
    step = Step(0, [5], ids, [0.0] * len(ids), 0, "stop", "", "", (), None, True, 0.0)  # type: ignore[arg-type]
    assert thought_of(replace(step, response_text=text)) == ("Think." if family.thinks else "")


def test_facts_are_read_once_and_an_environment_that_cannot_begin_stops_no_run(monkeypatch):
    env, makes, make = EnvConfig("TextCraft-v0", "test", {"source": "builtin"}), [], EnvFactory.make
    monkeypatch.setattr(EnvFactory, "make", lambda factory: (makes.append(factory), make(factory))[1])
    monkeypatch.setattr(TextCraft, "reset", None)  # a TypeError of somebody's environment
    assert facts_of(env, "envs[0]") is facts_of(env, "envs[0]") and tasks_of(env, "envs[0]").ids("test")
    assert len(makes) == 1 and replace(env) == env
    check_vocabulary(env, "envs[0]", load_tokenizer(CRAFT))
    assert len(makes) == 2, "the tokenizer has a token for what it does not know"


def test_a_vocabulary_that_does_not_know_the_environment_is_refused(smol):
    tokenizer = load_tokenizer(CRAFT)
    craft = EnvConfig("TextCraft-v0", kwargs={"source": "builtin"})
    check_vocabulary(craft, "envs[0]", tokenizer)
    for model in (tokenizer, smol):
        try:
            check_vocabulary(EnvConfig("Sokoban-v0"), "envs[1]", model)
        except ConfigError as error:
            assert model is tokenizer and str(error).startswith("envs[1] (Sokoban-v0)") and "of the words" in str(error)
        else:
            assert model is smol


def _written(thought: str, command: str) -> str:
    return f"<think>{thought}</think>" * bool(thought) + f"<action>{command}</action>"


def _scripted(body: dict[str, Any]) -> Any:
    thought, command = MOVES[sum(message["role"] == "assistant" for message in body["messages"])]
    if "tools" not in body:
        return completion(_written(thought, command))
    answer = completion(None, calls=[("env_step", json.dumps({"command": command}))])
    answer["choices"][0]["message"]["reasoning_content"] = thought
    return answer


@contextmanager
def _engine(name: str, folder: Path, patch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Settings of the engine, whose server, if it has one, runs here."""
    if name == "plain":
        patch.setattr(PlainEngine, "from_setup", vars(HFEngine)["from_setup"])  # not only where HFEngine cannot
    if name.startswith("openai"):
        with ScriptedEndpoint(_scripted) as endpoint:
            yield {"engine": "openai", "engine_options": {"url": endpoint.url, "model": NAME}}
    elif name == "vllm":
        with ProtocolServer(load_model(CRAFT)) as server:
            yield {"engine": "vllm", "engine_options": {"urls": server.url, "weights_folder": str(folder)}}
    elif name == "expert":
        (folder / "agent.py").write_text(AGENT)
        yield {"engine": "expert", "agent": {"run": f"{folder}/agent.py:play"}}
    else:
        yield {"engine": "hf"}


@pytest.mark.seconds
@pytest.mark.parametrize("name", ["hf", "plain", "vllm", "openai tags", "openai native", "expert"])
def test_what_an_engine_played_is_imitated_token_by_token(name, tmp_path, monkeypatch, capsys):
    kept, file = tmp_path / "kept", tmp_path / "settings.yaml"
    model, tokenizer = {"path": CRAFT.path}, load_tokenizer(CRAFT)
    prompt = {**PROMPT, "codec": "native" if name == "openai native" else "tags"}
    env = {"id": "TextCraft-v0", "split": "train", "kwargs": BOOK, "max_episode_steps": 5}
    evaluation = {"envs": [env], "sampling": {"temperature": 0.01, "max_tokens": 160}}
    with _engine(name, tmp_path, monkeypatch) as rollout:
        teacher = {"model": model, "prompt": prompt, "rollout": rollout, "evaluation": evaluation}
        file.write_text(json.dumps(teacher))
        assert evaluate.main(["--config", str(file), "--keep", str(kept)]) == 0
    (episode,), wanted = episodes_in(kept), [f"{_written(*move)}<|end|>" for move in MOVES]
    answers = [step.response_ids.tolist() for step in episode.steps]
    if name.startswith("openai"):
        answers = [tokenizer.encode(text, add_special_tokens=False) for text in wanted]
    elif name != "expert":
        assert [str(tokenizer.decode(ids)).replace("> <", "><") for ids in answers] == wanted
    stage = {"steps": 1, "games": [{"kwargs": {**BOOK, "split": "train"}}]}
    student = {"model": model, "prompt": PROMPT, "stages": [stage], "batch": 1, "output": str(tmp_path / "student")}
    config = checked(ImitateConfig, {**student, "demonstrations": str(kept)})
    (first, *_) = next(Transcripts(config, tokenizer).batches(config.stages[0]))
    assert first.tokens[first.parts == RESPONSE].tolist() == [token for ids in answers for token in ids]
    if name == "expert":
        return
    (parquet,) = kept.rglob("*.parquet")
    steps = tuple(replace(step, response_text=None) for step in episode.steps)
    write_episodes(parquet, [replace(episode, steps=steps)])
    file.write_text(json.dumps(student))
    capsys.readouterr()
    assert imitate.main(["--config", str(file), "--from", str(kept)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "tokens alone" in err and not (tmp_path / "student/model.safetensors").exists()
