"""A run as roles: the trainer on its nodes, servers of environments, servers of vLLM; each with its command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from trainers.rollout.config import EnvConfig
from trainers.run.cli import shortened
from trainers.run.config import TrainConfig

VLLM = "vllm"
KEY_VARIABLE = "VLLM_API_KEY"
READY = "trainers.programs.launching.ready"
PAUSED = 3
"""Exit status of a run that an alarm stopped."""
_CORES = 4


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
        from trainers.programs.launching.vllm import with_vllm  # needs PyTorch, whose import takes seconds

        config, vllm = with_vllm(config, sizes, str(root / run / "weights"), where(VLLM, sizes.vllm))
        gpus -= vllm.per_node * vllm.gpus if sizes.shared else 0
        servers.append(vllm)
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

    config = replace(config, envs=served(config.envs))
    config = replace(config, evaluation=replace(config.evaluation, envs=served(config.evaluation.envs)))
    words = f"--host $HOST --port $PORT --workers {_CORES}"
    return config, [
        Servers(name, f"exec envsuite serve http {shlex.quote(env_id)} {words}", "/healthz", "/readyz", count, _CORES)
        for env_id, name in names.items()
    ]


def dns_label(text: str) -> str:
    """Returns a name as DNS takes it: lower case, digits and hyphens, at most 40 characters."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40].rstrip("-") or "run"
