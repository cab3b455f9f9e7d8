"""Registries of what is chosen by name: estimators, engines, shapers, filters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from envsuite.core.errors import unknown

T = TypeVar("T")


class Registry(Generic[T]):
    """Names and the classes they stand for."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, type[T]] = {}

    def register(self, name: str) -> Callable[[type[T]], type[T]]:
        """Class decorator: enter the class under ``name``."""

        def enter(cls: type[T]) -> type[T]:
            if name in self._entries:
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            self._entries[name] = cls
            return cls

        return enter

    def __getitem__(self, name: str) -> type[T]:
        """The class of that name.

        Raises:
            UnknownName: There is none; the message lists what exists, nearest first.
        """
        if name not in self._entries:
            raise unknown(self.kind, name, self._entries)
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        """The names, sorted."""
        return iter(sorted(self._entries))

    def __contains__(self, name: object) -> bool:
        """Whether the name is taken."""
        return name in self._entries
