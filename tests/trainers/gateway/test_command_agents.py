"""Agents as command lines: real processes in the sandbox of this machine, their ends, their rewards, their attacks."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from hoarding import HELD, WAYS
from mcp import Client as MCPClient
from mcp.client.streamable_http import streamable_http_client
from tiny_runs import BOOK, model, tokenizer
from waiting import until

from envsuite.playing.engine import Sampling
from envsuite.playing.episode import EpisodePlan
from envsuite.playing.step import Episode
from envsuite.vector import EnvFactory
from trainers.gateway import command
from trainers.gateway.agents import AgentEpisode, AgentJob, AgentManager, AgentOutcome, AgentTask, Client
from trainers.gateway.app import serve
from trainers.gateway.command import CommandAgent
from trainers.gateway.gateway import Gateway
from trainers.gateway.listening import CONNECTIONS
from trainers.gateway.sequences import Writer
from trainers.policy.model import stop_ids
from trainers.rollout.config import AgentConfig
from trainers.rollout.hf_engine import HFEngine
from trainers.settings import ConfigError

FACTORY = EnvFactory("TextCraft-v0", {**BOOK, "max_episode_steps": 4})
PRELUDE = """
import json, mmap, os, socket, subprocess, sys, time, urllib.error, urllib.request
def post(url, body, key=os.environ.get("OPENAI_API_KEY", "")):
    kinds = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}
    kinds["Accept"] = "application/json, text/event-stream"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), kinds)) as answer:
        return json.load(answer)
def ask(text):
    body = {"model": os.environ["OPENAI_MODEL"], "messages": [{"role": "user", "content": text}]}
    return post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body)["choices"][0]["message"]["content"]
def env(method, **given):
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": given}
    return post(os.environ["ENVSUITE_ENV_URL"], body)["result"]
"""
Made = Callable[..., AgentManager]


@pytest.fixture
def address() -> Iterator[tuple[Gateway, str]]:
    """A gateway that listens."""
    gateway = Gateway(Writer(tokenizer()), Sampling(), 0)
    with serve(gateway) as url:
        yield gateway, url


@pytest.fixture
def made(address: tuple[Gateway, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    """Makes what plays episodes with an agent, from its Python code and settings."""
    managers = []
    gateway, url = address
    monkeypatch.setattr(command, "DISK", 16 << 20)

    def make(code: str, *arguments: str, attempts: int = 1, **settings: Any) -> AgentManager:
        (tmp_path / "agent.py").write_text(PRELUDE + code)
        config = AgentConfig(run=[sys.executable, str(tmp_path / "agent.py"), *arguments], **settings)
        try:
            agent = CommandAgent(config)
        except ConfigError as error:
            if "no sandbox" in str(error):
                pytest.skip(str(error))
            raise
        engine = HFEngine(model("qwen2", len(tokenizer())), max_batch=8)
        managers.append(AgentManager(engine, gateway, url, agent, config, [FACTORY], 2, attempts))
        return managers[-1]

    yield make
    for manager in managers:
        manager.close()


def played(manager: AgentManager, count: int = 1) -> list[Episode]:
    env = FACTORY.make()
    tasks = env.unwrapped.tasks.ids("train")  # type: ignore[attr-defined]
    plans = [EpisodePlan(7 + i, i, 0, tasks[i]) for i in range(count)]
    stop = tuple(stop_ids(model("qwen2", len(tokenizer())), tokenizer(), ()))
    return manager.run(plans, Sampling(max_tokens=7, stop_ids=stop), 5)


def printed(manager: AgentManager) -> str:
    """What the command of one episode prints."""
    return told(manager)[0]


def told(manager: AgentManager) -> tuple[str, Episode]:
    """One episode, with what its command and its test print."""
    jobs: list[AgentJob] = []
    started = manager.agent.start

    def start(job: AgentJob) -> None:
        jobs.append(job)
        started(job)

    manager.agent.start = start  # type: ignore[method-assign]
    (episode,) = played(manager)
    return str(jobs[0].output), episode


@pytest.mark.parametrize("setting", ["run", "test"])
@pytest.mark.parametrize("script", ["exec /nowhere/pyenv exec python3 $@", "python3-that-is-not-there", "exec /etc"])
def test_a_shim_whose_program_is_not_in_the_sandbox_is_refused_at_the_start(tmp_path, setting, script):
    shim = tmp_path / "python3"
    shim.write_text(f"#!/bin/sh\n{script}\n")
    shim.chmod(0o755)
    words = {"run": [sys.executable, "-c", "pass"], setting: [str(shim), "solve.py"]}
    with pytest.raises(ConfigError, match=f"agent.{setting}: .*status 12[67].* path|no sandbox") as caught:
        CommandAgent(AgentConfig(**words))
    if "no sandbox" in str(caught.value):
        pytest.skip(str(caught.value))
    CommandAgent(AgentConfig(**words, sandbox=False))


BOTH = pytest.mark.parametrize("sandbox", [True, False], ids=["sandbox", "process"])


@BOTH
def test_a_command_plays_the_environment_and_its_rewards_count(made, sandbox):
    manager = made(
        """
