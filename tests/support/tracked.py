"""What TensorBoard, W&B and trackio hold of a run, read from their own files."""

from __future__ import annotations

import struct
import time
from collections import Counter
from pathlib import Path
from typing import Any

import orjson

Scalars = Counter[tuple[str, int, float]]
"""Name, iteration, value: how often each is there."""


def tensorboard(run: Path) -> tuple[Scalars, dict[str, str]]:
    """Scalars and texts of the event files, as TensorBoard itself reads them."""
    from tensorboard.backend.event_processing.event_accumulator import TENSORS, EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0, TENSORS: 0}).Reload()
    tags = events.Tags()
    scalars = Counter(
        (tag, event.step, event.value) for tag in tags["scalars"] for event in events.Scalars(tag)
    )  # fmt: skip
    texts = {
        tag.removesuffix("/text_summary"): event.tensor_proto.string_val[0].decode()
        for tag in tags["tensors"]
        for event in events.Tensors(tag)
    }
    return scalars, texts


def wandb(run: Path) -> tuple[Scalars, list[dict[str, Any]], set[str]]:
    """Scalars, configurations, and ids of the runs of all offline files, which ``wandb sync`` would send."""
    scalars: Scalars = Counter()
    configs, ids = [], set()
    steps: list[int] = []
    files = sorted((run / "wandb").glob("offline-run-*/*.wandb"))
    for file in files:
        for record in _ended(file) if file == files[-1] else _records(file.read_bytes()):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                ids.add(record.run.run_id)
                if record.run.config.update:
                    configs.append({item.key: orjson.loads(item.value_json) for item in record.run.config.update})
            if kind == "history":
                row = {".".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
                steps.append(record.history.step.num)
                iteration = int(orjson.loads(row.pop("iteration")))
                for name, value in row.items():
                    if name[0] != "_" and not name.startswith("episodes"):
                        scalars[name, iteration, float(value)] += 1
    assert len(steps) == len(set(steps)), f"a step is there twice: {steps}"
    return scalars, configs, ids


def _ended(file: Path) -> list[Any]:
    """The records of a run that has finished; W&B's own process may write for a moment after that."""
    end = time.monotonic() + 30.0
    while (records := _records(file.read_bytes())) or time.monotonic() < end:
        if any(record.WhichOneof("record_type") == "exit" for record in records):
            return records
        assert time.monotonic() < end, f"{file} has no end"
        time.sleep(0.1)
    raise AssertionError(f"{file} is empty")


def _records(content: bytes) -> list[Any]:
    """The records of a .wandb file: LevelDB's log format after a header of seven bytes, each a protocol buffer."""
    from wandb.proto.wandb_internal_pb2 import Record

    block, found, whole, at = 32768, [], b"", 7
    while at + 7 <= len(content):
        if block - at % block < 7:  # no room for a header
            at += block - at % block
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + 7])
        if at + 7 + length > len(content):  # still being written
            break
        whole += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # full, or the last part
            record = Record()
            record.ParseFromString(whole)
            found.append(record)
        if kind in (0, 1, 4):
            whole = b""
        if kind == 0:
            break
    return found


def trackio(project: str, run: str) -> tuple[Scalars, dict[str, str], dict[str, Any]]:
    """Scalars, texts and configuration from the local database."""
    from trackio.sqlite_storage import SQLiteStorage

    [name] = [name for name in SQLiteStorage.get_runs(project) if name.startswith(f"{run}-")]
    scalars: Scalars = Counter()
    texts = {}
    for row in SQLiteStorage.get_logs(project, name):
        step = row["step"]
        for key, value in row.items():
            if isinstance(value, dict):
                texts[key] = value["_value"]
            elif key not in ("timestamp", "step"):
                scalars[key, step, float(value)] += 1
    config = SQLiteStorage.get_run_config(project, name)
    assert config is not None
    return scalars, texts, config
