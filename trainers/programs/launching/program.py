"""``envsuite launch --slurm | --kubernetes | --local N``: from the settings of a run to a cluster."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from envsuite import __version__
from envsuite.exits import status_of
from trainers.programs.launching.files import DATA, KUBERNETES, PORT, SLURM, addresses, manifests, script
from trainers.programs.launching.job import job_of
from trainers.programs.launching.local import commands, free_ports, run
from trainers.programs.launching.roles import SETTINGS, ClusterJob, JobSizes, dns_label
from trainers.run.cli import ORDER, CommandLine, TrainerProgram, parse
from trainers.run.config import TrainConfig
from trainers.settings import ConfigError
from trainers.settings.words import whole_number

TARGETS = ("slurm", "kubernetes", "local")
LAUNCH = TrainerProgram(
    "envsuite launch",
    f"""Write the files that train on a cluster, into launch/<name>, or start the same roles here.
{ORDER}
examples:
  envsuite launch --local 2 --config configs/textcraft.yaml --servers 2
  envsuite launch --slurm --config configs/textcraft.yaml --nodes 4 --gpus-per-node 8 --servers 4 --dry-run
  envsuite launch --kubernetes --config configs/webshop.yaml --nodes 2 --gpus-per-node 8 --servers 8
""",
    trains=True,
    elsewhere=True,
    options={
        "--slurm": "Write a batch script for SLURM; this folder and this installation must be ones that all nodes see.",
        "--kubernetes": "Write manifests for Kubernetes.",
        "--local N": "Start all roles here, with N processes of the trainer.",
        "--nodes N": "Nodes that train. By default 1.",
        "--gpus-per-node N": "GPUs of each node, with a process each. By default 0: CPU only.",
        "--processes N": "Processes of each node without GPUs. By default 1.",
        "--servers N": "Servers of each environment. By default 0: the trainer's processes play.",
        "--vllm N": "vLLM servers. By default 0: as rollout.engine and its options say.",
        "--vllm-on own|shared": "Nodes of the vLLM servers: their own (the default), or those that train, whose "
        "processes then have the other GPUs.",
        "--max-restarts N": "How often the run is started again after a loss. By default 3.",
        "--image NAME": "Image of all roles, for Kubernetes. By default envsuite-trainer of this version.",
        "--dry-run": "Print the files, and do nothing.",
    },
)


def main(arguments: Sequence[str]) -> int:
    """Runs the command line; returns the exit status, with ``--local`` that of the trainer."""
    return status_of(lambda: _launch(parse(arguments, LAUNCH)))


def _launch(command: CommandLine) -> int:
    config, options = command.config, command.options
    target, *more_targets = [name for name in TARGETS if name in options] or [""]
    if more_targets or not target:
        raise ConfigError("say where: with one of --slurm, --kubernetes and --local N")
    for switch in ("slurm", "kubernetes", "dry-run"):
        if options.get(switch, "yes") != "yes":
            raise ConfigError(f"--{switch} {options[switch]}: it takes no value; settings are given as --name value")
    ports: dict[str, list[int]] = {}
    job, files, submit = _render_job(config, target, options, ports)
    folder = Path(job.folder)
    if "dry-run" in options:
        files |= {"commands": commands(job, ports)} if target == "local" else {}
        sys.stdout.write("".join(f"# {folder / name}\n{text}\n" for name, text in files.items()))
        return 0
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    if target == "local":
        return run(job, ports)
    sys.stdout.write(f"wrote {', '.join(str(folder / name) for name in files)}; submit: {submit}\n")
    return 0


def _render_job(
    config: TrainConfig, target: str, options: Mapping[str, str], ports: dict[str, list[int]]
) -> tuple[ClusterJob, dict[str, str], str]:
    """The job, its files by their names, and the command that submits it; enters ports of servers started here."""
    sizes, root = _sizes(options), Path.cwd()
    if target == "kubernetes":
        where = f"dns://{dns_label(config.name)}-{{}}:{PORT}"
        job = job_of(config, sizes, PurePosixPath(DATA), lambda role, count: where.format(role))
        image = options.get("image", f"envsuite-trainer:{__version__}")
        submit = " ".join(f"-f {job.folder}/{file}" for file in KUBERNETES)
        return job, manifests(job, f"{config.output}/{config.name}", image), f"kubectl apply {submit}"
    if "image" in options:
        raise ConfigError(f"--image {options['image']}: only --kubernetes takes an image")
    if target == "slurm":
        folder = f"file://{root}/launch/{config.name}"
        job = job_of(config, sizes, PurePosixPath(root), lambda role, count: addresses(folder, role))
        files = script(job, root, Path(sys.executable).parent)
        return job, {SETTINGS: job.settings, **files}, f"sbatch {job.folder}/{SLURM[0]}"
    if sizes.nodes > 1:
        raise ConfigError(f"--nodes {sizes.nodes}: --local starts the roles on this machine alone; leave --nodes out")

    def here(role: str, count: int) -> list[str]:
        ports.setdefault(role, free_ports(count))
        return [f"http://127.0.0.1:{port}" for port in ports[role]]

    job = job_of(config, sizes, PurePosixPath(root), here)
    return job, {SETTINGS: job.settings}, ""


def _sizes(options: Mapping[str, str]) -> JobSizes:
    """The sizes that the options name.

    Raises:
        ConfigError: One is no number, or they contradict each other.
    """

    def number(name: str, default: int, least: int) -> int:
        return whole_number(f"--{name}", options.get(name, str(default)), least, 100_000)

    place = options.get("vllm-on", "own")
    if place not in ("own", "shared"):
        raise ConfigError(f"--vllm-on {place}: it is own or shared")
    if "processes" in options and ("local" in options or "gpus-per-node" in options):
        instead = "--local" if "local" in options else "--gpus-per-node"
        raise ConfigError(f"--processes {options['processes']}: {instead} says how many there are; leave one out")
    if "local" in options and "gpus-per-node" in options:
        raise ConfigError(f"--gpus-per-node {options['gpus-per-node']}: --local says how many processes; leave one out")
    return JobSizes(
        nodes=number("nodes", 1, 1), gpus=number("gpus-per-node", 0, 0),
        processes=number("local", 1, 1) if "local" in options else number("processes", 1, 1),
        servers=number("servers", 0, 0), vllm=number("vllm", 0, 0), shared=place == "shared",
        restarts=number("max-restarts", 3, 0),
    )  # fmt: skip
