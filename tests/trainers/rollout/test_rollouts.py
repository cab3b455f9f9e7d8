"""The rollout manager on real environments, with an engine that answers what a test says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from tiny_runs import BOOK, model, tokenizer

from envsuite.playing.dialog import TokenDialogs
from envsuite.playing.engine import Completion, Request, Sampling
from envsuite.playing.episode import EpisodeEnding, EpisodePlan, RunningEpisode
from envsuite.playing.loop import step_seed
from envsuite.playing.manager import RolloutManager
from envsuite.playing.step import Episode
from envsuite.prompting import PromptSpec, make_codec, make_memory
from envsuite.textcraft.env import goal_of
from envsuite.textcraft.planning import plan
from envsuite.textcraft.tasks import load
from envsuite.textcraft.world import NAMESPACE
from envsuite.vector import EnvFactory, Vector, make_vector
from trainers.rollout.config import EnvConfig, EvalSamplingConfig, PromptConfig, RolloutConfig, SamplingConfig
from trainers.rollout.engine import Engine
from trainers.rollout.environments import factory_of, make_manager, sampling_of
from trainers.rollout.hf_engine import HFEngine
from trainers.rollout.sampler import TaskPool, TaskSampler
from trainers.rollout.scripted import ScriptedEngine
from trainers.settings import ConfigError
from trainers.steps import StepTable

ROUGH = EnvFactory("vector_worlds:Rough-v0")
CRAFT = EnvFactory("TextCraft-v0", {**BOOK, "split": "test"})
SAMPLING = Sampling(max_tokens=64)


def _manager(engine: Engine, vector: Vector, memory: str = "full") -> RolloutManager:
    codec = make_codec("tags", think=False)
    ids = [factory.env_id for factory in vector.factories]
    prompt = PromptSpec(codec, make_memory(memory), instructions=False)
    return RolloutManager(engine, vector, ids, TokenDialogs(tokenizer(), prompt))


def _written(text: str) -> list[int]:
    return [*tokenizer().encode(text, add_special_tokens=False), tokenizer().eos_token_id]


class Script:
    """Answers the requests of an episode one after the other with what ``lines`` says of it."""

    def __init__(self, lines: Callable[[int], Sequence[str]]) -> None:
        self.lines = lines
        self.asked: Counter[int] = Counter()
        self.prompts: list[str] = []

    def __call__(self, request: Request) -> list[int]:
        assert request.session is not None
        line = self.lines(request.session)[self.asked[request.session]]
        self.asked[request.session] += 1
        self.prompts.append(tokenizer().decode(list(request.prompt_ids)))
        return _written(line)


def _run(
    engine: Engine | Script, plans: Sequence[EpisodePlan], slots: int, memory: str = "full",
    factory: EnvFactory = CRAFT, workers: int = 0, sampling: Sampling = SAMPLING, seed: int = 0,
) -> list[Episode]:  # fmt: skip
    with make_vector([factory], slots, workers) as vector:
        made = ScriptedEngine(engine) if isinstance(engine, Script) else engine
        return _manager(made, vector, memory).run(plans, sampling, seed)


def _solutions(plans: Sequence[EpisodePlan]) -> dict[int, list[str]]:
    book, _ = load("generated", BOOK["book_seed"], BOOK["goals"])
    return {
        p.episode_id: [f"<action>{command}</action>" for command in plan(book, NAMESPACE + goal_of(p.task_id))]
        for p in plans
    }


def _plans(count: int) -> list[EpisodePlan]:
    _, tasks = load("generated", BOOK["book_seed"], BOOK["goals"])
    ids = tasks.ids("test")
    return [EpisodePlan(100 + 7 * i % count, i, 0, ids[i % len(ids)]) for i in range(count)]


@pytest.mark.parametrize("memory", ["full", "window(2)", "compact(200)"])
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_experts_solve_everything_with_fewer_slots_than_episodes(memory, workers):
    plans = _plans(10)
    script = Script(_solutions(plans).__getitem__)
    episodes = _run(script, plans, 3, memory, workers=workers)
    assert [episode.episode_id for episode in episodes] == [p.episode_id for p in plans], "in the order of the plans"
    assert [episode.task_id for episode in episodes] == [p.task_id for p in plans]
    assert all(e.success and e.score == 1.0 and e.terminated and e.error is None for e in episodes)
    lengths = {episode.episode_id: len(episode.steps) for episode in episodes}
    assert lengths == {i: len(lines) for i, lines in _solutions(plans).items()} == script.asked, "asked no more"
    for episode in episodes:
        assert [step.t for step in episode.steps] == list(range(len(episode.steps)))
        assert episode.total_reward == 1.0 and all(step.valid for step in episode.steps)
    table = StepTable.from_episodes(episodes)
    assert table.reward.sum() == len(plans)


@pytest.mark.parametrize(
    "said", ["", "no tags", "<action>get 1", "<action></action>", "<action>\0</action>", "\N{SNOWMAN}"]
)
def test_a_malformed_completion_costs_one_step_and_its_reason_is_shown(said):
    plans = _plans(1)
    solution = _solutions(plans)[plans[0].episode_id]
    script = Script(lambda _: [said, *solution])
    (episode,) = _run(script, plans, 1)
    first, *others = episode.steps
    assert not first.valid and first.reward == 0.0
    assert episode.success and len(others) == len(solution) and all(step.valid for step in others)
    if first.parse_error is not None:
        assert first.action is None
        assert first.info["error"] == first.parse_error
        assert others[0].observation == f"Invalid action: {first.parse_error}. Tools: env_step."
        assert others[0].observation in others[0].state_key
        assert "Invalid action" in script.prompts[1]


def test_two_reasons_for_not_being_an_action_are_two_states():
    plans = [EpisodePlan(i, 0, 0, _plans(1)[0].task_id) for i in range(3)]
    said = ["no tags", "<action></action>", "no tags"]
    script = Script(lambda episode: [said[episode], "<action>inventory</action>"] * 30)
    one, other, again = (episode.steps[1] for episode in _run(script, plans, 3))
    assert (one.state_key, one.observation) == (again.state_key, again.observation)
    assert one.state_key != other.state_key and one.observation != other.observation


@pytest.mark.parametrize("budget", [1, 40, 55])
def test_an_episode_that_has_used_up_its_tokens_is_cut_and_asked_for_no_more_than_is_left(budget):
    plans = _plans(4)
    with make_vector([CRAFT], 2, 0) as vector:
        manager = _manager(HFEngine(model("qwen2", len(tokenizer())), max_batch=4), vector)
        manager.episode_tokens = budget
        episodes = manager.run(plans, Sampling(max_tokens=17, ignore_eos=True), 0)
    full, rest = divmod(budget, 17)
    for episode in episodes:
        assert [len(step.response_ids) for step in episode.steps] == [17] * full + [rest] * bool(rest)
        assert episode.truncated and not episode.terminated and episode.error is None


@pytest.mark.parametrize(("memory", "said"), [("full", "leaves no room"), ("compact(9)", "raise the budget")])
def test_a_task_that_context_or_memory_has_no_room_for_is_an_episode_that_failed(memory, said):
    engine = HFEngine(model("qwen2", len(tokenizer())), max_batch=2, max_length=30)
    episodes = _run(engine, _plans(2), 2, memory)
    assert all(episode.error is not None and said in episode.error for episode in episodes)


@pytest.mark.parametrize(("budget", "fits"), [(140, True), (95, False)])
def test_an_observation_that_the_memory_has_no_room_for_truncates_the_episode(budget, fits):
    plans = _plans(1)
    solution = _solutions(plans)[plans[0].episode_id]
    wrong = f"<action>{'craft ' * 30}</action>"  # the environment's answer quotes it
    script = Script(lambda _: ["<action>inventory</action>", wrong, *solution])
    (episode,) = _run(script, plans, 1, f"compact({budget})")
    assert episode.error is None and episode.context_truncated is not fits and episode.success is fits
    assert len(episode.steps) == (2 + len(solution) if fits else 2)
    assert episode.truncated is not fits and episode.terminated is fits


def _synced_between(groups: Iterator[list[Episode]], engine: Engine) -> Iterator[list[Episode]]:
    for group in groups:
        engine.sync([], engine.policy_version + 1)
        yield group


def _first_versions(table: StepTable) -> list[int]:
    return table.policy_version.values[table.policy_version.offsets[:-1]].tolist()


def test_weights_that_change_between_two_groups_mark_the_tokens_sampled_since():
    plans = [EpisodePlan(i, i, 0, "ab"[i]) for i in range(2)]
    script = Script(lambda episode: [*["<action>go</action>"] * (3 * episode), "<action>end</action>"])
    engine = ScriptedEngine(script)
    with make_vector([ROUGH], 2) as vector:
        first, last = _synced_between(_manager(engine, vector).stream(plans, SAMPLING, 0), engine)
    table = StepTable.from_episodes(last)
    assert (first[0].episode_id, last[0].episode_id) == (0, 1) and _first_versions(table) == [0, 0, 1, 1]
    assert np.array_equal(table.policy_version.lengths, table.response.lengths)
    assert _first_versions(table.take(np.array([3, 0]))) == [1, 0]


def test_the_sampler_goes_on_where_it_was_and_repeats_no_task_before_all_were_drawn():
    pools = [TaskPool(tuple("abcde"), 3.0), TaskPool(tuple("vwxyz"), 1.0)]
    sampler, other = TaskSampler(pools, 5), TaskSampler(pools, 6)
    drawn = [task for _ in range(5) for task in sampler.draw(4)]
    assert Counter(pool for pool, _ in drawn) == {0: 15, 1: 5}
    assert Counter(task for _, task in drawn) == {**dict.fromkeys("abcde", 3), **dict.fromkeys("vwxyz", 1)}
    other.load(sampler.state())
    assert [sampler.draw(7) for _ in range(3)] == [other.draw(7) for _ in range(3)]


# -- what the manager asks an engine for, with an engine that notes its requests ---------------------------------------


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


def _made(engine: ScriptedEngine, slots: int = 2, **prompt: Any) -> RolloutManager:
    env = EnvConfig("TextCraft-v0", "test", dict(BOOK), max_episode_steps=HORIZON)
    plain = {"think": False, "instructions": False, "memory": "full"}
    return make_manager(RolloutConfig(), PromptConfig(**{**plain, **prompt}), [env], slots, engine, tokenizer())


def _play(
    engine: ScriptedEngine, plans: Sequence[EpisodePlan] = ONE, sampling: Sampling | None = None, **prompt: Any
) -> list[Episode]:
    manager = _made(engine, **prompt)
    with manager.vector:
        return manager.run(plans, sampling or Sampling(), SEED)


def test_each_step_is_sampled_with_a_seed_of_its_run_episode_and_number():
    engine = Notes()
    _play(engine, [EpisodePlan(7, 0, 0, TASK), EpisodePlan(8, 0, 0, TASK)])
    seeds = {(request.session, request.seed) for request in engine.asked}
    assert seeds == {(episode, step_seed(SEED, episode, t)) for episode in (7, 8) for t in range(HORIZON)}
    assert len({seed for _, seed in seeds}) == 2 * HORIZON


def test_a_greedy_plan_is_sampled_at_temperature_0_and_left_out_of_the_table():
    engine = Notes()
    plans = [EpisodePlan(0, 0, 0, TASK), EpisodePlan(1, 0, 0, TASK, greedy=True)]
    episodes = _play(engine, plans, Sampling(temperature=0.7, top_p=0.9, max_tokens=50))
    assert {(r.session, r.sampling.temperature) for r in engine.asked} == {(0, 0.7), (1, 0.0)}
    assert {(r.sampling.top_p, r.sampling.max_tokens) for r in engine.asked} == {(0.9, 50)}
    assert [episode.greedy for episode in episodes] == [False, True]
    assert set(StepTable.from_episodes(episodes).episode_id) == {0}


def test_an_episode_at_its_step_limit_is_truncated_and_says_which_state_each_step_answered():
    (episode,) = _play(Notes())
    assert (episode.truncated, episode.terminated, episode.success, episode.context_truncated) == (True, *[False] * 3)
    assert (episode.env_id, episode.task_id, episode.split, len(episode.steps)) == ("TextCraft-v0", TASK, "test", 3)
    keys = [step.state_key for step in episode.steps]
    assert keys[0] != keys[1] == keys[2], "the first observation is the task, the others the same inventory"
    assert keys[1] == episode.steps[0].info["state_key"], "the key after a step is that of what is answered next"


def test_sessions_are_released_when_their_episodes_end():
    engine = Notes()
    manager = _made(engine, slots=1)
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
def test_only_a_prompt_without_room_truncates_and_any_other_error_fails(reason, truncated):
    (episode,) = _play(Failing(reason))
    assert len(episode.steps) == 1 and not episode.success and not episode.terminated
    assert (episode.truncated, episode.context_truncated) == (truncated, truncated)
    assert episode.error == (None if truncated else "it is so")
    assert len(StepTable.from_episodes([episode])) == int(truncated)


def test_a_truncated_episode_keeps_its_score_and_a_failed_one_has_none():
    playing = RunningEpisode(EpisodePlan(0, 0, 0, TASK), "X-v0", dialogs={})  # type: ignore
    playing.info = {"success": True, "score": 0.5, "task_type": "depth-2", "split": "test"}
    ends = [
        playing.finish(end)
        for end in (EpisodeEnding(context_truncated=True), EpisodeEnding(terminated=True), EpisodeEnding(error="x"))
    ]
    assert [(e.success, e.score, e.truncated, e.terminated) for e in ends] == [
        (True, 0.5, True, False), (True, 0.5, False, True), (False, 0.0, False, False),
    ]  # fmt: skip


def test_the_manager_is_made_as_the_settings_say():
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


def test_a_prompt_that_cannot_be_made_is_refused_before_an_environment_starts(monkeypatch):
    started: list[object] = []
    monkeypatch.setattr("trainers.rollout.environments.make_vector", lambda *given: started.append(given))
    prompt = PromptConfig(template="no-such-file.jinja")
    with pytest.raises(ConfigError, match="no-such-file"):
        make_manager(RolloutConfig(), prompt, [EnvConfig("TextCraft-v0", "test")], 2, Notes(), tokenizer())
    assert not started


def test_a_prompt_that_is_too_long_is_cut_on_the_left_or_ends_its_episode():
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


def test_a_value_that_is_missing_in_a_step_fails_the_episode_with_file_and_line(tmp_path):
    file, engine = tmp_path / "mine.jinja", Notes()
    file.write_text("{{ task }}\n{{ commands[0] }}")
    (episode,) = _play(engine, memory="window(2)", template=str(file))
    assert not engine.asked and episode.error is not None
    assert episode.error.startswith(f"prompt file {file}, line 2: list object has no element 0")


def test_generate_gives_each_prompt_a_seed_of_its_own():
    engine = Notes()
    engine.generate([[1], [2], [3]], Sampling(), seed=4)
    assert [request.seed for request in engine.asked] == [4, 5, 6]
    engine.generate([[1]], Sampling())
    assert engine.asked[-1].seed is None


def test_pools_get_their_share_by_weight_and_a_fraction_by_chance():
    pools = [TaskPool(("a", "b"), 1.0), TaskPool(("c", "d", "e"), 2.0)]
    drawn = [TaskSampler(pools, seed).draw(4) for seed in range(60)]
    counts = [sum(pool == 1 for pool, _ in draw) for draw in drawn]
    assert set(counts) == {2, 3} and 2.5 < sum(counts) / 60 < 2.85, "8 thirds on average"
    assert any(draw[0][0] == 1 for draw in drawn) and any(draw[0][0] == 0 for draw in drawn), "in random order"


def test_a_scripted_answer_beyond_max_tokens_is_cut_and_says_so():
    (done,) = ScriptedEngine(lambda request: range(10)).generate([[0]], Sampling(max_tokens=4))
    assert done.token_ids.tolist() == [0, 1, 2, 3] and len(done.logprobs) == 4 and done.finish_reason == "length"