ask("what")
(tool, *_) = [tool["name"] for tool in env("tools/list")["tools"]]
for number in range(4):
    last = env("tools/call", name=tool, arguments={"wrong": number})
assert last["content"][0]["text"]
over = env("tools/call", name=tool, arguments={})
assert over["isError"] and "the episode is over" in over["content"][0]["text"], over
""",
        sandbox=sandbox,
    )
    for episode in played(manager, 2):
        assert episode.error is None and len(episode.steps) == 1 and episode.truncated
        assert not episode.steps[0].valid and episode.score == 0.0


def test_a_command_finds_its_task_and_nothing_of_this_programs_variables(made, monkeypatch):
    monkeypatch.setenv("OPENAI_ORGANIZATION", "secret")
    code = """
task = json.load(open(os.environ["ENVSUITE_TASK_FILE"]))
assert task == {"id": os.environ["ENVSUITE_TASK_ID"], "text": os.environ["ENVSUITE_TASK"]}
assert sys.argv[1] == f"do: {task['text']}!" and sys.argv[2] == "{other}"
assert os.getcwd() == os.environ["HOME"] == os.environ["TMPDIR"] and os.listdir() == ["task.json"]
assert os.environ["ANTHROPIC_BASE_URL"] + "/v1" == os.environ["OPENAI_BASE_URL"]
assert os.environ["ANTHROPIC_API_KEY"] == os.environ["OPENAI_API_KEY"]
print(*sorted(os.environ), sep="\\n")
"""
    names = printed(made(code, "do: {task}!", "{other}")).split()
    assert set(names) - {"LC_CTYPE"} == {
        *("PATH", "HOME", "TMPDIR", "LANG", "OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_MODEL", "ENVSUITE_ENV_URL"),
        *("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "ENVSUITE_TASK", "ENVSUITE_TASK_FILE", "ENVSUITE_TASK_ID"),
    }


@pytest.mark.parametrize(("text", "fits"), [("a\0b", False), ("\ud800", True), ("x" * 2**17, False), ("{task}ö", True)])
def test_whatever_the_task_says_its_file_has_it(address, tmp_path, text, fits):
    (tmp_path / "agent.py").write_text(
        "import json, os\n"
        "task = json.load(open(os.environ['ENVSUITE_TASK_FILE']))\n"
        "text = task.pop('text')\n"
        "print(json.dumps([task, len(text), text[:9], os.environ.get('ENVSUITE_TASK')]))\n"
    )
    agent = CommandAgent(AgentConfig(run=[sys.executable, str(tmp_path / "agent.py")], sandbox=False))
    gateway, url = address
    session = gateway.open(EpisodePlan(0, 0, 0, "t"))
    job = AgentJob(AgentTask("t", text), Client(gateway, f"{url}/v1", session.key, None), session)
    agent.start(job)
    assert job.ended.result(20.0) == AgentOutcome()
    *told, variable = json.loads(job.output)
    assert told == [{"id": "t"}, len(text), text[:9]]
    assert variable == (text.replace("\ud800", "?") if fits else None)


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("code", "told"),
    [
        (
            "print('before', flush=True); print('at fault', file=sys.stderr); sys.exit(3)",
            "exited with status 3, .* last: at fault",
        ),
        ("os.kill(os.getpid(), 11)", r"was killed by signal 11 \(Segmentation fault\), .* last: nothing"),
        ("print('\\x1b[31mred\\x00', flush=True); os.kill(os.getpid(), 40)", r"signal 40 \(.*\), .* last: \[31mred$"),
        ("pass", "AgentSilent"),
        ("ask('a')", "NoReward"),
        ("x = bytearray(80 << 20); time.sleep(60)", "more than the 64 MiB of rollout.agent.memory"),
        ("open('x', 'wb').write(bytes(17 << 20))", "exited with status 1, .* last: OSError: .*No space left on device"),
        ("[open(str(i), 'wb').write(bytes(1 << 20)) for i in range(17)]", "No space left on device"),
        ("os.memfd_create('x')", "exited with status 1, .* last: OSError: .*Function not implemented"),
        ("mmap.mmap(-1, 65 << 20)", "exited with status 1, .* last: OSError: .*Cannot allocate memory"),
        ("[mmap.mmap(-1, 1 << 20) for _ in range(65)]", "OSError: .*allocate memory|more than the 64 MiB"),
        ("[os.open('/dev/null', 0) for _ in range(5000)]", "exited with status 1, .* last: OSError: .*Too many open"),
        ("while True: subprocess.Popen(['sleep', '60'])", "BlockingIOError|Resource temporarily unavailable"),
    ],
)
def test_what_a_command_does_wrong_is_named(made, monkeypatch, code, told):
    monkeypatch.setattr(command, "PROCESSES", 12)
    manager = made(code, environment=False, memory=64)
    (episode,) = played(manager)
    assert episode.error is not None
    assert re.search(told, episode.error), episode.error
    assert "\n" not in episode.error


@pytest.mark.parametrize("way", WAYS)
def test_memory_of_a_command_that_no_process_shows_is_limited(made, way):
    output, episode = told(made(HELD.replace("TAKE", WAYS[way]), memory=64))
    assert "more than the 64 MiB" in str(episode.error) or int(output) <= 64, (output, episode.error)


@pytest.mark.seconds
def test_a_command_that_prints_for_ever_is_cut_and_its_end_is_kept(made):
    manager = made("ask('a')\nwhile True: print('x' * 999)", seconds=1.5, environment=False, test=["true"])
    output = printed(manager)
    assert 2**15 < len(output) <= 2**16 and set(output) == {"x", "\n"}


@BOTH
def test_an_agent_cut_at_its_limits_is_still_graded(made, sandbox):
    code = "open('done', 'w')\nfor i in range(9): ask(str(i))\n"
    manager = made(code, requests=2, environment=False, test=["ls", "done"], sandbox=sandbox)
    (episode,) = played(manager)
    assert episode.error is None and episode.truncated and len(episode.steps) == 2 and episode.steps[-1].reward == 1.0


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("test", "reward"),
    [
        ("exit 0", 1.0),
        ("exit 7", 0.0),
        ("echo reward: 7; exit 1", 7.0),
        ("echo reward: 0.35; echo; exit 0", 0.35),
        ("grep -q written note && ! env | grep -q API_KEY", 1.0),
        ("echo reward: nan", "the reward is nan, which is no finite number"),
        ("echo reward: much", "printed 'reward: much'"),
        ("echo reward: 1e308", "no finite number from -1000 to 1000"),
        ("echo reward: -1001", "no finite number from -1000 to 1000"),
        ("sleep 60", "the test sh took longer than its 1 s"),
    ],
)
def test_a_test_gives_the_reward(made, monkeypatch, test, reward):
    monkeypatch.setattr(command, "TEST_SECONDS", 1.0)
    code = "ask('a'); open('note', 'w').write('written'); print('reward: 9')"
    manager = made(code, environment=False, test=["sh", "-c", test])
    (episode,) = played(manager)
    if isinstance(reward, str):
        assert episode.error is not None and reward in episode.error
    else:
        assert episode.error is None and [step.reward for step in episode.steps] == [reward]


def test_an_agent_does_not_see_what_tests_it(made, tmp_path):
    hidden = tmp_path / "answers.sh"
    hidden.write_text("test -e $ENVSUITE_TASK_FILE && echo reward: 0.5")
    manager = made(f"ask('a'); assert not os.path.exists({str(hidden)!r})", test=["sh", str(hidden)], environment=False)
    (episode,) = played(manager)
    assert episode.error is None and episode.steps[0].reward == 0.5


AGENT = PRELUDE + "ask('a'); home = os.environ['HOME']\n"
SPOILS = {
    "cheat": "",  # the next three are read from the folder of cases
    "hack": "",
    "hack2": "",
    "startup files of shells and programs": """
