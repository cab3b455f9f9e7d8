"""A job as processes of this machine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from envsuite.core.errors import EnvsuiteError
from envsuite.exits import INTERRUPTED
from trainers.programs.launching.job import Job
from trainers.programs.launching.ready import wait_for

_GRACE_SECONDS = 30.0
"""More than the 20 s that requests under way have after SIGTERM."""


class ServerEnded(EnvsuiteError):
    """A server ended before the trainer was started; the message names its log."""


def free_ports(count: int) -> list[int]:
    """Returns ports of this machine that are free now."""
    with ExitStack() as held:
        listening = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in listening]


def commands(job: Job, ports: Mapping[str, Sequence[int]]) -> str:
    """Returns the commands of all processes, a line each."""
    servers = [f"HOST=127.0.0.1 PORT={port} {one.command}\n" for one in job.servers for port in ports[one.name]]
    return "".join(servers) + f"{job.trainer}\n" * job.nodes


def run(job: Job, ports: Mapping[str, Sequence[int]]) -> int:
    """Starts servers, waits for them, trains, and ends them all; returns the trainer's exit status.

    The first node's trainer writes to this terminal, everything else to files in the job's folder. Ctrl-C and SIGTERM
    are the trainers'.

    Args:
        job: The roles.
        ports: Ports of the servers, by their names.

    Raises:
        ServerEnded: A server did not start.
    """
    logs = Path(job.folder) / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    trainers = list[_Process]()
    old = signal.signal(signal.SIGTERM, lambda number, frame: _pass_on(trainers))
    try:
        with ExitStack() as ending:
            _start_servers(job, ports, logs, ending)
            own = {"HEAD": "127.0.0.1", "JOB": f"local-{os.getpid()}"}
            for node in range(job.nodes):
                log = logs / f"trainer-{node}.log" if node else None
                trainer = _Process(job.trainer, log, JOB_COMPLETION_INDEX=str(node), **own)
                trainers.append(ending.enter_context(trainer))
            return _waited(trainers)
    finally:
        signal.signal(signal.SIGTERM, old)


def _start_servers(job: Job, ports: Mapping[str, Sequence[int]], logs: Path, ending: ExitStack) -> None:
    """Starts servers, which ``ending`` ends, and waits until all take requests.

    Raises:
        ServerEnded: One has ended before.
    """
    places = [(one, number, port) for one in job.servers for number, port in enumerate(ports[one.name])]
    started = [
        ending.enter_context(_Process(one.command, logs / f"{one.name}-{number}.log", PORT=str(port)))
        for one, number, port in places
    ]

    def check() -> None:
        for process in started:
            if (status := process.process.poll()) is not None:
                raise ServerEnded(f"a server ended with status {status}; {process.log} says why")

    wait_for([f"http://127.0.0.1:{port}{one.ready}" for one, _, port in places], check=check)


def _pass_on(trainers: Sequence[_Process]) -> None:
    """Answers SIGTERM: the trainers write a checkpoint and end; where there are none yet, this program ends."""
    if not trainers:
        raise SystemExit(128 + signal.SIGTERM)
    for trainer in trainers:
        trainer.process.terminate()


def _waited(trainers: Sequence[_Process]) -> int:
    """Waits for the trainers; returns the status of the first that failed, as a shell gives it."""
    interrupted = 0
    while True:
        try:
            statuses = [trainer.process.wait() for trainer in trainers]
            break
        except KeyboardInterrupt:  # the terminal sends it to the first trainer, too, which writes a checkpoint
            interrupted = INTERRUPTED
    failed = next((status for status in statuses if status), interrupted)
    return failed if failed >= 0 else 128 - failed


class _Process:
    """A command of a role; ends at the latest at the end of the block."""

    def __init__(self, command: str, log: Path | None, **variables: str) -> None:
        self.command, self.log = command, log
        self.variables = {**os.environ, "HOST": "127.0.0.1", **variables}

    def __enter__(self) -> _Process:
        """Starts it: with a file as output in a group of its own, so that it gets no Ctrl-C."""
        with ExitStack() as opened:
            file = None if self.log is None else opened.enter_context(self.log.open("ab"))
            self.process = subprocess.Popen(
                ["bash", "-c", self.command], env=self.variables, stdin=subprocess.DEVNULL, stdout=file,
                stderr=None if file is None else subprocess.STDOUT, process_group=None if file is None else 0,
            )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        """Ends it, and what it has started."""
        self.process.terminate()
        try:
            self.process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
