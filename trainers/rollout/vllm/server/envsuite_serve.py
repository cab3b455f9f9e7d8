"""A vLLM server that ends with the program that started it: ``python -m envsuite_serve PARENT_PID ARGUMENT ...``."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time


def _watch(parent: int) -> None:
    """Ends this process and its children when process ``parent`` is gone."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=_watch, args=(int(sys.argv[1]),), daemon=True).start()
    del sys.argv[1]
    from vllm.entrypoints.launchers.api_server.entry import main

    main()