for name in (".bashrc", ".profile", ".gitconfig", ".config/pip/pip.conf", "sitecustomize.py", "json.py", "grep"):
    path = os.path.join(home, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    open(path, "w").write("print('reward: 1'); raise SystemExit\\n")
    os.chmod(path, 0o755)
""",
    "a process that stays": """
if os.fork() == 0:
    os.setsid()
    while True:
        for path in ("new", os.environ["TMPDIR"] + "/new"): open(path, "w").write("{}")
        os.replace("new", os.environ["ENVSUITE_TASK_FILE"])
""",
    "a folder in place of the task": "os.remove('task.json'); os.mkdir('task.json'); os.symlink('/tmp', 'home')",
    "a full disk": """
if home == "/episode": open("/tmp/home", "w"), open("/tmp/task.json", "w")
try: open("big", "wb").write(bytes(17 << 20))
except OSError: pass
""",
}
CHECK = """
import json, os, site, sys
task = json.load(open(os.environ["ENVSUITE_TASK_FILE"]))
assert task["id"] == os.environ["ENVSUITE_TASK_ID"] and task["text"]
homes = {os.environ[name] for name in ("HOME", "TMPDIR")}
assert len(homes) == 1 and not os.listdir(*homes)
assert not site.ENABLE_USER_SITE and os.getcwd() not in sys.path and "" not in sys.path
assert os.path.exists("task.json")  # and this is the folder of the command
open(os.path.join(*homes, "a"), "w"), open("b", "w") if "disk" not in sys.argv[1] else None
given = {"PATH", "HOME", "TMPDIR", "LANG", "ENVSUITE_TASK", "ENVSUITE_TASK_FILE", "ENVSUITE_TASK_ID", "LC_CTYPE"}
assert set(os.environ) - given <= {"PYTHONNOUSERSITE", "PYTHONSAFEPATH", "PYTHONPATH"}, os.environ
print("reward: 0.25")
"""
"""An honest test: what of it fails, ends it with the reward 0."""


@pytest.mark.seconds
@BOTH
@pytest.mark.parametrize("spoil", SPOILS)
@pytest.mark.parametrize("way", ["file", "program"])
def test_no_command_decides_its_own_test(made, tmp_path, root, monkeypatch, spoil, way, sandbox):
    monkeypatch.setenv("PATH", f":.:{os.environ['PATH']}")
    code, check, reward = AGENT + SPOILS[spoil], CHECK, 0.25
    if not SPOILS[spoil]:
        folder = root.parent / "shared/cases" / ("security" if spoil == "cheat" else f"agents/{spoil}")
        if not folder.is_dir():
            pytest.skip(f"the cases of {folder} are not here")
        code = (folder / ("cheat.py" if spoil == "cheat" else "solve.py")).read_text()
        check, reward = (folder / "check.py").read_text(), 0.0
    (tmp_path / "check.py").write_text(check)
    written = {"file": [str(tmp_path / "check.py")], "program": ["-c", check]}[way]
    test = [os.path.realpath(sys.executable), *written, spoil]
    manager = made(code, environment=False, test=test, sandbox=sandbox)
    output, episode = told(manager)
    assert episode.error is None and [step.reward for step in episode.steps] == [reward], output


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"run": ["no-such-program"]}, "rollout.agent.run: there is no program 'no-such-program'"),
        ({"run": ["true"], "test": ["/no/test"]}, "rollout.agent.test: there is no program '/no/test'"),
        ({"run": ["true"], "reads": ["/no/folder"]}, "rollout.agent.reads: '/no/folder' is not there"),
        ({"run": ["true"], "reads": ["/"]}, "rollout.agent.reads: '/' is not there, or is all there is"),
        ({"run": ["{}/broken"], "sandbox": False}, "there is no program"),
    ],
)
def test_a_command_that_cannot_start_is_told_at_once(settings, told, tmp_path):
    (tmp_path / "broken").write_text("#!/bin/sh\n")  # and may not be executed
    settings["run"] = [word.replace("{}", str(tmp_path)) for word in settings["run"]]
    with pytest.raises(ConfigError, match=told):
        CommandAgent(AgentConfig(**settings))
    with pytest.raises(ConfigError, match=r"rollout\.agent\.test runs in the folder of a program"):
        AgentConfig(run="a.py:f", test=["true"])


def test_a_program_of_no_known_format_is_told_by_its_episode(made, tmp_path):
    (tmp_path / "text").write_text("no program\n")
    (tmp_path / "text").chmod(0o755)
    manager = made("pass", environment=False)
    config = AgentConfig(run=[str(tmp_path / "text")], environment=False)
    manager.config, manager.agent = config, CommandAgent(config)
    (episode,) = played(manager)
    assert episode.error is not None and "cannot be started: Exec format error" in episode.error


@pytest.mark.seconds
def test_without_namespaces_a_command_is_refused_and_not_run_freely(root):
    program = (
        "from trainers.gateway.command import CommandAgent\n"
        "from trainers.rollout.config import AgentConfig\n"
        "try:\n    CommandAgent(AgentConfig(run=['true']))\n"
        "except Exception as error:\n    print(type(error).__name__, error)\n"
        "print('free', CommandAgent(AgentConfig(run=['true'], sandbox=False)).config.sandbox)\n"
    )
    forbid = f'echo 0 > /proc/sys/user/max_user_namespaces && exec {sys.executable} -c "$0"'
    ran = subprocess.run(["unshare", "-Ur", "sh", "-c", forbid, program], capture_output=True, text=True, cwd=root)
    if "unshare failed" in ran.stderr or "Permission denied" in ran.stderr:
        pytest.skip(ran.stderr)
    refused, free = ran.stdout.splitlines()
    assert refused.startswith("ConfigError rollout.agent.run: this machine has no sandbox for it (unshare: ")
    assert "set rollout.agent.sandbox to false" in refused and free == "free False"


ATTACKS = """
import ctypes
def tried(attack):
    try:
        return repr(attack() or "done")
    except Exception as error:
        return f"refused {type(error).__name__}"
def connect(*address):
    with socket.create_connection(address, 5): return "connected"
libc = ctypes.CDLL(None, use_errno=True)
def called(result):
    if result < 0: raise OSError(ctypes.get_errno())
found = {
    "the network": lambda: connect("1.1.1.1", 80),
    "the network by datagrams": lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", ("1.1.1.1", 53)),
    "another port of this machine": lambda: connect("127.0.0.1", PORT),
    "the host of a virtual machine": lambda: socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM),
    "a file beside its own": lambda: open(BESIDE).read(),
    "users": lambda: open("/etc/passwd").read(),
    "its own program": lambda: open(sys.argv[0], "a"),
    "what python installs": lambda: open(os.__file__, "a"),
    "the code of environments": lambda: os.listdir(PACKAGE)[0],
    "the memory of its guard": lambda: open("/proc/1/mem", "rb"),
    "a trace of its guard": lambda: called(libc.ptrace(16, 1, 0, 0)),
    "a namespace of its own": lambda: called(libc.unshare(0x10000000)),
    "a mount": lambda: called(libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, None)),
    "another user": lambda: os.setuid(0),
    "a reward by its own key": lambda: post(host + "/sessions/7/reward", {"reward": 1.0}),
    "a reward by a guess": lambda: post(host + "/sessions/7/reward", {"reward": 1.0}, "operator-" + "a" * 32),
    "another session": lambda: post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, "agent-" + "a" * 32),
    "another environment": lambda: post(os.environ["ENVSUITE_ENV_URL"], {}, "agent-" + "a" * 32),
}
host = os.environ["ANTHROPIC_BASE_URL"]
body = {"model": "policy", "messages": [{"role": "user", "content": "a"}]}
ask("a")
print(json.dumps({name: tried(attack) for name, attack in found.items()}))
os.kill(1, 9)
"""


FREE = {"another port of this machine", "a file beside its own", "users", "the code of environments"}
"""What succeeds without a sandbox."""


@BOTH
def test_attacks_are_refused_in_the_sandbox(made, tmp_path, root, sandbox):
    (tmp_path / "beside").write_text("secret")
    with socket.create_server(("127.0.0.1", 0)) as other:
        names = {"PORT": other.getsockname()[1], "BESIDE": f"{tmp_path}/beside", "PACKAGE": f"{root}/envsuite"}
        code = "".join(f"{name} = {value!r}\n" for name, value in names.items()) + ATTACKS
        output = printed(made(code if sandbox else code.replace("os.kill(1, 9)", ""), sandbox=sandbox))
    succeeded = {name for name, how in json.loads(output.splitlines()[0]).items() if not how.startswith("refused")}
    assert succeeded == set() if sandbox else succeeded >= FREE


ESCAPE = """
ask("a")
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        subprocess.Popen(["sleep", NAME], start_new_session=True)
        signal.pause()
    os._exit(0)
