"""Evaluation and demonstrations through an endpoint whose answers are scripted (``scripted_endpoint.py``)."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_endpoint import NAME, ScriptedEndpoint, completion
from tiny_runs import BOOK, save_model

from envsuite.core import Move, ToolCall, ToolEnv, UsageError
from envsuite.remote.making import practice_of
from trainers import train
from trainers.imitation.demonstrations import Demonstrations, RecordedPlayer, demonstrations
from trainers.programs import evaluate, imitate
from trainers.rollout.config import EnvConfig
from trainers.rollout.environments import factory_of
from trainers.steps.parquet import read_episodes

EPISODES = 6
Answers = dict[str, list[str]]


@pytest.fixture(scope="module")
def answers() -> Answers:
    """The expert's commands for each task, by the task's text."""
    env = factory_of(EnvConfig("TextCraft-v0", "train", dict(BOOK))).make()
    world = env.unwrapped
    assert isinstance(world, ToolEnv)
    found: Answers = {}
    for task in world.tasks.ids("train"):
        observation, _ = env.reset(options={"task_id": task})
        moves = []
        for move in practice_of("TextCraft-v0").teacher().turns(env, random.Random(0)):
            moves.append(move.action[0].arguments["command"])
            if any(env.step(move.action)[2:4]):
                break
        found[observation["task"]] = moves
    return found


def _expert(answers: Answers) -> Callable[[dict[str, Any]], Any]:
    """Answers as the expert does, with calls if there are tools and else in tags."""

    def script(body: dict[str, Any]) -> Any:
        texts = [message["content"] for message in body["messages"]]
        task = next(task for task in answers if any(task in text for text in texts))
        done = sum(message["role"] == "assistant" for message in body["messages"])
        command = answers[task][done]
        if "tools" in body:
            return completion(None, calls=[("env_step", json.dumps({"command": command}))])
        return completion(f"<think>So.</think><action>{command}</action>")

    return script


@pytest.fixture
def options(tmp_path: Path) -> Callable[..., list[str]]:
    def made(endpoint: ScriptedEndpoint, **changes: Any) -> list[str]:
        env = {"id": "TextCraft-v0", "split": "train", "kwargs": BOOK}
        engine = {"url": endpoint.url, "model": NAME, "patience": 0.5, "prices": {"input": 1, "output": 2}, **changes}
        return [
            "--rollout.engine", "openai", "--rollout.engine_options", json.dumps(engine), "--evaluation.envs",
            json.dumps([env]), "--evaluation.episodes", str(EPISODES), "--prompt.memory", "full",
            "--model.path", str(tmp_path / "is not read"),
        ]  # fmt: skip

    return made


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[list[str], int], tuple[Any, str]]]:
    """Runs ``evaluate``; returns the JSON on standard output, and standard error."""

    def run(arguments: list[str], status: int = 0) -> tuple[Any, str]:
        assert evaluate.main(arguments) == status
        out, err = capsys.readouterr()
        return (json.loads(out) if out else None), err

    yield run


@pytest.mark.seconds
@pytest.mark.parametrize("codec", ["native", "tags"])
def test_success_usage_and_cost_are_measured_with_calls_and_with_text(codec, answers, options, said):
    with ScriptedEndpoint(_expert(answers)) as endpoint:
        ((result,), _) = said([*options(endpoint), "--prompt.codec", codec])
    (everything, *_), usage = result["strata"], result["usage"]
    assert (result["name"], everything["n"], everything["success"]) == (NAME, EPISODES, 1.0)
    assert result["unanswered"] == 0 and usage["requests"] == len(endpoint.asked) == everything["mean_steps"] * EPISODES
    assert usage["cost"] == pytest.approx((10 * 1 + 5 * 2) * usage["requests"] / 1e6)
    assert all(("tools" in body) == (codec == "native") for body in endpoint.asked)
    assert len({body["seed"] for body in endpoint.asked}) == len(endpoint.asked)


def test_what_was_played_is_kept_when_the_budget_is_spent_and_is_not_paid_again(
    answers, options, said, tmp_path, monkeypatch
):
    monkeypatch.setenv("OA_KEY", "sk-secret-2")
    keep = ["--keep", str(tmp_path / "kept"), "--prompt.codec", "native"]
    with ScriptedEndpoint(_expert(answers)) as endpoint:
        given = options(endpoint, budget=15 * 12, concurrency=2, key_variable="OA_KEY")
        ((half,), err) = said([*given, *keep], evaluate.INCOMPLETE)
        played, asked = half["strata"][0]["n"], len(endpoint.asked)
        assert 0 < played < EPISODES and half["unanswered"] == EPISODES - played and asked <= 13
        assert "the same command goes on" in err
        ((whole,), _) = said([*options(endpoint), *keep])
        assert whole["strata"][0]["n"] == EPISODES and whole["strata"][0]["success"] == 1.0
        again = len(endpoint.asked)
        ((same,), _) = said([*options(endpoint), *keep])
        assert len(endpoint.asked) == again and same["strata"] == whole["strata"] and same["usage"]["requests"] == 0
        said([*options(endpoint), *keep, "--evaluation.sampling.temperature", "0.9"], 2)
    files = sorted((tmp_path / "kept").rglob("*.parquet"))
    assert len(files) == EPISODES
    (episode,) = read_episodes(files[0])
    assert [len(step.prompt_ids) for step in episode.steps] == [0] * len(episode.steps)
    assert "env_step" in str(episode.steps[0].response_text) and json.loads(str(episode.steps[-1].prompt_text))
    assert not any(b"sk-secret-2" in file.read_bytes() for file in (tmp_path / "kept").rglob("*") if file.is_file())


def test_an_endpoint_that_answers_nothing_is_an_error_not_a_result(options, said):
    with ScriptedEndpoint(lambda _: (503, {}, {})) as endpoint:
        (none, err) = said(options(endpoint), 1)
    assert none is None and "HTTP 503" in err


def test_an_episode_is_cut_by_the_endpoints_count_of_tokens(options, said):
    with ScriptedEndpoint(lambda _: completion("no")) as endpoint:
        ((result,), _) = said([*options(endpoint), "--rollout.episode_tokens", "12"])
    assert result["strata"][0]["mean_steps"] == 3, "of 5 tokens each"
    assert {body["max_tokens"] for body in endpoint.asked} == {12, 7, 2}


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (["--prompt.memory", "compact(100)"], "prompt.memory is 'compact(100)', which counts tokens"),
        (["--prompt.max_tokens", "9"], "prompt.max_tokens is 9"),
        (["--prompt.template_arguments", "{enable_thinking: false}"], "chat_template_kwargs"),
        (["--evaluation.sampling.top_k", "9"], "evaluation.sampling.top_k is 9"),
    ],
)
def test_settings_that_need_tokens_are_refused_by_name(change, told, options, said):
    with ScriptedEndpoint(lambda _: None) as endpoint:
        (_, err) = said([*options(endpoint), *change], 2)
    assert "rollout.engine is 'openai'" in err and told in err and not endpoint.asked


def test_training_refuses_it_before_a_model_is_loaded(capsys):
    assert train.main(["--rollout.engine", "openai", "--model.path", "is not read"]) == 2
    err = capsys.readouterr().err
    assert "rollout.engine is 'openai'" in err and "rollout.engine_options" in err and "hf or vllm" in err


def _student(tmp_path: Path, **changes: Any) -> list[str]:
    """Arguments of an imitation with a tiny model in ``tmp_path``, of two optimiser steps."""
    stage = {"steps": 2, "games": [{"kwargs": {**BOOK, "split": "train"}}], "max_steps": 30, "lr": 1e-4, "lr_end": 1e-4}
    settings = {
        "output": str(tmp_path / "student"), "model": {"path": str(save_model(tmp_path / "model"))}, "stages": [stage],
        "max_tokens": 500, "batch": 2, "prompt": {"memory": "full", "instructions": False}, **changes,
    }  # fmt: skip
    file = tmp_path / "student.yaml"
    file.write_text(json.dumps(settings))
    return ["--config", str(file)]


def _teacher(endpoint: ScriptedEndpoint) -> dict[str, Any]:
    return {
        "rollout": {"engine": "openai", "engine_options": {"url": endpoint.url, "model": NAME, "patience": 0.5}},
        "prompt": {"codec": "native", "memory": "full"},
        "evaluation": {"envs": [{"id": "TextCraft-v0", "split": "train", "kwargs": BOOK}], "episodes": EPISODES},
    }


@pytest.mark.seconds
def test_a_stronger_model_is_imitated_in_the_students_own_format_and_asked_once(answers, tmp_path, caplog):
    expert = _expert(answers)
    tasks = list(answers)

    def script(body: dict[str, Any]) -> Any:
        text, done = body["messages"][1]["content"], sum(one["role"] == "assistant" for one in body["messages"])
        if tasks[0] in text or (done == 1 and body["seed"] % 2):
            return completion("I do not know.")  # an answer without a call, in some episodes; never one in the first
        answer = expert(
            {**body, "messages": [one for one in body["messages"] if one.get("content") != "I do not know."]}
        )
        answer["choices"][0]["message"]["reasoning_content"] = f"Step {done}."
        return answer

    with ScriptedEndpoint(script) as endpoint, caplog.at_level(logging.INFO):
        kept = str(tmp_path / "kept")
        given = _student(tmp_path, teacher=_teacher(endpoint))
        assert imitate.main([*given, "--from", kept]) == 0
        asked = len(endpoint.asked)
        assert imitate.main([*given, "--from", kept]) == 0
        assert len(endpoint.asked) == asked > 0
    assert (tmp_path / "student" / "model.safetensors").exists() and "the teacher scripted solved" in caplog.text
    found = demonstrations(Path(kept), "TextCraft-v0")
    assert 0 < len(found.players) <= found.played <= EPISODES
    for task, player in found.players:
        text = next(text for text in answers if _task(task) == text)
        moves = [move.action[0].arguments["command"] for move in player.moves]
        assert moves == answers[text] and all(move.thought.startswith("Step") for move in player.moves)
    assert not any(_task(task) == tasks[0] for task, _ in found.players), "what failed is not imitated"


def _task(task_id: str) -> str:
    return str(
        factory_of(EnvConfig("TextCraft-v0", "train", dict(BOOK))).make().reset(options={"task_id": task_id})[0]["task"]
    )


@pytest.mark.parametrize(
    ("change", "words", "told"),
    [
        ({}, ["--from", "http://h/v1"], "it is the folder that episodes are kept in"),
        ({}, ["--from", "nowhere"], "there is no file or folder nowhere"),
        ({"teacher": {}}, [], "teacher is set, but not demonstrations"),
        ({"model": None}, ["--from", "nowhere"], "there is no file or folder nowhere"),
        ({"teacher": {"rollout": {"engin": "x"}}}, ["--from", "x"], "engin"),
    ],
)
def test_wrong_settings_of_a_teacher_are_refused(change, words, told, tmp_path, capsys):
    assert imitate.main([*_student(tmp_path, **change), *words]) == 2
    assert told in capsys.readouterr().err


def test_moves_that_do_not_solve_the_task_here_are_refused():
    env = factory_of(EnvConfig("TextCraft-v0", "train", dict(BOOK))).make().unwrapped
    assert isinstance(env, ToolEnv)
    wait = RecordedPlayer((Move("", (ToolCall("env_step", {"command": "inventory"}),)),))
    for task in (env.tasks.ids("train")[0], "a task of another world"):
        with pytest.raises(UsageError, match=r"recorded moves do not solve task .* again; set stages\[\]\.games\[\]"):
            Demonstrations(((task, wait),), 1).draw(env, random.Random(0))
