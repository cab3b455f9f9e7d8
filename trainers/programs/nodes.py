"""``envsuite train`` on several nodes: the place of each, by which one command on each starts them together."""

from __future__ import annotations

import os
import sys
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from envsuite.core.errors import EnvsuiteError
from trainers.processes.interface import address_towards
from trainers.settings import ConfigError
from trainers.settings.words import whole_number

FIRST_PORT, PORTS = 20_000, 10_000
"""Below those that Linux gives to connections (32768 and above)."""
NODE_VARIABLES = ("SLURM_NODEID", "JOB_COMPLETION_INDEX")
"""In which SLURM, and an indexed job of Kubernetes, say which node this is."""
JOB_VARIABLES = ("SLURM_JOB_ID",)
WAIT_SECONDS = 600.0
"""How long a node waits for node 0 to have an address, as torch's rendezvous waits for nodes."""


class HeadNodeMissing(EnvsuiteError):
    """Node 0 has had no address; it may come later, so that this is no wrong setting."""


@dataclass(frozen=True)
class NodePlace:
    """A node's place among those of a job."""

    nodes: int
    node: int
    host: str
    """Name or address of node 0, as the others reach it."""
    port: int
    job: str

    @property
    def words(self) -> list[str]:
        """Options of ``accelerate launch``; :attr:`variables` has what it has no options for.

        The rendezvous ``c10d`` starts the processes of all nodes again when one is lost; ``static`` does not. It ranks
        nodes itself, and warns where it is given a rank.
        """
        return [
            *("--num_machines", str(self.nodes), "--machine_rank", "0"),
            *("--main_process_ip", self.host, "--main_process_port", str(self.port)),
            *("--rdzv_backend", "c10d", "--rdzv_conf", f"is_host={self.node == 0}"),
        ]

    @property
    def variables(self) -> dict[str, str]:
        """Options of ``torchrun`` in its environment.

        Without a store of its own for each start, torch 2.13 hands none to a node that comes in the place of another,
        which then waits for it until it gives up.
        """
        own = self.host if self.node == 0 else _await_address(self.host)  # instead of a name that may have no address
        return {"PET_RDZV_ID": self.job, "PET_LOCAL_ADDR": own, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def place_of(options: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> NodePlace | None:
    """Reads the place of this node; ``None`` where there is only one.

    Args:
        options: ``nodes``, ``node``, ``rendezvous`` and ``job``, as typed.
        environment: Has node and job where a scheduler started this, and they are not typed.

    Raises:
        ConfigError: One is missing, or cannot be.
    """
    if (nodes := whole_number("--nodes", options.get("nodes", "1"))) == 1:
        return None
    node = whole_number("--node", options.get("node") or _first(environment, NODE_VARIABLES), 0)
    if node >= nodes:
        raise ConfigError(f"--node {node}: --nodes {nodes} are numbered from 0 to {nodes - 1}")
    host, _, port = options.get("rendezvous", "").partition(":")
    job = options.get("job") or _first(environment, JOB_VARIABLES)
    if not host or not (port or job):
        lacks = "--job ID, or a port in --rendezvous" if host else "--rendezvous HOST, the name or address of node 0"
        raise ConfigError(f"--nodes {nodes} needs {lacks}: the same on all nodes")
    number = whole_number("port of --rendezvous", port) if port else FIRST_PORT + zlib.crc32(job.encode()) % PORTS
    return NodePlace(nodes, node, host, number, job or "run")


def _await_address(host: str) -> str:
    """Returns the address of this machine at which ``host`` can reach it, once it has one itself.

    Raises:
        HeadNodeMissing: It has had none for :data:`WAIT_SECONDS`.
    """
    start, is_reported = time.monotonic(), False
    while True:
        try:
            return address_towards(host)
        except ConfigError as error:
            if time.monotonic() - start >= WAIT_SECONDS:
                raise HeadNodeMissing(f"{error}; waited for {WAIT_SECONDS:.0f} s") from error
            if not is_reported:
                sys.stderr.write(f"waiting for node 0: {error}\n")
                is_reported = True
            time.sleep(1.0)


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((environment[name] for name in names if environment.get(name)), "")
