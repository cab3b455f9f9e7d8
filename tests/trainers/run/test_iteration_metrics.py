"""What an iteration tells of its episodes, and the times of its parts."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import pytest
from accelerate import Accelerator

from envsuite.core import ToolCall
from envsuite.playing.activity import ACTIVITY
from envsuite.playing.step import REFUSALS, Episode, Step
from envsuite.playing.timing import Timing
from envsuite.prompting import make_codec
from trainers.credit.crediting import Credit
from trainers.credit.estimators import Advantage
from trainers.policy.update import UpdateMetrics
from trainers.report.run import PARTS
from trainers.run.iteration_metrics import Clock, IterationMetrics, _count_values, _greatest_share, iteration_metrics
from trainers.steps import StepTable


def step(t: int, response: int, reward: float, **changes: Any) -> Step:
    fields: dict[str, Any] = {
        "finish_reason": "stop", "observation": "", "state_key": "", "action": (), "parse_error": None, "valid": True,
    }  # fmt: skip
    ids = range(response)
    return Step(t, range(10), ids, [-0.5] * response, 0, reward=reward, **fields | changes)


def episode(number: int, group: int, *steps: Step, **changes: Any) -> Episode:
    fields: dict[str, Any] = {"terminated": True, "truncated": False, "success": False, "score": 0.0}
    return Episode(number, group, "Bandit-v0", f"t{group}", "plain", "train", "Play.", steps, **fields | changes)


def test_rates_are_those_of_the_episodes_that_did_not_fail_and_were_sampled():
    episodes = [
        episode(1, 1, step(0, 2, 0.0), step(1, 4, 3.0), success=True, score=0.5),
        episode(2, 1, step(0, 3, 1.0, finish_reason="length"), terminated=False, truncated=True),
        episode(3, 2, step(0, 1, 2.0, valid=False, action=None, parse_error="no"), context_truncated=True),
        episode(4, 2, step(0, 6, 2.0, valid=False)),
        episode(5, 2, step(0, 9, 9.0), error="a worker crashed"),
        episode(6, -2, step(0, 5, 9.0), greedy=True, success=True),
    ]
    trained = StepTable.from_episodes(episodes[:4])
    keep = np.array([True, True, True, False, True])
    credit = Credit(
        trained.with_reward(trained.reward / 2), Advantage(per_step=np.array([1.0, -1.0, 3.0, 0.0, 2.0])), keep
    )
    found = iteration_metrics(
        Accelerator(cpu=True), episodes, credit, UpdateMetrics({"kl": 0.25}, {}), {"value_loss": 0.5},
        tokens_before=1000, timing=Timing(repeated=2, dropped_tokens=9),
    )  # fmt: skip
    expected = {
        "success": 1 / 4, "score": 0.5 / 4, "return": (3.0 + 1.0 + 2.0 + 2.0) / 4, "shaped_return": 4.0 / 4,
        "valid_actions": 3 / 5, "parsed": 4 / 5, "episode_length": 5 / 4, "prompt_length": 10.0,
        "response_length": 16 / 5, "response_cut": 1 / 5, "horizon": 1 / 4, "context_truncated": 1 / 4,
        "token_limit": 0.0, "prompt_cut": 0.0, "tool_calls": 0.0, "version_min": 0, "version_max": 0,
        "mixed_versions": 0.0, "episodes": 5, "failed": 1, "groups": 2, "zero_variance_groups": 1 / 2, "steps": 4,
        "filtered": 1 / 5, "sampled_tokens": 16 + 5, "tokens_total": 1000 + 16 + 5,
        "advantage_mean": 1.0, "advantage_std": 2**0.5,
        "repeated_actions": 1 / 5, "top_action": 1.0, "top_token": 5 / 16,
        "kl": 0.25, "value_loss": 0.5, "repeated": 2, "dropped_tokens": 9, "live_tokens": 21 / 30,
    }  # fmt: skip
    told = {name: value for name, value in found.values.items() if name.startswith("train/")}
    assert told == pytest.approx({f"train/{name}": value for name, value in expected.items()})
    assert (found.sampled, found.steps) == (16 + 5, 5)
    # Five prompts of the tokens 0 to 9, and responses that count from 0: the trie is one path.
    tokens = {"rows": 5 * 10 + 16, "distinct": 10 + 6, "least": 10 + 6, "shared": 50 / 66, "shareable": 50 / 66}
    told = {name: value for name, value in found.values.items() if name.startswith("tokens/")}
    assert told == pytest.approx({f"tokens/{name}": value for name, value in tokens.items()})


def _credited(episodes: list[Episode]) -> Credit:
    table = StepTable.from_episodes(episodes)
    return Credit(table, Advantage(per_step=np.zeros(len(table))), np.ones(len(table), np.bool_))


def test_invalid_actions_are_told_apart_by_what_refused_them(make_env):
    env = make_env("TextCraft-v0", source="generated", goals=4, book_seed=3)
    codec = make_codec("tools")
    steps = []
    completions = {
        "unparsed": "get it", "cut": "<tool_call>", "tool": _call("fly", 1), "arguments": _call("env_step", 3),
        "world": _call("env_step", "craft nothing using air"), None: _call("env_step", "inventory"),
    }  # fmt: skip
    env.reset()
    for t, (reason, completion) in enumerate(completions.items()):
        parsed = codec.parse(completion, env.tools, env.max_calls)
        *_, info = env.refuse(parsed.error or "") if parsed.action is None else env.step(parsed.action)
        ended = "length" if reason == "cut" else "stop"
        steps.append(
            step(t, 2, 0.0, valid=info["valid"], action=parsed.action, finish_reason=ended, info=dict(info))
        )  # fmt: skip
    assert [one.refusal for one in steps] == [*completions], [one.info["error"] for one in steps]
    played = [episode(1, 1, *steps)]
    found = iteration_metrics(Accelerator(cpu=True), played, _credited(played), UpdateMetrics({}, {}), {}, 0)
    told = {name: value for name, value in found.values.items() if name.startswith("invalid/")}
    assert told == {f"invalid/{reason}": 1 / 6 for reason in REFUSALS}
    assert found.values["train/valid_actions"] + sum(told.values()) == pytest.approx(1.0)
    assert found.values["train/tool_calls"] == 4 / 6 and found.calls == 4


def _call(name: str, command: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': {'command': command}})}</tool_call>"


def test_an_action_repeats_the_one_before_or_one_that_was_taken_in_the_same_state():
    def act(t: int, name: str | None, state: str) -> Step:
        return step(t, 1, 0.0, action=None if name is None else (ToolCall(name, {"to": {"n": 1}}),), state_key=state)

    acts = [("go", "a"), ("go", "b"), ("get", "a"), (None, "a"), ("go", "a"), (None, "a"), ("get", "b"), ("go", "b")]
    played = [
        episode(1, 1, *(act(t, name, state) for t, (name, state) in enumerate(acts))),
        episode(2, 1, act(0, "go", "a")),
    ]
    found = iteration_metrics(Accelerator(cpu=True), played, _credited(played), UpdateMetrics({}, {}), {}, 0).values
    assert found["train/repeated_actions"] == 3 / 9, "steps 1, 4 and 7 of the first episode"
    assert found["train/top_action"] == 5 / 7, "of those that parsed"


def test_the_greatest_share_is_that_of_all_processes_together():
    parts = [_count_values(np.array(values, np.int64)) for values in ([1, 1, 2], [2, 2], [])]
    assert _greatest_share(parts) == 3 / 5
    assert _greatest_share(parts[2:]) == 0.0


def test_versions_and_limits_are_told():
    mixed = Step(0, range(10), range(3), [-0.5] * 3, [4, 4, 6], "stop", "", "", (), None, True, 0.0)  # type: ignore[arg-type]
    later = Step(0, range(12), range(3), [-0.5] * 3, 7, "stop", "", "", (), None, True, 0.0)  # type: ignore[arg-type]
    old = Step(0, range(10), range(3), [-0.5] * 3, 1, "stop", "", "", (), None, True, 0.0)  # type: ignore[arg-type]
    played = [
        episode(1, 1, mixed), episode(2, 1, later, terminated=False, truncated=True),
        episode(3, 1, old, greedy=True), episode(4, 1, old, error="crashed"),
    ]  # fmt: skip
    found = iteration_metrics(
        Accelerator(cpu=True),
        played,
        _credited(played[:2]),
        UpdateMetrics({}, {}),
        {},
        0,
        episode_tokens=3,
        prompt_tokens=12,
    ).values
    assert (found["train/version_min"], found["train/version_max"], found["train/mixed_versions"]) == (4, 7, 1 / 2)
    assert found["train/token_limit"] == 1 / 2, "an episode that ended by itself was not cut"
    assert found["train/prompt_cut"] == 1 / 2


def test_the_parts_of_an_iteration_add_up_to_all_of_it_and_rates_are_those_of_the_rollout():
    began = time.perf_counter()
    clock = Clock()
    for part in ("rollout", "estimator", "update"):
        time.sleep(0.01)
        clock.book(part)
    time.sleep(0.01)
    timing = Timing(engine=3e-3, env=2e-3, codec=1e-3, longest_episode=5e-4)
    told = clock.metrics(timing, IterationMetrics({}, sampled=500, steps=40, calls=4))
    parts = [told[f"time/{part}"] for part in ("rollout", "estimator", "update", "log")]
    assert min(parts) >= 0.01 and sum(parts) == pytest.approx(told["time/total"])
    assert told["time/total"] <= time.perf_counter() - began
    assert told["rate/tokens"] == 500 / parts[0] and told["rate/steps"] == 40 / parts[0]
    assert told["rate/tool_calls"] == 4 / parts[0]
    assert [told[f"time/{part}"] for part in ("engine", "env", "codec", "longest_episode")] == [3e-3, 2e-3, 1e-3, 5e-4]
    assert told["idle/engine"] == 1 - 3e-3 / told["time/total"]
    assert told["idle/device"] == 1 - (parts[1] + parts[2]) / told["time/total"]


def test_the_engine_is_idle_for_a_share_of_the_time_that_its_seconds_are_of():
    clock = Clock()
    clock.book("rollout")
    timing = Timing(engine=5.0, env=3.0, codec=1.0, longest_episode=2.0)
    told = clock.metrics(timing, IterationMetrics({}, 500, 40), seconds=4.0, covered=12.0)
    assert told["idle/engine"] == 1 - 5 / 12, "the iteration is shorter than what was played since the one before"
    assert told["rate/tokens"] == 125


def test_waits_for_weights_and_for_others_are_in_no_other_part_but_the_rollout():
    clock, timing = Clock(), Timing()
    with ACTIVITY.waiting("weights", "sync"):
        time.sleep(0.2)
        with ACTIVITY.exchanging():
            time.sleep(0.1)
    clock.book("rollout")
    with ACTIVITY.exchanging():
        time.sleep(0.1)
    clock.book("update")
    told = clock.metrics(timing, IterationMetrics({}, 0, 0))
    assert told["time/sync"] >= 0.2 and told["time/other_processes"] >= 0.2 and told["time/rollout"] >= 0.3
    disjoint = [told[f"time/{part}"] for part in PARTS if f"time/{part}" in told]
    assert sum(disjoint) == pytest.approx(told["time/total"]) and min(disjoint) > -1e-9
    waits = told["time/sync"] + told["time/other_processes"]
    assert told["time/update"] + told["time/rest"] < 0.5 * waits, "all of this iteration was a wait"
