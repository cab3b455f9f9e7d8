import signal
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ClassVar

import gymnasium
import numpy as np
import pytest
from driving import CRAFT, ROUGH, answers, do, one, reset_all
from vector_worlds import Rough
from waiting import until

from envsuite.core import ToolCall, UsageError
from envsuite.serving.server import serving
from envsuite.serving.settings import ServerSettings
from envsuite.vector import EnvFactory, LocalVector, make_vector
from envsuite.vector import workers as in_workers
from envsuite.vector.runner import reason

BOTH = pytest.mark.parametrize("workers", [0, 2], ids=["local", "workers"])


@pytest.fixture(scope="session")
def rough_server(data_folder):
    """The address of a server of the worlds that are played here."""
    with serving(ServerSettings((ROUGH.env_id, CRAFT.env_id), port=0, workers=0)) as running:
        yield running.url


@pytest.fixture(params=["local", "workers", "remote"])
def vector_of(request):
    """Makes a vector of environments and slots: in this process, in two worker processes, and on a server."""
    if request.param != "remote":
        return partial(make_vector, workers={"local": 0, "workers": 2}[request.param])
    url = request.getfixturevalue("rough_server")
    return lambda factories, slots: make_vector(
        [EnvFactory(f.env_id, {**f.kwargs, "url": url}) for f in factories], slots
    )


def test_every_call_is_answered_once_and_an_ended_episode_takes_a_reset(vector_of):
    with vector_of([ROUGH], slots=5) as vector:
        assert vector.poll() == []
        for slot in range(5):
            vector.reset(slot, 0, task_id="abc"[slot % 3])
        assert vector.pending == 5
        started = answers(vector, 5)
        assert vector.pending == 0 and vector.poll(None) == [] and vector.waiting_for() is None
        assert [started[s].observation["task"] for s in range(5)] == [f"Count in {t}." for t in "abcab"]
        assert started[0].info["task_type"] == "plain" and started[0].reward == 0.0
        for slot in range(5):
            vector.step(slot, do("end" if slot == 2 else "go"))
        stepped = answers(vector, 5)
        assert [stepped[s].observation["text"] for s in range(5)] == ["a 1", "b 1", "c 1", "a 1", "b 1"]
        assert [stepped[s].terminated for s in range(5)] == [False, False, True, False, False]
        assert stepped[2].info["success"] and stepped[2].reward == 0.5
        with pytest.raises(UsageError, match=r"slot 2 has no running episode; call reset"):
            vector.step(2, do("go"))
        assert one(vector, 2, lambda: vector.reset(2, 0, seed=3)).error is None


def test_a_horizon_ends_the_episode_as_truncated(vector_of):
    with vector_of([ROUGH], slots=1) as vector:
        reset_all(vector)
        events = [one(vector, 0, lambda: vector.step(0, do("go"))) for _ in range(20)]
        assert [event.truncated for event in events] == [False] * 19 + [True]
        with pytest.raises(UsageError, match="no running episode"):
            vector.step(0, do("go"))


def test_misuse_by_the_programmer_raises_at_the_call(vector_of):
    with vector_of([ROUGH], slots=2) as vector:
        for slot, env, message in (
            *((2, 0, "no slot 2; this vector has 2"), (-1, 0, "no slot -1; this vector has 2")),
            *((0, 1, "no environment 1; this vector has 1"), (0, -1, "no environment -1; this vector has 1")),
        ):
            with pytest.raises(UsageError, match=message):
                vector.reset(slot, env)
        with pytest.raises(UsageError, match="call reset"):
            vector.step(0, do("go"))
        vector.reset(0, 0)
        with pytest.raises(UsageError, match="reset of slot 0 before its reset was answered"):
            vector.reset(0, 0)
        with pytest.raises(UsageError, match="step of slot 0 before its reset was answered"):
            vector.step(0, do("go"))
        assert answers(vector, 1)[0].error is None
    vector.close()
    with pytest.raises(UsageError, match="closed"):
        vector.reset(0, 0)


def test_a_bug_in_a_world_loses_its_episode_and_no_other(vector_of):
    with vector_of([ROUGH, EnvFactory(ROUGH.env_id, {"broken": "reset"})], slots=4) as vector:
        reset_all(vector)
        vector.step(0, do("raise two\nlines"))
        vector.step(2, do("go"))
        events = answers(vector, 2)
        assert "ZeroDivisionError: two lines" in events[0].error
        assert events[0].observation is None and events[0].info is None
        assert (events[0].reward, events[0].terminated, events[0].truncated) == (0.0, False, False)
        assert events[2].error is None
        with pytest.raises(UsageError, match="no running episode"):
            vector.step(0, do("go"))
        assert one(vector, 0, lambda: vector.reset(0, 1)).error.count("KeyError: 'reset is broken'") == 1
        assert one(vector, 0, lambda: vector.reset(0, 0)).error is None
        assert one(vector, 0, lambda: vector.step(0, do("go"))).observation["text"] == "a 1"


