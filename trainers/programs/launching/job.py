"""The roles of a run, made from its settings."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, TypeVar

from trainers.programs.launching.roles import SETTINGS, VLLM, ClusterJob, JobSizes, ServerRole, dns_label
from trainers.rollout.config import EnvConfig
from trainers.run.cli import settings_file
from trainers.run.config import TrainConfig

E = TypeVar("E", bound=EnvConfig)
_CORES = 4
_SET_NAME = 52
"""Most characters of a StatefulSet's name, run-server: Kubernetes adds 11 for a label, which takes 63."""


def job_of(config: TrainConfig, sizes: JobSizes, root: PurePosixPath, where: Callable[[str, int], Any]) -> ClusterJob:
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
    servers = list[ServerRole]()
    if sizes.servers:
        config, servers = _with_servers(config, sizes.servers, where)
    gpus = sizes.gpus
    if sizes.vllm:
        from trainers.programs.launching.vllm import with_vllm  # needs PyTorch, whose import takes seconds

        config, vllm = with_vllm(config, sizes, str(root / run / "weights"), where(VLLM, sizes.vllm))
        gpus -= vllm.per_node * vllm.gpus if sizes.shared else 0
        servers.append(vllm)
    processes = gpus or sizes.processes
    return ClusterJob(
        name=config.name, folder=folder, settings=settings_file(config), nodes=sizes.nodes, processes=processes,
        gpus=gpus, node_gpus=sizes.gpus, restarts=sizes.restarts, servers=servers,
        trainer=_trainer(f"{folder}/{SETTINGS}", run, sizes, processes),
    )  # fmt: skip


def _trainer(settings: str, run: PurePosixPath, sizes: JobSizes, processes: int) -> str:
    """The command of a node that trains; it goes on where the run has a checkpoint."""
    words = f"exec envsuite train --config {shlex.quote(settings)} --processes {processes}"
    if sizes.restarts:
        words += f" --max-restarts {sizes.restarts}"
    if sizes.nodes > 1:
        words += f" --nodes {sizes.nodes} --rendezvous $HEAD --job $JOB"
    return f"{words} $(ls -d {shlex.quote(str(run / 'checkpoints'))}/iteration-* > /dev/null 2>&1 && echo --resume)"


def _with_servers(
    config: TrainConfig, count: int, where: Callable[[str, int], Any]
) -> tuple[TrainConfig, list[ServerRole]]:
    """The settings with the addresses of servers for each environment that has none; and the servers."""
    names: dict[str, str] = {}
    most = _SET_NAME - len(dns_label(config.name)) - 3  # a hyphen, and the number of one whose name is taken

    def add_urls(envs: Sequence[E]) -> list[E]:
        return [env if env.url is not None else replace(env, url=where(server_name(env.id), count)) for env in envs]

    def server_name(env_id: str) -> str:
        if env_id not in names:
            name = dns_label(env_id.rpartition(":")[2].removesuffix("-v0"), most)
            names[env_id] = f"{name}{len(names)}" if name in (*names.values(), VLLM, "trainer") else name
        return names[env_id]

    config = replace(config, envs=add_urls(config.envs))
    config = replace(config, evaluation=replace(config.evaluation, envs=add_urls(config.evaluation.envs)))
    servers = []
    for env_id, name in names.items():
        words = f"exec envsuite serve http {shlex.quote(env_id)} --host $HOST --port $PORT --workers {_CORES}"
        servers.append(ServerRole(name, words, "/healthz", "/readyz", count, _CORES))
    return config, servers
