"""The line that a person types: history, completion, and where code may go on."""

from __future__ import annotations

from collections.abc import Callable

from textual import events
from textual.message import Message
from textual.widgets import TextArea

from envsuite.core.registration import Profile
from envsuite.play.lines import is_incomplete


class Prompt(TextArea):
    """The line that is typed: history with the arrow keys, completion with Tab."""

    class Submitted(Message):
        """A line was entered."""

        def __init__(self, line: str) -> None:
            self.line = line
            super().__init__()

    def __init__(self, profile: Profile) -> None:
        super().__init__(id="prompt", compact=True, highlight_cursor_line=False, soft_wrap=True)
        self.profile = profile
        self.find: Callable[[str], list[str]] = lambda text: []
        """Returns the completions of a text."""
        self._past: list[str] = []
        self._place = 0
        self._cycle: list[str] = []
        self._offered = ""

    def replace_text(self, text: str) -> None:
        """Shows another text, with the cursor at its end."""
        self.text = text
        self.move_cursor(self.document.end)

    def offer(self, text: str) -> None:
        """Shows a whole line, which Enter takes as it is."""
        self.replace_text(text)
        self._offered = text

    async def _on_key(self, event: events.Key) -> None:
        if event.key != "tab":
            self._cycle = []
        if self._handle_key(event.key):
            event.stop()
            event.prevent_default()
            return
        await super()._on_key(event)

    def _handle_key(self, key: str) -> bool:
        """Does what a key stands for; returns whether it is one of the prompt's own."""
        if not self.text and key in self.profile.keys:
            self.post_message(self.Submitted(self.profile.keys[key]))
        elif key == "enter":
            self._enter()
        elif key in ("alt+enter", "shift+enter", "ctrl+j"):
            self.insert("\n")
        elif key == "tab":
            self._complete()
        elif key == "up" and self.cursor_location[0] == 0 and self._past:
            self._recall(-1)
        elif key == "down" and self.cursor_location[0] == self.document.line_count - 1 and self._past:
            self._recall(1)
        else:
            return False
        return True

    def _enter(self) -> None:
        whole = self.text == self._offered or self.text.startswith((":", *self.profile.prefixes))
        if self.profile.code and not whole and is_incomplete(self.text):
            last = self.text.rpartition("\n")[2]
            indent = last[: len(last) - len(last.lstrip())] + ("    " if last.rstrip().endswith(":") else "")
            self.insert(f"\n{indent}")
            return
        if self.text.strip():
            self._past = [line for line in self._past if line != self.text] + [self.text]
        self._place = len(self._past)
        self.post_message(self.Submitted(self.text))
        self.replace_text("")

    def _recall(self, by: int) -> None:
        self._place = min(max(self._place + by, 0), len(self._past))
        self.replace_text(self._past[self._place] if self._place < len(self._past) else "")

    def _complete(self) -> None:
        if not self._cycle:
            self._cycle = [*self.find(self.text), self.text]
        if len(self._cycle) > 1:
            self.replace_text(self._cycle[0])
            self._cycle = [*self._cycle[1:], self._cycle[0]]

    def update_suggestion(self) -> None:
        """Shows how the first completion goes on."""
        at_end = self.cursor_location == self.document.end
        lines = self.find(self.text) if self.text and at_end else []
        completion = next((line for line in lines if line.startswith(self.text)), self.text)
        self.suggestion = completion[len(self.text) :]
