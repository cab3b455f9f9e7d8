"""Episodes that a person plays, without a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from envsuite.core import Observation, Outcome, TaskSet, Tool, ToolCall, ToolEnv, UnknownTask, UsageError, WorkerLost
from envsuite.core.registration import builtin
from envsuite.evaluation.demonstrations.file import read_demonstrations
from envsuite.evaluation.demonstrations.playing import replay
from envsuite.play.session import PlaySession
from envsuite.remote import transport
from envsuite.remote.making import horizon_of, make
from envsuite.serving.server import serving
from envsuite.serving.settings import ServerSettings

IDS = [spec.id for spec in builtin()]


FEW = {"ALFWorld-v0": {"source": "builtin", "games": 18}}
"""Arguments that make few games: by default there are hundreds."""


def begun(env_id: str, task: str | None = None, save: Path | None = None, **options: Any) -> PlaySession:
    options = options or FEW.get(env_id, {})
    session = PlaySession(make(env_id, **options), "train", horizon=horizon_of(env_id), env_options=options, save=save)
    session.start(task)
    return session


@pytest.fixture(params=IDS)
def session(request: pytest.FixtureRequest, tmp_path: Path, data_folder: Path) -> Iterator[PlaySession]:
    made = begun(request.param, save=tmp_path / "saved.jsonl")
    yield made
    made.env.close()


def test_hints_solve_the_task_and_the_episode_is_saved_as_it_was(session):
    while not session.over:
        action = session.hint()
        session.act(action)
        session.undo()
        session.act(action)
    assert session.info["success"] and session.solved == session.saved == {session.task_id}
    assert session.save_path is not None
    (shown,) = read_demonstrations(session.save_path)
    assert shown.steps == tuple(session.steps) and shown.player == "person"
    assert replay(session.env, shown) == shown


def test_steps_are_taken_back_one_by_one_to_the_beginning(session):
    session.env.action_space.seed(1)
    seen = [(session.observation, session.info, session.reward)]
    for number in range(5):
        session.act(session.env.action_space.sample() if number % 2 == 0 else ())
        seen.append((session.observation, session.info, session.reward))
    for observation, info, reward in reversed(seen[:-1]):
        session.undo()
        assert (session.observation, session.info, session.reward) == (observation, info, reward)
        assert session.env.observation["commands"] == observation["commands"]
    with pytest.raises(UsageError, match="nothing to take back"):
        session.undo()
    assert session.steps_left == session.horizon


def test_the_budget_of_steps_ends_the_episode_and_undo_gives_them_back():
    session = PlaySession(make("Sokoban-v0"), "train", horizon=2)
    session.start()
    session.act(())
    session.act(())
    assert session.over and not session.env.done
    with pytest.raises(UsageError, match="over"):
        session.act(())
    with pytest.raises(UsageError, match="over"):
        session.hint()
    session.undo()
    assert not session.over and session.steps_left == 1
    endless = PlaySession(make("Sokoban-v0"), "train")
    endless.start()
    for _ in range(50):
        endless.act(())
    assert not endless.over and endless.steps_left is None


def test_tasks_follow_in_order_by_type_and_at_random():
    session = begun("TextCraft-v0")
    ids = session.env.tasks.ids("train")
    session.move(1)
    assert session.task_id == ids[1]
    session.move(-2)
    assert session.task_id == ids[-1]
    session.choose_type("depth-3")
    session.start(session.tasks[0])
    session.move(1)
    assert session.env.tasks.types[session.task_id] == "depth-3"
    session.random()
    assert session.info["task_type"] == "depth-3"
    with pytest.raises(UnknownTask):
        session.choose_type("depth-9")
    with pytest.raises(UnknownTask):
        session.start("no such item")
    assert session.env.observation["task"] == session.first["task"]  # the episode goes on
    again = (
        PlaySession(make("TextCraft-v0"), "train", seed=3),
        PlaySession(make("TextCraft-v0"), "train", seed=3),
    )
    for one in again:
        one.random()
    assert again[0].task_id == again[1].task_id
    with pytest.raises(UsageError, match="no task"):
        PlaySession(make("Sokoban-v0", tasks=["boxes-1/test#0"]), "train")


class Tally(ToolEnv):
    """Counts to three; cannot be snapshot, and has no expert."""

    tools = (Tool("add", "", {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}),)

    def __init__(self) -> None:
        super().__init__(TaskSet("Tally-v0", "builtin", "1", {"train": ("one",)}, {"one": "t"}), "train")
        self.sum, self.drift, self.lose = 0, 0, False

    def _begin(self, task_id: str) -> tuple[str, Outcome]:
        self.sum = self.drift
        return "Count.", Outcome("0")

    def _call(self, call: ToolCall) -> Outcome:
        if self.lose:
            raise WorkerLost("the worker died")
        self.sum += call.arguments["n"]
        return Outcome(str(self.sum))

    def _state_key(self) -> str:
        return str(self.sum)

    def _propose(self, rng: np.random.Generator) -> ToolCall:
        return ToolCall("add", {"n": 1})


def add(number: int) -> tuple[ToolCall]:
    return (ToolCall("add", {"n": number}),)


def test_without_snapshots_the_actions_are_played_again():
    session = PlaySession(Tally(), "train")
    session.start()
    for number in (1, 2, 3):
        session.act(add(number))
    session.undo()
    assert session.observation["text"] == "3" and session.env.sum == 3  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="no hint: unknown environment 'Tally-v0'"):
        session.hint()
    session.env.drift = 5  # type: ignore[attr-defined]
    for _ in range(2):
        with pytest.raises(UsageError, match="another course"):
            session.undo()
    assert session.lost is not None and len(session.steps) == 2
    session.start()
    assert session.lost is None


def test_a_lost_environment_keeps_the_episode_and_goes_on_when_it_is_back():
    env = Tally()
    session = PlaySession(env, "train")
    session.start()
    session.act(add(1))
    env.lose = True
    for _ in range(2):
        with pytest.raises(WorkerLost):
            session.act(add(2))
    assert session.lost is not None and len(session.steps) == 1 and not session.over
    with pytest.raises(WorkerLost):
        session.hint()
    env.lose = False
    env.sum = 77
    assert session.act(add(2)).observation["text"] == "3" and session.lost is None


@pytest.mark.parametrize("env_id", ["TextCraft-v0", "ALFWorld-v0"])
def test_on_a_server_steps_are_taken_back_and_only_players_of_observations_give_hints(env_id, server):
    session = begun(env_id, url=server, **FEW.get(env_id, {}))
    before: Observation = session.observation
    session.act(session.env.action_space.sample())
    session.undo()
    assert session.observation == before
    if env_id == "ALFWorld-v0":
        assert session.hint()[0].name == "env_step"
    else:
        with pytest.raises(UsageError, match="make it without url="):
            session.hint()


def _stop_and_go_on() -> None:
    with serving(ServerSettings(("TextCraft-v0",), port=0, workers=0)) as running:
        session = begun("TextCraft-v0", url=running.url)
        port = int(running.url.rpartition(":")[2])
        session.act(session.env.action_space.sample())
    seen = session.observation
    with pytest.raises(WorkerLost):
        session.act((ToolCall("env_step", {"command": "inventory"}),))
    assert session.observation == seen and len(session.steps) == 1
    with serving(ServerSettings(("TextCraft-v0",), port=port, workers=0)):
        session.act((ToolCall("env_step", {"command": "inventory"}),))
        assert len(session.steps) == 2


def test_a_server_that_stops_is_said_and_another_one_at_its_address_goes_on(monkeypatch):
    monkeypatch.setattr(transport, "UNREACHABLE_SECONDS", 0.3)
    monkeypatch.setattr(transport, "JUST_NOW", 0.0)
    try:
        _stop_and_go_on()
    except UsageError as error:
        if "cannot listen at" not in str(error):
            raise
        _stop_and_go_on()  # another program had taken the port meanwhile


def test_an_episode_without_steps_or_with_images_is_not_saved(tmp_path):
    session = begun("Sokoban-v0")
    with pytest.raises(UsageError, match="no step"):
        session.save(tmp_path / "a.jsonl")
    session = begun("Sokoban-v0", observation="both")
    session.act(())
    with pytest.raises(UsageError, match="images"):
        session.save(tmp_path / "a.jsonl")


def test_saved_episodes_replace_those_of_the_same_task_and_keep_the_others(tmp_path):
    path = tmp_path / "a.jsonl"
    session = begun("TextCraft-v0")
    for expected in (1, 2, 2):
        session.act(())
        assert session.save(path) == expected
        if expected == 1:
            session.move(1)
    assert [len(one.steps) for one in read_demonstrations(path)] == [1, 2]
