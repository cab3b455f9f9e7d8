"""A run as roles: the trainer on its nodes, servers of environments, servers of vLLM; each with its command."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from trainers.rollout.config import EnvConfig
from trainers.rollout.vllm.options import Options
from trainers.rollout.vllm.proof import LOGPROBS_MODE, server_rank
from trainers.rollout.vllm.starting import EXTENSION
from trainers.run.cli import shortened
from trainers.run.config import TrainConfig
from trainers.settings import ConfigError
from trainers.settings.shipped import located

VLLM = "vllm"
KEY_VARIABLE = "VLLM_API_KEY"
READY = "trainers.programs.launching.ready"
PAUSED = 3
"""Exit status of a run that an alarm stopped."""
_SERVER_CORES, _VLLM_CORES = 4, 8
_STARTED = ("python", "arguments", "memory", "sleep", "place")
"""Settings of the engine vllm for servers that it starts itself; here they are the servers' own."""


@dataclass(frozen=True)
class Sizes:
    """How much of what a job has."""

    nodes: int = 1
    """Nodes that train."""
    gpus: int = 0
    """GPUs of a node, a process on each; 0: CPU only."""
    processes: int = 1
    """Processes of a node without GPUs."""
    servers: int = 0
    """Servers of each environment; 0: the trainer's processes play."""
    vllm: int = 0
    """vLLM servers; 0: as the settings say."""
    shared: bool = False
    """Whether vLLM servers are on the nodes that train, whose processes have the other GPUs."""
    restarts: int = 3
    """How often the run is started again after a loss."""


@dataclass(frozen=True)
class Servers:
    """Equal servers. Their command reads ``$PORT``."""

    name: str
    command: str
    alive: str
    """Path that answers 200 while a server runs."""
    ready: str
    """Path that answers 200 while it takes requests."""
    count: int
    cores: int
    """Cores of each."""
    gpus: int = 0
    """GPUs of each."""
    per_node: int = 0
    """Servers of a node; 0: as it comes out."""
    own_nodes: int = 0
    """Nodes that have nothing else; 0: they are on those that train."""


@dataclass(frozen=True)
class Job:
    """A run as roles."""

    name: str
    folder: str
    """Where its files are, below the working folder."""
    settings: str
    """Text of :attr:`settings_file`."""
    trainer: str
    """Command of each node that trains; it reads ``$HEAD``, the first node's name, and ``$JOB`` where there are
    several."""
    nodes: int
    processes: int
    """Processes of a node."""
    gpus: int
    """GPUs of a node that train."""
    node_gpus: int
    """GPUs of a node."""
    restarts: int
    servers: Sequence[Servers]

    @property
    def settings_file(self) -> str:
        """The settings of the trainer."""
        return f"{self.folder}/settings.yaml"

    @property
    def all_nodes(self) -> int:
        """Nodes that train, and those that servers have for themselves."""
        return self.nodes + sum(servers.own_nodes for servers in self.servers)


def job_of(config: TrainConfig, sizes: Sizes, root: PurePosixPath, where: Callable[[str, int], Any]) -> Job:
    """Returns the roles of a run.

    Args:
        config: Settings of the run.
        sizes: How much of what.
        root: The working folder of all roles, which all nodes share.
        where: Returns the addresses of servers by their name and number, as ``envs[].url`` takes them.

    Raises:
        ConfigError: Sizes and settings contradict each other; the message names the option.
    """
    folder, run = f"launch/{config.name}", PurePosixPath(config.output) / config.name
    servers = list[Servers]()
    if sizes.servers:
        config, servers = _with_servers(config, sizes.servers, where)
    gpus = sizes.gpus
    if sizes.vllm:
        given = _vllm_options(config, sizes.vllm)
        vllm = _vllm(config, given, sizes, weights := str(given.get("weights_folder") or root / run / "weights"))
        gpus -= vllm.per_node * vllm.gpus if sizes.shared else 0
        servers.append(vllm)
        own = {key: value for key, value in given.items() if key not in _STARTED}
        own |= {"urls": where(VLLM, sizes.vllm), "weights_folder": weights}
        config = replace(config, rollout=replace(config.rollout, engine_options=own))
    processes = gpus or sizes.processes
    return Job(
        name=config.name, folder=folder, settings=shortened(config), nodes=sizes.nodes, processes=processes, gpus=gpus,
        node_gpus=sizes.gpus, restarts=sizes.restarts, servers=servers,
        trainer=_trainer(f"{folder}/settings.yaml", run, sizes, processes),
    )  # fmt: skip


def _trainer(settings: str, run: PurePosixPath, sizes: Sizes, processes: int) -> str:
    """The command of a node that trains; it goes on where the run has a checkpoint."""
    words = f"exec envsuite train --config {shlex.quote(settings)} --processes {processes}"
    if sizes.restarts:
        words += f" --max-restarts {sizes.restarts}"
    if sizes.nodes > 1:
        words += f" --nodes {sizes.nodes} --rendezvous $HEAD --job $JOB"
    return f"{words} $(ls -d {shlex.quote(str(run / 'checkpoints'))}/iteration-* > /dev/null 2>&1 && echo --resume)"


