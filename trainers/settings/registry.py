"""Registries of classes that are chosen by name: estimators, engines, shapers, filters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar

from envsuite.core.errors import UsageError, unknown

T = TypeVar("T")


class Registry(Generic[T]):
    """Names and the classes they stand for.

    Args:
        kind: Kind of the registered classes, for messages.
        group: Entry points by which installed packages register classes of their own: the name of an entry point is
            the name in the registry. They are imported when their name is asked for.
        places: Name -> ``"module:Class"`` of own classes that are imported when their name is asked for.
    """

    def __init__(self, kind: str, group: str | None = None, places: Mapping[str, str] | None = None) -> None:
        self.kind = kind
        self.group = group
        self._places = places or {}
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
            UsageError: A package registers it, but it cannot be imported.
        """
        if name in self._entries:
            return self._entries[name]
        if name in self._places:
            module, _, attribute = self._places[name].partition(":")
            own: type[T] = getattr(import_module(module), attribute)
            return own
        entries = self._entry_points()
        if name not in entries:
            raise unknown(self.kind, name, self)
        try:
            plugin: type[T] = entries[name].load()
        except (ImportError, AttributeError) as error:
            raise UsageError(f"{self.kind} {name!r} ({entries[name].value}) cannot be imported: {error}") from error
        return plugin

    def __iter__(self) -> Iterator[str]:
        """The names, sorted."""
        return iter(sorted({*self._entries, *self._places, *self._entry_points()}))

    def __contains__(self, name: object) -> bool:
        """Whether the name is taken."""
        return name in self._entries or name in self._places or name in self._entry_points()

    def _entry_points(self) -> dict[str, EntryPoint]:
        return {} if self.group is None else {entry.name: entry for entry in entry_points(group=self.group)}
