"""Agents as command lines: a process for each episode, in a sandbox that lets it reach the gateway alone."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import envsuite
import trainers
from envsuite.interpreter.inside.root import WORK as SCRATCH
from envsuite.interpreter.inside.wire import GarbledMessage, receive, send
from trainers.gateway.agents import Agent, AgentJob, AgentOutcome
from trainers.gateway.confined import BOOT, HOME, REQUEST, WORK
from trainers.gateway.listening import Listen
from trainers.rollout.config import AgentConfig
from trainers.settings import ConfigError

_LOG = logging.getLogger(__name__)
_MEBI = 2**20
DISK = 1024 * _MEBI
"""Most bytes that a command may write to its folder, which is in memory."""
PROCESSES = 256
"""Most processes and threads of a command."""
TEST_SECONDS = 60.0
"""Longest time of the test of a command."""
_SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64"),
    *("/etc/ld.so.cache", "/etc/alternatives", "/etc/hosts"),
)
_VARIABLE = 2**17 - 2**10  # bytes that one variable may have
_REWARD = re.compile(r"reward:\s*(\S+)")
_TASK_FILE = "task.json"
_TRIAL = 2.0  # seconds
_NOT_THERE = (126, 127)
"""Statuses of a shell, and of a shim, where the program that they start is not there or cannot be run."""


@dataclass(frozen=True)
class CommandProgram:
    """A command line, and what of this machine it may read.

    Args:
        words: Its program and arguments. Those that name a file, which it may read, or a path with a slash to what is
            there, become absolute, since it runs in another folder.
        setting: For messages.
        reads: Further files and folders.

    Raises:
        ConfigError: There is no such program, or nothing at a path of ``reads``.
    """

    words: Sequence[str]
    setting: str
    reads: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.file is None:
            raise ConfigError(
                f"{self.setting}: there is no program {self.words[0]!r}; install it, or write the path of one"
            )
        for path in self.reads:
            if not os.path.exists(path) or os.path.realpath(path) == "/":
                raise ConfigError(
                    f"rollout.agent.reads: {path!r} is not there, or is all there is; write what the command reads"
                )

    @property
    def file(self) -> str | None:
        """The program's file; ``None`` where there is none."""
        path = shutil.which(self.words[0])
        return None if path is None else _absolute(path)

    @property
    def argument_files(self) -> list[str]:
        """Files that the arguments name."""
        return [_absolute(word) for word in self.words[1:] if os.path.isfile(word)]

    def argv(self, task: str) -> list[str]:
        """The program's name and its arguments for a task."""
        paths = [os.path.isfile(word) or ("/" in word and os.path.exists(word)) for word in self.words]
        words = [_absolute(word) if path else word for word, path in zip(self.words, paths, strict=True)]
        return [self.file or "", *(word.replace("{task}", task) for word in words[1:])]

    def root(self) -> dict[str, Any]:
        """The root of its sandbox: paths with those of the machine, links, and folders that are to be empty."""
        file = self.file or ""
        paths = [file, *self.argument_files, *map(_absolute, self.reads), sys.prefix, sys.base_prefix]
        for program in (file, os.path.realpath(file)):
            if (environment := Path(program).parent.parent / "pyvenv.cfg").is_file():
                base = re.search(r"^home\s*=\s*(.+)$", environment.read_text("utf-8"), re.MULTILINE)
                paths += [str(environment.parent), *([str(Path(base[1]).parent)] if base else [])]
        system = {path for path in _SYSTEM if os.path.exists(path)}
        links = {path: os.readlink(path) for path in system if os.path.islink(path)}
        readable = {path: path for path in system - set(links)}
        readable |= {at: os.path.realpath(path) for path in paths for at in (path, os.path.realpath(path))}
        readable = {at: path for at, path in readable.items() if at in system or not at.startswith(_BELOW)}
        hidden = [os.path.dirname(os.path.realpath(package.__file__ or "")) for package in (envsuite, trainers)]
        return {"readable": readable, "links": links, "hidden": hidden, "needs": [file, *self.argument_files]}


_BELOW = tuple(f"{path}/" for path in _SYSTEM)


def _absolute(path: str) -> str:
    """The path from the root, without links in the names of its folders: a link in Python's own says which it is."""
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(folder), name)


