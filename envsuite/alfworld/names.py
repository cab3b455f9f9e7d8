"""Display names of objects: ``cabinet 2`` for ``Cabinet_bar__minus_00_dot_36_bar__plus_00_dot_38_…``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

_SIGNS = (("_minus_", "-"), ("_plus_", "+"), ("_dot_", "."), ("_comma_", ","))


def spoken_names(ids: Iterable[str]) -> dict[str, str]:
    """Returns the display name of each id: its type and a number.

    Ids of one type are numbered downwards in alphabetical order. An id without a position keeps its text, with a blank
    at the end, and gets no number.
    """
    unique_ids = sorted(set(ids))
    counts = Counter(kind for kind in map(_kind, unique_ids) if kind is not None)
    names = {}
    for name in unique_ids:
        kind = _kind(name)
        if kind is None:
            names[name] = f"{_plain(name)} "
        else:
            names[name] = f"{kind} {counts[kind]}"
            counts[kind] -= 1
    return names


def _kind(name: str) -> str | None:
    kind, bar, _ = name.partition("_bar_")
    if not bar:
        return None
    return _plain(kind) + ("basin" if "basin" in name else "")


def _plain(text: str) -> str:
    for escape, sign in _SIGNS:
        text = text.replace(escape, sign)
    return text
