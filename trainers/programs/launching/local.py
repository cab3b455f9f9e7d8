"""A job as processes of this machine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from envsuite.core.errors import EnvsuiteError
from envsuite.exits import status_of
from trainers.programs.launching.roles import ClusterJob

SECONDS = 1800.0
"""Most that is waited: a large model on a GPU is loaded and compiled for minutes."""
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class ServerNotReady(EnvsuiteError):
    """A server did not answer in time; the message names it."""


def wait_for(urls: Sequence[str], seconds: float = SECONDS, check: Callable[[], None] = lambda: None) -> None:
    """Returns once each address has answered with success.

    Args:
        urls: Addresses.
        seconds: Most that is waited for all of them.
        check: Called between two requests; may raise.

    Raises:
        ServerNotReady: The time is up.
    """
    end = time.monotonic() + seconds
    for url in urls:
        while not _answers(url):
            check()
            if time.monotonic() > end:
                raise ServerNotReady(f"{url} does not answer after {seconds:g} s; the server's log says why")
            time.sleep(0.5)


def _answers(url: str) -> bool:
    try:
        with _DIRECT.open(url, timeout=5.0):
            return True
    except (urllib.error.URLError, OSError):
        return False


def main() -> int:
    """Waits for the addresses of the command line; returns the exit status."""

    def wait() -> int:
        wait_for(sys.argv[1:])
        return 0

    return status_of(wait)


if __name__ == "__main__":
    sys.exit(main())


_GRACE_SECONDS = 30.0
"""More than the 20 s that requests under way have after SIGTERM."""


class ServerEnded(EnvsuiteError):
    """A server ended before the trainer was started; the message names its log."""


def free_ports(count: int) -> list[int]:
    """Returns ports of this machine that are free now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [listener.getsockname()[1] for listener in sockets]


def commands(job: ClusterJob, ports: Mapping[str, Sequence[int]]) -> str:
    """Returns the commands of all processes, a line each."""
    places = [(port, role.command) for role in job.servers for port in ports[role.name]]
    servers = [f"( export HOST=127.0.0.1 PORT={port}; {command} )\n" for port, command in places]
    return "".join(servers) + f"( {job.trainer} )\n"


def run(job: ClusterJob, ports: Mapping[str, Sequence[int]]) -> int:
    """Starts servers, waits for them, trains, and ends them all; returns the trainer's exit status.

    The trainer writes to this terminal, servers to files in the job's folder. Ctrl-C and SIGTERM are the trainer's.

    Args:
        job: The roles, with one node.
        ports: Ports of the servers, by their names.

    Raises:
        ServerEnded: A server did not start.
    """
    logs = Path(job.folder) / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    trainer: list[_RoleProcess] = []
    old = signal.signal(signal.SIGTERM, lambda number, frame: _pass_on(trainer))
    try:
        with ExitStack() as ending:
            _start_servers(job, ports, logs, ending)
            trainer.append(ending.enter_context(_RoleProcess(job.trainer)))
            return _wait_for_trainer(trainer[0].process)
    finally:
        signal.signal(signal.SIGTERM, old)


def _start_servers(job: ClusterJob, ports: Mapping[str, Sequence[int]], logs: Path, ending: ExitStack) -> None:
    """Starts servers, which ``ending`` ends, and waits until all take requests.

    Raises:
        ServerEnded: One has ended before.
    """
    places = [(role, number, port) for role in job.servers for number, port in enumerate(ports[role.name])]
    processes = [
        ending.enter_context(_RoleProcess(role.command, logs / f"{role.name}-{number}.log", PORT=str(port)))
        for role, number, port in places
    ]

    def check() -> None:
        for process in processes:
            if (status := process.process.poll()) is not None:
                raise ServerEnded(f"a server ended with status {status}; {process.log} says why")

    wait_for([f"http://127.0.0.1:{port}{role.ready}" for role, _, port in places], check=check)


def _pass_on(trainer: Sequence[_RoleProcess]) -> None:
    """Answers SIGTERM: the trainer writes a checkpoint and ends; where there is none yet, this program ends."""
    if not trainer:
        raise SystemExit(128 + signal.SIGTERM)
    trainer[0].process.terminate()


def _wait_for_trainer(trainer: subprocess.Popen[bytes]) -> int:
    """Waits for the trainer; returns its status, as a shell gives it."""
    while True:
        try:
            status = trainer.wait()
            return status if status >= 0 else 128 - status
        except KeyboardInterrupt:  # the terminal sends it to the trainer, too, which writes a checkpoint
            continue


class _RoleProcess:
    """A command of a role; ends at the latest at the end of the block, with all that it has started.

    One with a file as output has a group of its own, so that it gets no Ctrl-C.
    """

    def __init__(self, command: str, log: Path | None = None, **variables: str) -> None:
        self.command, self.log = command, log
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        self.variables = {**os.environ, "PATH": programs, "HOST": "127.0.0.1", **variables}

    def __enter__(self) -> _RoleProcess:
        """Starts it."""
        with ExitStack() as stack:
            file = None if self.log is None else stack.enter_context(self.log.open("ab"))
            self.process = subprocess.Popen(
                ["bash", "-c", self.command], env=self.variables, stdin=subprocess.DEVNULL, stdout=file,
                stderr=None if file is None else subprocess.STDOUT, process_group=None if file is None else 0,
            )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        """Ends it."""
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_GRACE_SECONDS)
        self.process.kill()
        self.process.wait()
        if self.log is not None:
            with suppress(ProcessLookupError):  # what its own end left of its group
                os.killpg(self.process.pid, signal.SIGKILL)
