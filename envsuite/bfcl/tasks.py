"""The task set of ``BFCL-v0``: splits by a hash, in which all conversations of one scenario stay together."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Iterator
from functools import cache

from envsuite.bfcl.package import PACKAGE, ScriptedTalk, conversations, package_version
from envsuite.core.tasks import TaskSet

ENV_ID = "BFCL-v0"
SPLITS = {"train": 6, "validation": 7, "test": 10}
"""Split -> the tenth of hashes that it ends before."""


@cache
def load_tasks() -> TaskSet:
    """Returns the tasks; their types are the categories."""
    scenario = _scenarios()
    splits: dict[str, list[str]] = {split: [] for split in SPLITS}
    for task_id in conversations():
        tenth = int(hashlib.sha256(f"bfcl {scenario[number_of(task_id)]}".encode()).hexdigest(), 16) % 10
        splits[next(split for split, end in SPLITS.items() if tenth < end)].append(task_id)
    types = {task_id: task_id.rpartition("_")[0] for task_id in conversations()}
    version = f"{PACKAGE}-{package_version()}"
    return TaskSet(ENV_ID, "builtin", version, {split: tuple(ids) for split, ids in splits.items()}, types)


def number_of(task_id: str) -> int:
    """Returns the number of a conversation, which its variants of the other categories share."""
    return int(task_id.rpartition("_")[2])


def _scenarios() -> dict[int, int]:
    """Returns the scenario of each number: that of the first with the same state, first request or answers."""
    scenarios, owners = dict[int, int](), dict[Hashable, int]()
    for task_id, conversation in conversations().items():
        number = number_of(task_id)
        keys = [*_keys(conversation), number]
        scenario = min([number, *(owners[key] for key in keys if key in owners)])
        owners |= {key: min(scenario, owners.get(key, scenario)) for key in keys}
        scenarios[number] = min(scenario, scenarios.get(number, scenario))
    return scenarios


def _keys(conversation: ScriptedTalk) -> Iterator[str]:
    yield f"state {json.dumps(conversation.config)}"
    yield f"request {conversation.requests[0]}"
    yield f"answers {[calls for calls in conversation.answers if calls]}"
