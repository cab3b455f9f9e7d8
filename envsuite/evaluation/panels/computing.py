"""Computes the panel that an environment plays."""

from __future__ import annotations

from typing import Any

import gymnasium

from envsuite.core import ToolEnv, UsageError
from envsuite.core.tools import Action
from envsuite.evaluation.panels.panel import Panel, PanelTask


def panel_of(env: gymnasium.Env[Any, Action], split: str) -> Panel:
    """Returns the tasks of a split as ``env`` plays them, those that ``tasks=`` left out excepted.

    Goals and identities are read from the files that the environment plays, at every call: a version and a list of ids
    do not say whether the content is the same (a recipe, the number of distractors). An environment on a server asks
    the server. Starts no episode.

    Args:
        env: An environment, in any wrappers.
        split: One of its splits.

    Raises:
        UnknownTask: The split does not exist.
        UsageError: ``env`` is none of envsuite's environments.
        DataError: A file of a task is damaged or has changed.
        WorkerLost: The environment is on a server that does not answer.
    """
    inner = env.unwrapped
    if not isinstance(inner, ToolEnv):
        raise UsageError(f"{type(inner).__name__} is not a ToolEnv: panels list the tasks of envsuite's environments")
    tasks = inner.tasks
    ids = tasks.ids(split)
    contents = inner.identify_tasks(ids)
    entries = (
        PanelTask(task_id, tasks.types[task_id], goal, identity)
        for task_id, (goal, identity) in zip(ids, contents, strict=True)
    )
    return Panel(tasks.env_id, tasks.source, tasks.version, split, tuple(entries))
