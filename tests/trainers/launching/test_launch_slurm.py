"""A batch script on a SLURM of two machines, which are namespaces of this one (``tests/support/nodes.py``).

Needs Debian's slurmctld, slurmd, slurm-client and munge, and root.
"""

from __future__ import annotations

import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainers.programs.launching.program import main

nodes = pytest.importorskip("nodes")
CONF = """
ClusterName=test
SlurmctldHost={head.name}({head.address})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=/tmp/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir=/tmp/spool
SlurmctldPidFile=/tmp/slurmctld.pid
SlurmdPidFile=/tmp/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
KillWait=30
"""
PATH = f"{Path(sys.executable).parent}:/usr/bin:/bin:/usr/sbin:/sbin"
NODE = "NodeName={node.name} NodeHostname={node.name} NodeAddr={node.address} CPUs=16 RealMemory=4000 State=UNKNOWN\n"


def missing() -> str:
    if lacking := [
        name for name in ("munged", "slurmctld", "slurmd", "sbatch") if shutil.which(name, path=PATH) is None
    ]:
        return f"{', '.join(lacking)} not installed"
    return str(nodes.missing())


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[list[nodes.Node]]:
    """Two nodes with a SLURM, whose controller is on the first; each has its folder in common."""
    if why := missing():
        pytest.skip(why)
    with nodes.Nodes(2, tmp_path) as made:
        folder = tmp_path / "slurm"
        (folder / "state").mkdir(parents=True)
        (folder / "key").write_bytes(secrets.token_bytes(128))
        (folder / "key").chmod(0o600)
        text = CONF.format(head=made[0], folder=folder) + "".join(NODE.format(node=node) for node in made)
        (folder / "slurm.conf").write_text(text + "PartitionName=all Nodes=ALL Default=YES State=UP\n")
        for node in made:
            own = "--socket=/tmp/munge.socket --pid-file=/tmp/munge.pid --log-file=/tmp/munge.log --seed-file=/tmp/seed"
            done(node, f"munged --force --key-file={folder}/key {own}", folder)
        done(made[0], "slurmctld", folder)
        for node in made:
            done(node, f"slurmd -N {node.name}", folder)
        yield made


def done(node: nodes.Node, command: str, folder: Path) -> str:
    """Runs a command on a node; returns what it says."""
    log = folder / f"{secrets.token_hex(4)}.log"
    started = node.start(["sh", "-c", command], log, SLURM_CONF=str(folder / "slurm.conf"), PATH=PATH)
    assert started.wait(120) == 0, log.read_text()
    return log.read_text()


@pytest.mark.slow
def test_a_job_on_two_machines_with_servers_trains_what_two_processes_do(cluster, tmp_path, monkeypatch):
    from tiny_runs import environment, save_model, without_times, write_settings

    save_model(tmp_path / "model")
    here = str(write_settings(tmp_path, name="here"))
    command = [sys.executable, "-m", "envsuite.cli", "train", "--processes", "2", "--config", here]
    subprocess.run(command, cwd=tmp_path, env=environment(), check=True, capture_output=True, timeout=1200)
    monkeypatch.chdir(tmp_path)
    there = str(write_settings(tmp_path, name="there"))
    assert main(["--slurm", "--config", there, "--nodes", "2", "--servers", "2"]) == 0
    script = "launch/there/job.sbatch"
    job = done(cluster[0], f"cd {tmp_path} && sbatch --parsable {script}", tmp_path / "slurm").strip()
    until = time.monotonic() + 900
    while time.monotonic() < until:
        state = done(cluster[0], f"scontrol show job {job}", tmp_path / "slurm")
        if not any(f"JobState={going}" in state for going in ("PENDING", "RUNNING", "COMPLETING")):
            break
        time.sleep(2.0)
    logs = {file.name: file.read_text() for file in (tmp_path / "launch/there/logs").iterdir()}
    assert "JobState=COMPLETED" in state, f"{state}\n{logs}"
    assert without_times(tmp_path / "runs/there") == without_times(tmp_path / "runs/here")
    roles = {f"{job}-{role}-{number}.log" for role in ("textcraft", "trainer") for number in (0, 1)}
    assert logs.keys() == {f"{job}.log"} | roles
    served = (tmp_path / "launch/there/textcraft.servers").read_text().split()
    assert [url.split(":")[1] for url in served] == [f"//{node.name}" for node in cluster]
