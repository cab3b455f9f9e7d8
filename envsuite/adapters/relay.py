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

    keeping = threading.Thread(target=keep, daemon=True)
    keeping.start()
    while line := server.stdout.readline(int(longest) + 1):
        if len(line) > int(longest):
            server.kill()
            sys.stderr.write(f"a line of its output has more than {int(longest) >> 20} MiB\n")
            break
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
    status = server.wait()
    keeping.join(1.0)  # a process that the server has left behind may keep its stderr open
    return status


if __name__ == "__main__":
    sys.exit(main())