while not any(NAME in open(f"/proc/{one}/cmdline").read() for one in os.listdir("/proc") if one.isdecimal()):
    time.sleep(0.01)
"""


def _alive(name: str) -> list[int]:
    found = psutil.process_iter(["cmdline", "status"])
    return [one.pid for one in found if one.info["cmdline"] == ["sleep", name] and one.info["status"] != "zombie"]


@pytest.mark.seconds
@BOTH
@pytest.mark.parametrize("end", ["", "time.sleep(60)", "os.kill(os.getpid(), 9)"])
def test_nothing_outlives_its_episode(made, sandbox, end):
    name = f"86400.{os.getpid()}"
    code = f"import signal\nNAME = {name!r}\n{ESCAPE}\nprint('escaped', flush=True)\n{end}"
    output = printed(made(code, sandbox=sandbox, seconds=3.0, environment=False))
    assert output == "escaped\n" and not _alive(name)


@pytest.mark.seconds
@BOTH
def test_agents_end_with_this_program_however_that_ends(root, tmp_path, sandbox):
    name = f"86401.{os.getpid()}"
    program = (
        "import sys\nfrom trainers.gateway.command import CommandProgram, ConfinedCommand\n"
        "from trainers.rollout.config import AgentConfig\n"
        f"config = AgentConfig(run=['sh', '-c', 'setsid sleep {name} & wait'], sandbox={sandbox})\n"
        "place = ConfinedCommand(config, 1, {})\nplace.begin()\n"
        "print(place.host, file=sys.stdout, flush=True)\n"
        "place.run(CommandProgram(config.command, ''), {'PATH': '/usr/bin:/bin'}, 60.0, '')\n"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], cwd=root, text=True, stdout=pipe, stderr=pipe) as running:
        try:
            until(lambda: _alive(name) or running.poll() is not None)
        finally:
            running.send_signal(signal.SIGKILL)
        folder, errors = running.communicate()
    if "OSError: unshare" in errors:
        pytest.skip(errors)
    until(lambda: not _alive(name) and not os.path.exists(folder.strip()), 20.0)
    assert folder.startswith("/") and not errors


def test_an_agent_has_so_many_connections_and_no_more(made):
    code = f"""