def _with_servers(
    config: TrainConfig, count: int, where: Callable[[str, int], Any]
) -> tuple[TrainConfig, list[Servers]]:
    """The settings with the addresses of servers for each environment that has none; and the servers."""
    names: dict[str, str] = {}

    def served(envs: Sequence[EnvConfig]) -> list[EnvConfig]:
        return [env if env.url is not None else replace(env, url=where(named(env.id), count)) for env in envs]

    def named(env_id: str) -> str:
        if env_id not in names:
            name = dns_label(env_id.rpartition(":")[2].removesuffix("-v0"))
            names[env_id] = f"{name}{len(names)}" if name in (*names.values(), VLLM, "trainer") else name
        return names[env_id]

    evaluation = replace(config.evaluation, envs=served(config.evaluation.envs))
    config = replace(config, envs=served(config.envs), evaluation=evaluation)
    cores = _SERVER_CORES
    words = f"--host $HOST --port $PORT --workers {cores}"
    return config, [
        Servers(name, f"exec envsuite serve http {shlex.quote(env_id)} {words}", "/healthz", "/readyz", count, cores)
        for env_id, name in names.items()
    ]


def _vllm_options(config: TrainConfig, count: int) -> Mapping[str, Any]:
    """The options of the engine, where servers can be started for it.

    Raises:
        ConfigError: They cannot.
    """
    if config.rollout.engine != VLLM:
        raise ConfigError(
            f"--vllm {count}: rollout.engine is {config.rollout.engine}, which asks no vLLM server; add "
            "--rollout.engine vllm, or leave --vllm out"
        )
    options = Options(**config.rollout.engine_options)
    if options.place == "process":
        raise ConfigError(f"--vllm {count}: rollout.engine_options.place is process, without servers; leave one out")
    if options.urls is not None:
        raise ConfigError(f"--vllm {count}: rollout.engine_options.urls names servers that run; leave one out")
    return config.rollout.engine_options


def _vllm(config: TrainConfig, given: Mapping[str, Any], sizes: Sizes, weights: str) -> Servers:
    """The vLLM servers.

    Raises:
        ConfigError: The GPUs of the nodes do not hold them.
    """
    arguments = {name.replace("_", "-"): value for name, value in (given.get("arguments") or {}).items()}
    each = 1
    for name in ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size"):
        each *= int(arguments.get(name, 1))
    per_node, own_nodes = _placed(sizes, each)
    found: dict[str, Any] = {
        "load-format": "dummy", "dtype": config.model.compute_dtype, "logprobs-mode": LOGPROBS_MODE,
        "generation-config": "vllm", "worker-extension-cls": EXTENSION,
    }  # fmt: skip
    if sizes.gpus == 0:
        found |= {"enforce-eager": True, "no-enable-chunked-prefill": True, "max-num-batched-tokens": 8192}
    if config.model.adapter is not None:
        found |= {"enable-lora": True, "max-loras": 1, "max-lora-rank": server_rank(config.model.adapter.rank)}
    if given.get("memory") is not None:
        found["gpu-memory-utilization"] = given["memory"]
    words = list[str]()
    for name, value in (found | arguments).items():
        if value is not False and value is not None:
            words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    folder = _asked("from trainers.rollout.vllm.starting import EXTENSION_FOLDER; print(EXTENSION_FOLDER)")
    model = shlex.quote(config.model.path)
    if str(located(config.model.path)) != config.model.path:  # one that is installed with the trainer
        model = _asked("import sys; from trainers.settings.shipped import located; print(located(sys.argv[1]))", model)
    command = (
        f"mkdir -p {shlex.quote(weights)} && export PYTHONPATH={folder} VLLM_SERVER_DEV_MODE=1 "
        f"VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 && exec {shlex.quote(given.get('python') or 'python')} -m "
        f"vllm.entrypoints.openai.api_server --model {model} {shlex.join(words)} --host $HOST --port $PORT"
    )
    cores, gpus = (_VLLM_CORES, each) if sizes.gpus else (1, 0)
    return Servers(VLLM, command, "/health", "/health", sizes.vllm, cores, gpus, per_node, own_nodes)


def _asked(code: str, *words: str) -> str:
    """Words of a shell for what Python says on the role's machine."""
    return f"$({' '.join(['python -c', json.dumps(code), *words])})"


def _placed(sizes: Sizes, each: int) -> tuple[int, int]:
    """The vLLM servers of a node, and the number of nodes of their own.

    Args:
        sizes: How much of what.
        each: GPUs of a server.

    Raises:
        ConfigError: The GPUs of the nodes do not hold them.
    """
    if sizes.gpus == 0:
        per_node = -(-sizes.vllm // sizes.nodes)
        return per_node, 0 if sizes.shared else -(-sizes.vllm // per_node)
    if sizes.shared:
        per_node, rest = divmod(sizes.vllm, sizes.nodes)
        if rest or per_node * each >= sizes.gpus:
            raise ConfigError(
                f"--vllm {sizes.vllm} --vllm-on shared: {sizes.vllm} servers of {each} GPU(s) on {sizes.nodes} node(s) "
                f"of {sizes.gpus}; a whole number on each, which leaves GPUs that train"
            )
        return per_node, 0
    if each > sizes.gpus:
        raise ConfigError(f"--vllm: a server takes {each} GPUs, and --gpus-per-node is {sizes.gpus}")
    per_node = sizes.gpus // each
    return per_node, -(-sizes.vllm // per_node)


def dns_label(text: str) -> str:
    """Returns a name as DNS takes it: lower case, digits and hyphens, at most 40 characters."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40].rstrip("-") or "run"
