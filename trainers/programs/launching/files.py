"""A job as the files of a cluster, by the templates of this folder."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from trainers.programs.launching.roles import ClusterJob, dns_label

SLURM, KUBERNETES = ("job.sbatch",), ("volume.yaml", "job.yaml")
"""Files of each, in the order in which they are submitted."""
DATA = "/data"
"""Where a pod has the volume; the working folder of all roles."""
PORT = 8080
"""Port of a server that is alone in its pod."""
_READY = "trainers.programs.launching.local"
_TEMPLATES = Path(__file__).with_name("templates")


def script(job: ClusterJob, root: Path, programs: Path) -> dict[str, str]:
    """Returns the batch script of SLURM.

    Args:
        job: The roles.
        root: The working folder, which all nodes share.
        programs: Folder of ``envsuite`` and ``python``, which all nodes share.
    """
    beside = [servers for servers in job.servers if servers.gpus and not servers.own_nodes]
    cores = sum(servers.per_node * servers.cores for servers in beside)
    values = {"root": str(root), "programs": str(programs), "taken": cores, "ready": _READY}
    return {name: _render(name, shlex.quote, job=job, **values) for name in SLURM}


def manifests(job: ClusterJob, output: str, image: str) -> dict[str, str]:
    """Returns the manifests of Kubernetes.

    Args:
        job: The roles.
        output: The run's folder, below the volume.
        image: Image of all roles.
    """
    run = dns_label(job.name)
    # One of each role: where a set was scaled down, a trainer that takes another's place does not wait for the others.
    urls = [f"http://{run}-{servers.name}:{PORT}{servers.ready}" for servers in job.servers]
    values = {"run": run, "root": DATA, "port": PORT, "output": output, "image": image}
    wait = " ".join([f"exec python -m {_READY}", *urls])
    return {name: _render(name, json.dumps, job=job, wait=wait, **values) for name in KUBERNETES}


def addresses(folder: str, name: str) -> str:
    """Returns the file in which a batch script writes the addresses of servers, one a line."""
    return f"{folder}/{name}.servers"


def _render(name: str, quoted: Callable[[str], str], **values: Any) -> str:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES), undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False
    )
    environment.filters["quoted"] = quoted
    return environment.get_template(f"{name}.jinja").render(**values)
