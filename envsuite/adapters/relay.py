"""Starts a server of MCP and passes on what it says: ``python relay.py LONGEST MOST COMMAND…``; imports nothing else.

A line of its output that is longer than LONGEST bytes ends it. Its errors go to this program's, a file, which begins
anew after MOST bytes.
"""

import os
import subprocess
import sys
import threading


def main() -> int:
    """Runs until the server has ended; returns its status."""
    longest, most, *command = sys.argv[1:]
    try:
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 127
    assert server.stdout is not None and server.stderr is not None
    errors = server.stderr.fileno()

    def keep() -> None:
        size = 0
        while part := os.read(errors, 65536):
            size += len(part)
            if size > int(most):
                size = len(part)
                os.ftruncate(2, 0)
                os.lseek(2, 0, os.SEEK_SET)
            os.write(2, part)

    keeping = threading.Thread(target=keep)
    keeping.start()
    line = 0
    while part := os.read(server.stdout.fileno(), 65536):
        line = len(part) - part.rfind(b"\n") - 1 if b"\n" in part else line + len(part)
        if line > int(longest):
            server.kill()
            sys.stderr.write(f"a line of its output has more than {int(longest) >> 20} MiB\n")
            break
        view = memoryview(part)
        while view:
            view = view[os.write(1, view) :]
    status = server.wait()
    keeping.join()
    return status


if __name__ == "__main__":
    sys.exit(main())
