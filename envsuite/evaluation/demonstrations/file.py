"""Files of demonstrations: JSON lines that Hugging Face ``datasets`` loads and TRL's ``SFTTrainer`` takes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import orjson

from envsuite.core.errors import DataError
from envsuite.data.files import file_errors, write_file
from envsuite.data.locks import hold_lock
from envsuite.evaluation.demonstrations.demonstration import Demonstration
from envsuite.evaluation.demonstrations.messages import FORMS, Form, messages_of

COLUMNS = {
    "messages": "the conversation, as chat templates take it, up to the last action",
    "tools": "the tools for the chat template, as JSON; null where the system message explains them",
    "env_id": "id of the environment",
    "source": "source of its tasks",
    "split": "split of the task",
    "task_id": "the task",
    "task_type": "its type",
    "player": "who played",
    "seed": "seed of the order of tasks; null where somebody chose them",
    "success": "whether the task was solved",
    "score": "its graded result, 0 to 1",
    "reward": "sum of the rewards",
    "steps": "number of steps",
    "invalid": "number of steps that the environment refused",
    "form": "how messages hold calls: native, or the codec of that name",
    "episode": "the whole episode as JSON: conditions, actions, observations, rewards; what playing again needs",
}
"""Columns of a file, with their meanings."""


def row_of(demonstration: Demonstration, form: Form = "native", commands: bool = True) -> dict[str, Any]:
    """Returns the row of a demonstration, with :data:`COLUMNS`; arguments as :func:`messages_of`."""
    messages, tools = messages_of(demonstration, form, commands)
    return {
        "messages": messages,
        "tools": None if tools is None else orjson.dumps(tools).decode(),
        **{name: getattr(demonstration, name) for name in ("env_id", "source", "split", "task_id", "task_type",
                                                           "player", "seed", "success", "score", "reward")},
        "steps": len(demonstration.steps),
        "invalid": demonstration.invalid,
        "form": form,
        "episode": demonstration.to_json(),
    }  # fmt: skip


def line_of(demonstration: Demonstration, form: Form = "native", commands: bool = True) -> bytes:
    """Returns the line of a demonstration, with its end; arguments as :func:`messages_of`."""
    return orjson.dumps(row_of(demonstration, form, commands), option=orjson.OPT_APPEND_NEWLINE)


def write_demonstrations(
    path: Path, demonstrations: Iterable[Demonstration], form: Form = "native", commands: bool = True
) -> None:
    """Writes a file; an interrupted write leaves the old one. Other arguments as :func:`messages_of`.

    Raises:
        DataError: The file cannot be written.
    """
    write_file(path, b"".join(line_of(demonstration, form, commands) for demonstration in demonstrations))


def add_demonstration(path: Path, demonstration: Demonstration) -> int:
    """Adds a demonstration to a file, in the form of those that are there, or native ones.

    It replaces those of the same task set, task and player.

    Returns:
        The number of demonstrations in the file.

    Raises:
        DataError: The file cannot be read or written, or has something else.
    """
    with _exclusive(path):
        old_rows = read_rows(path) if path.exists() else []
        rows = [row for row, old in old_rows if _identity(old) != _identity(demonstration)]
        form: Form = next((row["form"] for row in rows if row.get("form") in FORMS), "native")
        lines = [orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows]
        write_file(path, b"".join((*lines, line_of(demonstration, form))))
        return len(lines) + 1


def _identity(demonstration: Demonstration) -> tuple[str, ...]:
    return demonstration.env_id, demonstration.manifest, demonstration.task_id, demonstration.player


@contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """Keeps two programs from adding to a file at once, where one would undo the other's addition."""
    with ExitStack() as stack:
        with file_errors(path, "written"):
            stack.enter_context(hold_lock(path.with_name(f".{path.name}.lock")))
        yield


def read_rows(path: Path) -> list[tuple[dict[str, Any], Demonstration]]:
    """Returns the rows of a file, each with its demonstration.

    Raises:
        DataError: The file is missing, or a line of it is not a demonstration; the message has its number.
    """
    with file_errors(path):
        lines = path.read_bytes().split(b"\n")
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = orjson.loads(line)
            rows.append((row, Demonstration.from_json(row["episode"])))
        except (ValueError, KeyError, TypeError) as error:
            what = f"{type(error).__name__}: {error}"
            raise DataError(f"{path}, line {number}: no demonstration of `envsuite export demos` ({what})") from error
    return rows


def read_demonstrations(path: Path) -> list[Demonstration]:
    """Returns the demonstrations of a file, in their order.

    Raises:
        DataError: As :func:`read_rows`.
    """
    return [demonstration for _, demonstration in read_rows(path)]


def card_of(name: str, demonstrations: Sequence[Demonstration], form: Form) -> str:
    """Returns a data card, as Markdown with the front matter of the Hugging Face hub.

    Args:
        name: Name of the file.
        demonstrations: Those in it, one or more.
        form: How its messages hold calls.
    """
    types = Counter(episode.task_type for episode in demonstrations)
    counts = [len(episode.steps) for episode in demonstrations]
    successes = sum(episode.success for episode in demonstrations)
    versions = [", ".join(f"{n} {v}" for n, v in sorted(episode.versions.items())) for episode in demonstrations]
    facts = {
        "environment": _join(episode.env_id for episode in demonstrations),
        "source of tasks": _join(episode.source for episode in demonstrations),
        "split": _join(episode.split for episode in demonstrations),
        "task set (SHA-256)": _join(episode.manifest for episode in demonstrations),
        "arguments": _join(json.dumps(episode.env_options, sort_keys=True) for episode in demonstrations),
        "versions": _join(versions),
        "player": _join(episode.player for episode in demonstrations),
        "seed of the order of tasks": _join(str(episode.seed) for episode in demonstrations),
        "form of calls": form,
        "episodes": f"{len(demonstrations)}, of which {successes} solved their task",
        "steps": f"{sum(counts)}; {min(counts)} to {max(counts)} an episode",
    }  # fmt: skip
    rows = [f"| {key} | {value} |" for key, value in facts.items()]
    return "\n".join(
        (
            *("---", "configs:", "- config_name: default", f"  data_files: {orjson.dumps(name).decode()}", "---", ""),
            *(f"# Demonstrations of {facts['environment']}", "", "| | |", "|---|---|", *rows, ""),
            *("| task type | episodes |", "|---|---:|", *(f"| {kind} | {n} |" for kind, n in sorted(types.items()))),
            *("", "| column | |", "|---|---|", *(f"| `{key}` | {text} |" for key, text in COLUMNS.items()), ""),
        )
    )


def _join(values: Iterable[str]) -> str:
    return ", ".join(sorted(set(values))).replace("|", "\\|")
