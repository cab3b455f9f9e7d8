"""The process between this program and a command: makes the sandbox, keeps clock and output, ends what was started.

It imports neither package, but only the parts of ``envsuite.interpreter`` that make sandboxes. In a sandbox it is the
first process of a process namespace, and what the command starts cannot leave that namespace or outlive it. Without
one, it adopts what the command leaves behind, and ends that, too. It removes the folder, however the program ends.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any, NoReturn

from envsuite.interpreter.inside import kernel, seccomp
from envsuite.interpreter.inside.grants import Grants
from envsuite.interpreter.inside.launch import INSIDE, USER, may_become
from envsuite.interpreter.inside.root import make_root
from envsuite.interpreter.inside.settings import MemoryMeter
from envsuite.interpreter.inside.wire import GarbledMessage, receive, send

WORK = "/episode"
"""Folder of an episode in the sandbox."""
HOME = "home"
"""Folder of a test's own files, in its fresh folder."""
REQUEST = 64 * 2**20
"""Most bytes of a message."""
OUTPUT = 64 * 1024
"""Bytes kept of what a command prints: the last ones."""
BOOT = (
    "import sys, types\n"
    "for name, path in zip(('envsuite', 'envsuite.interpreter', 'trainers', 'trainers.gateway'), sys.argv[1:5]):\n"
    "    sys.modules[name] = types.ModuleType(name)\n"
    "    sys.modules[name].__path__ = [path]\n"
    "from trainers.gateway.confined import main\n"
    "main(int(sys.argv[5]))\n"
)
"""Program of this process; its arguments are the folders of four packages, and the socket."""
_NAMESPACES = kernel.NEW_NS | kernel.NEW_PID | kernel.NEW_NET | kernel.NEW_IPC | kernel.NEW_UTS | kernel.NEW_CGROUP
_MOUNTED = kernel.MS_NOSUID | kernel.MS_NODEV
_TICK = 0.05
_FILES = 4096  # that a process may have open: what sockets hold is in no process's figures
_CHUNK = 1 << 16


