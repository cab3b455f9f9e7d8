"""Episodes on disk: Parquet, one row per step, one file per iteration, or one shard from each process of the run.

``iteration-00003.parquet`` is a whole file; ``iteration-00003.0-of-2.parquet`` and ``iteration-00003.1-of-2.parquet``
are shards. Readers take the name of the whole file, and find its shards.

Episode columns are repeated in every row of the episode (dictionary encoding makes that nearly free), so that one
file is one data frame. An episode that failed before its first step keeps one row, with ``t = -1`` and empty step
columns. Failed episodes are kept, with their ``error``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from envsuite.core.errors import DataError, UsageError
from envsuite.core.images import as_png, from_png
from envsuite.core.tools import Action, ToolCall
from envsuite.data.files import atomic_file, file_errors
from envsuite.playing.step import Episode, Step

FORMAT = b"envsuite.episodes"
VERSION = b"2"

StepKey = tuple[int, int]
"""(episode_id, t): what identifies a step within an iteration."""

_EPISODE = {
    "episode_id": pa.int64(),
    "group_id": pa.int64(),
    "env_id": pa.string(),
    "task_id": pa.string(),
    "task_type": pa.string(),
    "split": pa.string(),
    "task": pa.string(),
    "terminated": pa.bool_(),
    "truncated": pa.bool_(),
    "success": pa.bool_(),
    "score": pa.float64(),
    "greedy": pa.bool_(),
    "error": pa.string(),
    "context_truncated": pa.bool_(),
    "unanswered": pa.bool_(),
    "last_observation": pa.string(),
    "tree": pa.int64(),
    "shared": pa.int32(),
}
_STEP = {
    "t": pa.int32(),
    "prompt_ids": pa.list_(pa.int32()),
    "response_ids": pa.list_(pa.int32()),
    "response_logprobs": pa.list_(pa.float32()),
    "policy_version": pa.list_(pa.int64()),
    "finish_reason": pa.string(),
    "observation": pa.string(),
    "state_key": pa.string(),
    "action": pa.string(),
    "parse_error": pa.string(),
    "valid": pa.bool_(),
    "reward": pa.float64(),
    "info": pa.string(),
    "images": pa.list_(pa.binary()),
    "shown": pa.int32(),
    "agent": pa.string(),
}
_EXTRA = {"prompt_text": pa.string(), "response_text": pa.string(), "advantage": pa.float64()}

SCHEMA = pa.schema({**_EPISODE, **_STEP, **_EXTRA}, metadata={FORMAT: VERSION})
"""Columns of an episodes file: of the episode, of the step, and what is known besides.

