"""Methods of vLLM's workers for the trainer: ``--worker-extension-cls envsuite_worker.TakesWeights``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import vllm.model_executor.layers.utils as linear_layers
from envsuite_weights import fingerprints
from safetensors import safe_open
from torch import Tensor, nn
from vllm.platforms import current_platform

PROTOCOL = "2"
"""Version of the methods below; the trainer compares it with its own."""


class TakesWeights:
    """Methods that vLLM adds to its worker class.

    Each is called by ``/collective_rpc`` and answers with one object for each worker; arguments are text.
    """

    reload_weights: Callable[..., None]
    model_runner: Any
    model_config: Any
    parallel_config: Any
    rank: int
    scheduler_config: Any
    vllm_config: Any
    envsuite_version: str | None = None
    """Version of the weights that were loaded last; ``None`` for those that the server was started with."""

    def envsuite_about(self) -> dict[str, Any]:
        """The model that is served, and how it computes."""
        return {
            "protocol": PROTOCOL,
            "version": self.envsuite_version,
            "process": os.getpid(),
            "config": self.model_config.hf_config.to_dict(),
            "dtype": str(self.model_config.dtype).removeprefix("torch."),
            "logprobs_mode": str(self.model_config.logprobs_mode),
            "workers": self.parallel_config.world_size,
            "balances_elsewhere": bool(
                self.parallel_config.data_parallel_external_lb or self.parallel_config.data_parallel_hybrid_lb
            ),
            "adapter_rank": 0 if self.vllm_config.lora_config is None else self.vllm_config.lora_config.max_lora_rank,
            "quantization": self.model_config.quantization,
            "cuts_prompts": bool(self.scheduler_config.enable_chunked_prefill) and current_platform.is_cpu(),
        }

    def envsuite_load(self, folder: str, version: str) -> dict[str, Any]:
        """Load all weights from the safetensors files in ``folder``; answers as :meth:`envsuite_held`."""
        return self.envsuite_take(_tensors(Path(folder)), version)

    def envsuite_take(self, weights: Iterable[tuple[str, Tensor]], version: str) -> dict[str, Any]:
        """Load all weights; answers as :meth:`envsuite_held`. Only the worker's own process can call this.

        An error is answered, not raised: vLLM ends the server at an exception.
        """
        self.envsuite_version = None
        try:
            self.reload_weights(weights_iterator=weights)  # the worker's own, which sets vLLM's configuration
        except Exception as error:  # of any class: one that is raised ends the server
            return {"error": f"{type(error).__name__}: {error}"}
        self.envsuite_version = version
        return self.envsuite_held()

    def envsuite_adapter(self, version: str) -> dict[str, Any]:
        """Note the version of the adapter that was loaded last; answers as :meth:`envsuite_held`, for the adapter."""
        self.envsuite_version = version
        modules = self.model_runner.lora_manager._adapter_manager.modules
        group_prints = fingerprints(
            (f"{name}.{part}", tensor)
            for name, module in modules.items()
            for part, tensors in vars(module).items()
            if part.endswith(("lora_a_stacked", "lora_b_stacked"))
            for tensor in tensors
        )
        held = {group: str(value) for group, value in group_prints.items() if value}
        return {"version": version, "fingerprints": held}

    def envsuite_write(self, folder: str, method: str, *arguments: str) -> dict[str, Any]:
        """Calls a method, and writes its answer to ``folder``: of several replicas vLLM passes on the first's alone."""
        answer: dict[str, Any] = getattr(self, method)(*arguments)
        Path(folder, f"{self.parallel_config.data_parallel_index}-{self.rank}.json").write_text(json.dumps(answer))
        return answer

    def envsuite_held(self) -> dict[str, Any]:
        """The version, and the fingerprint of each layer group of the weights that the model computes with."""
        model: nn.Module = self.model_runner.get_model()
        group_prints = {group: str(value) for group, value in fingerprints(model.named_parameters()).items()}
        return {"version": self.envsuite_version, "fingerprints": group_prints}


def _tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{folder} has no safetensors files that this server can see")
    for file in files:
        with safe_open(file, framework="pt") as reader:
            for name in reader.keys():
                yield name, reader.get_tensor(name)


def _use_weights_as_they_are() -> None:
    """On a CPU, let linear layers read their weights, where vLLM gives kernels a packed copy.

    Weights that are loaded later do not reach such copies: an update then ends without an error in a model that is
    neither the old nor the new one.
    """
    pack = linear_layers.dispatch_cpu_unquantized_gemm

    def dispatch(layer: Any, remove_weight: bool) -> None:
        if layer.weight.ndim == 2:
            layer.cpu_linear = torch.nn.functional.linear
        else:
            pack(layer, remove_weight)

    linear_layers.dispatch_cpu_unquantized_gemm = dispatch


if current_platform.is_cpu():
    _use_weights_as_they_are()
