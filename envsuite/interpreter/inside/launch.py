"""The process between a program and its sandbox: makes the namespaces, starts the zygote in them, ends with both."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from typing import Any

from envsuite.interpreter.inside import kernel
from envsuite.interpreter.inside.root import GUARD, PACKAGES, SandboxFiles, build
from envsuite.interpreter.inside.wire import send

USER = 1_879_048_193
"""User and group of the sandbox where the program is root: no file belongs to it, and it has limits, unlike root."""
INSIDE = 1000
"""User and group of the sandbox, in its own namespace, where the program is not root."""
_BOOT = (
    "import sys, types\n"
    "for name, path in (('envsuite', sys.argv[1]), ('envsuite.interpreter', sys.argv[1] + '/interpreter')):\n"
    "    sys.modules[name] = types.ModuleType(name)\n"
    "    sys.modules[name].__path__ = [path]\n"
)
LAUNCH = _BOOT + "from envsuite.interpreter.inside.launch import main\nmain(sys.argv[2])\n"
"""Program of the launching process: ``python -c LAUNCH folder_of_envsuite settings``. It does not import envsuite."""
_ZYGOTE = _BOOT + "from envsuite.interpreter.inside.zygote import main\nmain(sys.argv[2])\n"
_NAMESPACES = kernel.NEW_NS | kernel.NEW_PID | kernel.NEW_NET | kernel.NEW_IPC | kernel.NEW_UTS | kernel.NEW_CGROUP


def main(settings: str) -> None:
    """Runs the process.

    Args:
        settings: JSON with ``mode``, the socket's ``fd``, the ``parent``'s process id, ``files`` and ``warm``.
    """
    options = json.loads(settings)
    channel = socket.socket(fileno=options["fd"])
    try:
        _run(options, channel)
    except OSError as error:
        send(channel, {"failed": f"{error.strerror or error} (errno {error.errno})"})


def _run(options: dict[str, Any], channel: socket.socket) -> None:
    has_namespaces = options["mode"] == "namespaces"
    root = has_namespaces and os.geteuid() == 0 and may_become(USER)
    uid, gid = os.geteuid(), os.getegid()
    if has_namespaces:
        kernel.unshare(_NAMESPACES if root else _NAMESPACES | kernel.NEW_USER)
        if not root:
            kernel.map_own_ids(uid, gid, INSIDE)  # not 0: guards may not map that again
    child = os.fork()
    if child:
        channel.close()
        _watch(child, options["parent"])
    try:
        _start_zygote(options, channel, has_namespaces, root)
    except OSError as error:
        send(channel, {"failed": f"{error.strerror or error} (errno {error.errno})"})
    os._exit(1)


def may_become(user: int) -> bool:
    """Returns whether this process, as root, may become ``user``: root of a container may become a few only."""
    with open("/proc/self/uid_map", encoding="ascii") as file:
        ranges = [[int(number) for number in line.split()] for line in file]
    return any(first <= user < first + count for first, _, count in ranges)


def _watch(child: int, parent: int) -> None:
    """Ends when ``child`` has ended, and ends it when the program is gone."""
    while os.getppid() == parent:
        if os.waitpid(child, os.WNOHANG)[0]:
            os._exit(0)
        time.sleep(0.2)
    os.kill(child, signal.SIGKILL)
    os._exit(0)


def _start_zygote(options: dict[str, Any], channel: socket.socket, has_namespaces: bool, root: bool) -> None:
    os.setpgid(0, 0)
    files = SandboxFiles(**options["files"])
    package_folders, code = [*options["folders"]], os.path.dirname(os.path.dirname(files.code))
    if has_namespaces:
        build(files)
        package_folders, code = [PACKAGES], f"{GUARD}/envsuite"
        if root:
            os.setgroups([])
            os.setresgid(USER, USER, USER)
            os.setresuid(USER, USER, USER)
        kernel.drop_capabilities()
    if options["mode"] != "unisolated":
        kernel.no_new_rights()
    if os.uname().sysname == "Linux":
        kernel.fix_addresses()
        kernel.die_with_parent(signal.SIGKILL)
    channel.set_inheritable(True)
    zygote = {key: options[key] for key in ("mode", "parent", "warm", "files")}
    zygote |= {"fd": channel.fileno(), "folders": package_folders}
    arguments = [files.python, "-s", "-S", "-P", "-B", "-c", _ZYGOTE, code, json.dumps(zygote)]
    os.execve(files.python, arguments, options["environment"])
