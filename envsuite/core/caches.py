"""Caches of what sessions of one process share, with a bound."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from functools import lru_cache, partial, wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
Owner = TypeVar("Owner")


class _Cell(Generic[T]):
    """A value that is made once."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.value: tuple[T] | None = None


def made_once(most: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Remembers a function's last ``most`` results, by arguments; of calls at the same time one makes a result.

    ``functools.lru_cache`` would make it in each of the threads that ask before it is there.

    Args:
        most: Results that are remembered.
    """

    def decorate(make: Callable[P, T]) -> Callable[P, T]:
        guard = threading.Lock()

        @lru_cache(maxsize=most)
        def cell_of(*args: object, **kwargs: object) -> _Cell[T]:
            return _Cell()

        @wraps(make)
        def get_or_make(*args: P.args, **kwargs: P.kwargs) -> T:
            with guard:
                cell = cell_of(*args, **kwargs)  # type: ignore[arg-type]  # lru_cache says which are not hashable
            with cell.lock:
                if cell.value is None:
                    cell.value = (make(*args, **kwargs),)
                return cell.value[0]

        return get_or_make

    return decorate


def cache_by_owner(most: int) -> Callable[[Callable[Concatenate[Owner, P], T]], Callable[Concatenate[Owner, P], T]]:
    """Remembers a function's last ``most`` results for each first argument, and forgets them with that.

    ``functools.lru_cache`` would keep the first argument alive, however large, as long as one result is remembered.

    Args:
        most: Results that are remembered for each first argument.
    """

    def decorate(function: Callable[Concatenate[Owner, P], T]) -> Callable[Concatenate[Owner, P], T]:
        caches: weakref.WeakKeyDictionary[Owner, Callable[..., T]] = weakref.WeakKeyDictionary()

        @wraps(function)
        def call_cached(owner: Owner, /, *args: P.args, **kwargs: P.kwargs) -> T:
            cache = caches.get(owner)
            if cache is None:
                cache = caches[owner] = lru_cache(maxsize=most)(partial(_of, function, weakref.ref(owner)))
            return cache(*args, **kwargs)  # type: ignore[arg-type]

        return call_cached

    return decorate


def _of(function: Callable[..., T], owner: weakref.ref[Owner], *args: Any, **kwargs: Any) -> T:
    return function(owner(), *args, **kwargs)  # whoever calls holds it
