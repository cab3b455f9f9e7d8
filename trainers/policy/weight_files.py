"""Tensors in safetensors files, read whole or in part, and written by several processes at once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import safetensors
from safetensors.torch import load_file, save_file
from torch import Tensor

SUFFIX = ".safetensors"


class WeightFiles:
    """The tensors of a model's files in a folder: one file, or several beside an index that says which holds what.

    Args:
        folder: Where they lie.
        stem: Beginning of the files' names: ``<stem>.safetensors``, or ``<stem>.safetensors.index.json`` and the files
            that it names, as transformers writes them.

    Raises:
        OSError: They are missing or cannot be read.
        SafetensorError: Alike.
        ValueError: The index cannot be read.
    """

    def __init__(self, folder: Path, stem: str = "model") -> None:
        path = folder / f"{stem}{SUFFIX}"
        self._file_of: dict[str, Path] = {}
        if path.is_file():
            with safetensors.safe_open(path, "pt") as file:
                self._file_of = dict.fromkeys(file.keys(), path)
        else:
            index = json.loads((folder / f"{path.name}.index.json").read_bytes())
            self._file_of = {name: folder / file for name, file in index["weight_map"].items()}

    @property
    def names(self) -> list[str]:
        """Name of every tensor."""
        return list(self._file_of)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, which is not read."""
        with safetensors.safe_open(self._file_of[name], "pt") as file:
            return tuple(file.get_slice(name).get_shape())

    def read(self, name: str, rows: slice | None = None) -> Tensor:
        """A tensor, or some of its rows.

        Args:
            name: Its name.
            rows: Which part of its first dimension; of the file no more than this part is read.
        """
        with safetensors.safe_open(self._file_of[name], "pt") as file:
            tensor: Tensor = file.get_tensor(name) if rows is None else file.get_slice(name)[rows]
            return tensor.clone()  # else it would lie in the file

    def map_tensors(self) -> dict[str, Tensor]:
        """All tensors as they lie in the files: main memory is taken for what is read of them."""
        tensors: dict[str, Tensor] = {}
        for file in dict.fromkeys(self._file_of.values()):
            tensors |= load_file(file)
        return tensors


def file_name(stem: str, number: int, count: int) -> str:
    """Name of one of ``count`` files, as transformers names them; ``number`` from 0."""
    return f"{stem}{SUFFIX}" if count == 1 else f"{stem}-{number + 1:05d}-of-{count:05d}{SUFFIX}"


def write_part(folder: Path, stem: str, number: int, count: int, tensors: Mapping[str, Tensor]) -> None:
    """Writes one of ``count`` files; ``number`` from 0.

    Raises:
        OSError: It cannot be written.
        SafetensorError: Alike.
    """
    save_file(dict(tensors), folder / file_name(stem, number, count), metadata={"format": "pt"})


def write_index(folder: Path, stem: str, file_of: Mapping[str, int], count: int, size: int) -> None:
    """Writes the index beside several files; nothing beside one.

    Args:
        folder: Where the files lie.
        stem: Beginning of their names.
        file_of: Number of the file, from 0, that holds each tensor.
        count: Number of files.
        size: Bytes of all tensors.

    Raises:
        OSError: It cannot be written.
    """
    if count > 1:
        weight_map = {name: file_name(stem, number, count) for name, number in sorted(file_of.items())}
        body = {"metadata": {"total_size": size}, "weight_map": weight_map}
        (folder / f"{stem}{SUFFIX}.index.json").write_text(json.dumps(body, indent=2), encoding="utf-8")
