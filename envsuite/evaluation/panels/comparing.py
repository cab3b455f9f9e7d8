"""Compares a panel with what an environment plays here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from envsuite.core import ToolEnv
from envsuite.evaluation.panels.panel import Panel, PanelTask

SHOWN = 60
"""Characters of a value in a message."""


@dataclass(frozen=True)
class Difference:
    """A task of a panel that an environment does not play as it is listed."""

    task_id: str
    what: str
    """``"missing"``, or the fields that differ with both values."""


def differences(panel: Panel, env: ToolEnv) -> list[Difference]:
    """Returns the tasks of ``panel`` that ``env`` does not have, or has with other content.

    Args:
        panel: The panel; it may be of other data than those of ``env``.
        env: An environment with the tasks of all splits.

    Raises:
        DataError: A file of a task is damaged.
    """
    there = [task for task in panel.tasks if task.task_id in env.tasks.types]
    told = dict(zip((task.task_id for task in there), env.identified([task.task_id for task in there]), strict=True))
    found = []
    for task in panel.tasks:
        if task.task_id not in told:
            found.append(Difference(task.task_id, "missing"))
            continue
        here = PanelTask(task.task_id, env.tasks.types[task.task_id], *told[task.task_id])
        whats = [*_changed(task, here)]
        if (split := env.tasks.split_of(task.task_id)) != panel.split:
            whats.append(f"split: {panel.split!r} in the panel, {split!r} here")
        if whats:
            found.append(Difference(task.task_id, "; ".join(whats)))
    return found


def _changed(task: PanelTask, here: PanelTask) -> Iterator[str]:
    pairs: dict[str, tuple[Any, Any]] = {
        "stratum": (task.stratum, here.stratum),
        "goal": (task.goal, here.goal),
        **_both(task.identity, here.identity),
    }
    for name, (wanted, found) in pairs.items():
        if wanted != found:
            start = _first_difference(wanted, found)
            yield f"{name}: {_short(wanted, start)} in the panel, {_short(found, start)} here"


def _both(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    names = {**wanted, **found}
    return {name: (wanted.get(name), found.get(name)) for name in names}


def _first_difference(wanted: Any, found: Any) -> int:
    pairs = zip(repr(wanted), repr(found), strict=False)
    return next((place for place, (one, other) in enumerate(pairs) if one != other), 0)


def _short(value: Any, start: int) -> str:
    """Returns the part of a value's text around ``start``."""
    text = repr(value)
    first = max(0, min(start - 20, len(text) - SHOWN))
    part = text[first : first + SHOWN]
    return f"{'…' if first else ''}{part}{'…' if first + SHOWN < len(text) else ''}"
