"""What the children of the tests run."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time


def leave_with_three(channel: socket.socket) -> None:
    os._exit(3)


def kill_itself(channel: socket.socket) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)


def hang(channel: socket.socket) -> None:
    time.sleep(600)


def end_when_closed(channel: socket.socket) -> None:
    while channel.recv(1):
        pass


def tell_variable(channel: socket.socket) -> None:
    channel.sendall(f"{os.environ.get('OMP_NUM_THREADS')} {os.environ.get('COLOUR')}\n".encode())


def start_another(channel: socket.socket) -> None:
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    channel.sendall(f"{other.pid}\n".encode())
    time.sleep(600)


def say_and_listen(channel: socket.socket) -> None:
    print("words of a world", flush=True)
    channel.sendall(repr(sys.stdin.read()).encode())
    time.sleep(60)
