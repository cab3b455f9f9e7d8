"""Waits of a rollout: their names, deadlines and second starts, and the time that passes with them."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable

import pytest
from episodes import episode as ended
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual_time import Clock, VirtualEngine, VirtualVector, answer, manager_of, tokenizer, virtual

from envsuite.playing.dialog import TokenDialogs
from envsuite.playing.engine import Request, Sampling
from envsuite.playing.episode import EpisodePlan
from envsuite.playing.ledger import Ledger
from envsuite.playing.manager import RolloutManager
from envsuite.playing.timing import Stopwatch, Timing
from envsuite.prompting import PromptSpec, make_codec, make_memory
from envsuite.vector import EnvFactory, Vector, Wait, make_vector
from trainers.rollout.scripted import ScriptedEngine
from trainers.steps import StepTable

SAMPLING = Sampling(max_tokens=64)
ROUGH = "vector_worlds:Rough-v0"
SECONDS = st.floats(0.0, 3.0)


# -- time by cause ----------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.sampled_from(["engine", "env", "codec", "pause"]), SECONDS, st.floats(0, 1)), max_size=20))
def test_every_second_between_start_and_book_is_in_one_part(schedule):
    clock, timing, share = Clock(), Timing(), [1.0]
    watch = Stopwatch(timing, lambda: share[0], clock)
    expected: Counter[str] = Counter()
    watch.start()
    for part, seconds, occupied in schedule:
        share[0] = occupied
        if part == "pause":
            clock.now += seconds
            watch.start()
            continue
        with watch.on("codec"), watch.on(part):  # type: ignore[arg-type]
            clock.now += seconds
        expected[part] += seconds * occupied  # type: ignore[assignment]
        expected["longest_episode"] += seconds * (1 - occupied)  # type: ignore[assignment]
    watch.book()
    for part in ("engine", "env", "codec", "longest_episode"):
        assert getattr(timing, part) == pytest.approx(expected[part])
    assert timing.seconds == pytest.approx(sum(seconds for part, seconds, _ in schedule if part != "pause"))


EPISODES = st.lists(
    st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=5),  # of each step: the environment's, the engine's
    min_size=1, max_size=8,
)  # fmt: skip


@settings(deadline=None, max_examples=40)
@given(EPISODES, st.integers(1, 5), st.integers(1, 3))
def test_the_causes_of_a_scripted_rollout_are_those_that_passed_and_sum_to_its_wall_time(episodes, slots, group):
    clock = Clock()

    def step(task: str, attempt: int, taken: int) -> tuple[float, str]:
        steps = episodes[int(task)]
        return steps[min(taken, len(steps) - 1)][0], "ends" if taken == len(steps) else "goes on"

    vector = VirtualVector(slots, clock, step)
    engine = VirtualEngine(clock, lambda session, attempt, asked: episodes[session][asked][1])
    plans = [EpisodePlan(i, i // group, 0, str(i)) for i in range(len(episodes))]

    def share() -> float:
        running = sum(vector.started.values()) - vector.over
        return 1.0 if sum(vector.started.values()) < len(plans) else running / slots

    clock.share = share
    manager = manager_of(engine, vector, clock)
    played = manager.run(plans, SAMPLING, 0)
    assert [len(episode.steps) for episode in played] == [len(steps) for steps in episodes]
    timing = manager.timing
    assert timing.seconds == pytest.approx(clock.now, abs=1e-9)
    for part in ("engine", "env", "longest_episode"):
        assert getattr(timing, part) == pytest.approx(clock.passed[part], abs=1e-9), part
    assert timing.codec == 0.0, "which takes no time on this clock"
    assert (timing.repeated, timing.dropped_tokens) == (0, 0)


def test_an_engine_that_works_by_itself_is_busy_while_this_process_steps_environments():
    clock = Clock()
    ends = {"0": 1, "1": 4, "2": 1}
    vector = VirtualVector(2, clock, lambda task, attempt, taken: (0.0, "ends" if taken == ends[task] else "goes on"))
    engine = VirtualEngine(clock, lambda *_: 1.0)
    reset = vector._reset

    def slow_reset(slot: int, env: int, task_id: str | None, seed: int | None) -> None:
        clock.now += 5.0
        reset(slot, env, task_id, seed)

    vector._reset = slow_reset  # type: ignore[method-assign]
    engine.background = True
    manager = manager_of(engine, vector, clock)
    manager.run([EpisodePlan(i, i, 0, str(i)) for i in range(3)], SAMPLING, 0)
    env, generating = manager.timing.env, manager.timing.engine
    assert env == 5.0 + 5.0, "the first two resets, before there is a request"
    assert generating == pytest.approx(5.0 + 2.0 + 2.0 / 2), "the third reset, and four answers, half of them alone"
    assert manager.timing.seconds == pytest.approx(clock.now)


# -- what is given up -------------------------------------------------------------------------------------------------


FAULTS = st.dictionaries(
    st.tuples(st.integers(0, 7), st.integers(1, 2), st.integers(0, 3)),  # episode, attempt, step
    st.sampled_from(["hangs", "collateral", "never", "late"]), max_size=6,
)  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 8), st.integers(1, 4), st.integers(1, 3), FAULTS)
def test_whatever_fails_every_episode_ends_once_every_group_comes_once_and_every_token_is_counted(
    count, slots, group, faults
):
    clock, steps = Clock(), 4

    def step(task: str, attempt: int, taken: int) -> tuple[float, str]:
        fault = faults.get((int(task), attempt, taken))
        if fault in ("hangs", "collateral"):
            return 5.0, fault
        return 0.5, "ends" if taken == steps else "goes on"

    def seconds(session: int, _: int, asked: int) -> float:
        attempt = vector.started[str(session)]  # the engine is not asked in one whose environment fails at once
        return {"never": math.inf, "late": 15.0}.get(faults.get((session, attempt, asked), ""), 0.25)

    vector, engine = VirtualVector(slots, clock, step), VirtualEngine(clock, seconds)
    manager = manager_of(engine, vector, clock, engine_deadline=10.0)
    plans = [EpisodePlan(i, i // group, 0, str(i)) for i in range(count)]
    groups = list(manager.stream(plans, SAMPLING, 0))
    assert Counter(episode.episode_id for part in groups for episode in part) == Counter(range(count))
    assert Counter(part[0].group_id for part in groups) == Counter({plan.group_id for plan in plans})
    assert all(len({episode.group_id for episode in part}) == 1 for part in groups)
    for episode in (episode for part in groups for episode in part):
        number = episode.episode_id
        broken = {attempt for n, attempt, _ in faults if n == number}
        starts = vector.started[str(number)]
        if not broken or 1 not in broken:
            assert episode.error is None and starts == 1
        elif 2 not in broken:
            assert episode.error is None and starts == 2, "started again once"
        else:
            collateral = any(_first(faults, number, attempt) == "collateral" for attempt in (1, 2))
            assert starts == (3 if collateral else 2) and (episode.error is None) == collateral
    assert manager.timing.repeated == sum(vector.started.values()) - count
    used = sum(len(s.response_ids) for part in groups for e in part if e.error is None for s in e.steps)
    while engine.pending and not math.isinf(min(engine.left.values())):
        engine.poll()  # what comes too late for this rollout is nobody's
    late = engine.sampled - used - manager.timing.dropped_tokens
    assert 0 <= late <= len(answer()) * sum(fault == "late" for fault in faults.values())
    assert set(StepTable.from_episodes([e for part in groups for e in part]).episode_id) == {
        e.episode_id for part in groups for e in part if e.error is None
    }


def _first(faults: dict[tuple[int, int, int], str], number: int, attempt: int) -> str:
    """The fault that an attempt meets first: within a step the environment answers before the engine is asked."""
    return faults[min(key for key in faults if key[:2] == (number, attempt))]


@pytest.mark.parametrize("again", [True, False])
def test_an_engine_that_never_answers_one_request_costs_that_episode_alone(again, caplog):
    told, mute = list[Wait](), (1, 2) if again else (1,)
    clock, vector, engine, manager = virtual(
        3,
        lambda task, attempt, taken: (1.0, "ends" if taken == 3 else "goes on"),
        lambda session, attempt, asked: math.inf if session == 1 and attempt in mute and asked == 1 else 0.5,
        engine_deadline=30.0,
    )
    plans = [EpisodePlan(i, 0, 0, "abc"[i]) for i in range(3)]
    with caplog.at_level(logging.INFO, "trainers"):
        (group,) = manager.stream(plans, SAMPLING, 0, lambda ended, wait: told.append(wait) if wait else None)
    assert [episode.error is None for episode in group] == [True, not again, True]
    lost = "episode 1 (task b), step 2: DeadlineExceeded: the scripted engine has not answered for 30 s; "
    ends = ["it is started again", *(["it is left out"] if again else [])]
    assert [record.getMessage() for record in caplog.records] == [lost + end for end in ends]
    assert engine.abandoned == [1] * len(ends) and vector.started == {"a": 1, "b": 2, "c": 1}
    assert manager.timing.dropped_tokens == len(ends) * len(answer())
    assert group[1].unanswered is again
    assert clock.now < 2 * 31 + 10, "and no wait is longer than its deadline"
    named = [wait for wait in told if clock.now - wait.since > 10 and "the scripted engine" in wait.what]
    assert named and {wait.what for wait in named} >= {"episode 1 (task b), step 2: the scripted engine"}


def test_a_request_that_the_engine_has_lost_is_noticed_at_once():
    clock = Clock()
    vector = VirtualVector(1, clock, lambda task, attempt, taken: (1.0, "ends" if taken == 1 else "goes on"))

    class Forgetful(VirtualEngine):
        def submit(self, requests: list[Request]) -> None:  # type: ignore[override]
            super().submit(requests)
            self.left = {} if self.attempt[0] == 1 else self.left

    manager = manager_of(Forgetful(clock, lambda *_: 0.5), vector, clock)
    (episode,) = manager.run([EpisodePlan(0, 0, 0, "a")], SAMPLING, 0)
    assert episode.error is None and manager.timing.repeated == 1 and clock.now < 5


def test_a_late_answer_is_never_taken_for_that_of_the_next_episode_in_the_slot():
    _, _, engine, manager = virtual(
        1,
        lambda task, attempt, taken: (1.0, "ends" if taken == 2 else "goes on"),
        lambda session, attempt, asked: 12.0 if (session, attempt, asked) == (0, 1, 0) else 3.0,
        engine_deadline=10.0,
    )
    first, other = manager.run([EpisodePlan(0, 0, 0, "a"), EpisodePlan(1, 1, 0, "b")], SAMPLING, 0)
    assert first.error is None is other.error and len(first.steps) == len(other.steps) == 2
    assert manager.timing.dropped_tokens == len(answer()) and engine.sampled == 5 * len(answer())


@pytest.mark.parametrize("attempts", [1, 2, 3])
def test_an_episode_is_started_as_often_as_the_setting_says(attempts):
    _, vector, _, manager = virtual(2, lambda task, *_: (1.0, "hangs" if task == "a" else "ends"), attempts=attempts)
    manager.run([EpisodePlan(0, 0, 0, "a"), EpisodePlan(1, 1, 0, "b")], SAMPLING, 0)
    assert vector.started == {"a": attempts, "b": 1} and manager.timing.repeated == attempts - 1


def test_a_machine_that_kills_every_process_ends_the_rollout():
    _, vector, _, manager = virtual(2, lambda *_: (1.0, "collateral"))
    episodes = manager.run([EpisodePlan(i, 0, 0, "ab"[i]) for i in range(2)], SAMPLING, 0)
    assert all(episode.error is not None for episode in episodes) and max(vector.started.values()) <= 8


# -- real environments ------------------------------------------------------------------------------------------------


def _written(text: str) -> list[int]:
    return [*tokenizer().encode(text, add_special_tokens=False), 1]


def _rough_manager(vector: Vector, lines: Callable[[int, int], str]) -> tuple[RolloutManager, Counter[int]]:
    """A manager of ``Rough-v0``; ``lines`` says the answer to an episode's request of a number."""
    asked: Counter[int] = Counter()

    def answer_to(request: Request) -> list[int]:
        assert request.session is not None
        asked[request.session] += 1
        return _written(f"<action>{lines(request.session, asked[request.session])}</action>")

    prompt = PromptSpec(make_codec("tags", think=False), make_memory("full"), instructions=False)
    engine = ScriptedEngine(answer_to)
    manager = RolloutManager(engine, vector, [ROUGH], TokenDialogs(tokenizer(), prompt))
    return manager, asked


