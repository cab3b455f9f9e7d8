"""Reads from a checkpoint of a run how it was made: optimiser steps, settings, files of the tokenizer."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from envsuite.core.errors import DataError
from envsuite.data.files import file_errors
from trainers.rollout.config import PromptConfig
from trainers.rollout.environments import prompt_file_of
from trainers.run.checkpoint import MANIFEST, STATE, CheckpointError, fingerprint_of
from trainers.settings.shipped import located

_TOKENIZER = "tokenizer"
_WEIGHTS = ("*.safetensors", "*.gguf")


@dataclass(frozen=True)
class RunOrigin:
    """Where the weights of a checkpoint come from."""

    policy_version: int
    """Number of optimiser steps that the weights had seen."""
    fingerprint: str
    """First digits of the SHA-256 over all of its files."""
    prompt: Mapping[str, Any]
    """The prompts' settings that it was trained with."""


def origin_of(path: str) -> RunOrigin | None:
    """Returns what a checkpoint says of itself; ``None`` where ``path`` is none.

    Raises:
        CheckpointError: Its files of the tokenizer are not those that it was saved with.
    """
    folder = Path(path)
    if not (folder / MANIFEST).is_file() or not (folder / STATE).is_file():
        return None
    try:
        manifest = (folder / MANIFEST).read_bytes()
        files = orjson.loads(manifest)["files"]
        state = orjson.loads((folder / STATE).read_bytes())
        for name, entry in files.items():
            if name.startswith(_TOKENIZER) and fingerprint_of(folder / name) != entry:
                raise CheckpointError(
                    f"{folder / name}: not the tokenizer that the checkpoint was saved with; its answers would be "
                    "those of other tokens. Copy the run's own tokenizer back"
                )
        fingerprint = hashlib.sha256(manifest).hexdigest()[:16]
        return RunOrigin(int(state["parts"]["updater"]["steps"]), fingerprint, dict(state["config"]["prompt"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, DataError):
            raise
        raise CheckpointError(f"{folder}: the checkpoint is damaged ({type(error).__name__}: {error})") from error


def prompt_settings(prompt: PromptConfig) -> dict[str, Any]:
    """Returns the settings of prompts as checkpoints have them: plain JSON, a prompt file by the hash of its text.

    Raises:
        EnvsuiteError: The prompt file cannot be used.
    """
    settings: dict[str, Any] = orjson.loads(orjson.dumps(asdict(prompt)))
    if (file := prompt_file_of(prompt)) is not None:
        settings["template"] = f"a file with SHA-256 {hashlib.sha256(file.source.encode()).hexdigest()}"
    return settings


def weights_of(path: str) -> str | None:
    """Returns the first digits of the SHA-256 over the files of a model's weights; ``None`` where ``path`` names none.

    A model that is trained again in the same folder has others, though its name is the same. One that is named on a
    hub or in a package has none here: its name says which it is.

    Raises:
        DataError: A file cannot be read.
    """
    place = located(path)
    files = sorted(file for kind in _WEIGHTS for file in place.glob(kind)) if place.is_dir() else [place]
    with file_errors(place):
        digests = [(file.name, fingerprint_of(file)["sha256"]) for file in files if file.is_file()]
    return hashlib.sha256(orjson.dumps(digests)).hexdigest()[:16] if digests else None


def differing(origin: RunOrigin, prompt: PromptConfig) -> str | None:
    """Says in which settings prompts differ from those that a checkpoint was trained with; ``None``: in none."""
    now = prompt_settings(prompt)
    names = [name for name in sorted(now) if name in origin.prompt and origin.prompt[name] != now[name]]
    return "; ".join(f"prompt.{name} was {origin.prompt[name]!r} and is {now[name]!r}" for name in names) or None
