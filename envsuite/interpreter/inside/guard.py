"""The process that watches a session: it keeps the clock, reads what is printed, and speaks with the program.

With namespaces of its own it is the first process in them: whatever the session starts ends with it, and cannot signal
or trace it.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time

from envsuite.interpreter.inside import cell, kernel
from envsuite.interpreter.inside.confine import confine, seed
from envsuite.interpreter.inside.grants import Grants
from envsuite.interpreter.inside.output import Output
from envsuite.interpreter.inside.root import WORK
from envsuite.interpreter.inside.settings import MemoryMeter, SandboxSetting, SessionBounds
from envsuite.interpreter.inside.wire import GarbledMessage, receive, send

USER = 1000
"""User and group of a session, inside."""
REQUEST = 64 * 2**20
"""Most bytes of a request."""
GRACE = 0.3
"""Seconds that an interrupted call has to print what it has."""
_TICK = 0.05
_FIRST_LOOK = 0.002
_CHUNK = 1 << 16
_START_SECONDS = 30.0
_FLAGS = kernel.NEW_USER | kernel.NEW_NS | kernel.NEW_PID | kernel.NEW_IPC | kernel.NEW_UTS
_STATUS = {cell.OK: "ok", cell.ERROR: "error", cell.MEMORY: "memory"}
LOST = "The state of the session is lost: the next call begins anew."


def main(setting: SandboxSetting, descriptor: int) -> None:
    """Watches the session whose program is at the other end of the socket ``descriptor``. Does not return."""
    channel = socket.socket(fileno=descriptor)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")  # where the machine has no memory left, sessions end first
    try:
        bounds = SessionBounds(**receive(channel, REQUEST))
        if setting.mode == "namespaces":
            user, group = os.getuid(), os.getgid()
            kernel.unshare(_FLAGS)
            kernel.map_own_ids(user, group, USER)
            kernel.set_host_name(b"sandbox")
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            if os.fork():
                os._exit(0)
        elif sys.platform == "linux":
            kernel.die_with_parent(signal.SIGKILL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        ProcessGuard(setting, bounds, channel).serve()
    except (EOFError, GarbledMessage):
        pass
    except OSError as error:
        with contextlib.suppress(OSError):
            send(channel, {"failed": f"{error.strerror or error} (errno {error.errno})"})
    os._exit(0)


class ProcessGuard:
    """One session, from its start to its end.

    Args:
        setting: What it shares with others.
        bounds: Its limits.
        channel: Socket of the program.

    Raises:
        OSError: The session cannot be isolated as it should.
    """

    def __init__(self, setting: SandboxSetting, bounds: SessionBounds, channel: socket.socket) -> None:
        self.setting, self.bounds, self.channel = setting, bounds, channel
        self.alone = setting.mode == "namespaces"
        self.meter = self._prepare() if self.alone else None
        self.folder = tempfile.mkdtemp(prefix="envsuite-session-") if setting.mode == "unisolated" else None
        self.control, theirs = socket.socketpair()
        out, out_end = os.pipe()
        err, err_end = os.pipe()
        self.pipes = {out: Output(bounds.output), err: Output(bounds.output)}
        self.out, self.err = out, err
        self.open = {out, err}
        self.worker = os.fork()
        if self.worker == 0:
            self._become_session(theirs.fileno(), out_end, err_end)
        theirs.close()
        os.close(out_end)
        os.close(err_end)
        self.grants: Grants | None = None
        if setting.mode != "unisolated":
            self.control.settimeout(_START_SECONDS)
            _, listeners, _, _ = socket.recv_fds(self.control, 1, 1)
            self.meter = self.meter or MemoryMeter(os.open("/proc", os.O_RDONLY | os.O_CLOEXEC), self.worker)
            threads = (None, 0) if self.alone else (self.worker, bounds.processes)
            self.grants = Grants(listeners[0], bounds.memory, self.meter, *threads) if listeners else None
        if not self.alone:
            with contextlib.suppress(OSError):
                os.setpgid(self.worker, self.worker)
        self.control.setblocking(False)
        os.set_blocking(out, False)
        os.set_blocking(err, False)
        self.ended: str | None = None
        self.code: int | None = None
        self.looked = 0.0

    def _prepare(self) -> MemoryMeter:
        """Gives the session a folder of its own; returns a view of its processes that only the guard has."""
        flags = kernel.MS_NOSUID | kernel.MS_NODEV
        kernel.mount("proc", "/proc", flags | kernel.MS_NOEXEC)
        processes = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        kernel.mount("tmpfs", "/proc", flags | kernel.MS_RDONLY, "size=4k,mode=555")
        inodes = max(64, self.bounds.disk // 4096)
        options = f"size={self.bounds.disk},nr_inodes={inodes},mode=700,uid={USER},gid={USER}"
        kernel.mount("tmpfs", WORK, flags, options)
        return MemoryMeter(processes)

    def _become_session(self, control: int, out: int, err: int) -> None:
        leave = os._exit
        try:
            os.setpgid(0, 0)
            cell.arrange(control, out, err)
            seed()
            listener = confine(self.setting, self.bounds, WORK if self.alone else self.folder or "/")
            if listener is not None:
                channel = socket.socket(fileno=cell.CONTROL)
                socket.send_fds(channel, [b"l"], [listener])
                channel.detach()
                os.close(listener)
            cell.main()
        except MemoryError:
            leave(cell.NO_MEMORY)
        except OSError as error:
            os.write(2, f"{error.strerror or error} (errno {error.errno})".encode())
        finally:
            leave(1)  # nothing of the guard may run in this process

    def serve(self) -> None:
        """Answers the program until it leaves or the session ends by itself."""
        try:
            status = self._wait(_START_SECONDS, 0)
            if status != "ok":
                send(self.channel, {"failed": self.pipes[self.err].text() or f"the session did not start: {status}"})
                return
            self._pause()
            if self.meter is not None:
                self.meter.begin()
            send(self.channel, {"ready": True})
            while True:
                fits = self._rest()
                request = receive(self.channel, REQUEST)
                answer = self._run(str(request["code"]), int(request["number"]), fits)
                self.channel.settimeout(None)
                send(self.channel, answer)
                if answer["lost"]:
                    return
        except (EOFError, ConnectionError, GarbledMessage):
            return
        finally:
            self._end()

    def _rest(self) -> bool:
        """Waits for a call, and sees that nothing runs meanwhile; returns whether the memory is within the limit.

        A process that ends while all are stopped lets the kernel continue those whose group it leaves without a parent.
        """
        wait, looks = _FIRST_LOOK, 0
        while self.meter and looks < 2:  # one look at all is no moment: the second sees what ended meanwhile
            has_call = bool(select.select([self.channel], [], [], wait)[0])
            if has_call and time.monotonic() < self.looked + _TICK:
                break
            if self._exceeds():
                self._end()
                return False
            if has_call:
                break
            looks = looks + 1 if self.meter.is_still() else 0
            self._pause()
            wait = min(2 * wait, _TICK)
        return True

    def _exceeds(self) -> bool:
        self.looked = time.monotonic()
        grants = self.grants.shared if self.grants is not None else 0
        return self.meter is not None and self.meter.exceeds(self.bounds.memory - grants)

    def _run(self, code: str, number: int, fits: bool) -> dict[str, object]:
        self.pipes = {self.out: Output(self.bounds.output), self.err: Output(self.bounds.output)}
        self._signal(signal.SIGCONT)
        body = code.encode("utf-8", "surrogatepass")
        request = struct.pack("<QQ", number, len(body)) + body
        status = self._wait(self.bounds.seconds, number, request) if fits else "memory"
        is_lost = status not in ("ok", "error")
        if is_lost:
            self._end()
        else:
            self._pause()
        for descriptor in list(self.open):
            self._read(descriptor, until_empty=True)
        for output in self.pipes.values():
            output.feed(b"", final=True)
        note = self._note(status) if is_lost else ""
        stdout, stderr = self.pipes[self.out].text(), self.pipes[self.err].text(len(note) + 1 if note else 0)
        if note and stderr and not stderr.endswith("\n"):
            stderr += "\n"
        return {"number": number, "stdout": stdout, "stderr": stderr + note, "status": status, "lost": is_lost}

    def _note(self, status: str) -> str:
        bounds = self.bounds
        why = {
            "timeout": f"timeout: stopped after {bounds.seconds:g} s.",
            "memory": f"memory: the call needs more than the {bounds.memory / 2**20:g} MiB of a session.",
            "died": f"died: the session's process {self.ended or 'was ended'}.",
        }[status]
        return f"{why} {LOST}"

    def _wait(self, seconds: float, number: int, request: bytes = b"") -> str:
        """Lets the session work on a request; returns the status of its call."""
        began = time.monotonic()
        deadline, was_interrupted, answer = began + seconds, False, bytearray()
        tick = began + _TICK
        poll = select.poll()
        for descriptor in self.open:
            poll.register(descriptor, select.POLLIN)
        poll.register(self.channel, select.POLLIN)
        control, listener = self.control.fileno(), -1 if self.grants is None else self.grants.listener
        if listener >= 0:
            poll.register(listener, select.POLLIN)
        poll.register(control, select.POLLIN | (select.POLLOUT if request else 0))
        while True:
            now = time.monotonic()
            if now >= deadline:
                if was_interrupted or number == 0:
                    return "timeout"
                os.kill(self.worker, signal.SIGINT)
                was_interrupted, deadline = True, now + GRACE
            for descriptor, event in poll.poll(max(1, 1000 * min(tick - now, deadline - now))):
                if descriptor in self.open:
                    if not self._read(descriptor):
                        poll.unregister(descriptor)
                elif descriptor == control:
                    if event & select.POLLOUT and request:
                        request = self._write(request)
                        if not request:
                            poll.modify(control, select.POLLIN)
                    if event & (select.POLLIN | select.POLLHUP | select.POLLERR):
                        if not self._hear(answer):
                            return "timeout" if was_interrupted else self._died()
                        if len(answer) >= cell.ANSWER.size:
                            return "timeout" if was_interrupted else self._read_status(answer, number)
                elif descriptor == listener:
                    if self.grants is not None and event & select.POLLIN:
                        self.grants.answer()
                    else:
                        poll.unregister(listener)
                elif event:
                    raise EOFError  # the program leaves during the call; it sends nothing else then
            if (now := time.monotonic()) >= tick:
                tick = now + _TICK
                if self._has_ended():
                    return "timeout" if was_interrupted else self._died()
                if self._exceeds():
                    return "memory"

    def _hear(self, answer: bytearray) -> bool:
        """Reads what the session says of its call, a few bytes; returns false when it has closed its end."""
        try:
            part = self.control.recv(cell.ANSWER.size - len(answer))
        except BlockingIOError:
            return True
        except ConnectionError:
            return False
        answer += part
        return bool(part)

    def _write(self, request: bytes) -> bytes:
        """Sends a part of the request; returns the rest."""
        try:
            return request[self.control.send(request[:_CHUNK]) :]
        except BlockingIOError:
            return request
        except ConnectionError:  # it is found ended when its end is read
            return b""

    def _read_status(self, answer: bytearray, number: int) -> str:
        answer_number, status = cell.ANSWER.unpack(answer)
        if answer_number != number or status not in _STATUS:
            self.ended = "wrote into the channel of its interpreter and was ended"
            return "died"
        return _STATUS[status]

    def _read(self, descriptor: int, until_empty: bool = False) -> bool:
        """Reads what was printed; returns false when nothing more can come."""
        while True:
            try:
                data = os.read(descriptor, _CHUNK)
            except BlockingIOError:
                return True
            if not data:
                self.open.discard(descriptor)
                return False
            self.pipes[descriptor].feed(data)
            if not until_empty:
                return True

    def _died(self) -> str:
        end = time.monotonic() + 1.0
        while not self._has_ended():
            if time.monotonic() > end:
                self.ended = "closed the channel of its interpreter and was ended"
                break
            time.sleep(0.001)
        return "memory" if self.code == cell.NO_MEMORY else "died"

    def _has_ended(self) -> bool:
        if self.ended is None:
            with contextlib.suppress(ChildProcessError):
                process, status = os.waitpid(self.worker, os.WNOHANG)
                if process:
                    self.code = code = os.waitstatus_to_exitcode(status)
                    self.ended = f"was killed by {_name(-code)}" if code < 0 else f"exited with code {code}"
        return self.ended is not None

    def _pause(self) -> None:
        """Stops all processes of the session until its next call."""
        self._signal(signal.SIGSTOP)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self.alone:
                os.kill(-1, number)
            else:
                os.killpg(self.worker, number)

    def _end(self) -> None:
        """Ends all processes of the session, and removes its files."""
        self._signal(signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-1 if self.alone else self.worker, 0)
                if not self.alone:
                    break
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
