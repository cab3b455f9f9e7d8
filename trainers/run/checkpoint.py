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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import orjson
import safetensors
from accelerate import Accelerator
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from envsuite.core.errors import DataError
from envsuite.data.files import flush_to_disk
from envsuite.playing.activity import ACTIVITY
from trainers.policy.adapter import WEIGHTS, is_adapted, save_adapter, saved_weights, set_adapter_tensors
from trainers.policy.sharding import assign, is_sharded, kept_whole
from trainers.policy.stateful import Stateful, StateMismatch
from trainers.policy.vision import save_tokenizer
from trainers.policy.weight_files import SUFFIX, WeightFiles
from trainers.processes.distributed import PeerFailed, all_gather_object, sharing_failures
from trainers.run.tensors import with_tensors, without_tensors, write_tensors

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


def iteration_of(folder: Path) -> int:
    """Returns the iteration of a checkpoint's folder; 0 of one with another name."""
    number = folder.name.removeprefix("iteration-")
    return int(number) if number.isdecimal() else 0


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
    partial = folder.with_name(f".{folder.name}.partial")
    try:  # under another name; the folder gets its own when all files are on the disk
        with ACTIVITY.waiting(f"the files of {folder}"):
            with sharing_failures(accelerator), _explain_errors(folder):
                if accelerator.is_main_process:
                    shutil.rmtree(partial, ignore_errors=True)
                    partial.mkdir(parents=True)
            with _explain_errors(folder):
                _write_model(partial, accelerator, model)
                values: dict[str, Any] = {}
                for name, state in states.items():
                    tensors: dict[str, Tensor] = {}
                    values[name] = without_tensors(state, "", tensors)
                    write_tensors(partial, name, tensors, accelerator)
            with sharing_failures(accelerator), _explain_errors(folder):
                if accelerator.is_main_process:
                    save_tokenizer(tokenizer, partial)
                    body = {"format": FORMAT, **facts, "parts": values}
                    text = orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_INDENT_2)
                    (partial / STATE).write_bytes(text)
            listing = _flush_files(partial, accelerator, folder)
            with sharing_failures(accelerator), _explain_errors(folder):
                if accelerator.is_main_process:
                    _finish(partial, folder, listing)
    except (CheckpointError, PeerFailed):
        if accelerator.is_main_process:
            shutil.rmtree(partial, ignore_errors=True)
            put_back(folder.parent)
        raise


@contextmanager
def _explain_errors(folder: Path) -> Iterator[None]:
    """Errors of writing as one that says what became of the checkpoint."""
    try:
        yield
    except (OSError, safetensors.SafetensorError) as error:
        raise CheckpointError(
            f"{folder}: the checkpoint could not be written ({error}). Older checkpoints are untouched; make room "
            f"and run again with --resume"
        ) from error


def _write_model(folder: Path, accelerator: Accelerator, model: PreTrainedModel) -> None:
    """Writes the policy, as transformers or peft reads it; every process must call this."""
    main = accelerator.is_main_process
    if is_adapted(model):
        weights = kept_whole(saved_weights(model), main) if is_sharded(model) else None
        with sharing_failures(accelerator):
            if main:
                save_adapter(model, folder, weights)
    elif is_sharded(model):
        write_tensors(folder, "model", dict(saved_weights(model)), accelerator)
        with sharing_failures(accelerator):
            if main:
                settings = deepcopy(model.config)
                settings.architectures, settings.dtype = [type(model).__name__], model.dtype
                settings.save_pretrained(folder)
                if model.generation_config is not None:
                    model.generation_config.save_pretrained(folder)
    else:
        with sharing_failures(accelerator):
            if main:
                model.save_pretrained(folder, max_shard_size="100TB")  # one file, whatever its size


def _flush_files(partial: Path, accelerator: Accelerator, folder: Path) -> dict[str, Any]:
    """Size and SHA-256 of every file of ``partial``, once they are on the disk; each process looks at its share."""
    files = sorted(partial.iterdir())[accelerator.process_index :: accelerator.num_processes]
    own: dict[str, Any] = {}
    with sharing_failures(accelerator), _explain_errors(folder):
        for file in files:
            flush_to_disk(file)
            own[file.name] = fingerprint_of(file)
    return dict(sorted(entry for part in all_gather_object(accelerator, own) for entry in part.items()))


