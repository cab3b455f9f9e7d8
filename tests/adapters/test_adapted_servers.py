"""Servers of OpenEnv's contract and of MCP, played over sockets and pipes."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import mcp_server
import pytest
import uvicorn
from adapted import called, made
from gymnasium.envs.registration import load_env_creator
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from envsuite.core import DataError, ToolCall, UsageError, WorkerLost
from envsuite.core.naming import spec_of
from envsuite.serving.bridges.players import BridgePlayer, Seats, offer
from envsuite.serving.bridges.server import bridging
from envsuite.serving.bridges.settings import BridgeSettings
from envsuite.testing import checks

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SUMS = f"{sys.executable} {HERE / 'mcp_server.py'}"
REWARD = """
def right(task, calls):
    name, text = calls[-1]["name"], calls[-1]["text"]
    return float(text == str(task.get("sum"))) if name == "answer" else 1.0 if text == str(task.get("win")) else None

def passed_on(task, calls):
    result = calls[-1]["result"]
    return result["reward"] if result["terminated"] else None

def broken(task, calls):
    return calls[7]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The present folder, with functions of rewards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    Path("reward.py").write_text(REWARD)
    return tmp_path


@contextmanager
def listening(app: Any) -> Iterator[str]:
    """An application on a socket, in a thread."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Whether two results are equal, but for the versions."""
    (*seen, info), (*expected, wanted) = one, other
    return seen == expected and {**info, "versions": 0} == {**wanted, "versions": 0}


def test_an_episode_of_openenvs_contract_is_the_local_one_step_for_step():
    with bridging(BridgeSettings(("TextCraft-v0",), port=0)) as running:
        env, own = made("openenv/craft", server=f"{running.url}/openenv/TextCraft-v0"), made("TextCraft-v0")
        assert env.unwrapped.tasks.splits == own.unwrapped.tasks.splits
        assert env.unwrapped.tasks.types == own.unwrapped.tasks.types
        for seed in (0, 5):
            assert same(env.reset(seed=seed), own.reset(seed=seed))
            own.action_space.seed(seed)
            for _ in range(6):
                action = own.action_space.sample()
                assert same(env.step(action), own.step(action))
        env.close()


@pytest.mark.slow
@pytest.mark.parametrize("env_id", ["openenv/craft", "mcp/sums"])
def test_a_server_in_a_file_keeps_the_contract(folder, env_id):
    with bridging(BridgeSettings(("TextCraft-v0",), port=0)) as running:
        Path("craft.json").write_text(json.dumps({"server": f"{running.url}/openenv/TextCraft-v0"}))
        Path("sums.json").write_text(
            json.dumps({"command": SUMS, "reward": "reward.py:right", "goals": [*map(str, range(5))]})
        )
        for check in checks(env_id):
            check()


def test_a_server_that_goes_away_and_comes_back_is_told_in_a_line():
    with bridging(BridgeSettings(("TextCraft-v0",), port=0)) as running:
        url = running.url
        env = made("openenv/craft", server=f"{url}/openenv/TextCraft-v0", deadline=20.0)
        env.reset(seed=0)
    with pytest.raises(WorkerLost, match=r"^http\S+ does not answer \(.*\); see whether it runs$"):
        called(env, "env_step", command="inventory")
    with pytest.raises(WorkerLost, match="ConnectionRefusedError"):
        env.reset(seed=0)
    with bridging(BridgeSettings(("TextCraft-v0",), port=int(url.rpartition(":")[2]))):
        env.reset(seed=0)
        assert called(env, "env_step", command="inventory")[4]["valid"]
        env.close()
    with pytest.raises(UsageError, match="does not answer as a server of OpenEnv"):
        made("openenv/craft", server=url)
    with pytest.raises(UsageError, match="needs the address of a server"):
        made("openenv/craft")


async def _metadata(request: Request) -> Response:
    return JSONResponse({"name": "doubling", "description": "Say the double.", "version": "3"})


