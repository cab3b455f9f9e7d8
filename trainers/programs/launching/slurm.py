"""A job as a batch script of SLURM."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from envsuite.remote.protocol import TOKEN_VARIABLE
from trainers.programs.launching.roles import KEY_VARIABLE, READY, VLLM, Job, Servers

FILE = "job.sbatch"
_HEAD = """#!/bin/bash
# The run {name} on {nodes}, by: envsuite launch --slurm. SLURM's own options go before the file:
#   sbatch --partition=NAME --account=NAME {folder}/{file}
#SBATCH --job-name={name}
#SBATCH --chdir={root}
#SBATCH --output={folder}/logs/%j.log
#SBATCH --nodes={all_nodes}
#SBATCH --ntasks-per-node=1{gpus}
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=24:00:00
# Five minutes before the time is up, and when a node is lost, the run goes back into the queue, and then goes on.
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
export PATH={programs}:$PATH PYTHONUNBUFFERED=1 HOST=0.0.0.0 JOB=$SLURM_JOB_ID
export ENVSUITE_TOKEN=${{ENVSUITE_TOKEN:-$(python -c "import secrets; print(secrets.token_hex(32))")}}
export PORT=$((30000 + SLURM_JOB_ID % 50 * 50))  # of the first server
nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
export HEAD=${{nodes[0]}}
logs={folder}/logs/$SLURM_JOB_ID
"""
_KEY = f"export {KEY_VARIABLE}=${TOKEN_VARIABLE}\n"
_SERVERS = """
# {name}: {count} server(s), on {where}.
for i in {{0..{last}}}; do echo "http://${{nodes[{node}]}}:$((PORT + i))"; done > {addresses}
srun --nodes={nodes} --ntasks={count} {placed} --cpus-per-task={cores} {gpus} --output="$logs-{name}-%t.log" \\
    bash -c {command} &
PORT=$((PORT + {count}))
"""
_TRAINER = """
srun --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 --relative=0 --wait=120 --cpus-per-task={cores}{gpus} \\
    --output="$logs-trainer-%t.log" bash -c {command} &
trainer=$!
trap 'stopped=yes; scancel --signal=TERM $SLURM_JOB_ID.{step}' USR1
wait $trainer; status=$?
if [ -n "$stopped" ]; then
    wait $trainer; status=$?
    scontrol requeue "$SLURM_JOB_ID"
fi
exit $status
"""


def script(job: Job, root: Path, programs: Path) -> str:
    """Returns the batch script.

    Args:
        job: The roles.
        root: The working folder, which all nodes share.
        programs: Folder of ``envsuite`` and ``python``, which all nodes share.
    """
    own = job.all_nodes - job.nodes
    nodes = f"{job.nodes} node(s) that train{f' and {own} of vLLM' if own else ''}"
    text = _HEAD.format(
        name=job.name, nodes=nodes, folder=job.folder, file=FILE, root=shlex.quote(str(root)), all_nodes=job.all_nodes,
        gpus=f"\n#SBATCH --gpus-per-node={job.node_gpus}" if job.node_gpus else "", programs=shlex.quote(str(programs)),
    )  # fmt: skip
    text += _KEY if any(servers.name == VLLM for servers in job.servers) else ""
    text += "".join(_steps(job))
    taken = sum(servers.per_node * servers.cores for servers in job.servers if servers.gpus and not servers.own_nodes)
    return text + _TRAINER.format(
        nodes=job.nodes, cores=f"$((SLURM_CPUS_ON_NODE - {taken}))" if taken else "$SLURM_CPUS_ON_NODE",
        gpus=f" --exact --gpus-per-node={job.gpus}" if job.gpus != job.node_gpus else "",
        command=shlex.quote(job.trainer), step=len(job.servers),
    )  # fmt: skip


def addresses(job_folder: str, name: str) -> str:
    """Returns the file with the addresses of servers, one a line."""
    return f"{job_folder}/{name}.servers"


def _steps(job: Job) -> Iterator[str]:
    first_own, asked = job.nodes, list[str]()
    for servers in job.servers:
        yield _step(job, servers, first_own)
        first_own += servers.own_nodes
        asked.append(f"$(sed 's|$|{servers.ready}|' {addresses(job.folder, servers.name)})")
    if asked:
        yield f"\npython -m {READY} {' '.join(asked)} || exit 1\n"


def _step(job: Job, servers: Servers, first: int) -> str:
    """Starts servers, after writing their addresses."""
    if servers.own_nodes:
        nodes, placed = servers.own_nodes, f"--relative={first} --ntasks-per-node={servers.per_node}"
        node, where = f"{first} + i / {servers.per_node}", "nodes of their own"
    elif servers.gpus:
        nodes, placed = job.nodes, f"--relative=0 --ntasks-per-node={servers.per_node} --exact"
        node, where = f"i / {servers.per_node}", "the nodes that train"
    else:
        nodes = min(servers.count, job.nodes)
        placed, node, where = "--relative=0 --distribution=cyclic --overlap", f"i % {nodes}", "the nodes that train"
    return _SERVERS.format(
        name=servers.name, count=servers.count, where=where, last=servers.count - 1, node=node,
        addresses=addresses(job.folder, servers.name), nodes=nodes, placed=placed, cores=servers.cores,
        gpus=f"--gpus-per-task={servers.gpus}" if servers.gpus else "--gres=none",
        command=shlex.quote(f"export PORT=$((PORT + SLURM_PROCID)); {servers.command}"),
    )  # fmt: skip
