"""The process that has imported everything, and forks a guard for each session. It never runs code of a session."""

from __future__ import annotations

import _sitebuiltins
import builtins
import gc
import importlib
import json
import os
import signal
import socket
import sys
import time

from envsuite.interpreter.inside import guard, kernel
from envsuite.interpreter.inside.root import SandboxFiles, readable
from envsuite.interpreter.inside.settings import SandboxSetting, address_space
from envsuite.interpreter.inside.wire import send


def main(settings: str) -> None:
    """Runs the process until the program closes its socket.

    Args:
        settings: JSON with ``fd``, ``mode``, ``files``, ``folders`` (of packages) and ``warm`` (modules to import).
    """
    options = json.loads(settings)
    os.set_inheritable(options["fd"], False)
    mode: str = options["mode"]
    if mode == "landlock":
        kernel.hide_from_equals()
    sys.path[:] = [*(path for path in sys.path if os.path.exists(path)), *options["folders"]]
    sys.argv[:] = sys.orig_argv[:] = [""]
    time.tzset()
    for name in options["warm"]:
        importlib.import_module(name)
    for name in ("exit", "quit"):  # as in a terminal: models write them
        vars(builtins)[name] = _sitebuiltins.Quitter(name, "Ctrl-D")
    if mode == "landlock":  # what else is in these folders may not be read
        sys.path[:] = [path for path in sys.path if path not in options["folders"]]
    paths = tuple(readable(SandboxFiles(**options["files"]))) if mode == "landlock" else ()
    setting = SandboxSetting(mode, paths, address_space())
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=options["fd"]) as channel:
        send(channel, {"ready": True, "landlock": kernel.landlock_version() if mode == "landlock" else 0})
        _serve(channel, setting)


def _serve(channel: socket.socket, setting: SandboxSetting) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # guards need not be waited for
    while True:
        data, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
        if not data:
            return
        try:
            child = os.fork()
        except OSError:  # too many processes: the program finds its socket closed
            child = -1
        if child == 0:
            channel.close()
            guard.main(setting, descriptors[0])
        for descriptor in descriptors:
            os.close(descriptor)
