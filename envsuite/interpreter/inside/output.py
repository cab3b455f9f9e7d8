"""Output of a call within a limit, however much was printed."""

from __future__ import annotations

import codecs


class Output:
    """Keeps the beginning and the end of a stream of bytes, in memory of twice ``limit`` characters.

    Args:
        limit: Most characters of :meth:`text`.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._total = limit, 0
        self._head = self._tail = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes, final: bool = False) -> None:
        """Takes the next bytes; those that are not UTF-8 become U+FFFD."""
        text = self._decoder.decode(data, final)
        self._total += len(text)
        if len(self._head) < self._limit:
            self._head += text[: self._limit - len(self._head)]
        self._tail = (self._tail + text)[-self._limit :]

    def text(self, spare: int = 0) -> str:
        """Returns all of it, or beginning and end with a note of what was left out between them.

        Args:
            spare: Characters by which it must be shorter than the limit.
        """
        limit = max(0, self._limit - spare)
        if self._total <= limit:
            return self._head
        note = f"\n… {self._total - limit:,} or more characters left out …\n"
        room = max(0, limit - len(note))
        tail = room // 2
        return self._head[: room - tail] + note + (self._tail[-tail:] if tail else "")