def _finish(partial: Path, folder: Path, listing: Mapping[str, Any]) -> None:
    """Writes the manifest, and gives the checkpoint its name."""
    manifest = partial / MANIFEST
    manifest.write_bytes(orjson.dumps({"format": FORMAT, "files": listing}, option=orjson.OPT_INDENT_2))
    flush_to_disk(manifest)
    aside = folder.with_name(f".{folder.name}.old")
    if os.path.lexists(folder):
        _remove(aside)  # of a write that was interrupted after its last rename
        os.replace(folder, aside)
    os.replace(partial, folder)
    _remove(aside)


def _remove(folder: Path) -> None:
    """Removes a checkpoint if it is there; of a link, what it leads to stays."""
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder, ignore_errors=True)


def verify(folder: Path, turn: int = 0, of: int = 1) -> dict[str, Any]:
    """The state of a checkpoint, after its files were compared with the manifest.

    Args:
        folder: The checkpoint.
        turn: Which share of the files is compared ...
        of: ... of so many.

    Raises:
        CheckpointError: A file is missing, truncated or altered, or the folder is no checkpoint; names the file.
    """
    manifest = _json(folder / MANIFEST, f"{folder} is not a checkpoint of this trainer")
    if manifest.get("format") != FORMAT or not isinstance(manifest.get("files"), dict):
        raise CheckpointError(f"{folder / MANIFEST}: format {manifest.get('format')!r}, expected {FORMAT!r}")
    for name, entry in [*manifest["files"].items()][turn::of]:
        file = folder / name
        if not file.is_file():
            raise CheckpointError(f"{file}: missing; the checkpoint is damaged")
        if (fingerprint := fingerprint_of(file)) != entry:
            raise CheckpointError(
                f"{file}: damaged ({fingerprint['bytes']} bytes, {entry['bytes']} expected"
                f"{'' if fingerprint['bytes'] != entry['bytes'] else ', other content'})"
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


def newest(root: Path, since: float = 0.0) -> Path | None:
    """The newest undamaged checkpoint below ``root``; damaged ones are named in a warning and passed over.

    Args:
        root: Folder of the run's checkpoints.
        since: Those that were written before are passed over, too (seconds since 1970).
    """
    put_back(root)
    for folder in sorted(root.glob("iteration-*"), reverse=True):
        if since and (folder / MANIFEST).exists() and (folder / MANIFEST).stat().st_mtime < since:
            continue
        try:
            verify(folder)
        except CheckpointError as error:
            _LOG.warning("%s; trying the checkpoint before it", error)
            continue
        return folder
    return None


def choose_checkpoint(root: Path, resume: str) -> Path:
    """The checkpoint to resume from.

    Args:
        root: Folder of the run's checkpoints.
        resume: ``"auto"`` for the newest one that is whole, or a folder.

    Raises:
        CheckpointError: There is none; says what to type.
    """
    folder = newest(root) if resume == "auto" else Path(resume)
    if folder is None and any(root.glob("iteration-*")):
        raise CheckpointError(all_damaged(root))
    if folder is None:
        raise CheckpointError(f"{root}: no checkpoint to resume from; start the run without --resume")
    return folder


def engine_in(folder: Path) -> tuple[str, dict[str, Any]]:
    """Name and options of the engine that a checkpoint was written with.

    Raises:
        CheckpointError: The checkpoint cannot be read.
    """
    rollout = _json(folder / STATE, f"{folder}: damaged")["config"]["rollout"]
    return rollout["engine"], rollout["engine_options"]


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
) -> str:
    """Restore the weights of the policy and every part from ``folder``; every process must call this.

    Args:
        folder: A checkpoint.
        accelerator: The run's accelerator.
        model: The policy; its weights are replaced.
        parts: Other parts to restore, by name.
        config: The settings of this run, which must agree with the checkpoint's.

    Returns:
        Those of :data:`ROUNDING` that differ, before and now; empty where none does.

    Raises:
        CheckpointError: Damaged, foreign, or of a run with other settings, another model or other parts.
        PeerFailed: Another process raised the error.
    """
    with sharing_failures(accelerator):
        state = verify(folder, accelerator.process_index, accelerator.num_processes)
    with sharing_failures(accelerator):
        changes = "; ".join(_compare(state["config"], config, folder))
        for name in sorted({*parts, *state["parts"]}):
            if name not in state["parts"]:
                raise CheckpointError(f"{folder}: has no {name}; it was written by a run without one")
            if name not in parts:
                raise CheckpointError(f"{folder}: has a {name}; this run is without one")
        _load_model(folder, model)
        for name, part in parts.items():
            try:
                tensors = WeightFiles(folder, name).map_tensors() if [*folder.glob(f"{name}.safetensors*")] else {}
                part.load(with_tensors(state["parts"][name], tensors))
            except (StateMismatch, KeyError, TypeError, ValueError) as error:
                raise CheckpointError(f"{folder}: the {name} does not fit: {error}") from error
    return changes


