"""Checkpoints: everything that a run's future depends on, in files that hold no code.

A checkpoint is a folder: the policy as ``save_pretrained`` writes it, or the adapter that is trained as peft does, so
that anything can load it; ``state.json`` with what each part of the run keeps; the tensors of each in
``<part>.safetensors``; and ``manifest.json`` with size and SHA-256 of every other file. It is written under another
name, checked, and renamed into place, so that a folder of that name is always whole.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import safetensors
import torch
from accelerate import Accelerator
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from envsuite.core.errors import DataError
from trainers.activity import ACTIVITY
from trainers.distributed import every, on_main, sharing_failures
from trainers.policy.adapter import WEIGHTS, is_adapted, save_adapter, saved_weights, set_adapter_tensors
from trainers.policy.sharding import assign, is_sharded, kept_whole
from trainers.stateful import Mismatch, Stateful

_LOG = logging.getLogger(__name__)
FORMAT = "trainers-checkpoint/3"
MANIFEST = "manifest.json"
STATE = "state.json"
MODEL = "model.safetensors"
_KEYS = {"iteration", "config", "parts"}


class CheckpointError(DataError):
    """A checkpoint that is missing, damaged, foreign, or of another run; the message names the file or the setting."""


def folder_of(root: Path, iteration: int) -> Path:
    """Returns the folder of an iteration's checkpoint."""
    return root / f"iteration-{iteration:05d}"


def save(
    folder: Path,
    accelerator: Accelerator,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    parts: Mapping[str, Stateful],
    facts: Mapping[str, Any],
) -> None:
    """Write a checkpoint; on failure nothing of it remains and older ones are untouched. Every process must call this.

    Args:
        folder: Destination; replaced if it exists.
        accelerator: The run's accelerator.
        model: The policy.
        tokenizer: Saved beside the model, so that the folder can be loaded by itself.
        parts: Other state of the run, by name.
        facts: Number of the iteration (``iteration``) and settings of the run (``config``).

    Raises:
        CheckpointError: It could not be written (disk full, no permission).
        PeerFailed: The first process could not write it.
    """
    states = {name: part.state() for name, part in parts.items()}
    weights = kept_whole(saved_weights(model), accelerator.is_main_process) if is_sharded(model) else None

    def write() -> None:
        try:
            with ACTIVITY.waiting(f"the files of {folder}"):
                _write(folder, model, weights, tokenizer, states, facts)
        except (OSError, safetensors.SafetensorError) as error:
            shutil.rmtree(_partial(folder), ignore_errors=True)
            put_back(folder.parent)
            raise CheckpointError(
                f"{folder}: the checkpoint could not be written ({error}). Older checkpoints are untouched; make room "
                f"and run again with --resume"
            ) from error

    on_main(accelerator, write)


def _write(
    folder: Path,
    model: PreTrainedModel,
    weights: Mapping[str, Tensor] | None,
    tokenizer: PreTrainedTokenizerBase,
    states: Mapping[str, Mapping[str, Any]],
    facts: Mapping[str, Any],
) -> None:
    partial = _partial(folder)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    if is_adapted(model):
        save_adapter(model, partial, weights)
    else:
        found = None if weights is None else dict(weights)
        model.save_pretrained(partial, state_dict=found, max_shard_size="100TB")  # one file, whatever its size
    tokenizer.save_pretrained(partial)
    values: dict[str, Any] = {}
    for name, state in states.items():
        tensors: dict[str, Tensor] = {}
        values[name] = _without_tensors(state, "", tensors)
        if tensors:
            save_file(tensors, partial / f"{name}.safetensors")
    body = {"format": FORMAT, **facts, "parts": values}
    (partial / STATE).write_bytes(orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_INDENT_2))
    listing = {file.name: _fingerprint(file) for file in sorted(partial.iterdir())}
    (partial / MANIFEST).write_bytes(orjson.dumps({"format": FORMAT, "files": listing}, option=orjson.OPT_INDENT_2))
    for file in partial.iterdir():
        _flush(file)
    aside = folder.with_name(f".{folder.name}.old")
    if folder.exists():
        shutil.rmtree(aside, ignore_errors=True)  # of a write that was interrupted after its last rename
        os.replace(folder, aside)
    os.replace(partial, folder)
    shutil.rmtree(aside, ignore_errors=True)