async def _schema(request: Request) -> Response:
    number = {"type": "integer", "minimum": 0, "maximum": 9}
    properties = {"number": number, "metadata": {"type": "object"}}
    return JSONResponse({"action": {"type": "object", "properties": properties, "required": ["number"]}})


async def _play(socket: WebSocket) -> None:
    await socket.accept()
    async for message in socket.iter_json():
        told: Mapping[str, Any] = {"type": "observation"}
        if message["type"] == "reset":
            wanted = message["data"]["seed"]
            data: Mapping[str, Any] = {"observation": {"number": wanted}, "reward": None, "done": False}
        elif message["data"]["number"] == 9:
            told, data = (
                {"type": "error"},
                {"message": "Invalid message", "code": "VALIDATION_ERROR", "errors": [{"msg": "odd"}]},
            )
        elif message["data"]["number"] == 8:
            told, data = {"type": "error"}, {"message": "a bug", "code": "EXECUTION_ERROR"}
        else:
            right = message["data"]["number"] == 2 * wanted
            data = {"observation": {"right": right, "done": True}, "reward": float(right), "done": True}
        await socket.send_json({**told, "data": data})


def test_a_server_of_typed_actions_without_tasks_plays_seeds():
    app = Starlette(routes=[Route("/metadata", _metadata), Route("/schema", _schema), WebSocketRoute("/ws", _play)])
    with listening(app) as url:
        env = made("openenv/doubling", server=url, train=5, test=2)
        assert [*env.unwrapped.tools[0].parameters["properties"]] == ["number"]
        seen, info = env.reset(options={"task_id": "seed-3"})
        assert (seen["task"], seen["text"], info["versions"]["data"]) == (
            "Say the double.",
            '{"number":3}',
            "doubling-3",
        )
        *_, info = called(env, "act", number=9)
        assert info["error"] == "Invalid message odd"
        seen, reward, ended, _, info = called(env, "act", number=6)
        assert (seen["text"], reward, ended, info["success"]) == ('{"right":true}', 1.0, True, True)
        env.reset(options={"task_id": "seed-3"})
        with pytest.raises(WorkerLost, match="step: a bug"):
            called(env, "act", number=8)
        env.close()


@pytest.mark.seconds
def test_tools_over_pipes_begin_anew_in_each_episode_and_the_function_pays(folder):
    goals = [
        {"goal": "Reach 5.", "sum": 5, "win": 7, "id": "five", "type": "small"},
        {"goal": "?", "sum": 1, "split": "test"},
    ]
    Path("sums.json").write_text(json.dumps({"command": SUMS, "reward": "reward.py:right", "goals": goals}))
    env = made("mcp/sums")
    assert [tool.name for tool in env.unwrapped.tools] == ["answer", "add"]
    assert env.unwrapped.tasks.splits == {"train": ("five",), "test": ("test-1",)}
    for _ in range(2):
        seen, info = env.reset(options={"task_id": "five"})
        assert (seen["task"], seen["text"], info["task_type"]) == ("Reach 5.", "", "small")
        assert called(env, "add", number=3)[0]["text"] == "3"
        seen, *_, info = called(env, "add", number=-1)
        assert "the number has to be positive" in info["error"] and not info["valid"]
        assert called(env, "add", number=4)[1:4] == (1.0, True, False)
    for text, reward in (("5", 1.0), ("6", 0.0)):
        env.reset(options={"task_id": "five"})
        assert called(env, "answer", text=text)[1:3] == (reward, True)
    env.reset(options={"task_id": "five"})
    with pytest.raises(WorkerLost, match="mcp/sums: add: "):
        called(env, "add", number=666)
    env.reset(options={"task_id": "five"})
    assert called(env, "add", number=1)[0]["text"] == "1"
    env.close()


