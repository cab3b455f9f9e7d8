"""A panel: the tasks of one split, and what identifies each in the original benchmark."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import orjson


@dataclass(frozen=True)
class PanelTask:
    """One task of a panel."""

    task_id: str
    stratum: str
    """Task type (family, depth, …)."""
    goal: str
    """The instruction, as the agent reads it."""
    identity: Mapping[str, Any]
    """Goal index, game file and SHA-256, …: identifies the task in the original benchmark, as plain JSON."""


@dataclass(frozen=True)
class Panel:
    """The tasks of one split of one source, in their order."""

    env_id: str
    source: str
    version: str
    """Version of the data, as :attr:`envsuite.core.TaskSet.version`. It may cover more than this split (a folder with
    further files), so it is told and is not part of the hash; identities say what each task is."""
    split: str
    tasks: tuple[PanelTask, ...]

    @cached_property
    def hash(self) -> str:
        """Returns the SHA-256 (hex) of the panel without its version, as canonical JSON.

        That is with sorted keys, in UTF-8, without blanks.
        """
        body = asdict(self)
        del body["version"]
        return hashlib.sha256(orjson.dumps(body, option=orjson.OPT_SORT_KEYS)).hexdigest()