def _partial(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.partial")


def verify(folder: Path) -> dict[str, Any]:
    """The state of a checkpoint, after every file was compared with the manifest.

    Raises:
        CheckpointError: A file is missing, truncated or altered, or the folder is no checkpoint; names the file.
    """
    manifest = _json(folder / MANIFEST, f"{folder} is not a checkpoint of this trainer")
    if manifest.get("format") != FORMAT or not isinstance(manifest.get("files"), dict):
        raise CheckpointError(f"{folder / MANIFEST}: format {manifest.get('format')!r}, expected {FORMAT!r}")
    for name, expected in manifest["files"].items():
        file = folder / name
        if not file.is_file():
            raise CheckpointError(f"{file}: missing; the checkpoint is damaged")
        if (found := _fingerprint(file)) != expected:
            raise CheckpointError(
                f"{file}: damaged ({found['bytes']} bytes, {expected['bytes']} expected"
                f"{'' if found['bytes'] != expected['bytes'] else ', other content'})"
            )
    state = _json(folder / STATE, f"{folder}: damaged")
    if missing := sorted(_KEYS - state.keys()):
        raise CheckpointError(f"{folder / STATE}: has no {missing[0]!r}; not written by this trainer")
    return state


def put_back(root: Path) -> None:
    """Give a checkpoint its name again that an interrupted write had put aside to replace it."""
    for aside in root.glob(".iteration-*.old"):
        folder = root / aside.name.removeprefix(".").removesuffix(".old")
        if not folder.exists():
            os.replace(aside, folder)


def newest(root: Path) -> Path | None:
    """The newest undamaged checkpoint below ``root``; damaged ones are named in a warning and passed over."""
    put_back(root)
    for folder in sorted(root.glob("iteration-*"), reverse=True):
        try:
            verify(folder)
        except CheckpointError as error:
            _LOG.warning("%s; trying the checkpoint before it", error)
            continue
        return folder
    return None


def chosen(root: Path, resume: str) -> Path:
    """The checkpoint to resume from.

    Args:
        root: Folder of the run's checkpoints.
        resume: ``"auto"`` for the newest one that is whole, or a folder.

    Raises:
        CheckpointError: There is none; says what to type.
    """
    found = newest(root) if resume == "auto" else Path(resume)
    if found is None and any(root.glob("iteration-*")):
        raise CheckpointError(all_damaged(root))
    if found is None:
        raise CheckpointError(f"{root}: no checkpoint to resume from; start the run without --resume")
    return found


def all_damaged(root: Path) -> str:
    """Returns the error message for a run with only damaged checkpoints, with the remedy."""
    names = ", ".join(sorted(path.name for path in root.glob("iteration-*")))
    return (
        f"{root}: every checkpoint is damaged ({names}), so that nothing can be resumed; start a new run under another "
        f"--name, or remove {root} to start this one again"
    )


def load(
    folder: Path,
    accelerator: Accelerator,
    model: PreTrainedModel,
    parts: Mapping[str, Stateful],
    config: Mapping[str, Any],
) -> None:
    """Restore the weights of the policy and every part from ``folder``; every process must call this.

    Args:
        folder: A checkpoint.
        accelerator: The run's accelerator.
        model: The policy; its weights are replaced.
        parts: Other parts to restore, by name.
        config: The settings of this run, which must agree with the checkpoint's.

    Raises:
        CheckpointError: Damaged, foreign, or of a run with other settings, another model or other parts.
        PeerFailed: Another process raised the error.
    """
    with sharing_failures(accelerator):
        state = verify(folder)
        _compare(state["config"], config, folder)
        for name in sorted({*parts, *state["parts"]}):
            if name not in state["parts"]:
                raise CheckpointError(f"{folder}: has no {name}; it was written by a run without one")
            if name not in parts:
                raise CheckpointError(f"{folder}: has a {name}; this run is without one")
        _load_model(folder, model)
        for name, part in parts.items():
            file = folder / f"{name}.safetensors"
            tensors = load_file(file) if file.is_file() else {}
            try:
                part.load(_with_tensors(state["parts"][name], tensors))
            except (Mismatch, KeyError, TypeError, ValueError) as error:
                raise CheckpointError(f"{folder}: the {name} does not fit: {error}") from error


def _without_tensors(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """``value`` with names in place of its tensors and arrays, which are entered into ``tensors``."""
    if isinstance(value, Mapping):
        return {str(key): _without_tensors(item, f"{path}{key}/", tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_tensors(item, f"{path}{index}/", tensors) for index, item in enumerate(value)]
    if isinstance(value, Tensor):
        tensors[path[:-1]] = value.detach().cpu().contiguous().clone()
        return {_TENSOR: path[:-1]}
    if isinstance(value, np.ndarray):
        tensors[path[:-1]] = torch.from_numpy(np.ascontiguousarray(value))
        return {_ARRAY: path[:-1]}
    return value


_TENSOR, _ARRAY = "<tensor>", "<array>"


def _with_tensors(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_with_tensors(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {_TENSOR}:
        return tensors[value[_TENSOR]]
    if value.keys() == {_ARRAY}:
        return tensors[value[_ARRAY]].numpy()
    return {key: _with_tensors(item, tensors) for key, item in value.items()}


def _load_model(folder: Path, model: PreTrainedModel) -> None:
    file = folder / (WEIGHTS if is_adapted(model) else MODEL)
    try:
        tensors = load_file(file)
    except (OSError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{file}: cannot be read ({error})") from error
    if is_adapted(model):
        try:
            set_adapter_tensors(model, tensors)
        except Mismatch as error:
            raise CheckpointError(f"{folder}: the adapter does not fit: {error}") from error
        return
    own = model.state_dict()
    for name, tensor in tensors.items():
        if name not in own or own[name].shape != tensor.shape:
            has = tuple(own[name].shape) if name in own else "no such tensor"
            raise CheckpointError(f"{folder}: {name} has shape {tuple(tensor.shape)}, the model of the config {has}")
    one = {name: id(parameter) for name, parameter in model.named_parameters(remove_duplicate=False)}
    present = {one.get(name) for name in tensors}  # tied weights are saved once
    for name in own:
        if name not in tensors and (name not in one or one[name] not in present):
            raise CheckpointError(f"{folder}: has no {name}, which the model of the config has")
    for name, tensor in tensors.items():
        assign(own[name], tensor)


def prune(root: Path, keep: int) -> None:
    """Remove all but the newest ``keep`` checkpoints, and what interrupted writes left."""
    for folder in sorted(root.glob("iteration-*"))[:-keep]:
        shutil.rmtree(folder)
    for folder in (*root.glob(".iteration-*.partial"), *root.glob(".iteration-*.old")):
        shutil.rmtree(folder)


FREE = (
    *("name", "output", "iterations", "time_limit", "evaluation", "checkpoint_every", "keep_checkpoints"),
    *("episodes_every", "process_timeout", "wait_notice", "tracking", "rollout.slots", "rollout.workers"),
    *("rollout.deadline", "envs[].url", "model.shard"),
)
"""Settings that may differ between a checkpoint and the run that goes on from it."""


def _compare(old: Any, new: Any, folder: Path, path: str = "") -> None:
    if re.sub(r"\[[0-9]+\]", "[]", path) in FREE:
        return
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted({*old, *new}):
            _compare(old.get(key), new.get(key), folder, f"{path}.{key}" if path else key)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            _compare(before, after, folder, f"{path}[{index}]")
    elif old != new:
        raise CheckpointError(
            f"{folder}: was written with {path} = {old!r}, this run has {new!r}; "
            f"set it back, or start a new run under another --name"
        )


class RandomState:
    """The states of the random generators of every process.

    Args:
        accelerator: The run's accelerator.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator

    def state(self) -> dict[str, Any]:
        """Returns the states of each process, in their order."""
        return {"ranks": every(self.accelerator, random_state())}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restores the state of this process, if the checkpoint has one for its rank."""
        if self.accelerator.process_index < len(state["ranks"]):
            _restore_random(state["ranks"][self.accelerator.process_index])


def random_state() -> dict[str, Any]:
    """Returns the states of this process's random generators as JSON values."""
    name, keys, position, has_gauss, cached = np.random.get_state()
    return {
        "torch": _hex(torch.get_rng_state()),
        "cuda": [_hex(state) for state in torch.cuda.get_rng_state_all()] if torch.cuda.is_available() else [],
        "numpy": {"name": name, "keys": np.asarray(keys).tolist(), "position": position, "gauss": [has_gauss, cached]},
    }


def _restore_random(state: Mapping[str, Any]) -> None:
    torch.set_rng_state(_bytes(state["torch"]))
    if state["cuda"] and torch.cuda.device_count() == len(state["cuda"]):
        torch.cuda.set_rng_state_all([_bytes(words) for words in state["cuda"]])
    numpy = state["numpy"]
    np.random.set_state((numpy["name"], np.array(numpy["keys"], np.uint32), numpy["position"], *numpy["gauss"]))


def _hex(state: Tensor) -> str:
    return state.numpy().tobytes().hex()


def _bytes(words: str) -> Tensor:
    return torch.from_numpy(np.frombuffer(bytes.fromhex(words), np.uint8).copy())


def _json(path: Path, otherwise: str) -> dict[str, Any]:
    try:
        body = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise CheckpointError(f"{otherwise}: {path.name} cannot be read ({error})") from error
    if not isinstance(body, dict):
        raise CheckpointError(f"{otherwise}: {path.name} is not an object")
    return body


def _fingerprint(file: Path) -> dict[str, Any]:
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return {"bytes": file.stat().st_size, "sha256": digest}


def _flush(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
