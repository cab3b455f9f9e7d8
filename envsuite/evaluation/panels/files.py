"""Panels as files: one JSON object, gzipped or not; and those that the package has.

``docs/panels.md`` describes the format for people who do not use this code.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from envsuite.core.errors import DataError, UnknownTask, unknown
from envsuite.data.files import file_errors, write_file
from envsuite.evaluation.panels.panel import Panel, PanelTask

FORMAT = 1
"""Version of the format; part of the folder's name, and of each file."""
SHIPPED = Path(__file__).parent / f"v{FORMAT}"
"""Folder of the panels of the built-in tasks: ``<environment>/<split>.json.gz``."""
SUFFIX = ".json.gz"
LARGEST = 1 << 30
"""Largest content of a file that is read, in bytes."""
_MAGIC = b"\x1f\x8b"
_TEXTS = ("env_id", "source", "version", "split")


def to_bytes(panel: Panel) -> bytes:
    """Returns a panel as JSON: sorted keys, a line for each task."""
    head = {"format": FORMAT, "hash": panel.hash, **{name: getattr(panel, name) for name in _TEXTS}}
    start = orjson.dumps(head, option=orjson.OPT_SORT_KEYS)[:-1]
    rows = b",\n".join(orjson.dumps(asdict(task), option=orjson.OPT_SORT_KEYS) for task in panel.tasks)
    return start + b',"tasks":[\n' + rows + b"\n]}\n"


def from_bytes(content: bytes, where: str) -> Panel:
    """Returns the panel in a file's content, gzipped or not, after checking its hash.

    Args:
        content: What :func:`to_bytes` returned, perhaps gzipped.
        where: Name of the file, for messages.

    Raises:
        DataError: It is not a panel, of another format, or was changed.
    """
    try:
        body = orjson.loads(_inflate(content) if content.startswith(_MAGIC) else content)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(f"{where}: truncated, or not a panel ({error})") from error
    if not isinstance(body, dict) or "format" not in body or "tasks" not in body:
        raise DataError(f"{where}: not a panel: it is not a JSON object with format and tasks")
    if body["format"] != FORMAT:
        raise DataError(f"{where}: a panel of format {body['format']}; this version of envsuite reads {FORMAT}")
    try:
        env_id, source, version, split = (_text(body, name) for name in _TEXTS)
        panel = Panel(env_id, source, version, split, tuple(_task(row) for row in body["tasks"]))
        panel_hash = panel.hash
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{where}: not a panel ({type(error).__name__}: {error})") from error
    if panel_hash != body.get("hash"):
        raise DataError(
            f"{where}: its content has the hash {panel_hash[:12]}…, not {str(body.get('hash'))[:12]}… as it says: it "
            "was changed. Get the file again, or export it anew (envsuite envs panels export)"
        )
    return panel


def _inflate(content: bytes) -> bytes:
    unpacker = zlib.decompressobj(wbits=31)
    body = unpacker.decompress(content, LARGEST)
    if not unpacker.eof:
        raise ValueError(f"the gzip stream is cut, or has more than {LARGEST:,} bytes")
    return body


def _text(body: Mapping[str, Any], name: str) -> str:
    if not isinstance(value := body[name], str):
        raise ValueError(f"{name} is {value!r}")
    return value


def _task(row: Any) -> PanelTask:
    if not isinstance(row, dict):
        raise ValueError(f"a task is {row!r}")
    if not isinstance(identity := row["identity"], dict):
        raise ValueError(f"identity is {identity!r}")
    return PanelTask(_text(row, "task_id"), _text(row, "stratum"), _text(row, "goal"), identity)


def read_panel(path: Path) -> Panel:
    """Reads a panel.

    Raises:
        DataError: The file is missing, truncated, changed, or not a panel.
    """
    with file_errors(path):
        content = path.read_bytes()
    return from_bytes(content, str(path))


def write_panel(panel: Panel, path: Path) -> None:
    """Writes a panel; gzipped if the name ends with ``.gz``. The same panel gives the same bytes.

    Raises:
        DataError: The file cannot be written.
    """
    write_content(to_bytes(panel), path)


def write_content(content: bytes, path: Path) -> None:
    """Writes a file; one whose name ends in ``.gz`` compressed.

    Raises:
        DataError: The file cannot be written.
    """
    write_file(path, gzip.compress(content, 9, mtime=0) if path.suffix == ".gz" else content)


@cache
def shipped_splits() -> Mapping[str, tuple[str, ...]]:
    """Returns the splits whose panels the package has, by environment."""
    splits_by_env: dict[str, list[str]] = {}
    for path in sorted(SHIPPED.glob(f"*/*{SUFFIX}")):
        splits_by_env.setdefault(path.parent.name, []).append(path.name.removesuffix(SUFFIX))
    return {env_id: tuple(splits) for env_id, splits in splits_by_env.items()}


def shipped_panel(env_id: str, split: str) -> Panel:
    """Returns the panel of a split of the built-in tasks, as the package has it; needs no extra.

    Raises:
        UnknownName: The package has no panel of this environment.
        UnknownTask: It has none of this split.
        DataError: The file is damaged.
    """
    if env_id not in shipped_splits():
        raise unknown("environment with shipped panels", env_id, shipped_splits())
    if split not in shipped_splits()[env_id]:
        raise unknown(f"split of {env_id} (source builtin)", split, shipped_splits()[env_id], UnknownTask)
    return read_panel(shipped_file(env_id, split))


def shipped_file(env_id: str, split: str) -> Path:
    """Returns the file of a shipped panel."""
    return SHIPPED / env_id / f"{split}{SUFFIX}"
