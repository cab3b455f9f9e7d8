"""Machines made of Linux namespaces: own address, host name, processes, ``/tmp`` and ``/dev/shm``, one shared folder.

A switch (a network namespace with a bridge) connects them; the network of this machine is not touched. Everything hangs
on processes that die with this one, so that nothing is left, however a test ends. Needs root, and Debian's ``iproute2``
and ``util-linux``.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from tiny_runs import ROOT, environment

_MOST = 8
"""Nodes whose names have addresses."""
_FOREVER = ("sleep", "infinity")
_UNSHARE = ("setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--mount", "--fork", "--kill-child")


def missing() -> str:
    """Returns why no nodes can be made here; empty where they can."""
    if lacking := [name for name in ("ip", "setpriv", "unshare", "nsenter") if shutil.which(name) is None]:
        return f"{', '.join(lacking)} not installed (Debian: iproute2, util-linux)"
    if os.geteuid():
        return "namespaces with addresses of their own need root"
    tried = subprocess.run(
        [*_UNSHARE, "--uts", "--pid", "sh", "-c", "ip link add x type bridge && mount -t tmpfs none /tmp"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return f"this machine forbids namespaces: {tried.stderr.strip()}" if tried.returncode else ""


class _Namespaces:
    """A process that holds namespaces; whatever runs in them ends with it."""

    def __init__(self, *options: str, script: str = "") -> None:
        words = ["sh", "-ec", f"{script}\necho ready\nexec {' '.join(_FOREVER)}"]
        self._unshare = subprocess.Popen([*_UNSHARE, *options, *words], stdout=subprocess.PIPE, text=True)
        assert self._unshare.stdout is not None and self._unshare.stdout.readline() == "ready\n", "no namespaces"
        own = self._unshare.pid
        self.pid = int(Path(f"/proc/{own}/task/{own}/children").read_text().split()[0])
        """Of the first process in them, as this machine counts."""

    def end(self) -> None:
        """Kills all that runs in them."""
        self._unshare.kill()
        self._unshare.wait()

    def ip(self, words: str, program: str = "ip") -> None:
        """Runs ``ip``, or ``tc``, in the network namespace."""
        subprocess.run(["nsenter", "-t", str(self.pid), "-n", program, *words.split()], check=True, capture_output=True)


def _name(number: int) -> str:
    return f"node{number}-{os.getpid()}"


def _address(number: int) -> str:
    return f"10.77.0.{number + 1}"


class Node:
    """A machine; others reach it by its name, or its address."""

    def __init__(self, number: int, switch: _Namespaces, shared: Path) -> None:
        self.name, self.address = _name(number), _address(number)
        self.shared = shared
        self._number, self._switch = number, switch
        self._boots = itertools.count()
        self._inside: _Namespaces | None = None
        self.boot()

    def boot(self) -> None:
        """Switches the machine on: nothing runs, and its private folders are empty."""
        shared = shlex.quote(str(self.shared))
        others = "".join(f"{_address(n)} {_name(n)}\\n" for n in range(_MOST) if n != self._number)
        # The name is looked up at a loopback address, as Debian installs it: what asks for its own address by its name
        # gets one that no other machine can reach.
        inside = self._inside = _Namespaces(
            "--uts", "--ipc", "--pid", "--mount-proc",
            script=f"""
                hostname {self.name}
                ip link set lo up
                mount --bind {shared} /mnt
                mount -t tmpfs none /tmp
                mount -t tmpfs none /dev/shm
                mkdir -p {shared} && mount --move /mnt {shared}
                printf '127.0.0.1 localhost\\n127.0.1.1 {self.name}\\n{others}' > /tmp/hosts
                mount --bind /tmp/hosts /etc/hosts
            """,
        )  # fmt: skip
        self._link = f"n{self._number}b{next(self._boots)}"
        self._switch.ip(f"link add {self._link} type veth peer name eth0 netns {inside.pid}")
        self._switch.ip(f"link set {self._link} master switch up")
        inside.ip(f"addr add {self.address}/24 dev eth0")
        inside.ip("link set eth0 up")

    def power_off(self) -> None:
        """Cuts the link and kills everything, so that the others get no word of it."""
        if self._inside is not None:
            self.cut()
            self._inside.end()
            self._inside = None

    def cut(self) -> None:
        """Takes the link away; no one is told."""
        self._switch.ip(f"link set {self._link} down")

    def mend(self) -> None:
        """Brings the link back."""
        self._switch.ip(f"link set {self._link} up")

    def throttle(self, rate: str) -> None:
        """Lets no more than ``rate`` (as ``tc`` takes it, e.g. ``1mbit``) through to the node."""
        self._switch.ip(f"qdisc replace dev {self._link} root tbf rate {rate} burst 16kb latency 200ms", "tc")

    def start(self, words: Sequence[str], log: Path, **variables: str) -> subprocess.Popen[str]:
        """Starts a command in the repository's root; what it says is appended to ``log``, a file of this machine."""
        assert self._inside is not None, f"{self.name} is off"
        enter = (
            "nsenter",
            "-t",
            str(self._inside.pid),
            "--net",
            "--mount",
            "--uts",
            "--ipc",
            "--pid",
            f"--wdns={ROOT}",
        )
        with log.open("a") as file:
            return subprocess.Popen(
                [*enter, "--", *words],
                stdout=file, stderr=subprocess.STDOUT, text=True, env=environment(**variables),
            )  # fmt: skip

    def processes(self) -> dict[int, str]:
        """Returns the command lines of what runs here, by process id as this machine counts."""
        if self._inside is None:
            return {}
        own, found = os.readlink(f"/proc/{self._inside.pid}/ns/pid"), {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.readlink(folder / "ns" / "pid") == own:
                    found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ").strip()
        return {pid: line for pid, line in found.items() if line and pid != self._inside.pid}


class Nodes(list[Node]):
    """Machines on one switch; a context manager.

    Args:
        number: How many.
        shared: A folder of this machine that all of them see, under the same name; its parent in ``/tmp`` they do not.
    """

    def __init__(self, number: int, shared: Path) -> None:
        super().__init__()
        self._number, self._shared = number, shared

    def __enter__(self) -> Self:
        """Makes the machines."""
        self._shared.mkdir(parents=True, exist_ok=True)
        self._switch = _Namespaces()
        try:
            self._switch.ip("link add switch type bridge")
            self._switch.ip("link set switch up")
            self.extend(Node(number, self._switch, self._shared) for number in range(self._number))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        """Takes them down with all that runs there."""
        for node in self:
            node.power_off()
        self._switch.end()
