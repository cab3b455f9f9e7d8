"""A real terminal for tests and for the screen in docs/play.md: tmux, 80 columns and 24 lines."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Terminal:
    """A tmux session in which a command runs."""

    def __init__(self, command: list[str], size: tuple[int, int], socket: str) -> None:
        self._socket = socket
        width, height = map(str, size)
        kept = [f"{name}={value}" for name, value in os.environ.items() if name.startswith(("ENVSUITE_", "PYTHON"))]
        line = f"env -u COLUMNS -u LINES {shlex.join(kept)} {shlex.join(command)}; echo ended with $?; sleep 60"
        self._tmux("-f", "/dev/null", "new-session", "-d", "-s", "play", "-x", width, "-y", height, line)

    def _tmux(self, *words: str) -> str:
        return subprocess.run(
            ["tmux", "-L", self._socket, *words], check=True, capture_output=True, text=True, timeout=20
        ).stdout

    def screen(self) -> str:
        """Returns what the terminal shows."""
        return self._tmux("capture-pane", "-p", "-t", "play")

    def press(self, *keys: str) -> None:
        """Presses keys, by tmux's names."""
        self._tmux("send-keys", "-t", "play", *keys)

    def type(self, text: str) -> None:
        """Types a text."""
        self._tmux("send-keys", "-t", "play", "-l", text)

    def until(self, there: Callable[[str], object], seconds: float = 60.0) -> str:
        """Waits until the screen is as it should be, and returns it."""
        end = time.monotonic() + seconds
        while not there(screen := self.screen()):
            assert time.monotonic() < end, screen
            time.sleep(0.05)
        return screen

    def see(self, *texts: str, seconds: float = 60.0) -> str:
        """Waits until one of the texts is on the screen, and returns the screen."""
        return self.until(lambda screen: any(text in screen for text in texts), seconds)

    def hint(self) -> str:
        """Asks the expert, and returns the screen with its answer."""
        self.press("F2")
        return self.see("The expert: ")

    def close(self) -> None:
        """Ends the command."""
        subprocess.run(["tmux", "-L", self._socket, "kill-server"], capture_output=True, timeout=20)


@contextmanager
def playing(*arguments: str, size: tuple[int, int] = (80, 24)) -> Iterator[Terminal]:
    """Runs ``envsuite play`` in a terminal."""
    command = [sys.executable, "-m", "envsuite.cli", "play", *arguments]
    terminal = Terminal(command, size, f"play-{uuid.uuid4().hex[:12]}")
    try:
        yield terminal
    finally:
        terminal.close()


def show() -> None:
    """Prints screens of five environments; docs/play.md has the first."""
    with playing("TextCraft-v0", "--split", "test") as terminal:
        terminal.see("F1 Help")
        for number in range(1, 4):
            terminal.hint()
            terminal.press("Enter")
            terminal.see(f"step {number} of")
        terminal.type("fly")
        terminal.press("Enter")
        terminal.see("step 4")
        sys.stdout.write(terminal.hint())
    with playing("alfworld", "--split", "valid_unseen") as terminal:
        terminal.see("F1 Help", seconds=120)
        terminal.type("go to ca")
        sys.stdout.write(terminal.see("go to cabinet"))
    with playing("sokoban", "--split", "test") as terminal:
        terminal.see("F1 Help")
        terminal.press("Right")
        terminal.see("SOLVED", "step 1")
        terminal.press("Up")
        sys.stdout.write(terminal.see("step 2", "over"))
    with playing("pythonmath", "--split", "test", "--type", "lattice-2") as terminal:
        terminal.see("F1 Help")
        terminal.hint()
        terminal.press("Enter")
        terminal.see("step 1")
        sys.stdout.write(terminal.hint())
    with playing("webshop", "--split", "test") as terminal:
        terminal.see("F1 Help")
        terminal.type("search women pajama set")
        terminal.press("Enter")
        sys.stdout.write(terminal.until(lambda screen: "step 1" in screen and "> search" in screen.split("\n")[4]))
        terminal.press("F7")
        sys.stdout.write(terminal.see("tasks of"))


if __name__ == "__main__":
    show()