@pytest.mark.seconds
def test_a_hung_environment_is_named_and_takes_the_episodes_of_its_worker_along_without_harm():
    told: list[str] = []
    with make_vector([EnvFactory(ROUGH)], 3, 1, deadline=3.0) as vector:
        manager, asked = _rough_manager(vector, lambda episode, number: "sleep 60" if episode == 1 else "end")
        plans = [EpisodePlan(i, 0, 0, "abc"[i]) for i in range(3)]
        episodes = manager.run(plans, SAMPLING, 0, lambda ended, wait: told.append(str(wait)))
    assert [episode.error is None for episode in episodes] == [True, False, True]
    assert str(episodes[1].error).startswith("DeadlineExceeded: step of slot") and asked[1] == 2
    named = [text for text in told if text.startswith("episode 1 (task b), step 1: step of slot")]
    assert named and all("worker 0, for" in text for text in named)


@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=5), draws=st.randoms(use_true_random=False))
def test_a_group_is_whole_with_its_last_episode_and_in_the_order_of_its_plans(sizes, draws):
    plans = [EpisodePlan(10 * group + n, group, 0, "task") for group, size in enumerate(sizes) for n in range(size)]
    draws.shuffle(plans)  # type: ignore[attr-defined]
    ledger = Ledger(attempts=2)
    ledger.add(plans)
    left, order = dict(enumerate(sizes)), list(plans)
    draws.shuffle(order)  # type: ignore[attr-defined]
    for number, plan in enumerate(order, 1):
        before = len(ledger.groups)
        ledger.enter(ended(plan.episode_id, group_id=plan.group_id))
        left[plan.group_id] -= 1
        assert ledger.ended == number and len(ledger.groups) == before + (left[plan.group_id] == 0)
    for group in ledger.groups:
        (number,) = {one.group_id for one in group}
        assert [e.episode_id for e in group] == [plan.episode_id for plan in plans if plan.group_id == number]


def test_an_episode_is_started_as_often_as_it_may_fail_and_survives_the_losses_of_others():
    ledger, plan = Ledger(attempts=3), EpisodePlan(0, 0, 0, "task")
    ledger.add([plan])
    assert [ledger.enter_failure(0, collateral=True) for _ in range(7)] == [True] * 7
    assert [ledger.enter_failure(0, collateral=False) for _ in range(3)] == [True, True, False]
    assert not ledger.enter_failure(0, collateral=True)
    ledger.enter(ended(plan.episode_id, group_id=plan.group_id))
    ledger.add([plan])
    assert ledger.enter_failure(0, collateral=False), "an episode of a later rollout begins anew"
