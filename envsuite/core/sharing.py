"""Lets Gymnasium take observations of texts and images of any size, and actions of tool calls; importing registers it.

``AsyncVectorEnv``: its shared memory needs a fixed size for each observation, which these do not have. So each value
is in a file of its own, which the environment's process writes and the program reads. Wrappers: none of them becomes an
array; each is flat as it is, as Gymnasium's ``Graph`` and ``Sequence`` stay what they are.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, overload

import numpy as np
from gymnasium.spaces.utils import flatten, flatten_space, unflatten
from gymnasium.vector.utils import create_shared_memory, read_from_shared_memory, write_to_shared_memory
from gymnasium.wrappers.utils import create_zero_array

from envsuite.core.images import Images, Pixels
from envsuite.core.spaces import AnyText, TextTuple, ToolCalls

T = TypeVar("T")


def _same_space(space: T) -> T:
    return space


def _same_value(space: Any, x: T) -> T:
    return x


def _empty(space: Any) -> Any:
    return "" if isinstance(space, AnyText) else ()


for _kind in (AnyText, TextTuple, Images, ToolCalls):
    flatten_space.register(_kind, _same_space)
    flatten.register(_kind, _same_value)
    unflatten.register(_kind, _same_value)


class SharedValues(Sequence[Any]):
    """The current values of several environments; a deep copy is a tuple of the values at that time.

    Args:
        folder: Folder with a file for each environment.
        size: Number of environments.
    """

    def __init__(self, folder: Path, size: int) -> None:
        self.folder, self.size = folder, size

    def __len__(self) -> int:
        """Returns the number of environments."""
        return self.size

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Any, ...]: ...
    def __getitem__(self, index: int | slice) -> Any:
        """Returns the value of one environment, a text or a tuple of texts or images, or those of several."""
        places = range(self.size)[index]
        if isinstance(places, range):
            return tuple(self[place] for place in places)
        return self._load(self.folder / str(places))

    def __setitem__(self, index: int, value: object) -> None:
        """Sets the value of one environment."""
        self._save(self.folder / str(index), value)

    def _load(self, path: Path) -> Any:
        value = json.loads(path.read_bytes())
        return tuple(value) if isinstance(value, list) else value

    def _save(self, path: Path, value: Any) -> None:
        path.write_bytes(json.dumps(value).encode())  # escaped, half surrogates too

    def __deepcopy__(self, memo: dict[int, Any]) -> tuple[Any, ...]:
        """Returns the current values."""
        return tuple(self)


class SharedImages(SharedValues):
    """The current images of several environments."""

    def _load(self, path: Path) -> tuple[Pixels, ...]:
        with path.open("rb") as file:
            count = int(np.load(file, allow_pickle=False))
            return tuple(np.load(file, allow_pickle=False) for _ in range(count))

    def _save(self, path: Path, value: Any) -> None:
        with path.open("wb") as file:
            for array in (np.array(len(value)), *value):
                np.save(file, array, allow_pickle=False)


def _create(space: Any, n: int = 1, ctx: ModuleType = multiprocessing) -> Any:
    folder = Path(tempfile.mkdtemp(prefix="envsuite-"))
    values = (SharedImages if isinstance(space, Images) else SharedValues)(folder, n)
    weakref.finalize(values, _remove, folder, os.getpid())
    for index in range(n):
        values[index] = _empty(space)
    return values


def _remove(folder: Path, process: int) -> None:
    """Removes ``folder``, unless this is a fork of the process that it belongs to."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def _read(space: Any, shared_memory: Any, n: int = 1) -> Any:
    return shared_memory


def _write(space: Any, index: int, value: object, shared_memory: Any) -> None:
    shared_memory[index] = value


for _space_type in (AnyText, TextTuple, Images):
    create_zero_array.register(_space_type, _empty)
    create_shared_memory.register(_space_type, _create)
    read_from_shared_memory.register(_space_type, _read)
    write_to_shared_memory.register(_space_type, _write)
