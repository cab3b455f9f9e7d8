"""What the rollout manager asks an engine for: real environments, and an engine that notes its requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import BOOK, tokenizer

from envsuite.playing.dialog import TokenDialogs
from envsuite.playing.engine import Completion, Request, Sampling
from envsuite.playing.episode import EpisodeEnding, EpisodePlan, RunningEpisode
from envsuite.playing.loop import step_seed
from envsuite.playing.manager import RolloutManager
from envsuite.playing.step import Episode
from envsuite.textcraft.tasks import load
from envsuite.vector import EnvFactory
from trainers.rollout.config import EnvConfig, EvalSamplingConfig, PromptConfig, RolloutConfig, SamplingConfig
from trainers.rollout.environments import factory_of, make_manager, sampling_of
from trainers.rollout.sampler import TaskPool, TaskSampler
from trainers.rollout.scripted import ScriptedEngine
from trainers.settings import ConfigError
from trainers.steps import StepTable

TASK = load("generated", BOOK["book_seed"], BOOK["goals"])[1].ids("test")[0]
ONE = [EpisodePlan(0, 0, 0, TASK)]
HORIZON = 3
SEED = 11


class Notes(ScriptedEngine):
    """Answers "inventory", and notes requests, released sessions and how often it was polled."""

    def __init__(self) -> None:
        super().__init__(self._note)
        self.asked: list[Request] = []
        self.released: list[int] = []

    def _note(self, request: Request) -> Sequence[int]:
        self.asked.append(request)
        return [*tokenizer().encode("<action>inventory</action>", add_special_tokens=False), 1]

    def release(self, session: int) -> None:
        self.released.append(session)


def _manager(engine: ScriptedEngine, slots: int = 2, **prompt: Any) -> RolloutManager:
    env = EnvConfig("TextCraft-v0", "test", dict(BOOK), max_episode_steps=HORIZON)
    plain = {"think": False, "instructions": False, "memory": "full"}
    return make_manager(RolloutConfig(), PromptConfig(**{**plain, **prompt}), [env], slots, engine, tokenizer())


def _play(
    engine: ScriptedEngine, plans: Sequence[EpisodePlan] = ONE, sampling: Sampling | None = None, **prompt: Any
) -> list[Episode]:
    manager = _manager(engine, **prompt)
    with manager.vector:
        return manager.run(plans, sampling or Sampling(), SEED)


def test_each_step_is_sampled_with_a_seed_of_its_run_episode_and_number() -> None:
    engine = Notes()
    _play(engine, [EpisodePlan(7, 0, 0, TASK), EpisodePlan(8, 0, 0, TASK)])
    seeds = {(request.session, request.seed) for request in engine.asked}
    assert seeds == {(episode, step_seed(SEED, episode, t)) for episode in (7, 8) for t in range(HORIZON)}
    assert len({seed for _, seed in seeds}) == 2 * HORIZON


def test_a_greedy_plan_is_sampled_at_temperature_0_and_left_out_of_the_table() -> None:
    engine = Notes()
    plans = [EpisodePlan(0, 0, 0, TASK), EpisodePlan(1, 0, 0, TASK, greedy=True)]
    episodes = _play(engine, plans, Sampling(temperature=0.7, top_p=0.9, max_tokens=50))
    assert {(r.session, r.sampling.temperature) for r in engine.asked} == {(0, 0.7), (1, 0.0)}
    assert {(r.sampling.top_p, r.sampling.max_tokens) for r in engine.asked} == {(0.9, 50)}
    assert [episode.greedy for episode in episodes] == [False, True]
    assert set(StepTable.from_episodes(episodes).episode_id) == {0}


def test_an_episode_at_its_step_limit_is_truncated_and_says_which_state_each_step_answered() -> None:
    (episode,) = _play(Notes())
    assert (episode.truncated, episode.terminated, episode.success, episode.context_truncated) == (True, *[False] * 3)
    assert (episode.env_id, episode.task_id, episode.split, len(episode.steps)) == ("TextCraft-v0", TASK, "test", 3)
    keys = [step.state_key for step in episode.steps]
    assert keys[0] != keys[1] == keys[2], "the first observation is the task, the others the same inventory"
    assert keys[1] == episode.steps[0].info["state_key"], "the key after a step is that of what is answered next"


def test_sessions_are_released_when_their_episodes_end() -> None:
    engine = Notes()
    manager = _manager(engine, slots=1)
    told: list[int] = []
    plans = [EpisodePlan(5, 0, 0, TASK), EpisodePlan(6, 1, 0, TASK), EpisodePlan(7, 2, 0, TASK)]
    with manager.vector:
        for group in manager.stream(plans, Sampling(), SEED, lambda ended, waiting: told.append(ended)):
            assert engine.released[-1] == group[0].episode_id
    assert engine.released == [5, 6, 7]
    assert sorted(set(told)) == [0, 1, 2, 3] == list(dict.fromkeys(told)), "and progress is told"


class Failing(Notes):
    """Answers the second request of an episode with an error, each time that the episode is started."""

    def __init__(self, reason: str) -> None:
        super().__init__()
        self.reason = reason
        self.steps: Counter[int | None] = Counter()

    def release(self, session: int) -> None:
        super().release(session)
        del self.steps[session]

    def _complete(self, request: Request) -> Completion:
        done = super()._complete(request)
        self.steps[request.session] += 1
        if self.steps[request.session] < 2:
            return done
        return Completion(request.request_id, [], [], self.reason, [], error="it is so")  # type: ignore[arg-type]


@pytest.mark.parametrize(("reason", "truncated"), [("context", True), ("error", False)])
def test_only_a_prompt_without_room_truncates_and_any_other_error_fails(reason: str, truncated: bool) -> None:
    (episode,) = _play(Failing(reason))
    assert len(episode.steps) == 1 and not episode.success and not episode.terminated
    assert (episode.truncated, episode.context_truncated) == (truncated, truncated)
    assert episode.error == (None if truncated else "it is so")
    assert len(StepTable.from_episodes([episode])) == int(truncated)


def test_a_truncated_episode_keeps_its_score_and_a_failed_one_has_none() -> None:
    playing = RunningEpisode(EpisodePlan(0, 0, 0, TASK), "X-v0", dialogs={})  # type: ignore
    playing.info = {"success": True, "score": 0.5, "task_type": "depth-2", "split": "test"}
    ends = [
        playing.finish(end)
        for end in (EpisodeEnding(context_truncated=True), EpisodeEnding(terminated=True), EpisodeEnding(error="x"))
    ]
    assert [(e.success, e.score, e.truncated, e.terminated) for e in ends] == [
        (True, 0.5, True, False), (True, 0.5, False, True), (False, 0.0, False, False),
    ]  # fmt: skip


def test_the_manager_is_made_as_the_settings_say() -> None:
    env = EnvConfig("TextCraft-v0", "test", {**BOOK, "max_distractors": 1}, max_episode_steps=9)
    assert factory_of(env) == EnvFactory(
        "TextCraft-v0", {"split": "test", **BOOK, "max_distractors": 1, "max_episode_steps": 9}
    )
    assert factory_of(EnvConfig("X-v0", "dev", url="http://h")) == EnvFactory(
        "X-v0", {"split": "dev", "url": "http://h"}
    )
    for instructions, commands in ((True, False), (False, True)):
        prompt = PromptConfig(think=True, instructions=instructions, commands=commands, memory="window(3)")
        rollout = RolloutConfig(episode_tokens=77, deadline=5.0)
        manager = make_manager(rollout, prompt, [env], 2, Notes(), tokenizer())
        with manager.vector:
            assert isinstance(manager.make_dialog, TokenDialogs)
            spec = manager.make_dialog.prompt
            assert (spec.instructions, spec.commands, str(spec.memory)) == (instructions, commands, "window(3)")
            assert (manager.episode_tokens, manager.vector.slots, manager.env_ids) == (77, 2, ("TextCraft-v0",))
            assert vars(spec.codec).get("think") is True
    assert sampling_of(SamplingConfig(0.3, 9), [5, 6]) == Sampling(0.3, 1.0, 0, 9, (5, 6))
    assert sampling_of(EvalSamplingConfig(0.3, 9, top_p=0.8, top_k=4), [5, 6]) == Sampling(0.3, 0.8, 4, 9, (5, 6))


def test_a_prompt_that_cannot_be_made_is_refused_before_an_environment_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    monkeypatch.setattr("trainers.rollout.environments.make_vector", lambda *given: started.append(given))
    prompt = PromptConfig(template="no-such-file.jinja")
    with pytest.raises(ConfigError, match="no-such-file"):
        make_manager(RolloutConfig(), prompt, [EnvConfig("TextCraft-v0", "test")], 2, Notes(), tokenizer())
    assert not started


def test_a_prompt_that_is_too_long_is_cut_on_the_left_or_ends_its_episode() -> None:
    (whole,) = _play(Notes())
    lengths = [len(step.prompt_ids) for step in whole.steps]
    assert lengths[0] < lengths[1] < lengths[2]
    (cut,) = _play(Notes(), max_tokens=lengths[1], truncate="left")
    last = [step.prompt_ids[-lengths[1] :].tolist() for step in whole.steps]
    assert [step.prompt_ids.tolist() for step in cut.steps] == last
    (ended,) = _play(Notes(), max_tokens=lengths[1])
    assert (len(ended.steps), ended.truncated, ended.context_truncated, ended.error) == (2, True, True, None)
    (none,) = _play(Notes(), max_tokens=lengths[0] - 1)
    assert none.error == f"the prompt takes {lengths[0]} tokens, at most {lengths[0] - 1} are allowed"


def test_a_value_that_is_missing_in_a_step_fails_the_episode_with_file_and_line(tmp_path: Path) -> None:
    file, engine = tmp_path / "mine.jinja", Notes()
    file.write_text("{{ task }}\n{{ commands[0] }}")
    (episode,) = _play(engine, memory="window(2)", template=str(file))
    assert not engine.asked and episode.error is not None
    assert episode.error.startswith(f"prompt file {file}, line 2: list object has no element 0")


def test_generate_gives_each_prompt_a_seed_of_its_own() -> None:
    engine = Notes()
    engine.generate([[1], [2], [3]], Sampling(), seed=4)
    assert [request.seed for request in engine.asked] == [4, 5, 6]
    engine.generate([[1]], Sampling())
    assert engine.asked[-1].seed is None


def test_pools_get_their_share_by_weight_and_a_fraction_by_chance() -> None:
    pools = [TaskPool(("a", "b"), 1.0), TaskPool(("c", "d", "e"), 2.0)]
    drawn = [TaskSampler(pools, seed).draw(4) for seed in range(60)]
    counts = [sum(pool == 1 for pool, _ in draw) for draw in drawn]
    assert set(counts) == {2, 3} and 2.5 < sum(counts) / 60 < 2.85, "8 thirds on average"
    assert any(draw[0][0] == 1 for draw in drawn) and any(draw[0][0] == 0 for draw in drawn), "in random order"


def test_a_scripted_engine_answers_each_request_with_what_the_function_says_in_order() -> None:
    engine = ScriptedEngine(lambda request: [*request.prompt_ids, 9])
    engine.sync([], 3)
    engine.submit([Request(5, (1, 2), Sampling()), Request(4, (), Sampling())])
    assert engine.pending == 2
    first, second = engine.poll()
    assert (first.request_id, first.token_ids.tolist(), first.logprobs.tolist()) == (5, [1, 2, 9], [0.0, 0.0, 0.0])
    assert (second.request_id, second.token_ids.tolist()) == (4, [9])
    assert first.finish_reason == "stop" and first.policy_version.tolist() == [3, 3, 3] and first.error is None
    assert engine.pending == 0 and engine.poll() == []


def test_a_scripted_answer_beyond_max_tokens_is_cut_and_says_so() -> None:
    (done,) = ScriptedEngine(lambda request: range(10)).generate([[0]], Sampling(max_tokens=4))
    assert done.token_ids.tolist() == [0, 1, 2, 3] and len(done.logprobs) == 4 and done.finish_reason == "length"
