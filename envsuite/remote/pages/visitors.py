"""Visitors of a page by their keys; when it is full, the longest idle one is dropped."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, Protocol, TypeVar


class Visitor(Protocol):
    """A visitor."""

    key: str
    """Known to the visitor's browser alone."""


V = TypeVar("V", bound=Visitor)


class Visitors(Generic[V]):
    """The visitors of a page. Thread-safe.

    Args:
        capacity: Maximum number of visitors.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._lock = threading.Lock()
        self._known: OrderedDict[str, V] = OrderedDict()

    def __len__(self) -> int:
        """Returns the number of visitors."""
        return len(self._known)

    def add(self, visitor: V) -> V:
        """Adds a visitor and returns it; a full page drops the one that has been idle for longest."""
        with self._lock:
            self._known[visitor.key] = visitor
            while len(self._known) > self._capacity:
                self._known.popitem(last=False)
        return visitor

    def find(self, key: str) -> V | None:
        """Returns the visitor with this key; ``None`` if there is none, or no more."""
        with self._lock:
            visitor = self._known.get(key)
            if visitor is not None:
                self._known.move_to_end(key)
            return visitor
