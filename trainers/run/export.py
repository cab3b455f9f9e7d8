"""Models for others: a checkpoint's policy as transformers, peft and vLLM read it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import safetensors
import torch
from torch import nn
from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedModel
from transformers.utils import PROCESSOR_NAME

from envsuite.core.errors import DataError
from trainers.policy import adapter
from trainers.policy.loading import read, settings_of
from trainers.policy.source import IN_PACKAGE, ModelSource, base_of, find
from trainers.run.checkpoint import MANIFEST, newest, verify
from trainers.settings import ConfigError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_KEY = "the model of"  # in messages, before the checkpoint


def export(run: Path, output: Path, *, merged: bool, dtype: str | None = None) -> Path:
    """Writes the policy of a checkpoint to a folder, with its tokenizer.

    A run that trained an adapter gives the adapter as peft writes it, which names its base so that peft and
    transformers find it: by its folder, if it lies in an installed package. The base from a GGUF file, which they find
    under no name, is written to ``base`` in the folder, in float32. A run that trained the model gives the model.

    Args:
        run: Folder of a checkpoint, of a run, whose newest undamaged checkpoint is taken, or of an adapter or a model,
            as ``envsuite imitate`` writes it.
        output: Folder that is made; must be empty or not there.
        merged: Merge the adapter into its base, in float32, and write a whole model.
        dtype: Number format of a whole model's weights, one of :data:`DTYPES`; by default that of the files it was
            loaded from.

    Returns:
        The checkpoint.

    Raises:
        ConfigError: ``output`` holds files already, or ``dtype`` is given for an adapter.
        DataError: There is no checkpoint, it is damaged, or the adapter's base cannot be loaded.
    """
    checkpoint = _checkpoint(run)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigError(f"--output {output} holds files already; name another folder")
    whole = merged or not (checkpoint / adapter.CONFIG).is_file()
    if dtype is not None and not whole:
        raise ConfigError("--dtype is the format of a whole model, and this run trained an adapter; add --merged")
    output = output.resolve()
    partial = output.with_name(f".{output.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        if whole:
            _write_whole(checkpoint, partial, dtype)
        else:
            _write_adapter(checkpoint, partial, output)
        AutoTokenizer.from_pretrained(checkpoint).save_pretrained(partial)
        if (checkpoint / PROCESSOR_NAME).is_file():
            shutil.copyfile(checkpoint / PROCESSOR_NAME, partial / PROCESSOR_NAME)
        if output.exists():
            output.rmdir()
        os.replace(partial, output)
    except (OSError, safetensors.SafetensorError) as error:
        raise DataError(f"--output {output}: cannot be written ({error})") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return checkpoint


def _checkpoint(run: Path) -> Path:
    if (run / MANIFEST).is_file():
        verify(run)
        return run
    if (run / adapter.CONFIG).is_file() or (run / "config.json").is_file():
        return run
    root = run / "checkpoints"
    if (checkpoint := newest(root)) is None:
        raise DataError(f"{run}: neither a checkpoint, an adapter or a model, nor a run with a whole one in {root}")
    return checkpoint


def _write_adapter(checkpoint: Path, folder: Path, output: Path) -> None:
    """Writes the adapter to ``folder``, which will be ``output``, and its base where others cannot name it."""
    for name in (adapter.CONFIG, adapter.WEIGHTS):
        shutil.copyfile(checkpoint / name, folder / name)
    base = base_of(checkpoint, _KEY)
    if not (base.startswith(IN_PACKAGE) or base.endswith(".gguf")):
        return
    source = find(str(checkpoint), _KEY)
    place = source.folder
    if source.gguf is not None:
        _read_base(source, checkpoint)[0].save_pretrained(folder / "base")
        place = output / "base"
    fields = {**json.loads((folder / adapter.CONFIG).read_bytes()), "base_model_name_or_path": str(place)}
    (folder / adapter.CONFIG).write_text(json.dumps(fields, indent=2, sort_keys=True), encoding="utf-8")


def _write_whole(checkpoint: Path, folder: Path, dtype: str | None) -> None:
    source = find(str(checkpoint), _KEY)
    model, settings = _read_base(source, checkpoint)
    if source.adapter is not None:
        model = adapter.merge_adapter(model, source.adapter)
    own = settings.dtype if isinstance(settings.dtype, torch.dtype) else torch.float32
    nn.Module.to(model, own if dtype is None else DTYPES[dtype])
    model.save_pretrained(folder)


def _read_base(source: ModelSource, checkpoint: Path) -> tuple[PreTrainedModel, PreTrainedConfig]:
    """Returns the model below the adapter, in float32, and its configuration in the files."""
    settings = settings_of(source, _KEY, str(checkpoint), (checkpoint / PROCESSOR_NAME).is_file())
    return read(source, settings, _KEY, str(checkpoint), dtype=torch.float32), settings
