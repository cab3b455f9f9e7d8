"""A run as roles: the trainer on its nodes, servers of environments, servers of vLLM; each with its command."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

VLLM = "vllm"
SETTINGS = "settings.yaml"


@dataclass(frozen=True)
class JobSizes:
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
class ServerRole:
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
class ClusterJob:
    """A run as roles."""

    name: str
    folder: str
    """Where its files are, below the working folder."""
    settings: str
    """Text of :data:`SETTINGS`."""
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
    servers: Sequence[ServerRole]

    @property
    def all_nodes(self) -> int:
        """Nodes that train, and those that servers have for themselves."""
        return self.nodes + sum(servers.own_nodes for servers in self.servers)


def dns_label(text: str, most: int = 40) -> str:
    """Returns a name as DNS takes it: lower case, digits and hyphens, from a letter on, at most ``most`` characters."""
    label = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "run"
    return (label if label[0].isalpha() else f"r-{label}")[:most].rstrip("-")
