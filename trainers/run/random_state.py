"""The random generators of a run's processes, as a part of its checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor

from trainers.processes.distributed import all_gather_object


class RandomState:
    """The states of the random generators of every process.

    Args:
        accelerator: The run's accelerator.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator

    def state(self) -> dict[str, Any]:
        """Returns the states of each process, in their order."""
        return {"ranks": all_gather_object(self.accelerator, random_state())}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restores the state of this process, if the checkpoint has one for its rank."""
        if self.accelerator.process_index < len(state["ranks"]):
            _restore_random(state["ranks"][self.accelerator.process_index])


def random_state() -> dict[str, Any]:
    """Returns the states of this process's random generators as JSON values."""
    name, keys, position, has_gauss, gauss = np.random.get_state()
    return {
        "torch": _hex(torch.get_rng_state()),
        "cuda": [_hex(state) for state in torch.cuda.get_rng_state_all()] if torch.cuda.is_available() else [],
        "numpy": {"name": name, "keys": np.asarray(keys).tolist(), "position": position, "gauss": [has_gauss, gauss]},
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
