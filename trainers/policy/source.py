"""Where a model lies: a folder, a GGUF file, an installed package, the Hugging Face hub, or an adapter's base."""

from __future__ import annotations

import errno
import importlib.util
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2
from huggingface_hub import constants, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

from envsuite.core.errors import DataError
from trainers.policy.adapter import CONFIG, WEIGHTS
from trainers.settings.shipped import located

IN_PACKAGE = "package:"
"""Prefix of a name that says: the model lies in an installed package."""
_INDEX, _TOKENIZER = "model.safetensors.index.json", "tokenizer_config.json"
_WANTED = ["*.json", "*.jinja", "*.safetensors", "*.txt", "*.model"]
_CONFIGS = ["config.json", CONFIG]
_UNWANTED = ["*/*", "consolidated*.safetensors"]  # copies of the weights in other formats


@dataclass(frozen=True)
class ModelSource:
    """Where a model lies on this machine."""

    folder: Path
    """Folder of configuration and weights."""
    name: str
    """The model's name for others: on the hub, in an installed package, or an absolute path."""
    revision: str | None = None
    """Commit of the hub's repository."""
    gguf: str | None = None
    """Name of the GGUF file in the folder that holds configuration, weights and tokenizer."""
    adapter: Path | None = None
    """Folder of an adapter to this model."""

    @property
    def load(self) -> dict[str, Any]:
        """Arguments of transformers' ``from_pretrained`` for configuration and weights."""
        return {"pretrained_model_name_or_path": self.folder, **({} if self.gguf is None else {"gguf_file": self.gguf})}

    @property
    def tokenizer(self) -> dict[str, Any]:
        """Those for the tokenizer: the adapter's, where it has one."""
        if self.adapter is not None and (self.adapter / _TOKENIZER).is_file():
            return {"pretrained_model_name_or_path": self.adapter}
        return self.load


def find(name: str, key: str, *, tokenizer: bool = True, weights: bool = True) -> ModelSource:
    """Finds the model ``name``, and downloads it from the hub unless it is here.

    Args:
        name: Value of the setting ``key``.
        key: The setting, for messages.
        tokenizer: Whether the model must have one.
        weights: Whether its weights are wanted; otherwise only its configuration is looked for.

    Raises:
        DataError: It is missing, incomplete, or cannot be downloaded; the message has the remedy.
    """
    if name.startswith(IN_PACKAGE):
        source = _in_package(name, key)
    else:
        source = _here(name, key) if _is_local(name) else _on_hub(name, key, _WANTED if weights else _CONFIGS)
    if (source.folder / CONFIG).is_file() and not (source.folder / "config.json").is_file():
        base = base_of(source.folder, key)
        own = find(base, f"{key} {name}: {CONFIG} names the base", tokenizer=False, weights=weights)
        source = replace(own, adapter=source.folder)
    if source.gguf is None:
        if not (source.folder / "config.json").is_file():
            raise DataError(f"{key} {name}: no config.json there; give a folder that save_pretrained wrote")
        if weights:
            _check_files(source, name, key, tokenizer)
    return source


def _is_local(name: str) -> bool:
    path = Path(name)
    if path.is_absolute() or path.parts[:1] in ((".",), ("..",), ("models",), ("runs",)) or path.exists():
        return True
    return len(path.parts) > 2 and not name.endswith(".gguf")


def _here(name: str, key: str) -> ModelSource:
    path = located(name)
    if path.is_file() and path.suffix == ".gguf":
        return ModelSource(path.parent.resolve(), str(path.resolve()), gguf=path.name)
    if not path.is_dir():
        what = "a GGUF file (.gguf), or a folder that save_pretrained wrote"
        raise DataError(
            f"{key} {name}: {'is not a model' if path.exists() else 'there is no such folder or file'}; give {what}, a "
            "checkpoint of a run, or a name on the hub (owner/model); `envsuite imitate` makes a small one"
        )
    return ModelSource(path.resolve(), str(path.resolve()))


def _in_package(name: str, key: str) -> ModelSource:
    """A folder or file of an installed package, which is found without importing it."""
    package, _, file = name.removeprefix(IN_PACKAGE).partition("/")
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise DataError(f"{key} {name}: no package {package!r} is installed here; install it with pip")
    return replace(_here(str(Path(spec.submodule_search_locations[0]) / file), key), name=name)