def main(descriptor: int) -> None:
    """Serves the socket ``descriptor`` until it is closed.

    :class:`trainers.gateway.command.ConfinedCommand` sends the settings first, then commands.
    """
    os.set_inheritable(descriptor, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = socket.socket(fileno=descriptor)
    settings: dict[str, Any] = {"sandbox": True}
    try:
        _Guard(settings := receive(channel, REQUEST), channel).serve()
    except (EOFError, GarbledMessage):
        if not settings["sandbox"]:
            shutil.rmtree(settings["folder"], ignore_errors=True)
    except OSError as error:
        with contextlib.suppress(OSError):
            send(channel, {"failed": error.strerror or str(error)})
    os._exit(0)


class _Guard:
    """The commands of one episode, one after the other.

    Args:
        settings: The settings.
        channel: Socket of the program.

    Raises:
        OSError: There is no such sandbox here.
    """

    def __init__(self, settings: dict[str, Any], channel: socket.socket) -> None:
        self.settings, self.channel = settings, channel
        self.meter: MemoryMeter | None = None
        self.root = os.geteuid() == 0 and sys.platform == "linux" and may_become(USER)
        listening = self._isolate() if settings["sandbox"] else None
        if listening is None and sys.platform == "linux":
            kernel.adopt_orphans()
        self._write_files(settings["folder"])
        send(channel, {"ready": True})
        if listening is not None:
            socket.send_fds(channel, [b"l"], [listening.fileno()])
            listening.close()

    def _write_files(self, folder: str) -> None:
        for name, text in self.settings["files"].items():
            path = os.path.join(folder, name)
            with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
                file.write(text)
            os.chmod(path, 0o644)

    def _isolate(self) -> socket.socket:
        """Moves to a sandbox, as its first process, and makes what all commands share: files in memory, a network."""
        uid, gid, settings = os.geteuid(), os.getegid(), self.settings
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("1000")  # where the machine has no memory left, agents end first
        kernel.unshare(_NAMESPACES if self.root else _NAMESPACES | kernel.NEW_USER)
        if not self.root:
            kernel.map_own_ids(uid, gid, INSIDE)
        if child := os.fork():
            os.waitpid(child, 0)
            with contextlib.suppress(OSError):
                kernel.unmount(settings["folder"])
                os.rmdir(settings["folder"])
            os._exit(0)
        kernel.die_with_parent(signal.SIGKILL)
        kernel.set_host_name(b"agent")
        kernel.mount(None, "/", kernel.MS_REC | kernel.MS_PRIVATE)
        kernel.mount("proc", "/proc", _MOUNTED | kernel.MS_NOEXEC)
        self.meter = MemoryMeter(os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        owner = USER if self.root else INSIDE
        options = f"{self._disk()},mode=700,uid={owner},gid={owner}"
        kernel.mount("tmpfs", settings["folder"], _MOUNTED, options)
        kernel.hide_from_equals()
        kernel.raise_loopback()
        return socket.create_server(("127.0.0.1", settings["port"]), backlog=64)

    def _disk(self) -> str:
        """Size of a file system, as an option."""
        return f"size={self.settings['disk']},nr_inodes={max(1024, self.settings['disk'] // 4096)}"

    def serve(self) -> None:
        """Runs what comes until the program leaves."""
        while True:
            command = receive(self.channel, REQUEST)
            if "argv" in command:  # else what it would stop has ended
                send(self.channel, self._run(command))

    def _run(self, command: dict[str, Any]) -> dict[str, Any]:
        out, out_end = os.pipe()
        refusal, refusal_end = socket.socketpair()
        child = os.fork()
        if child == 0:
            self._become(command, out_end, refusal_end)
        os.close(out_end)
        refusal_end.close()
        codes: dict[int, int] = {}
        grants = None
        try:
            problem, listeners, _, _ = socket.recv_fds(refusal, _CHUNK, 1)
            if listeners and self.meter is not None:
                problem, grants = b"", Grants(listeners[0], self.settings["memory"], self.meter)
            why, tail = self._watch(child, out, command["seconds"], codes, grants)
        finally:
            self._end(child, codes)
            if command["fresh"] and self.meter is None:
                shutil.rmtree(command["fresh"], ignore_errors=True)
            if grants is not None:
                os.close(grants.listener)
        with refusal:
            problem += refusal.recv(_CHUNK)
        tail, _ = _read(out, tail)
        os.close(out)
        output = tail.decode("utf-8", "replace")
        return {"why": why, "code": codes.get(child), "output": output, "refusal": problem.decode()}

    def _watch(
        self, child: int, out: int, seconds: float, codes: dict[int, int], grants: Grants | None
    ) -> tuple[str, bytes]:
        """Waits until a command has ended, or is to end; returns why that is, and what it has printed last."""
        os.set_blocking(out, False)
        poll = select.poll()
        poll.register(out, select.POLLIN)
        poll.register(self.channel, select.POLLIN)
        if grants is not None:
            poll.register(grants.listener, select.POLLIN)
        tail, tick, until = b"", 0.0, time.monotonic() + seconds
        while True:
            for descriptor, event in poll.poll(1000 * _TICK):
                if grants is not None and descriptor == grants.listener:
                    if event & select.POLLIN:
                        grants.answer()
                    else:
                        poll.unregister(descriptor)
                    continue
                if descriptor != out:
                    receive(self.channel, REQUEST)  # it says to stop
                    return "stopped", tail
                tail, more = _read(out, tail, 1)
                if not more:
                    poll.unregister(out)
            if (now := time.monotonic()) < tick:
                continue
            tick = now + _TICK
            with contextlib.suppress(ChildProcessError):
                while (pair := os.waitpid(-1, os.WNOHANG))[0]:
                    codes.setdefault(pair[0], os.waitstatus_to_exitcode(pair[1]))
            if child in codes:
                return "", tail
            if now > until:
                return "seconds", tail
            if self.meter and grants and self.meter.exceeds(self.settings["memory"] - grants.shared):
                return "memory", tail

    def _end(self, child: int, codes: dict[int, int]) -> None:
        """Ends all processes of a command."""
        with contextlib.suppress(ChildProcessError):
            while True:
                for process in [-1] if self.meter is not None else [-child, *_children()]:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(process, signal.SIGKILL)
                pid, status = os.waitpid(-1, 0)
                codes.setdefault(pid, os.waitstatus_to_exitcode(status))

    def _become(self, command: dict[str, Any], out: int, refusal: socket.socket) -> NoReturn:
        """Makes this process the command."""
        try:
            os.setsid()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(out, 1)
            os.dup2(out, 2)
            for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            if self.meter is not None:
                listener = self._confine(command)
                socket.send_fds(refusal, [b"l"], [listener])
                os.close(listener)
            else:
                os.chdir(self.settings["folder"])
                if sys.platform == "linux":
                    kernel.die_with_parent(signal.SIGKILL)
            if command["fresh"]:
                self._write_files(command["fresh"])
                os.mkdir(os.path.join(command["fresh"], HOME))
            if command["argv"]:
                os.execve(command["argv"][0], command["argv"], command["environment"])
            os._exit(0)
        except (OSError, ValueError) as error:  # the latter: null characters, half surrogates
            message = error.strerror if isinstance(error, OSError) else None
            refusal.sendall((message or str(error)).encode("utf-8", "replace"))
        finally:
            os._exit(127)

    def _confine(self, command: dict[str, Any]) -> int:
        """Confines this process: what is taken cannot be had again. Returns what answers its calls that wait."""
        settings = self.settings
        kernel.unshare(kernel.NEW_NS)
        writable = {WORK: settings["folder"]}
        make_root(command["readable"], command["links"], command["hidden"], writable, f"{self._disk()},mode=1777")
        if self.root:
            os.setgroups([])
            os.setresgid(USER, USER, USER)
            os.setresuid(USER, USER, USER)
        kernel.hide_from_equals(False)
        user, group = os.getuid(), os.getgid()
        kernel.unshare(kernel.NEW_USER)  # in which its processes are counted
        kernel.map_own_ids(user, group, INSIDE)
        resource.setrlimit(resource.RLIMIT_NPROC, (settings["processes"], settings["processes"]))
        files = min(_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
        kernel.no_new_rights()
        kernel.drop_capabilities()
        os.chdir(WORK)
        for path in command["needs"]:
            if not os.access(path, os.R_OK):
                raise OSError(f"{path} cannot be read by other users than its owner")
        return kernel.filter_calls(seccomp.permissive())


def _read(out: int, tail: bytes, times: int = 64) -> tuple[bytes, bool]:
    """Reads what was printed; returns the last bytes of all, and whether more can come."""
    with contextlib.suppress(BlockingIOError):
        for _ in range(times):
            if not (data := os.read(out, _CHUNK)):
                return tail, False
            tail = (tail + data)[-OUTPUT:]
    return tail, True


def _children() -> Iterator[int]:
    """The processes whose parent this one is, where the system lists them."""
    for name in os.listdir("/proc") if sys.platform == "linux" else ():
        if name.isdecimal():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                if int(file.read().rpartition(b") ")[2].split()[1]) == os.getpid():
                    yield int(name)