@pytest.mark.seconds
def test_the_projects_own_bridge_over_pipes_is_played_as_any_server(folder):
    own = made("TextCraft-v0")
    begun = [{"goal": f"Craft {seed}.", "arguments": {"seed": seed}} for seed in (0, 3)]
    Path("begun.jsonl").write_text("\n".join(map(json.dumps, begun)))
    command = f"{sys.executable} -m envsuite.cli serve bridge TextCraft-v0 --stdio"
    env = made("mcp/craft", command=command, reward="reward.py:passed_on", goals="begun.jsonl", begin="reset")
    assert [tool.name for tool in env.unwrapped.tools] == ["answer", "env_step"]
    for number, seed in enumerate((0, 3)):
        seen, first = env.reset(options={"task_id": f"train-{number}"})[0], own.reset(seed=seed)[0]
        assert seen["text"] == f"{first['task']}\n{first['text']}"
        own.action_space.seed(seed)
        for _ in range(3):
            action = own.action_space.sample()
            assert env.step(action)[0]["text"].startswith(own.step(action)[0]["text"])
    env.close()


@pytest.mark.parametrize(
    ("options", "error", "problem"),
    [
        ({"command": "no-such-command --now"}, UsageError, "answers at no-such-command --now (FileNotFoundError"),
        ({"command": f"{sys.executable} -c 1"}, UsageError, "no MCP server answers at"),
        ({"server": "http://127.0.0.1:9/mcp"}, UsageError, "no MCP server answers at http://127.0.0.1:9/mcp (Connect"),
        ({}, UsageError, "needs goals, reward=FILE.py:FUNCTION, and either command or server"),
        ({"command": SUMS, "reward": "reward.py:rigth"}, UsageError, "reward.py has no function rigth"),
        ({"command": SUMS, "reward": "none.py:right"}, UsageError, "'none.py:right' is not file.py:function"),
        ({"command": SUMS, "goals": [{"gaol": 1}]}, DataError, "not texts, or mappings with goal (KeyError: 'goal')"),
        ({"command": SUMS, "goals": "none.jsonl"}, DataError, "FileNotFoundError"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_server_of_tools_is_told(folder, options, error, problem):
    with pytest.raises(error) as told:
        made("mcp/sums", **{"reward": "reward.py:right", "goals": ["Add."], "deadline": 20.0, **options})
    assert problem in str(told.value) and "\n" not in str(told.value)


def test_a_tool_that_vanishes_and_a_reward_that_raises_are_told(folder):
    with listening(mcp_server.server.streamable_http_app()) as url:
        env = made("mcp/sums", server=f"{url}/mcp", reward="reward.py:broken", goals=["Add."])
        env.reset(seed=0)
        with pytest.raises(
            UsageError, match=r"reward=.*:broken fails after add \(IndexError: list index out of range\)"
        ):
            called(env, "add", number=1)
        mcp_server.server.remove_tool("add")
        with pytest.raises(UsageError, match="fails after add"):  # in mid-episode the call is refused by the server
            called(env, "add", number=1)
        with pytest.raises(WorkerLost, match="the server has no tool add any more"):
            env.reset(seed=0)
        env.close()


def test_clients_of_a_server_cannot_say_what_it_starts_or_asks():
    for env_id in ("mcp/sums", "openenv/sums"):
        kind: Any = load_env_creator(spec_of(env_id).entry_point)
        assert {"deadline", "split"} == kind.argument_schemas().keys() & {
            "deadline",
            "split",
            "command",
            "server",
            "reward",
            "goals",
        }


def test_an_end_that_is_none_of_the_task_is_truncated_by_bridges_too():
    spec_of("pettingzoo/nim")

    async def play() -> list[tuple[bool, bool]]:
        player, call = BridgePlayer(offer("pettingzoo/nim", ()), Seats(1)), ToolCall("act", {"action": 1})
        await player.reset(task_id="seed-3")
        turns = [await player.step(call) for _ in range(3)]
        return [(turn.terminated, turn.truncated) for turn in turns]

    assert anyio.run(play) == [(False, False), (False, False), (False, True)]
