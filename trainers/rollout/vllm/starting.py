"""How vLLM is started, so that it samples as the trainer computes and takes its weights."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from trainers.policy.adapter import adapter_config, is_adapted
from trainers.rollout.vllm.proof import LOGPROBS_MODE, server_rank

EXTENSION_FOLDER = Path(__file__).with_name("server")
"""Folder for the path of the interpreter that runs vLLM."""
EXTENSION = "envsuite_worker.TakesWeights"


_PARALLEL = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size")


def normalize_names(arguments: Mapping[str, Any] | None) -> dict[str, Any]:
    """Arguments of vLLM by their names on the command line, which a user may also write with underscores."""
    return {name.replace("_", "-"): value for name, value in (arguments or {}).items()}


def gpu_count(arguments: Mapping[str, Any] | None, *, copies: bool = True) -> int:
    """GPUs that vLLM takes with these arguments; without ``copies`` those that share one copy of the weights."""
    sizes = normalize_names(arguments)
    return prod(int(sizes.get(name, 1)) for name in _PARALLEL[: 3 if copies else 2])


def write_configuration(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Path:
    """Writes a new folder with the configuration of the model and the tokenizer, and no weights."""
    folder = Path(tempfile.mkdtemp(prefix="vllm-"))
    model.config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def arguments_for(
    model: PreTrainedModel, dtype: str, *, on_cpu: bool, memory: float | None, arguments: Mapping[str, Any]
) -> list[str]:
    """Arguments of vLLM on the command line for a policy, for any number of prompts that it takes."""
    longest = model.config.get_text_config(decoder=True).max_position_embeddings
    rank = adapter_config(model).r if is_adapted(model) else None
    return words_for(dtype, on_cpu=on_cpu, memory=memory, rank=rank, longest=longest, arguments=arguments)


def words_for(
    dtype: str, *, on_cpu: bool, memory: float | None, rank: int | None, arguments: Mapping[str, Any], longest: int = 0
) -> list[str]:
    """Arguments of vLLM on the command line.

    On a CPU it compiles nothing, and takes each prompt whole: vLLM ends there at a prompt that it cuts in two, where
    the sample has a seed.

    Args:
        dtype: Number format.
        on_cpu: Whether it runs on a CPU.
        memory: Share of the device's memory that it may take; by default vLLM's, and 1 GiB for keys and values on a
            CPU, where vLLM's is nearly all memory of the machine.
        rank: Rank of the model's adapter; ``None`` where it has none.
        arguments: The user's, without their ``--``, which win; ``True`` stands for one without a value.
        longest: Most tokens of a prompt, for a CPU; where 8192 are too few, and the caller does not know the model, the
            user's ``max-model-len`` says it.
    """
    user = normalize_names(arguments)
    defaults: dict[str, Any] = {
        "load-format": "dummy",
        "max-model-len": "auto",  # the model's longest sequence, or the longest that the memory holds
        "dtype": dtype,
        "logprobs-mode": LOGPROBS_MODE,
        "generation-config": "vllm",
        "worker-extension-cls": EXTENSION,
    }
    if on_cpu:
        length = user.get("max-model-len")
        tokens = max(8192, length if isinstance(length, int) and length > 0 else longest)
        defaults |= {"enforce-eager": True, "no-enable-chunked-prefill": True, "max-num-batched-tokens": tokens}
    if memory is not None:
        defaults["gpu-memory-utilization"] = memory  # on a CPU of the machine's memory
    elif on_cpu and "VLLM_CPU_KVCACHE_SPACE" not in os.environ and "gpu-memory-utilization" not in user:
        defaults["kv-cache-memory-bytes"] = 1 << 30
    if rank is not None:
        defaults |= {"enable-lora": True, "max-loras": 1, "max-cpu-loras": 1, "max-lora-rank": server_rank(rank)}
    words = []
    for name, value in (defaults | user).items():
        if value is True:
            words.append(f"--{name}")
        elif value is not False and value is not None:
            words += [f"--{name}", str(value)]
    return words