class ConfinedCommand:
    """The sandbox of one episode, or the process in place of it. A context manager that ends all that runs in it.

    Args:
        config: Whether it is a sandbox, and its limits.
        port: Where the gateway is reached in the sandbox, at 127.0.0.1.
        files: Text files of its folder.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(self, config: AgentConfig, port: int, files: Mapping[str, str]) -> None:
        self.config = config
        self.host = tempfile.mkdtemp(prefix="envsuite-agent-")
        self.folder = WORK if config.sandbox else self.host
        self._lock = threading.Lock()
        self._stopped, self._testing = False, False
        self._unlisten: Callable[[], None] = lambda: None
        packages = [Path(package.__file__ or "").parent for package in (envsuite, trainers)]
        folders = [packages[0], packages[0] / "interpreter", packages[1], packages[1] / "gateway"]
        settings = {"sandbox": config.sandbox, "port": port, "folder": self.host, "files": dict(files)}
        settings |= {"memory": config.memory * _MEBI, "disk": DISK, "processes": PROCESSES}
        self.channel, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", "-c", BOOT, *map(str, folders), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                process_group=0,
                cwd="/",
                env={},
            )
        with contextlib.suppress(OSError):  # that it has ended is found when its answer is read
            send(self.channel, settings)

    def begin(self, listen: Listen | None = None) -> None:
        """Waits until it is there.

        Args:
            listen: Has the gateway answer at the socket in the sandbox.

        Raises:
            OSError: There is no such sandbox here.
        """
        self._answer()
        if self.config.sandbox:
            _, (descriptor,), _, _ = socket.recv_fds(self.channel, 1, 1)
            listening = socket.socket(fileno=descriptor)
            if listen is None:
                listening.close()
            else:
                self._unlisten = listen(listening)

    def run(
        self,
        program: CommandProgram,
        environment: Mapping[str, str],
        seconds: float,
        task: str | None,
        fresh: str | None = None,
    ) -> dict[str, Any]:
        """Runs a command; returns ``why`` it was ended, its ``code``, ``output``, and the ``refusal`` to start it.

        Args:
            program: The command.
            environment: All its variables.
            seconds: Longest time.
            task: In place of ``{task}``; ``None`` only tries whether the command can be started.
            fresh: For a test, which :meth:`stop` leaves alone: an empty folder outside the command's reach, which gets
                the files once more and an empty folder ``home``, and is removed afterwards.

        Raises:
            OSError: Its process was ended.
        """
        argv = [] if task is None else program.argv(task)
        with self._lock:
            self._testing = fresh is not None
            if self._stopped and not self._testing:
                return {"why": "stopped", "code": None, "output": "", "refusal": ""}
            request = {"argv": argv, "environment": dict(environment), "seconds": seconds, "fresh": fresh}
            send(self.channel, request | program.root())
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        try:
            answer = receive(self.channel, REQUEST)
        except (EOFError, GarbledMessage) as error:
            raise OSError("its sandbox was ended") from error
        if "failed" in answer:
            raise OSError(answer["failed"])
        return answer

    def stop(self) -> None:
        """Ends the command of the agent, under way or to come; a test goes on."""
        with self._lock, contextlib.suppress(OSError):
            self._stopped = True
            if not self._testing:
                send(self.channel, {"stop": True})

    def close(self) -> None:
        """Ends all that runs in it, from any thread."""
        with contextlib.suppress(OSError):
            self.channel.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Waits until its processes have ended, and removes its folder."""
        self.close()
        try:
            self.process.wait(10.0)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self._unlisten()
        self.channel.close()
        shutil.rmtree(self.host, ignore_errors=True)