def _load_model(folder: Path, model: PreTrainedModel) -> None:
    stem = (WEIGHTS if is_adapted(model) else MODEL).removesuffix(SUFFIX)
    try:
        tensors = WeightFiles(folder, stem).map_tensors()
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{folder}: {stem}{SUFFIX} cannot be read ({error})") from error
    if is_adapted(model):
        try:
            set_adapter_tensors(model, tensors)
        except StateMismatch as error:
            raise CheckpointError(f"{folder}: the adapter does not fit: {error}") from error
        return
    own = model.state_dict()
    for name, tensor in tensors.items():
        if name not in own or own[name].shape != tensor.shape:
            has = tuple(own[name].shape) if name in own else "no such tensor"
            raise CheckpointError(f"{folder}: {name} has shape {tuple(tensor.shape)}, the model of the config {has}")
    ids = {name: id(parameter) for name, parameter in model.named_parameters(remove_duplicate=False)}
    present = {ids.get(name) for name in tensors}  # tied weights are saved once
    for name in own:
        if name not in tensors and (name not in ids or ids[name] not in present):
            raise CheckpointError(f"{folder}: has no {name}, which the model of the config has")
    for name, tensor in tensors.items():
        assign(own[name], tensor)


def prune(root: Path, keep: int, best: Path | None = None) -> None:
    """Remove all but the newest ``keep`` checkpoints, and ``best``, and what interrupted writes left."""
    for folder in sorted(root.glob("iteration-*"))[:-keep]:
        if folder != best:
            _remove(folder)
    for folder in (*root.glob(".iteration-*.partial"), *root.glob(".iteration-*.old")):
        _remove(folder)


FREE = (
    *("name", "output", "iterations", "evaluation", "checkpoint_every", "keep_checkpoints", "alarms"),
    *("episodes_every", "report", "process_timeout", "tracking", "rollout.slots", "rollout.workers"),
    *("rollout.deadline", "rollout.attempts", "rollout.staleness"),
    *("rollout.ray", "envs[].url", "model.shard"),
)
"""Settings that may differ between a checkpoint and the run that goes on from it."""
ROUNDING = re.compile(
    r"optim\.tokens_per_microbatch|model\.(gradient_checkpointing|attention|rows)|method\.reference|rollout\.engine"
    r"|rollout\.engine_options\.(?!max_length$)[^.]+"
)
"""Settings that say where and in what portions is computed, and change results by rounding alone: they may differ."""


def _compare(old: Any, new: Any, folder: Path, path: str = "") -> Iterator[str]:
    """Returns what differs of :data:`ROUNDING`.

    Raises:
        CheckpointError: A setting differs that must not.
    """
    if re.sub(r"\[[0-9]+\]", "[]", path) in FREE:
        return
    if ROUNDING.fullmatch(path):
        if old != new:
            yield f"{path} was {old!r} and is {new!r}"
    elif isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted({*old, *new}):
            yield from _compare(old.get(key), new.get(key), folder, f"{path}.{key}" if path else key)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from _compare(before, after, folder, f"{path}[{index}]")
    elif old != new:
        raise CheckpointError(
            f"{folder}: was written with {path} = {old!r}, this run has {new!r}; "
            f"set it back, or start a new run under another --name"
        )


def _json(path: Path, otherwise: str) -> dict[str, Any]:
    try:
        body = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise CheckpointError(f"{otherwise}: {path.name} cannot be read ({error})") from error
    if not isinstance(body, dict):
        raise CheckpointError(f"{otherwise}: {path.name} is not an object")
    return body


def fingerprint_of(file: Path) -> dict[str, Any]:
    """Size and SHA-256 of a file, as the manifest of a checkpoint has them."""
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return {"bytes": file.stat().st_size, "sha256": digest}