``action`` is a JSON list of ``{"name", "arguments"}``, null where the completion did not parse; ``info`` a JSON object;
``images`` are PNG files; ``prompt_text``, ``response_text`` and ``advantage`` are null where they were not given.
"""

_TOKENS = ("prompt_ids", "response_ids", "response_logprobs", "policy_version")
"""Columns with a list of numbers in each row."""

_TEXTS = ("prompt_text", "response_text")

_SHARD = re.compile(r"(.+)\.(\d+)-of-(\d+)\.parquet")

# Token columns stay plain: successive prompts repeat long runs, which zstd finds in aligned integers and would not find
# in a bit-packed dictionary.
_DICTIONARY = [name for name in (*_EPISODE, "finish_reason", "observation", "state_key", "action", "parse_error",
                                 "agent")
               if SCHEMA.field(name).type == pa.string()]  # fmt: skip
# Split by byte: the exponents of log-probabilities are alike. Versions are mostly one number, which runs compress away.
_SPLIT = {"response_logprobs.list.element": "BYTE_STREAM_SPLIT"}
_DICTIONARY.append("policy_version.list.element")


def write_episodes(
    path: Path,
    episodes: Sequence[Episode],
    advantages: Mapping[StepKey, float] | NDArray[np.float64] | None = None,
    text: Mapping[StepKey, tuple[str, str]] | None = None,
) -> None:
    """Write ``episodes`` to ``path``, which holds either the old file or the whole new one at any time.

    Args:
        path: The file; its folder is made if need be.
        episodes: In the order in which they will be read again.
        advantages: One number per step: by (episode_id, t), or as an array in the row order of
            ``StepTable.from_episodes(episodes)``, which leaves failed and greedy episodes out.
        text: Prompt and response of a step as text, by (episode_id, t).

    A lone surrogate, which is not Unicode text, is written as U+FFFD in text columns (and kept in JSON columns).

    Raises:
        MissingExtra: There are images, and Pillow is not installed.
        UsageError: Episode ids repeat, an array has the wrong length, or an info cannot be written as JSON.
        DataError: The file cannot be written (disk full, no permission).
    """
    table = episodes_table(episodes, advantages, text)
    with file_errors(path, "written"), atomic_file(path) as file:
        _write(table, file)


def _write(table: pa.Table, where: BinaryIO | pa.BufferOutputStream) -> None:
    options = {"use_dictionary": _DICTIONARY, "column_encoding": _SPLIT, "write_page_checksum": True}
    pq.write_table(table, where, compression="zstd", **options)


def as_bytes(episodes: Sequence[Episode]) -> bytes:
    """Returns the content of a file of ``episodes``, for other files that hold it.

    Raises:
        MissingExtra, UsageError: As :func:`write_episodes`.
    """
    content = pa.BufferOutputStream()
    _write(episodes_table(episodes), content)
    return content.getvalue().to_pybytes()  # type: ignore[no-any-return]


def from_bytes(content: bytes, what: str) -> list[Episode]:
    """Reverses :func:`as_bytes`; values come back as :func:`read_episodes` says.

    Args:
        content: The content of a file.
        what: Its name in messages.

    Raises:
        DataError: It is damaged, or not that of an episodes file.
    """
    return _episodes(_read(what, SCHEMA.names, pa.BufferReader(content)), what)


def episodes_table(
    episodes: Sequence[Episode],
    advantages: Mapping[StepKey, float] | NDArray[np.float64] | None = None,
    text: Mapping[StepKey, tuple[str, str]] | None = None,
) -> pa.Table:
    """The rows that :func:`write_episodes` writes, with the columns of :data:`SCHEMA`."""
    ids = [episode.episode_id for episode in episodes]
    if len(set(ids)) != len(ids):
        twice = next(i for i in ids if ids.count(i) > 1)
        raise UsageError(f"episode_id {twice} occurs twice; ids must differ within one file")
    if isinstance(advantages, np.ndarray):
        advantages = _by_key(episodes, advantages)
    columns: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}
    for episode in episodes:
        own = {name: _clean(value) for name, value in vars(episode).items() if name in _EPISODE}
        for row in _step_rows(episode, advantages or {}, text or {}):
            for name, column in columns.items():
                column.append(own[name] if name in own else row.get(name))
    arrays = {name: _lists(values, SCHEMA.field(name).type) for name, values in columns.items() if name in _TOKENS}
    return pa.table({**columns, **arrays}, schema=SCHEMA)


def _lists(rows: Sequence[NDArray[Any] | None], kind: pa.ListType) -> pa.ListArray:
    """A column of lists from arrays; a row that is none has no list."""
    offsets = np.zeros(len(rows) + 1, np.int32)
    np.cumsum([0 if row is None else len(row) for row in rows], out=offsets[1:])
    empty = np.empty(0, kind.value_type.to_pandas_dtype())
    values = np.concatenate([empty, *(row for row in rows if row is not None)])
    missing = pa.array([row is None for row in rows], pa.bool_())
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values, kind.value_type), type=kind, mask=missing)


def _step_rows(
    episode: Episode, advantages: Mapping[StepKey, float], text: Mapping[StepKey, tuple[str, str]]
) -> list[dict[str, Any]]:
    if not episode.steps:
        return [{"t": -1}]
    rows = []
    for step in episode.steps:
        key = (episode.episode_id, step.t)
        row = step_row(step, f"episode {key[0]}, step {key[1]}")
        row["images"] = [as_png(image) for image in step.images]
        if key in text:
            row["prompt_text"], row["response_text"] = map(_clean, text[key])
        row["advantage"] = advantages.get(key)
        rows.append(row)
    return rows


def step_row(step: Step, where: str) -> dict[str, Any]:
    """Returns the columns of a step as they are written, but its images; ``action`` and ``info`` are JSON.

    Args:
        step: The step.
        where: Its name in messages.

    Raises:
        UsageError: Its action or info cannot be written as JSON.
    """
    row = {name: _clean(value) for name, value in vars(step).items() if name in _STEP or name in _TEXTS}
    row["action"] = None if step.action is None else _json([vars(call) for call in step.action], where)
    return {**row, "info": _json(step.info, where)}


def _by_key(episodes: Sequence[Episode], values: NDArray[np.float64]) -> dict[StepKey, float]:
    keys = [(e.episode_id, step.t) for e in episodes if e.error is None and not e.greedy for step in e.steps]
    if values.shape != (len(keys),):
        raise UsageError(f"advantages have shape {values.shape}, the episodes that count have {len(keys)} steps")
    return dict(zip(keys, values.tolist(), strict=True))


def _clean(value: Any) -> Any:
    """``value``, without lone surrogates if it is text: Parquet strings are UTF-8."""
    if isinstance(value, str) and not value.isascii():
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value


def _json(value: Any, where: str) -> str:
    # The standard library's module, because it keeps NaN, integers of any size and lone surrogates.
    try:
        return json.dumps(value, separators=(",", ":"), default=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{where}: cannot be written as JSON ({error})") from error


def _plain(value: object) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"value of type {type(value).__name__}")


def shard_of(path: Path, number: int, count: int) -> Path:
    """The file in which process ``number`` of ``count`` writes its part of ``path``; of one process ``path`` itself."""
    return path if count == 1 else path.with_name(f"{path.stem}.{number}-of-{count}.parquet")


def episode_files(folder: Path, pattern: str = "*") -> list[Path]:
    """The files of episodes in ``folder``, sorted; shards are named by the file that they are parts of.

    Args:
        folder: A run's folder of episodes.
        pattern: Pattern of the names without their suffix, e.g. ``"iteration-*"``.
    """
    files = set()
    for file in folder.glob(f"{pattern}.parquet"):
        shard = _SHARD.fullmatch(file.name)
        files.add(file.with_name(f"{shard[1]}.parquet") if shard else file)
    return sorted(files)


def read_table(path: Path, columns: Sequence[str] = tuple(SCHEMA.names)) -> pa.Table:
    """The rows of ``path``, or of its shards, by episode id.

    Args:
        path: The file.
        columns: Columns of :data:`SCHEMA` that are wanted; those of shards are ordered by ``episode_id`` among them.

    Raises:
        DataError: The file or a shard is missing, truncated, damaged, or not an episodes file of a version that is
            known.
    """
    path = Path(path)
    shards = [] if path.exists() else sorted(path.parent.glob(f"{path.stem}.*-of-*.parquet"))
    if not shards:
        return _read(path, columns)
    count = int(_SHARD.fullmatch(shards[0].name)[3])  # type: ignore[index]
    table = pa.concat_tables([_read(shard_of(path, number, count), columns) for number in range(count)])
    return table.take(pa.array(np.argsort(table["episode_id"].to_numpy(), kind="stable")))


def _read(path: Path | str, columns: Sequence[str], content: pa.BufferReader | None = None) -> pa.Table:
    """The rows of ``path``, or of ``content`` where that is given."""
    names, source = [name for name in SCHEMA.names if name in columns], path if content is None else content
    try:
        schema = pq.read_schema(source)
        version, table = (schema.metadata or {}).get(FORMAT), None
        if version == VERSION:
            table = pq.read_table(source, columns=names, page_checksum_verification=True)
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file") from error
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise DataError(f"{path}: truncated, damaged or not a Parquet file ({error})") from error
    if version is None:
        raise DataError(f"{path}: a Parquet file, but not one of episodes (columns: {', '.join(schema.names[:8])})")
    if table is None:
        name = version.decode(errors="replace")
        raise DataError(f"{path}: episodes format {name}, this version reads {VERSION.decode()}")
    if table.schema.names != names or table.schema.types != [SCHEMA.field(name).type for name in names]:
        raise DataError(f"{path}: damaged (the columns are others than an episodes file has)")
    return table


def read_episodes(path: Path) -> list[Episode]:
    """The episodes of ``path``, in the order and with the values in which they were written; of shards by episode id.

    Actions come back as tuples, and what is inside actions and infos as JSON has it (lists for tuples).

    Raises:
        DataError: As :func:`read_table`.
    """
    return _episodes(read_table(path), path)


def _episodes(table: pa.Table, path: Path | str) -> list[Episode]:
    heads: dict[int, dict[str, Any]] = {}
    steps: dict[int, list[Step]] = {}
    try:
        arrays = {name: _rows(table[name]) for name in _TOKENS}
        rows = table.select([name for name in (*_EPISODE, *_STEP, *_TEXTS) if name not in _TOKENS]).to_pylist()
        for number, row in enumerate(rows):
            heads.setdefault(row["episode_id"], {name: row[name] for name in _EPISODE})
            own = steps.setdefault(row["episode_id"], [])
            if row["t"] >= 0:
                own.append(step_of({**row, **{name: values[number] for name, values in arrays.items()}}))
        return [Episode(**head, steps=tuple(steps[i])) for i, head in heads.items()]
    except (KeyError, TypeError, ValueError, IndexError, pa.ArrowException) as error:
        raise DataError(f"{path}: damaged row ({type(error).__name__}: {error})") from error


def _rows(column: pa.ChunkedArray) -> list[NDArray[Any]]:
    """The lists of a column as arrays; empty where there is none."""
    lists = column.combine_chunks()
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    return np.split(lists.flatten().to_numpy(zero_copy_only=False), np.cumsum(lengths)[:-1])


def step_of(row: Mapping[str, Any]) -> Step:
    """Returns the step of a row with the columns of steps; without the prompt's text where it has tokens."""
    texts = ("response_text",) if len(row["prompt_ids"]) else _TEXTS  # text of prompts of tokens is for people
    values = {name: row[name] for name in (*_STEP, *texts)}
    values["action"] = parse_action(values["action"])
    values["info"] = json.loads(values["info"])
    values["images"] = tuple(from_png(image) for image in values["images"])
    return Step(**values)


def parse_action(text: str | None) -> Action | None:
    """The action that column ``action`` holds."""
    if text is None:
        return None
    return tuple(ToolCall(call["name"], call["arguments"]) for call in json.loads(text))