class CommandAgent(Agent):
    """A command line, run once for each episode, which finds model, task and environment in its variables.

    | variable | |
    |---|---|
    | `OPENAI_BASE_URL`, `OPENAI_API_KEY`, `OPENAI_MODEL` | the model, for OpenAI's clients |
    | `ANTHROPIC_BASE_URL`, `ANTHROPIC_API_KEY` | the same for Anthropic's |
    | `ENVSUITE_TASK_ID`, `ENVSUITE_TASK` | id and text of the task; a text too long for it is in the file only |
    | `ENVSUITE_TASK_FILE` | JSON file with `id` and `text` |
    | `ENVSUITE_ENV_URL` | the environment as an MCP server, which takes the key as `Authorization: Bearer …` |
    | `PATH`, `HOME`, `TMPDIR`, `LANG` | `HOME` and `TMPDIR` are its folder; there are no others |

    In the sandbox (Linux namespaces) it has

    - a network in which only the gateway answers, and no sockets but those of files and of the Internet;
    - `/usr`, `/bin`, `/lib`, this program's Python, its own files and ``reads``, read-only, and nothing else of the
      machine; ``envsuite`` and ``trainers``, which know answers, are empty folders there;
    - its folder and `/tmp`, in memory, with :data:`DISK` each;
    - no other processes, no rights, and none of the system calls that make namespaces, mount or trace;
    - ``memory`` of all its processes, looked at 20 times a second, and :data:`PROCESSES`; shared memory without a file
      is within it, too, and counts until the command ends.

    It is not kept from using the processor, nor from sockets of files in folders that it may read, nor from what a
    kernel's error allows. Without the sandbox it may do whatever this user may, and only its time is limited. In
    either case all processes that it has started end with it, and it ends with this program.

    The test runs in the folder afterwards. Nothing else of it is the command's: ``HOME`` and ``TMPDIR`` are another,
    empty folder, the task's file is written anew, and Python imports nothing from the folder.

    Args:
        config: The command, its limits and its test.

    Raises:
        ConfigError: It cannot be started, or there is no sandbox on this machine.
    """

    def __init__(self, config: AgentConfig) -> None:
        self.config = config
        self.command = CommandProgram(config.command, "rollout.agent.run", config.reads)
        self.test = CommandProgram(config.test, "rollout.agent.test", config.reads) if config.test else None
        self.grace += TEST_SECONDS if config.test else 0.0
        self._running: dict[ConfinedCommand, threading.Thread] = {}
        for program in (self.command, self.test):
            if program is not None:
                self._try(program)

    def _try(self, program: CommandProgram) -> None:
        """Starts the sandbox, and in it for a moment the command, without a task or a model.

        A shim is found so: a program that starts another one, which the sandbox has not.
        """
        outcome: dict[str, Any] = {"code": None, "refusal": ""}
        try:
            with ConfinedCommand(self.config, 1, {}) as place:
                place.begin()
                refusal = place.run(program, {}, 60.0, None)["refusal"]
                if self.config.sandbox and not refusal:
                    outcome = place.run(program, _variables() | _folders(place.folder, place.folder), _TRIAL, "")
        except OSError as error:
            raise ConfigError(
                f"rollout.agent.run: this machine has no sandbox for it ({error}). Linux 5.14 or newer has one "
                "where users may make namespaces (sysctl user.max_user_namespaces above 0, "
                "kernel.apparmor_restrict_unprivileged_userns=0); or set rollout.agent.sandbox to false, and the "
                "command may do whatever this user may"
            ) from error
        if refusal:
            raise ConfigError(f"{program.setting}: {program.words[0]} cannot be started in the sandbox: {refusal}")
        if outcome["code"] in _NOT_THERE and not outcome["refusal"]:  # else its episodes tell what the system says
            raise ConfigError(
                f"{program.setting}: {self._problem(outcome, program)}. {program.file} seems to start a program that "
                "is not in the sandbox; write that program's own path (of python3: what python3 -c 'import sys; "
                "print(sys.executable)' prints), or list what it reads in rollout.agent.reads"
            )

    def start(self, job: AgentJob) -> None:
        """Starts its process, and a thread that waits for it."""
        port = urlsplit(job.client.base_url).port or 80
        task = json.dumps({"id": job.task.id, "text": job.task.text})  # which has half surrogates, too
        try:
            place = ConfinedCommand(self.config, port, {_TASK_FILE: task})
        except OSError as error:
            job.ended.set_result(AgentOutcome(error=f"{self.command.words[0]} cannot be started: {error}"))
            return
        job.stop = place.stop
        url = f"http://127.0.0.1:{port}" if self.config.sandbox else job.client.base_url.removesuffix("/v1")
        thread = threading.Thread(target=self._play, args=(job, place, url), daemon=True, name=f"agent {job.task.id}")
        self._running[place] = thread
        thread.start()

    def _play(self, job: AgentJob, place: ConfinedCommand, url: str) -> None:
        try:
            with place:
                place.begin(job.client.gateway.listen)
                outcome = self._outcome(job, place, url)
        except OSError as error:
            outcome = AgentOutcome(error=f"{self.command.words[0]}: {error}")
        del self._running[place]
        if outcome.error is not None:
            _LOG.info("task %s: %s; it has printed:\n%s", job.task.id, outcome.error, job.output)
        elif line := _last(job.output)[:300]:
            _LOG.info("task %s: %s has printed last: %s", job.task.id, self.command.words[0], line)
        job.ended.set_result(outcome)

    def _outcome(self, job: AgentJob, place: ConfinedCommand, url: str) -> AgentOutcome:
        session, gateway = job.session, job.client.gateway
        text = job.task.text.encode("utf-8", "replace").decode()
        common = _variables() | {"ENVSUITE_TASK_ID": job.task.id}
        if len(text.encode()) < _VARIABLE and "\0" not in text:
            common["ENVSUITE_TASK"] = text
        model = {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": session.key, "OPENAI_MODEL": job.client.model}
        model |= {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": session.key}
        if job.client.env is not None:
            model["ENVSUITE_ENV_URL"] = f"{url}/env/mcp"
        model |= _folders(place.folder, place.folder)
        outcome = place.run(self.command, common | model, self.config.seconds + self.grace, text)
        job.output = outcome["output"]
        with gateway.lock:
            over = session.ended is not None or outcome["why"] == "stopped"
            if session.ended is None:
                session.end("the agent has ended", truncated=False)
        if (problem := self._problem(outcome, self.command)) is not None and not over:
            return AgentOutcome(error=problem)
        if self.test is None:
            return AgentOutcome()
        fresh = SCRATCH if self.config.sandbox else tempfile.mkdtemp(prefix="envsuite-test-")
        # Python finds modules beside the files that the test names, and none in the folder, where the command wrote.
        common |= {"PYTHONNOUSERSITE": "1", "PYTHONSAFEPATH": "1"} | _folders(fresh, f"{fresh}/{HOME}")
        common["PYTHONPATH"] = os.pathsep.join(os.path.dirname(path) for path in self.test.argument_files)
        outcome = place.run(self.test, common, TEST_SECONDS, text, fresh)
        job.output += outcome["output"]
        return self._grade(outcome, self.test)

    def _problem(self, report: Mapping[str, Any], program: CommandProgram) -> str | None:
        """Why a command failed; ``None`` where it did not."""
        name, code = program.words[0], report["code"]
        if report["refusal"]:
            return f"{name} cannot be started: {report['refusal']}"
        if report["why"] == "memory":
            return f"{name} used more than the {self.config.memory} MiB of rollout.agent.memory"
        if report["why"] == "seconds":
            is_test = program is self.test
            limit = f"its {TEST_SECONDS:g} s" if is_test else f"the {self.config.seconds:g} s of rollout.agent.seconds"
            return f"{name} took longer than {limit}"
        if code == 0:
            return None
        how = f"was killed by signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"exited with status {code}"
        return f"{name} {how}, and printed last: {_last(report['output'])[:300] or 'nothing'}"

    def _grade(self, report: Mapping[str, Any], test: CommandProgram) -> AgentOutcome:
        """The reward of a test."""
        if report["why"] or report["refusal"]:
            return AgentOutcome(error=f"the test {self._problem(report, test)}")
        if (reward_match := _REWARD.fullmatch(_last(report["output"]))) is None:
            return AgentOutcome(1.0 if report["code"] == 0 else 0.0)
        try:
            return AgentOutcome(float(reward_match[1]))
        except ValueError:
            return AgentOutcome(error=f"the test {test.words[0]} printed {reward_match[0][:100]!r}, which is no number")

    def close(self) -> None:
        """Ends what is left of all."""
        for place, thread in list(self._running.items()):
            place.close()
            thread.join()


def _folders(task: str, home: str) -> dict[str, str]:
    """The variables that name folders: the one with the task's file, and that of a program's own files."""
    return {"ENVSUITE_TASK_FILE": f"{task}/{_TASK_FILE}", "HOME": home, "TMPDIR": home}


def _variables() -> dict[str, str]:
    """The variables that every command has, besides those of its folders."""
    path = [folder for folder in os.environ.get("PATH", os.defpath).split(os.pathsep) if os.path.isabs(folder)]
    return {"PATH": os.pathsep.join(path), "LANG": "C.UTF-8"}


def _last(output: str) -> str:
    """The last line that is not empty, without control characters."""
    line = next((line for line in reversed(output.splitlines()) if line.strip()), "")
    return "".join(character if character.isprintable() else " " for character in line).strip()
