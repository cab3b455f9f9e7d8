"""Compresses episodes for embedding in a page.

Successive prompts of an episode share most of their text: a prompt is stored as the lengths of the start and end that
it shares with the text before it (the previous prompt and response; for a first step, the previous episode's first
prompt), and the new text between. Lengths count UTF-16 units, as in JavaScript.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from envsuite.playing.step import refusal
from trainers.report.methods import MethodAdvantages
from trainers.steps.parquet import read_table

STEP_FIELDS = (
    "prompt", "response", "action", "parse_error", "error", "valid", "reward", "advantage", "logprob",
    "prompt_tokens", "response_tokens", "finish", "version", "observation",
    "images", "refusal",
)  # fmt: skip
"""The fields of a packed step, in order.

``prompt`` is [shared start, new text, shared end] or null; ``images`` are those of the observation, PNG in base64;
``refusal`` is the stage that refused an invalid action (:data:`envsuite.playing.step.REFUSALS`).
"""


@dataclass(frozen=True)
class PackedEpisodes:
    """One file of episodes, as embedded in the page."""

    payload: str
    """Base64 of the zlib-compressed JSON list of episodes."""
    episodes: int
    solved: int
    failed: int
    steps: tuple[tuple[int, tuple[int, ...]], ...]
    """Id of each episode, and ``t`` of each of its steps, in their order."""
    differing: bool = False
    """Whether the rewards of a group's episodes differ, without those that failed."""


def pack(path: Path) -> PackedEpisodes:
    """Compresses the episodes of a Parquet file.

    Raises:
        DataError: The file is damaged.
    """
    rows = _rows(read_table(path))
    steps: dict[int, list[int]] = {}
    for row in rows:
        steps.setdefault(row["episode_id"], []).extend([row["t"]] if row["t"] >= 0 else [])
    episodes = list(_episodes(rows))
    rewards = {(episode["group"], episode["reward"]) for episode in episodes if not episode["error"]}
    return PackedEpisodes(
        payload=compress(episodes),
        episodes=len(episodes),
        solved=sum(episode["success"] for episode in episodes),
        failed=sum(episode["error"] is not None for episode in episodes),
        steps=tuple((number, tuple(ts)) for number, ts in steps.items()),
        differing=len(rewards) > len(dict(rewards)),
    )


def pack_advantages(packed: PackedEpisodes, results: Sequence[MethodAdvantages]) -> str:
    """Compresses the advantages of a file's steps: for each method an array per episode, or why there are none.

    Args:
        packed: The file's episodes, whose order the arrays have.
        results: Advantages under each method; a step without one gets null.
    """
    return compress([
        {"lacks": result.lacks} if result.values is None else
        {"values": [[finite(result.values.get((number, t))) for t in ts] for number, ts in packed.steps]}
        for result in results
    ])  # fmt: skip


def compress(value: Any) -> str:
    """Base64 of ``value`` as zlib-compressed JSON."""
    # Escapes keep the text ASCII, and can represent surrogate pairs that a shared length has split.
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(zlib.compress(text.encode("ascii"))).decode("ascii")


def _rows(table: pa.Table) -> list[dict[str, Any]]:
    """Returns the rows, with lengths and means in place of the token columns, which are most of the data."""
    lengths = {name: _lengths(table[name]) for name in ("prompt_ids", "response_ids", "response_logprobs")}
    logprobs, versions = (
        np.concatenate([np.zeros(0, dtype), *(chunk.flatten().to_numpy() for chunk in table[name].chunks)])
        for name, dtype in (("response_logprobs", np.float64), ("policy_version", np.int64))
    )
    parts = np.split(logprobs, np.cumsum(lengths["response_logprobs"])[:-1]) if len(table) else []
    last = np.cumsum(lengths["response_ids"]) - 1
    rows = table.drop_columns([*lengths, "policy_version", "state_key"]).to_pylist()
    for i, (row, part) in enumerate(zip(rows, parts, strict=True)):
        row["logprob"] = float(part.mean()) if len(part) else None
        row["prompt_tokens"] = int(lengths["prompt_ids"][i])
        row["response_tokens"] = int(lengths["response_ids"][i])
        row["version"] = int(versions[last[i]]) if row["response_tokens"] else None
    return cast(list[dict[str, Any]], rows)


def _lengths(column: pa.ChunkedArray) -> NDArray[np.int64]:
    return np.asarray(pc.fill_null(pc.list_value_length(column), 0).to_numpy(), np.int64)


def _episodes(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    before = first = np.empty(0, np.uint16)  # first: the first prompt of the last episode that has one
    current: dict[str, Any] | None = None
    for row in rows:
        if current is None or row["episode_id"] != current["id"]:
            if current is not None:
                yield current
            current, before = _head(row), first
        if row["t"] < 0:
            continue
        delta = None
        if row["prompt_text"] is not None:
            prompt = _units(row["prompt_text"])
            delta = _delta(before, prompt)
            before = np.concatenate([prompt, _units(row["response_text"] or "")])
            if not current["steps"]:
                first = prompt
        current["steps"].append([delta, *_step(row)])
        current["reward"] += finite(row["reward"]) or 0.0
    if current is not None:
        yield current


def _head(row: dict[str, Any]) -> dict[str, Any]:
    end = "terminated" if row["terminated"] else "truncated" if row["truncated"] else "not ended"
    if row["context_truncated"]:
        end += ", the next prompt had no room in the context"
    return {
        "id": row["episode_id"],
        "group": row["group_id"],
        "env": row["env_id"],
        "task_id": row["task_id"],
        "type": row["task_type"],
        "split": row["split"],
        "task": row["task"],
        "end": f"{end}, played greedily as a baseline" if row["greedy"] else end,
        "success": bool(row["success"]),
        "score": finite(row["score"]),
        "error": row["error"],
        "last": row["last_observation"],
        "reward": 0.0,
        "steps": [],
    }


def _step(row: dict[str, Any]) -> list[Any]:
    return [
        row["response_text"],
        row["action"],
        row["parse_error"],
        json.loads(row["info"]).get("error"),
        row["valid"],
        finite(row["reward"]),
        finite(row["advantage"]),
        finite(row["logprob"]),
        row["prompt_tokens"],
        row["response_tokens"],
        row["finish_reason"],
        row["version"],
        row["observation"],
        [base64.b64encode(image).decode("ascii") for image in row["images"][len(row["images"]) - row["shown"] :]],
        _refusal(row),
    ]


def _refusal(row: dict[str, Any]) -> str | None:
    if row["valid"]:
        return None
    names = None if row["action"] is None else [call["name"] for call in json.loads(row["action"])]
    return refusal(names, row["finish_reason"], str(json.loads(row["info"]).get("error", "")))


def finite(value: float | None) -> float | None:
    """Returns ``value`` with six digits; ``None`` if it is not finite, which JSON cannot express."""
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None


def _units(text: str) -> NDArray[np.uint16]:
    return np.frombuffer(text.encode("utf-16-le"), np.uint16)


def _delta(old: NDArray[np.uint16], new: NDArray[np.uint16]) -> list[Any]:
    start = _common_length(old, new)
    end = _common_length(old[start:][::-1], new[start:][::-1])
    middle = new[start : len(new) - end]
    return [start, middle.tobytes().decode("utf-16-le", "surrogatepass"), end]


def _common_length(a: NDArray[np.uint16], b: NDArray[np.uint16]) -> int:
    """Returns the length of the common start."""
    n = min(len(a), len(b))
    differ = a[:n] != b[:n]
    return int(differ.argmax()) if differ.any() else n
