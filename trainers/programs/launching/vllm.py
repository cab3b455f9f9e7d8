"""Servers of vLLM that a run is given, in the place of those that it would start itself."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trainers.programs.launching.roles import VLLM, JobSizes, ServerRole
from trainers.rollout.vllm.options import VLLMOptions
from trainers.rollout.vllm.starting import gpu_count, normalize_names, words_for
from trainers.run.config import TrainConfig
from trainers.settings import ConfigError
from trainers.settings.shipped import located

_CORES = 8
_STARTED = ("python", "arguments", "memory", "sleep", "place")
"""Settings of the engine for servers that it starts itself; here they are the servers' own."""


def with_vllm(config: TrainConfig, sizes: JobSizes, weights: str, urls: Any) -> tuple[TrainConfig, ServerRole]:
    """The settings with the addresses of vLLM servers; and the servers.

    Args:
        config: Settings of the run.
        sizes: How much of what.
        weights: Folder that all nodes see, for weights on their way; where the settings name none.
        urls: Addresses of the servers.

    Raises:
        ConfigError: The settings ask for no server, or the GPUs of the nodes do not hold them.
    """
    options = _options(config, sizes.vllm)
    weights = options.get("weights_folder", weights)
    own = {key: value for key, value in options.items() if key not in _STARTED}
    own |= {"urls": urls, "weights_folder": weights}
    servers = _servers(config, options, sizes, weights)
    return replace(config, rollout=replace(config.rollout, engine_options=own)), servers


def _options(config: TrainConfig, count: int) -> Mapping[str, Any]:
    """The options of the engine, where servers can be started for it.

    Raises:
        ConfigError: They cannot.
    """
    if config.rollout.engine != VLLM:
        raise ConfigError(
            f"--vllm {count}: rollout.engine is {config.rollout.engine}, which asks no vLLM server; add "
            "--rollout.engine vllm, or leave --vllm out"
        )
    options = VLLMOptions(**config.rollout.engine_options)
    if options.place == "process":
        raise ConfigError(f"--vllm {count}: rollout.engine_options.place is process, without servers; leave one out")
    if options.urls is not None:
        raise ConfigError(f"--vllm {count}: rollout.engine_options.urls names servers that run; leave one out")
    return config.rollout.engine_options


def _servers(config: TrainConfig, options: Mapping[str, Any], sizes: JobSizes, weights: str) -> ServerRole:
    """The vLLM servers.

    Raises:
        ConfigError: The GPUs of the nodes do not hold them.
    """
    arguments = normalize_names(options.get("arguments"))
    server_gpus = gpu_count(arguments)
    per_node, own_nodes = _place_servers(sizes, server_gpus)
    rank = None if config.model.adapter is None else config.model.adapter.rank
    dtype, memory = config.model.compute_dtype, options.get("memory")
    words = words_for(dtype, on_cpu=sizes.gpus == 0, memory=memory, rank=rank, arguments=arguments)
    folder = _python_output("from trainers.rollout.vllm.starting import EXTENSION_FOLDER; print(EXTENSION_FOLDER)")
    model = shlex.quote(config.model.path)
    if str(located(config.model.path)) != config.model.path:  # one that is installed with the trainer
        code = "import sys; from trainers.settings.shipped import located; print(located(sys.argv[1]))"
        model = _python_output(code, model)
    command = (
        f"mkdir -p {shlex.quote(weights)} && export PYTHONPATH={folder} VLLM_SERVER_DEV_MODE=1 "
        f"VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 && exec {shlex.quote(options.get('python') or 'python')} -m "
        f"vllm.entrypoints.launchers.api_server.entry --model {model} {shlex.join(words)} --host $HOST --port $PORT"
    )
    cores, gpus = (_CORES, server_gpus) if sizes.gpus else (1, 0)
    return ServerRole(VLLM, command, "/health", "/health", sizes.vllm, cores, gpus, per_node, own_nodes)


def _python_output(code: str, *words: str) -> str:
    """Words of a shell for what Python says on the role's machine."""
    return f"$({' '.join(['python -c', json.dumps(code), *words])})"


def _place_servers(sizes: JobSizes, server_gpus: int) -> tuple[int, int]:
    """The vLLM servers of a node, and the number of nodes of their own.

    Args:
        sizes: How much of what.
        server_gpus: GPUs of a server.

    Raises:
        ConfigError: The GPUs of the nodes do not hold them.
    """
    if sizes.gpus == 0:
        per_node = -(-sizes.vllm // sizes.nodes)
        return per_node, 0 if sizes.shared else -(-sizes.vllm // per_node)
    if sizes.shared:
        per_node, remainder = divmod(sizes.vllm, sizes.nodes)
        if remainder or per_node * server_gpus >= sizes.gpus:
            raise ConfigError(
                f"--vllm {sizes.vllm} --vllm-on shared: {sizes.vllm} servers of {server_gpus} GPU(s) on "
                f"{sizes.nodes} node(s) of {sizes.gpus}; a whole number on each, which leaves GPUs that train"
            )
        return per_node, 0
    if server_gpus > sizes.gpus:
        raise ConfigError(f"--vllm: a server takes {server_gpus} GPUs, and --gpus-per-node is {sizes.gpus}")
    per_node = sizes.gpus // server_gpus
    return per_node, -(-sizes.vllm // per_node)
