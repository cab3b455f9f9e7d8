from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import gymnasium
import psutil
import pytest
from cutting import cutting
from driving import do, reset_all, step_all
from folders import SUPPORT
from waiting import until

from envsuite.core import ToolCall, ToolEnv, UsageError, WorkerLost
from envsuite.remote import RemoteEnv, transport
from envsuite.remote.listening import CONNECTIONS, OTHER_FILES, REFUSED
from envsuite.textcraft.env import TextCraft
from envsuite.vector import EnvFactory, make_vector

ROUGH = "vector_worlds:Rough-v0"
COMMANDS = ["inventory", "get 2 string", "get 1 oak log", "nonsense", "craft 1 white wool using 4 string", "inventory"]


def act(command: str) -> tuple[ToolCall, ...]:
    return (ToolCall("env_step", {"command": command}),)


def text(env: ToolEnv, command: str) -> str:
    return env.step(do(command))[0]["text"]


def begin(*envs: ToolEnv) -> None:
    for env in envs:
        assert env.reset(options={"task_id": "b"})[0]["text"] == "0"


@pytest.fixture
def processes() -> Iterator[Callable[[int], subprocess.Popen[bytes]]]:
    """Starts ``envsuite serve http`` of the rough world and of TextCraft at a port; a process may open few files."""
    started: list[subprocess.Popen[bytes]] = []
    path = os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")])

    def start(port: int) -> subprocess.Popen[bytes]:
        command = ["sh", "-c", 'ulimit -Sn 512; exec "$@"', "-", sys.executable, "-m", "envsuite.cli", "serve", "http"]
        command += ["TextCraft-v0", ROUGH, "--port", str(port), "--workers", "0"]
        started.append(subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.mark.seconds
def test_a_server_that_is_killed_and_started_anew_costs_no_episode_and_sigterm_lets_calls_end(
    processes, monkeypatch, tmp_path
):
    monkeypatch.setattr(transport, "UNREACHABLE_SECONDS", 120.0)
    port = free_port()
    first = processes(port)
    env, twin = gymnasium.make("TextCraft-v0", url=f"http://127.0.0.1:{port}").unwrapped, TextCraft()
    assert isinstance(env, RemoteEnv)
    assert env.reset(seed=5) == twin.reset(seed=5)
    soft, hard = psutil.Process(first.pid).rlimit(psutil.RLIMIT_NOFILE)
    assert soft == min(CONNECTIONS + REFUSED + OTHER_FILES, hard), "it has raised the limit for its connections"
    for number, command in enumerate(COMMANDS):
        if number == 3:
            token = env.snapshot()
            first.kill()
            first.wait()
            second = processes(port)
        assert env.step(act(command)) == twin.step(act(command))
    assert env.restore(token)["text"] == "Got 1 oak log"
    slow = RemoteEnv(f"http://127.0.0.1:{port}", ROUGH)
    begin(slow)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(text, slow, f"touch {tmp_path / 'begun'} and sleep 1")
        until((tmp_path / "begun").exists)
        second.send_signal(signal.SIGTERM)
    assert answer.result() == "b 1" and second.wait(60) == 0


def test_an_answer_that_is_lost_is_asked_for_again_and_the_step_is_taken_once(start):
    with cutting(start(ROUGH).url) as proxy:
        env = RemoteEnv(proxy.url, ROUGH)
        begin(env)
        for count in range(1, 6):
            proxy.cut = count % 3
            assert text(env, "go") == f"b {count}"
        proxy.cut = 1
        assert env.reset(seed=1)[0]["text"] == "0"
        assert proxy.lost == 7


def test_a_lost_answer_to_the_making_of_a_session_leaves_no_second_session(start):
    running = start()
    with cutting(running.url) as proxy:
        env = RemoteEnv(proxy.url, "TextCraft-v0")
        proxy.cut = 1
        env.reset(seed=0)
        assert (running.front.sessions, proxy.lost) == (1, 1)


def test_a_lost_answer_to_a_batch_takes_each_step_once(start):
    with cutting(start(ROUGH).url) as proxy, make_vector([EnvFactory(ROUGH, {"url": proxy.url})], 5) as vector:
        reset_all(vector, task_id="a")
        for count in range(1, 5):
            proxy.cut = 1
            for event in step_all(vector, do("go")).values():
                assert event.error is None and event.observation and event.observation["text"] == f"a {count}"
        assert proxy.lost >= 3


@pytest.mark.seconds
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_slow_environment_does_not_delay_others(start, workers):
    running = start(ROUGH, workers=workers)
    slow, quick = RemoteEnv(running.url, ROUGH), RemoteEnv(running.url, ROUGH)
    begin(slow, quick)
    thread = threading.Thread(target=lambda: text(slow, "sleep 8"))
    thread.start()
    for count in range(1, 6):
        assert text(quick, "go") == f"b {count}"
    assert thread.is_alive()
    thread.join()


def test_a_worker_that_is_killed_costs_no_episode(start):
    running = start(ROUGH, workers=2)
    envs = [RemoteEnv(running.url, ROUGH) for _ in range(4)]
    begin(*envs)
    assert [text(env, "go") for env in envs] == ["b 1"] * 4
    os.kill(running._pool.workers[0].pid, signal.SIGKILL)
    assert [text(env, "go") for env in envs] == ["b 2"] * 4
    for env in envs:
        env.close()
    assert running.front.sessions == 0


@pytest.mark.seconds
def test_a_call_that_crashes_every_worker_ends_its_episode_and_no_other(start):
    running = start(ROUGH, workers=2)
    env, other = RemoteEnv(running.url, ROUGH), RemoteEnv(running.url, ROUGH)
    begin(env, other)
    with pytest.raises(WorkerLost, match="exited with code 3"):
        env.step(do("exit 3"))
    with pytest.raises(UsageError, match=r"call reset\(\) first"):
        env.step(do("go"))
    begin(env)
    assert text(env, "go") == text(other, "go") == "b 1"


def test_a_world_that_fails_loses_its_session_only(start):
    running = start(ROUGH)
    env, other = RemoteEnv(running.url, ROUGH), RemoteEnv(running.url, ROUGH)
    begin(env, other)
    for command, message in (("raise oops", "ZeroDivisionError: oops"), ("unsendable", "TypeError")):
        with pytest.raises(WorkerLost, match=message):
            env.step(do(command))
        with pytest.raises(UsageError, match=r"call reset\(\) first"):
            env.step(do("go"))
        begin(env)
    assert text(other, "go") == "b 1"


def test_a_client_of_a_full_server_waits_for_its_turn(start):
    running = start(max_sessions=1)
    first, second = (RemoteEnv(running.url, "TextCraft-v0") for _ in range(2))
    first.reset(seed=0)
    threading.Timer(0.5, first.close).start()
    assert second.reset(seed=0)[1]["valid"]


def test_a_thousand_sessions_at_once(start):
    running = start()
    with make_vector([EnvFactory("TextCraft-v0", {"url": running.url})], 1000) as vector:
        events = reset_all(vector)
        for _ in range(2):
            assert not [event.error for event in events.values() if event.error is not None]
            assert running.front.sessions == 1000
            events = step_all(vector, act("inventory"))
    assert running.front.sessions == 0


def memory() -> int:
    return int(psutil.Process().memory_info().rss)


@pytest.mark.slow
def test_ten_thousand_abandoned_sessions_leave_the_memory_as_it_was(start):
    running = start(max_sessions=20_000, idle_seconds=2.0)
    there = transport.server(running.url)

    def abandon(count: int) -> None:
        for _ in range(count // 500):
            calls = [{"op": "create", "environment": "TextCraft-v0"}] * 500
            made = there.ask("POST", "/v1/batch", {"calls": calls})["results"]
            resets = [{"op": "reset", "session": result["body"]["session"], "number": 1} for result in made]
            there.ask("POST", "/v1/batch", {"calls": resets})
        until(lambda: not running.front.sessions)

    abandon(10_000)
    before = memory()
    abandon(10_000)
    assert memory() <= 1.1 * before


@pytest.mark.slow
def test_two_hundred_thousand_steps_leave_memory_files_and_threads_as_they_were(start):
    running = start()
    process = psutil.Process()

    def play(steps: int) -> None:
        with make_vector([EnvFactory("TextCraft-v0", {"url": running.url})], 256) as vector:
            for slot in range(256):
                vector.reset(slot, 0, seed=slot)
            taken = 0
            while vector.pending:
                for event in vector.poll(60.0):
                    assert event.error is None
                    if taken < steps:
                        taken += 1
                        if event.truncated:
                            vector.reset(event.slot, 0, seed=taken)
                        else:
                            vector.step(event.slot, act("inventory"))
        until(lambda: not any(thread.name == "envsuite-remote" for thread in threading.enumerate()))

    play(40_000)
    before = memory(), process.num_fds(), process.num_threads()
    play(200_000)
    after = memory(), process.num_fds(), process.num_threads()
    assert after[0] <= 1.1 * before[0] and after[1] <= before[1] + 8 and after[2] <= before[2]
