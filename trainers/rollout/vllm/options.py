"""Settings of the engine vllm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from transformers import PreTrainedModel

from envsuite.core.errors import UsageError
from envsuite.remote.places import Places
from trainers.policy.sharding import local
from trainers.rollout.vllm.child import check_interpreter, further_gpus
from trainers.rollout.vllm.room import whole_bytes
from trainers.rollout.vllm.starting import gpu_count, normalize_names
from trainers.settings import ConfigError, Positive, checked

_WHERE = "rollout.engine_options"
SHARE = 0.3
"""Most of a GPU's memory that vLLM takes by default where it keeps it while the model trains."""
_MOST = 0.9  # where it gives it back
_MARGIN = 0.1  # of the memory, for what neither counts: CUDA's contexts and graphs, NCCL, the probe, fragments
_TRAINED = 12  # bytes that the trainer adds for each weight that it trains: a gradient and two moments in float32
_LEAST = 1 << 30  # bytes of keys and values without which vLLM is of no use


def share_beside(
    model: PreTrainedModel, device: torch.device, dtype: torch.dtype, most: float, parts: int = 1
) -> float:
    """The share of a GPU's memory for a vLLM that is started beside the trainer, from what is free now.

    Args:
        model: The policy, which lies on the device, without gradients and moments.
        device: A GPU.
        dtype: Format that vLLM computes in.
        most: The greatest share.
        parts: GPUs that share the weights of vLLM.

    Raises:
        ConfigError: There is too little.
    """
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    coming = _TRAINED * sum(local(parameter).numel() for parameter in model.parameters() if parameter.requires_grad)
    return share_of(free, total, coming, whole_bytes(model, dtype) // parts, most)


def share_of(free: int, total: int, coming: int, weights: int, most: float) -> float:
    """The share of ``total`` bytes for vLLM, in hundredths.

    Args:
        free: Bytes that are free.
        total: Bytes that there are.
        coming: Bytes of them that the trainer will take, and keep while vLLM samples.
        weights: Bytes of vLLM's weights.
        most: The greatest share.

    Raises:
        ConfigError: They hold no weights and keys and values.
    """
    share = min((free - coming) / total - _MARGIN, most)
    if share * total < weights + _LEAST:
        gib = [f"{size / 2**30:.1f}" for size in (max(share, 0.0) * total, free, total, coming, weights + _LEAST)]
        raise ConfigError(
            f"rollout.engine vllm: the GPU has {gib[0]} GiB for vLLM ({gib[1]} of {gib[2]} are free, the trainer will "
            f"take {gib[3]}), and it needs {gib[4]} for weights, keys and values; train an adapter (model.adapter), "
            "shard the model (model.shard), set rollout.engine: hf, or name the share (rollout.engine_options.memory)"
        )
    return floor(100 * share) / 100


@dataclass(frozen=True)
class VLLMOptions:
    """The settings ``rollout.engine_options`` of the engine vllm.

    Raises:
        ConfigError: They contradict each other.
    """

    place: Literal["server", "process"] = "server"
    """server: vLLM runs in servers, with interpreters of their own; process: in each process of the trainer."""
    urls: str | Sequence[str] | None = None
    """Addresses of running servers, shared by all processes of the run, or where they are named
    (:class:`~envsuite.remote.places.Places`). By default each process starts one for itself, and ends it."""
    python: str | None = None
    """Interpreter that the server is started with; by default ``ENVSUITE_VLLM_PYTHON``'s, or this one."""
    arguments: Mapping[str, Any] | None = None
    """Further arguments of vLLM where it is started, e.g. ``{max-model-len: 4096}``."""
    memory: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of the device's memory that vLLM may take where it is started; by default on a GPU what is free beside the
    trainer (:func:`share_beside`), and vLLM's own elsewhere."""
    sleep: bool | None = None
    """While the model trains, vLLM gives back the memory of its weights, keys and values; by default where it is
    started on a GPU."""
    weights_folder: str = "/dev/shm"
    """Folder that the servers see, too, for weights on their way; by default in memory."""
    patience: Positive = 60.0
    """Seconds for which a server that fails is tried again, before the run stops."""
    timeout: Positive = 600.0
    """Seconds that a server may take for one completion."""

    def __post_init__(self) -> None:
        if self.memory is not None and self._gives_share:
            raise ConfigError(f"{_WHERE}: memory and arguments.gpu-memory-utilization are the same; leave one out")
        if self.urls is not None:
            self._check_urls()
        elif self.place == "process":
            if self.python is not None:
                raise ConfigError(f"{_WHERE}: place is process, and python is for servers; leave one out")
            self._check_whole()

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> VLLMOptions:
        """Makes them from what the setting has.

        Raises:
            UnknownName, ConfigError: An option does not exist, or has no such value; or they contradict each other.
        """
        return checked(cls, options, origin=lambda path: f"{_WHERE}: ")

    def check_machine(self) -> None:
        """Checks that this machine has what they name.

        Raises:
            ConfigError: There is no vLLM, or no folder for weights.
        """
        if self.urls is None:
            check_interpreter(self.python, here=self.place == "process")
            further_gpus(gpu_count(self.arguments))
        if not Path(self.weights_folder).is_dir():
            raise ConfigError(f"{_WHERE}.weights_folder: there is no folder {self.weights_folder}")

    def _check_whole(self) -> None:
        if (count := gpu_count(self.arguments)) > 1:
            raise ConfigError(
                f"{_WHERE}: place is process, where each process has a vLLM of its own on its own device, and "
                f"arguments spreads one over {count}; leave that out, or use servers"
            )

    def _check_urls(self) -> None:
        if self.place == "process":
            raise ConfigError(f"{_WHERE}: urls names servers, and place is process; leave one out")
        child_settings = (
            ("python", self.python), ("arguments", self.arguments), ("memory", self.memory),
            ("sleep", self.sleep or None),
        )  # fmt: skip
        for name, value in child_settings:
            if value is not None:
                raise ConfigError(
                    f"{_WHERE}: urls names servers that run, and {name} is for one that is started; leave one out"
                )
        try:
            self.places()
        except UsageError as error:
            raise ConfigError(str(error)) from error

    def places(self) -> Places:
        """The addresses of running servers.

        Raises:
            UsageError: They are none.
        """
        return Places(self.urls or "", f"{_WHERE}.urls", "the key is in $VLLM_API_KEY")

    def sleeps(self, device: torch.device) -> bool:
        """Whether vLLM sleeps while the model trains on ``device``.

        Raises:
            ConfigError: It shall, and cannot.
        """
        if self.sleep and device.type == "cpu":
            raise ConfigError(f"{_WHERE}.sleep is true, but vLLM has no sleep mode on a CPU; leave it out")
        return self.sleep if self.sleep is not None else self.urls is None and device.type != "cpu"

    def share(self, model: PreTrainedModel, device: torch.device, dtype: torch.dtype) -> float | None:
        """The share of the device's memory that vLLM may take; ``None`` for what it takes by itself.

        Raises:
            ConfigError: The GPU has no room for it beside the trainer.
        """
        if self.memory is not None or self._gives_share or self.urls is not None or device.type != "cuda":
            return self.memory
        most, parts = _MOST if self.sleeps(device) else SHARE, gpu_count(self.arguments, copies=False)
        return share_beside(model, device, dtype, most, parts)

    @property
    def _gives_share(self) -> bool:
        return "gpu-memory-utilization" in normalize_names(self.arguments)
