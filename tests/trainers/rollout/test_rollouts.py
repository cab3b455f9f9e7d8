"""The rollout manager on real environments, with an engine that answers what a test says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
from tiny_runs import BOOK, model, tokenizer

from envsuite.playing.dialog import TokenDialogs
from envsuite.playing.engine import Request, Sampling
from envsuite.playing.episode import EpisodePlan
from envsuite.playing.manager import RolloutManager
from envsuite.playing.step import Episode
from envsuite.prompting import PromptSpec, make_codec, make_memory
from envsuite.textcraft.env import goal_of
from envsuite.textcraft.planning import plan
from envsuite.textcraft.tasks import load
from envsuite.textcraft.world import NAMESPACE
from envsuite.vector import EnvFactory, Vector, make_vector
from trainers.rollout.engine import Engine
from trainers.rollout.hf_engine import HFEngine
from trainers.rollout.sampler import TaskPool, TaskSampler
from trainers.rollout.scripted import ScriptedEngine
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
def test_experts_solve_everything_with_fewer_slots_than_episodes(memory: str, workers: int) -> None:
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
def test_a_malformed_completion_costs_one_step_and_its_reason_is_shown(said: str) -> None:
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


def test_two_reasons_for_not_being_an_action_are_two_states() -> None:
    plans = [EpisodePlan(i, 0, 0, _plans(1)[0].task_id) for i in range(3)]
    said = ["no tags", "<action></action>", "no tags"]
    script = Script(lambda episode: [said[episode], "<action>inventory</action>"] * 30)
    one, other, again = (episode.steps[1] for episode in _run(script, plans, 3))
    assert (one.state_key, one.observation) == (again.state_key, again.observation)
    assert one.state_key != other.state_key and one.observation != other.observation


@pytest.mark.parametrize("command", ["raise now", "exit 3", pytest.param("sleep 60", marks=pytest.mark.slow)])
def test_an_environment_that_fails_loses_its_episode_only(command: str) -> None:
    plans = [EpisodePlan(i, i // 2, 0, "abc"[i % 3]) for i in range(6)]
    good = ["<action>go</action>", "<action>end</action>"]
    bad = ["<action>go</action>", f"<action>{command}</action>"] * 2
    script = Script(lambda episode: bad if episode == 2 else good)
    workers = 0 if command.startswith("raise") else 6  # a worker that dies takes along every episode it holds
    deadline = 2.0 if command.startswith("sleep") else 60.0
    with make_vector([ROUGH], 6, workers, deadline=deadline) as vector:
        manager = _manager(ScriptedEngine(script), vector)
        episodes = manager.run(plans, SAMPLING, 0)
    assert [episode.error is None for episode in episodes] == [True, True, False, True, True, True]
    assert script.asked[2] == 4 and manager.timing.repeated == 1, "it is started twice"
    written = [len(_written(line)) for line in bad]
    assert manager.timing.dropped_tokens == sum(written), "both times it had sampled all of its tokens"
    lost = episodes[2]
    word = {"raise": "ZeroDivisionError", "exit": "WorkerCrashed", "sleep": "DeadlineExceeded"}[command.split()[0]]
    assert lost.error is not None and lost.error.startswith(word)
    assert len(lost.steps) == 1 and not lost.success and lost.task_id == "c"
    assert all(episode.success for episode in episodes if episode is not lost)
    assert 2 not in StepTable.from_episodes(episodes).episode_id


@pytest.mark.parametrize("budget", [1, 40, 55])
def test_an_episode_that_has_used_up_its_tokens_is_cut_and_asked_for_no_more_than_is_left(budget: int) -> None:
    plans = _plans(4)
    with make_vector([CRAFT], 2, 0) as vector:
        manager = _manager(HFEngine(model("qwen2", len(tokenizer())), max_batch=4), vector)
        manager.episode_tokens = budget
        episodes = manager.run(plans, Sampling(max_tokens=17, ignore_eos=True), 0)
    full, rest = divmod(budget, 17)
    for episode in episodes:
        assert [len(step.response_ids) for step in episode.steps] == [17] * full + [rest] * bool(rest)
        assert episode.truncated and not episode.terminated and episode.error is None


def test_a_task_that_does_not_exist_is_an_episode_that_failed() -> None:
    plans = [EpisodePlan(0, 0, 0, "nowhere"), EpisodePlan(1, 1, 0, "a")]
    lost, other = _run(Script(lambda _: ["<action>end</action>"]), plans, 1, factory=ROUGH)
    assert lost.error is not None and "nowhere" in lost.error and not lost.steps
    assert other.success


@pytest.mark.parametrize(("memory", "said"), [("full", "leaves no room"), ("compact(9)", "raise the budget")])
def test_a_task_that_context_or_memory_has_no_room_for_is_an_episode_that_failed(memory: str, said: str) -> None:
    engine = HFEngine(model("qwen2", len(tokenizer())), max_batch=2, max_length=30)
    episodes = _run(engine, _plans(2), 2, memory)
    assert all(episode.error is not None and said in episode.error for episode in episodes)


def _played(engine: Engine, memory: str, groups: int = 3) -> list[Episode]:
    plans = [EpisodePlan(i, i // 4, 0, _plans(groups)[i // 4].task_id) for i in range(4 * groups)]
    factory = EnvFactory("TextCraft-v0", {**BOOK, "split": "test", "max_episode_steps": 8})
    return _run(engine, plans, 4, memory, factory, sampling=Sampling(max_tokens=12))


def test_an_episode_that_outgrows_the_context_is_truncated_and_keeps_its_steps() -> None:
    policy = model("qwen2", len(tokenizer()))
    whole = _played(HFEngine(policy, max_batch=4), "full")
    cut = _played(HFEngine(policy, max_batch=4, max_length=110), "full")
    assert not any(episode.context_truncated for episode in whole)
    assert sum(episode.context_truncated for episode in cut) > len(cut) // 2
    for one, other in zip(whole, cut, strict=True):
        assert other.error is None and 0 < len(other.steps) <= len(one.steps)
        if other.context_truncated:
            assert other.truncated and not other.terminated and len(other.steps) < len(one.steps)
            assert other.score == other.steps[-1].info["score"] and not other.success
            steps = zip(one.steps[: len(other.steps) - 1], other.steps[:-1], strict=True)  # the last may be shorter
            assert all(np.array_equal(a.response_ids, b.response_ids) and a.reward == b.reward for a, b in steps)
    table = StepTable.from_episodes(cut)
    assert set(table.episode_id) == {episode.episode_id for episode in cut}, "all of them are trained on"


@pytest.mark.parametrize(("budget", "fits"), [(140, True), (95, False)])
def test_an_observation_that_the_memory_has_no_room_for_truncates_the_episode(budget: int, fits: bool) -> None:
    plans = _plans(1)
    solution = _solutions(plans)[plans[0].episode_id]
    wrong = f"<action>{'craft ' * 30}</action>"  # the environment's answer quotes it
    script = Script(lambda _: ["<action>inventory</action>", wrong, *solution])
    (episode,) = _run(script, plans, 1, f"compact({budget})")
    assert episode.error is None and episode.context_truncated is not fits and episode.success is fits
    assert len(episode.steps) == (2 + len(solution) if fits else 2)
    assert episode.truncated is not fits and episode.terminated is fits


def test_the_same_seed_gives_the_same_episodes_whatever_shares_the_batch() -> None:
    engine = HFEngine(model("qwen2", len(tokenizer())), max_batch=4)
    plans = [EpisodePlan(i, i // 2, 0, p.task_id) for i, p in enumerate(_plans(4))]
    factory = EnvFactory("TextCraft-v0", {**BOOK, "split": "test", "max_episode_steps": 3})
    played = []
    for slots, seed in ((4, 1), (2, 1), (4, 2)):
        episodes = _run(engine, plans, slots, "full", factory, sampling=Sampling(max_tokens=5), seed=seed)
        played.append([[step.response_ids.tolist() for step in episode.steps] for episode in episodes])
    assert played[0] == played[1] != played[2]


def test_a_group_is_yielded_when_its_last_episode_ends_whatever_the_others_do() -> None:
    plans = [EpisodePlan(i, i // 2, 0, "abc"[i // 2]) for i in range(6)]
    steps = {0: 6, 1: 1, 2: 2, 3: 2, 4: 3, 5: 4}  # the first group ends last
    script = Script(lambda episode: [*["<action>go</action>"] * (steps[episode] - 1), "<action>end</action>"])
    found = []
    with make_vector([ROUGH], 6) as vector:
        for group in _manager(ScriptedEngine(script), vector).stream(plans, SAMPLING, 0):
            found.append([episode.episode_id for episode in group])
            assert script.asked[0] == {1: 3, 2: 5, 0: 6}[group[0].group_id]
    assert found == [[2, 3], [4, 5], [0, 1]]


def _synced_between(groups: Iterator[list[Episode]], engine: Engine) -> Iterator[list[Episode]]:
    for group in groups:
        engine.sync([], engine.policy_version + 1)
        yield group


def _first_versions(table: StepTable) -> list[int]:
    return table.policy_version.values[table.policy_version.offsets[:-1]].tolist()


def test_weights_that_change_between_two_groups_mark_the_tokens_sampled_since() -> None:
    plans = [EpisodePlan(i, i, 0, "ab"[i]) for i in range(2)]
    script = Script(lambda episode: [*["<action>go</action>"] * (3 * episode), "<action>end</action>"])
    engine = ScriptedEngine(script)
    with make_vector([ROUGH], 2) as vector:
        first, last = _synced_between(_manager(engine, vector).stream(plans, SAMPLING, 0), engine)
    table = StepTable.from_episodes(last)
    assert (first[0].episode_id, last[0].episode_id) == (0, 1) and _first_versions(table) == [0, 0, 1, 1]
    assert np.array_equal(table.policy_version.lengths, table.response.lengths)
    assert _first_versions(table.take(np.array([3, 0]))) == [1, 0]


def test_the_sampler_goes_on_where_it_was_and_repeats_no_task_before_all_were_drawn() -> None:
    pools = [TaskPool(tuple("abcde"), 3.0), TaskPool(tuple("vwxyz"), 1.0)]
    sampler, other = TaskSampler(pools, 5), TaskSampler(pools, 6)
    drawn = [task for _ in range(5) for task in sampler.draw(4)]
    assert Counter(pool for pool, _ in drawn) == {0: 15, 1: 5}
    assert Counter(task for _, task in drawn) == {**dict.fromkeys("abcde", 3), **dict.fromkeys("vwxyz", 1)}
    other.load(sampler.state())
    assert [sampler.draw(7) for _ in range(3)] == [other.draw(7) for _ in range(3)]
