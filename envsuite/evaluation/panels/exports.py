"""Writes a panel as other frameworks take it: ``docs/panels.md`` says how each file is used.

verl-agent and AgentGym play the benchmarks' own data. Where they have no such environment, or their servers cannot be
told to play a task, the export is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from envsuite.core.errors import UsageError, unknown
from envsuite.evaluation.panels.files import to_bytes
from envsuite.evaluation.panels.panel import Panel

Rows = dict[str, Any] | list[dict[str, Any]]
SMALL_SHOP = 1000
"""Number of products of WebShop's small setting, which both frameworks play by default."""
EVALUATIONS = {"train": "train", "valid_seen": "eval_in_distribution", "valid_unseen": "eval_out_of_distribution"}
"""ALFWorld's own names for playing its splits."""
_AGENTGYM_ROOT = "train"
"""The split below which AgentGym's server looks for the games of ``mappings_train.json``."""


def export(panel: Panel, target: str) -> bytes:
    """Returns the content of the file that ``target`` needs to play the tasks of ``panel``, in their order.

    Args:
        panel: The panel.
        target: One of :data:`TARGETS`.

    Raises:
        UnknownName: The target does not exist.
        UsageError: The target cannot play these tasks.
    """
    if target == "json":
        return to_bytes(panel)
    if target not in TARGETS:
        raise unknown("target of an export", target, TARGETS)
    writers = _WRITERS[target]
    if panel.env_id not in writers:
        env_ids = " and ".join(sorted(writers))
        raise UsageError(f"{target} cannot be told to play tasks of {panel.env_id}: it plays {env_ids}. {_INSTEAD}")
    return orjson.dumps(writers[panel.env_id](panel), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _verl_agent_alfworld(panel: Panel) -> Rows:
    return {
        "env_name": "alfworld/AlfredTWEnv",
        "panel": panel.hash,
        "eval_dataset": EVALUATIONS.get(panel.split),
        "game_files": [task.identity["game"] for task in panel.tasks],
        "game_sha256": [task.identity["game_sha256"] for task in panel.tasks],
    }


def _verl_agent_webshop(panel: Panel) -> Rows:
    _only_official(panel, "verl-agent")
    first = panel.tasks[0].identity if panel.tasks else {}
    return {
        "env_name": "Webshop",
        "panel": panel.hash,
        "use_small": first.get("products") == SMALL_SHOP,
        "human_goals": first.get("goals") == "human",
        "seed": first.get("order_seed"),
        "goal_idxs": [task.identity["goal_index"] for task in panel.tasks],
        "goals": [{"asin": task.identity["asin"], "instruction": task.goal} for task in panel.tasks],
    }


def _agentgym_alfworld(panel: Panel) -> Rows:
    rows = []
    for number, task in enumerate(panel.tasks):
        split, folder, trial = task.identity["game"].split("/")[-4:-1]
        inside = folder if split == _AGENTGYM_ROOT else f"../{split}/{folder}"
        rows.append({"item_id": f"alfworld_{number}", "task_type": inside, "task_id": trial})
    return rows


def _agentgym_webshop(panel: Panel) -> Rows:
    _only_official(panel, "AgentGym")
    if any(task.identity["goals"] != "synthetic" or task.identity["products"] != SMALL_SHOP for task in panel.tasks):
        raise UsageError(
            f"AgentGym's server plays the synthetic goals of the shop of {SMALL_SHOP:,} products; this panel has "
            f"others. {_INSTEAD}"
        )
    return [
        {"item_id": f"webshop_{task.identity['goal_index']}", "asin": task.identity["asin"], "instruction": task.goal}
        for task in panel.tasks
    ]


def _agentgym_textcraft(panel: Panel) -> Rows:
    _only_official(panel, "AgentGym")
    return [
        {"item_id": f"textcraft_{task.identity['data_idx']}", "goal": task.identity["item"]} for task in panel.tasks
    ]


def _only_official(panel: Panel, target: str) -> None:
    if not panel.source.startswith("official"):
        raise UsageError(
            f"{target} plays the benchmark's own data, and this panel of {panel.env_id} is of source "
            f"{panel.source!r}; give an official --source (envsuite data fetch gets it) or a path. {_INSTEAD}"
        )


_INSTEAD = "--for json writes any panel, for programs of your own"
_WRITERS: Mapping[str, Mapping[str, Callable[[Panel], Rows]]] = {
    "verl-agent": {"ALFWorld-v0": _verl_agent_alfworld, "WebShop-v0": _verl_agent_webshop},
    "agentgym": {
        "ALFWorld-v0": _agentgym_alfworld,
        "WebShop-v0": _agentgym_webshop,
        "TextCraft-v0": _agentgym_textcraft,
    },
}
TARGETS = ("json", *_WRITERS)
"""Frameworks for which panels are written, and plain JSON."""