where = os.environ["ANTHROPIC_BASE_URL"].removeprefix("http://").split(":")
taken = [socket.create_connection((where[0], int(where[1]))) for _ in range({CONNECTIONS})]
time.sleep(0.3)
with socket.create_connection((where[0], int(where[1])), 5) as more:
    try:
        more.sendall(b"GET / HTTP/1.1" + bytes(9))
        assert not more.recv(1)
    except ConnectionError:
        pass
for one in taken:
    one.close()
time.sleep(0.3)
ask("a")
print("asked")
"""
    assert printed(made(code)) == "asked\n"


def test_the_official_client_plays_the_environment_of_its_key(address):
    gateway, url = address
    env = FACTORY.make()
    tasks = env.unwrapped.tasks.ids("train")  # type: ignore[attr-defined]
    sessions = [gateway.open(EpisodePlan(number, 0, 0, tasks[number])) for number in range(3)]
    worlds = [AgentEpisode(FACTORY.make(), task, gateway) for task in tasks[:2]]
    for world, session in zip(worlds, sessions, strict=False):
        world.join_session(session)

    async def plays(world: AgentEpisode, key: str) -> None:
        kept = httpx2.AsyncClient(headers={"Authorization": f"Bearer {key}"})
        async with kept as http, MCPClient(streamable_http_client(f"{url}/env/mcp", http_client=http)) as client:
            assert client.instructions == f"{world.goal}\n\n{world.text}"
            listed = (await client.list_tools()).tools
            assert [
                {"name": one.name, "description": one.description, "parameters": one.input_schema} for one in listed
            ] == [tool["function"] for tool in world.tools]
            calls = [client.call_tool("no_such_tool", {"number": number}) for number in range(3)]
            answers = await asyncio.gather(*calls)
            assert all(answer.content[0].text == world.text for answer in answers) and not world.done  # type: ignore[union-attr]
            assert not (await client.call_tool("no_such_tool", {})).is_error and world.done
            assert (await client.call_tool("no_such_tool", {})).is_error

    for world, session in zip(worlds, sessions, strict=False):
        asyncio.run(plays(world, session.key))
    keys = {session.key: (200, 200, 404)[number] for number, session in enumerate(sessions)}
    gateway.end(sessions[1])
    keys |= {sessions[1].key: 401, "agent-guess": 401, "": 401}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    for key, status in keys.items():
        headers = {"x-api-key": key, "Accept": "application/json, text/event-stream"}
        assert httpx2.post(f"{url}/env/mcp", headers=headers, json=body).status_code == status