def _on_hub(name: str, key: str, wanted: list[str]) -> ModelSource:
    try:
        if name.endswith(".gguf"):
            *repository, file = name.split("/", 2)
            path = Path(hf_hub_download("/".join(repository), file))
            return ModelSource(path.parent, str(path), gguf=path.name)
        folder = Path(snapshot_download(name, allow_patterns=wanted, ignore_patterns=_UNWANTED))
    except (OSError, ValueError, httpx2.HTTPError) as error:
        raise DataError(f"{key} {name}: {_hub_message(error)}") from error
    return ModelSource(folder, name, revision=folder.name)


def _hub_message(error: Exception) -> str:
    """Returns the reason and the remedy, by the first cause that is known."""
    for cause in _causes(error):
        not_here = isinstance(cause, LocalEntryNotFoundError) and constants.HF_HUB_OFFLINE
        if not_here or isinstance(cause, OfflineModeIsEnabled):
            return (
                "is not in the hub's cache on this machine, and HF_HUB_OFFLINE is set; unset it, or give the folder of "
                "a copy"
            )
        if isinstance(cause, GatedRepoError):
            return (
                "is gated: accept its terms on its page on the hub, then log in (hf auth login, or HF_TOKEN) with an "
                "account that may read it"
            )
        if isinstance(cause, RepositoryNotFoundError):
            return (
                "there is no such folder here, and no such model on the hub that this account may read; look at the "
                "spelling (owner/model), or log in (hf auth login) if it is private"
            )
        if isinstance(cause, HFValidationError):
            return "there is no such folder or file here, and it is no name on the hub (owner/model)"
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            return (
                f"the disk is full ({cause}); make room, or set HF_HOME to a folder with more. What was downloaded is "
                "kept"
            )
        if isinstance(cause, HfHubHTTPError):
            return f"the hub refused it ({str(cause).splitlines()[0]}); try again later"
    first_line = (str(cause).splitlines() or [""])[0]
    return (
        f"the download failed or was cut off ({type(cause).__name__}: {first_line}); run again, which goes on where it "
        "stopped, or give the folder of a copy"
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def base_of(folder: Path, key: str) -> str:
    """Returns the name of the base that the adapter in ``folder`` has in its configuration.

    Args:
        folder: Folder of an adapter.
        key: The setting, for messages.

    Raises:
        DataError: Its configuration cannot be read, or names none.
    """
    try:
        base = json.loads((folder / CONFIG).read_bytes()).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError) as error:
        raise DataError(f"{key} {folder}: {CONFIG} cannot be read ({error})") from error
    if not isinstance(base, str) or not base:
        raise DataError(f"{key} {folder}: {CONFIG} names no base model; enter it as base_model_name_or_path")
    return base


def _check_files(source: ModelSource, name: str, key: str, tokenizer: bool) -> None:
    folder = source.folder
    if tokenizer and not (source.tokenizer["pretrained_model_name_or_path"] / _TOKENIZER).is_file():
        raise DataError(f"{key} {name}: no {_TOKENIZER} there; give a folder that save_pretrained wrote")
    if source.adapter is not None and not (source.adapter / WEIGHTS).is_file():
        raise DataError(f"{key} {name}: no {WEIGHTS} there; weights in other formats can hold code and are not read")
    if not any(folder.glob("*.safetensors")):
        raise DataError(
            f"{key} {name}: no *.safetensors there; weights in other formats can hold code and are not "
            "read (convert them with save_pretrained)"
        )
    if (folder / _INDEX).is_file():
        try:
            files = set(json.loads((folder / _INDEX).read_bytes())["weight_map"].values())
        except (ValueError, KeyError, AttributeError) as error:
            raise DataError(f"{key} {name}: {_INDEX} cannot be read ({error})") from error
        if missing := sorted(file for file in files if not (folder / file).is_file()):
            raise DataError(
                f"{key} {name}: {len(missing)} of {len(files)} files of weights are missing, {missing[0]} among them; "
                "a download or copy was cut off: run it again"
            )