def test_a_seed_may_be_a_number_of_numpys_or_zero_and_a_task_that_does_not_exist_is_an_error(vector_of):
    with vector_of([CRAFT], slots=2) as vector:
        event = one(vector, 0, lambda: vector.reset(0, 0, task_id="cyan_baner"))
        assert event.error.startswith("UnknownTask: ") and "cyan_banner" in event.error and "\n" not in event.error
        for seed in (0, 3):
            vector.reset(0, 0, seed=seed)
            vector.reset(1, 0, seed=np.int64(seed))
            tasks = {event.info["task_id"] for event in answers(vector, 2).values()}
            assert tasks == {gymnasium.make("TextCraft-v0").reset(seed=seed)[1]["task_id"]}


class Witness(Rough):
    """Notes when it is made and closed."""

    seen: ClassVar[list[str]] = []

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.seen.append("made")

    def close(self):
        self.seen.append("closed")
        raise OSError("it cannot be closed well")


def test_a_slot_keeps_its_environment_until_it_fails_or_the_vector_is_closed(caplog):
    gymnasium.register("Witness-v0", entry_point=Witness, max_episode_steps=20)
    try:
        with LocalVector([EnvFactory("Witness-v0")], slots=2) as vector:
            assert Witness.seen == ["made"], "to tell its tools"
            for _ in range(2):
                reset_all(vector)
            assert Witness.seen == ["made"] * 2, "one a slot"
            vector.step(1, do("raise now"))
            assert answers(vector, 1)[1].error.startswith("ZeroDivisionError: now (in _call of vector_worlds.py")
            assert Witness.seen == ["made"] * 2 + ["closed"]
            assert one(vector, 0, lambda: vector.step(0, do("go"))).observation["text"] == "b 1", "the second task"
            assert one(vector, 1, lambda: vector.reset(1, 0)).error is None
        assert Witness.seen == ["made"] * 2 + ["closed", "made", "closed", "closed"]
        assert caplog.text.count("OSError: it cannot be closed well") == 3
        del Witness.seen[:]
        with LocalVector([EnvFactory("Witness-v0", {"broken": "reset"})], slots=1) as vector:
            for _ in range(2):
                assert "reset is broken" in reset_all(vector)[0].error
        assert Witness.seen == ["made", "closed"] * 2, "one whose reset has failed is not used again"
    finally:
        del gymnasium.registry["Witness-v0"]


def test_a_vector_that_is_closed_closes_its_environments(vector_of, tmp_path, monkeypatch):
    monkeypatch.setattr(in_workers, "CLOSE_SECONDS", 60.0)  # this machine may be busy
    with vector_of([ROUGH], slots=3) as vector:
        reset_all(vector)
        for slot in range(3):
            vector.step(slot, do(f"farewell {tmp_path / str(slot)}"))
        answers(vector, 3)
        assert not list(tmp_path.iterdir())
    until(lambda: len(list(tmp_path.iterdir())) == 3)


def test_a_reason_is_one_line_that_is_not_too_long():
    assert reason(ValueError("two\n  lines")) == "ValueError: two lines"
    long = ValueError("x" * (500 - len("ValueError: ")))
    assert len(reason(long)) == 500 and reason(long).endswith("xx")
    longer = reason(ValueError("x" * 500))
    assert len(longer) == 500 and longer.endswith("x…")


@pytest.mark.seconds
@BOTH
@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (EnvFactory(ROUGH.env_id, {"broken": "make"}), "Rough-v0 cannot be made: ValueError: no world today"),
        (EnvFactory("TextCraft-v0", {"split": "tset"}), "UnknownTask: .*'test'"),
        (EnvFactory("CartPole-v1"), "CartPoleEnv is not an envsuite.core.ToolEnv"),
        (EnvFactory("Nowhere-v0"), "Nowhere"),
    ],
)
def test_an_environment_that_cannot_be_made_is_an_error_at_once(workers, factory, message):
    with pytest.raises(UsageError, match=message):
        make_vector([ROUGH, factory], slots=2, workers=workers)


def test_malformed_actions_are_invalid_steps(vector_of):
    with vector_of([ROUGH], slots=1) as vector:
        reset_all(vector)
        for action in ((), "go", None, do("a") * 2, (ToolCall("nothing", {}),), do("\udc00")):
            event = one(vector, 0, lambda action=action: vector.step(0, action))
            assert event.error is None and not event.info["valid"] and event.reward == 0.0


def test_outputs_that_are_no_actions_are_told_apart_and_change_nothing(vector_of):
    with vector_of([CRAFT, ROUGH], slots=3) as vector:
        for slot in range(3):
            vector.reset(slot, 0, task_id="cyan_banner")
        answers(vector, 3)
        vector.refuse(0, "no <action>…</action> in the completion")
        vector.refuse(1, "not JSON: half of a pair \udc00")
        vector.step(2, (ToolCall("env_step", {"command": "inventory"}),))
        with pytest.raises(UsageError, match="of slot 0 before its step was answered"):
            vector.refuse(0, "too early")
        events = answers(vector, 3)
        said = [events[slot].observation["text"] for slot in (0, 1)]
        assert said[0] == "Invalid action: no <action>…</action> in the completion. Tools: env_step."
        assert said[1] == "Invalid action: not JSON: half of a pair \\udc00. Tools: env_step."
        assert [events[s].info["error"] for s in (0, 1)] == [text[16:-18] for text in said]
        assert len({events[slot].info["state_key"] for slot in range(3)}) == 3
        assert [events[slot].info["valid"] for slot in range(3)] == [False, False, True]
        again = one(vector, 0, lambda: vector.refuse(0, "no"))
        assert again.observation["text"] == "Invalid action: no. Tools: env_step."
        assert one(vector, 0, lambda: vector.reset(0, 1)).error is None
        assert one(vector, 0, lambda: vector.refuse(0, "no")).info["state_key"] == "0", "the world has not moved"
        assert [one(vector, 0, lambda: vector.refuse(0, "no")).truncated for _ in range(19)] == [False] * 18 + [True]
        with pytest.raises(UsageError, match="no running episode"):
            vector.refuse(0, "too late")


@BOTH
def test_a_vector_without_slots_or_environments_is_refused(workers):
    for factories, slots in (([ROUGH], 0), ([], 1)):
        with pytest.raises(UsageError, match="at least one slot"):
            make_vector(factories, slots, workers)
    for wrong in ({"workers": 1, "deadline": 0}, {"workers": -1}):
        with pytest.raises(UsageError, match="positive"):
            make_vector([ROUGH], slots=1, **wrong)


def test_a_poll_waits_no_longer_than_it_may(vector_of, tmp_path):
    with vector_of([ROUGH], slots=2) as vector:
        reset_all(vector)
        if isinstance(vector, LocalVector):
            return  # it never waits
        vector.step(0, do(f"wait {tmp_path / 'file'}"))
        began = time.monotonic()
        assert vector.poll(0.3) == []
        assert time.monotonic() - began > 0.25
        (tmp_path / "file").touch()
        assert answers(vector, 1)[0].error is None


def test_a_call_in_this_process_that_misses_its_deadline_is_interrupted_and_the_slot_goes_on():
    with LocalVector([ROUGH], slots=2) as vector:
        reset_all(vector)
        began = time.monotonic()
        vector.deadline = 0.3
        vector.step(0, do("sleep 60"))
        vector.deadline = 60.0
        vector.step(1, do("go"))
        assert time.monotonic() - began < 50
        hung, other = (event for _, event in sorted(answers(vector, 2).items()))
        assert hung.error == "DeadlineExceeded: step of slot 0 (vector_worlds:Rough-v0) took more than 0.3 s"
        assert other.error is None and not hung.collateral
        assert one(vector, 0, lambda: vector.reset(0, 0)).error is None
        assert one(vector, 0, lambda: vector.step(0, do("go"))).observation["text"].endswith(" 1"), "a fresh world"
    time.sleep(0.4)  # no alarm is left
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL and signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_an_alarm_of_the_program_and_calls_of_other_threads_are_left_alone():
    rung = []
    before = signal.signal(signal.SIGALRM, lambda *_: rung.append(1))
    try:
        with LocalVector([ROUGH], slots=1, deadline=0.1) as vector:
            reset_all(vector)
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            assert one(vector, 0, lambda: vector.step(0, do("sleep 0.4"))).error is None and rung == [1]
    finally:
        signal.signal(signal.SIGALRM, before)
    with LocalVector([ROUGH], slots=1, deadline=0.1) as vector, ThreadPoolExecutor(1) as pool:
        pool.submit(reset_all, vector).result()
        assert pool.submit(lambda: one(vector, 0, lambda: vector.step(0, do("sleep 0.3")))).result().error is None
    with pytest.raises(UsageError, match="deadline must be positive, got 0"):
        LocalVector([ROUGH], slots=1, deadline=0)
