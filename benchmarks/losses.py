"""What a run on two nodes loses to ``SIGKILL``s over all roles: ``python -m benchmarks.losses``.

Nodes of this machine (``tests/support/nodes.py``; needs root): two train, three have a server of environments each, and
with ``--vllm PYTHON``, an interpreter with vLLM that is not below ``/tmp``, two more have a vLLM server each. A file
names the servers: the third one of environments joins after a third of the kills, and the first one leaves after two
thirds. At seeded moments one of these is killed:

- ``rank``: a process that trains. torch's agent starts all of them again (``--max-restarts``).
- ``node``: a node that trains, with its agent and all that runs there; its link is cut first, so that nobody is told.
  After ``--away`` seconds it is back, and its command is started again, as SLURM (``--requeue``) or Kubernetes do. So
  is the other node's where that has ended, too: the rendezvous was on the node that was killed.
- ``server``: a server of environments, also back after ``--away`` seconds.
- ``vllm``: a vLLM server, in the same way.

A moment is some iterations and a fraction of one after the run trains again, or, for one in four, some seconds after
the kill before it, whatever the run is doing then.

Printed is what each kill cost: the iterations that were computed again, and the seconds until the run was further than
before; a kill before that counts together with the next one. The weights at the end are compared with those of the same
run undisturbed; with vLLM they may differ, as what it samples may depend on which requests it answers together.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from nodes import Node, Nodes, missing
from safetensors.torch import load_file
from tiny_runs import BOOK, ROOT, save_model, settings, weights, without_times, write_settings
from torch import Tensor

from envsuite.exits import MENDABLE
from envsuite.remote.places import LOOK_SECONDS
from trainers.programs.launching.roles import JobSizes
from trainers.programs.launching.vllm import with_vllm
from trainers.run.config import TrainConfig
from trainers.settings import checked

ROLES = {"rank": 8, "node": 6, "server": 6}
"""How many of twenty kills each gets."""
ROLES_WITH_VLLM = {"rank": 6, "node": 4, "server": 4, "vllm": 6}
TRAINING, SERVING, VLLM = 2, 3, 2
"""Nodes of each kind, in this order."""
PORT = 8080
CRAFT = ROOT / "trainers" / "models" / "craft-1m"


@dataclass
class Kill:
    """One of them, and what it cost."""

    what: str
    doing: str
    """What the run did: it trained, or recovered from the kill before."""
    at: float
    """Seconds since the start of the run."""
    iteration: int
    """The last one that had been finished."""
    lost: int = 0
    seconds: float | None = None
    """Until the run was further than before; ``None`` where the next kill came first."""


class Cluster:
    """The nodes, what runs there, and what starts it again.

    Args:
        nodes: Those that train, then those with servers.
        settings: File with the run's settings.
        run: Its folder.
        logs: Where everything's output goes.
        away: Seconds until what was killed is back.
        vllm: Command of a vLLM server, which reads ``$HOST`` and ``$PORT``.
    """

    def __init__(self, nodes: Nodes, settings: Path, run: Path, logs: Path, away: float, vllm: str) -> None:
        self.nodes, self.settings, self.run, self.logs, self.away, self.vllm = nodes, settings, run, logs, away, vllm
        self.running = dict[str, subprocess.Popen[str]]()
        self.back = dict[str, float]()
        """When a node is switched on again."""
        self.serving = nodes[TRAINING : TRAINING + SERVING - 1]
        """Nodes whose servers of environments the file names."""
        self.sampling = nodes[TRAINING + SERVING :]
        self.name_servers()
        for node in nodes[:TRAINING] + self.serving + self.sampling:
            self.start(node)

    def name_servers(self) -> None:
        """Writes the files that name the servers."""
        for kind, nodes in {"servers": self.serving, "samplers": self.sampling}.items():
            file = self.settings.with_name(f"{self.run.name}.{kind}")
            file.write_text("".join(f"http://{node.address}:{PORT}\n" for node in nodes))

    def join(self) -> None:
        """Lets the last server of environments join."""
        node = self.nodes[TRAINING + SERVING - 1]
        self.start(node)
        self.serving = [*self.serving, node]
        self.name_servers()

    def leave(self) -> None:
        """Lets the first server of environments leave: it is named no more, and soon after it is off."""
        node, *self.serving = self.serving
        self.name_servers()
        time.sleep(2 * LOOK_SECONDS)
        node.power_off()
        self.back.pop(node.name, None)
        del self.running[node.name]

    def start(self, node: Node) -> None:
        """Starts what belongs on a node, a run with ``--resume`` where there is a checkpoint."""
        number = self.nodes.index(node)
        ours = [sys.executable, "-m", "envsuite.cli"]
        if node in self.sampling:
            words = ["bash", "-c", self.vllm]
        elif number >= TRAINING:
            words = [*ours, "serve", "http", "TextCraft-v0", "--host", node.address, "--port", str(PORT)]
        else:
            words = [*ours, "train", "--config", str(self.settings), "--nodes", str(TRAINING), "--node", str(number)]
            words += ["--rendezvous", self.nodes[0].name, "--job", "losses", "--max-restarts", "100"]
            words += ["--resume"] * any(self.run.glob("checkpoints/iteration-*"))
        variables = {"HOST": node.address, "PORT": str(PORT)}
        self.running[node.name] = node.start(words, self.logs / f"node{number}.log", **variables)

    def tend(self) -> bool:
        """Starts again what has ended, and is to be back by now; returns whether the run has ended by itself."""
        for node in self.nodes:
            if node.name in self.back:
                if time.monotonic() < self.back[node.name]:
                    continue
                del self.back[node.name]
                node.boot()
                self.start(node)
            elif node.name in self.running and (status := self.running[node.name].poll()):
                assert status != MENDABLE, f"a setting is refused; see {self.logs}"
                say(f"          {node.name}: its command has ended with status {status}, and is started again")
                self.start(node)
        return all(self.running[node.name].poll() == 0 for node in self.nodes[:TRAINING])

    def iteration(self) -> int:
        """The last iteration that the metrics have."""
        with contextlib.suppress(FileNotFoundError):
            return (self.run / "metrics.jsonl").read_bytes().count(b"\n")
        return 0

    def strike(self, role: str, rng: random.Random) -> str | None:
        """Kills one of a role; returns which, or ``None`` where none is there at the moment."""
        node = rng.choice({"server": self.serving, "vllm": self.sampling}.get(role, self.nodes[:TRAINING]))
        if node.name in self.back:
            return None
        number = f"node {self.nodes.index(node)}"
        if role == "rank":
            ranks = [pid for pid, line in sorted(node.processes().items()) if "-m trainers.train" in line]
            if not ranks:
                return None
            os.kill(rng.choice(ranks), signal.SIGKILL)
            return f"a process on {number}"
        node.power_off()
        self.back[node.name] = time.monotonic() + self.away
        if role in ("server", "vllm"):
            return f"the {'vLLM ' * (role == 'vllm')}server on {number}"
        return f"{number}, which has the rendezvous" if node is self.nodes[0] else number


@dataclass(frozen=True)
class Moment:
    """When the next kill comes: after some iterations of a run that trains again, or some seconds after the last."""

    role: str
    iterations: int
    fraction: float
    """Seconds later."""
    seconds: float | None = None


def plan(kills: int, seed: int, shares: Mapping[str, int]) -> list[Moment]:
    """The moments of all kills, in their order; the first waits for the run to train."""
    rng = random.Random(seed)
    share = sum(shares.values())
    roles = [role for role, count in shares.items() for _ in range(round(kills * count / share))][:kills]
    rng.shuffle(roles)
    moments = []
    for number, role in enumerate(roles):
        early = number > 0 and rng.random() < 0.25
        moments.append(Moment(role, rng.randint(1, 5), rng.random(), rng.uniform(0.0, 20.0) if early else None))
    return moments


def disturb(cluster: Cluster, moments: Sequence[Moment], rng: random.Random, most: float) -> list[Kill]:
    """Kills at ``moments`` until the run has ended; returns what each cost.

    Raises:
        AssertionError: The run has not ended by itself after ``most`` seconds.
    """
    kills, pending, began, base, low = list[Kill](), list(moments), time.monotonic(), 0, 0
    while not cluster.tend():
        now, reached = time.monotonic() - began, cluster.iteration()
        assert now < most, f"the run has not ended after {most:.0f} s; see {cluster.logs}"
        last = kills[-1] if kills else None
        low = min(low, reached)  # a run that goes back to a checkpoint drops the later lines
        if last is not None and last.seconds is None and reached > last.iteration:
            last.seconds, last.lost, base = now - last.at, last.iteration - low, reached
            say(f"{now:6.0f} s  further than before, after {last.seconds:.0f} s; computed again: {last.lost}")
        further = last is None or last.seconds is not None
        moment = pending[0] if pending else None
        if moment is None or last is None or moment.seconds is None:
            due = moment is not None and further and reached >= base + moment.iterations
        else:
            due = now - last.at >= moment.seconds
        if moment is not None and due:
            time.sleep(moment.fraction)
            if (struck := cluster.strike(moment.role, rng)) is not None:
                now, reached = time.monotonic() - began, cluster.iteration()
                far = max(reached, last.iteration) if last is not None and not further else reached
                low = min(low, far) if not further else far
                kills.append(Kill(struck, "trained" if further else "recovered", now, far))
                say(f"{now:6.0f} s  kill {len(kills)}: {struck}; the run {kills[-1].doing}, iteration {reached}")
                del pending[0]
                if len(kills) == len(moments) // 3:
                    cluster.join()
                    say("          a third server of environments joins")
                elif len(kills) == 2 * len(moments) // 3:
                    cluster.leave()
                    say("          the first server of environments leaves")
        time.sleep(0.1)
    return kills


def table(kills: Sequence[Kill]) -> str:
    """A row for each kill, in Markdown."""
    rows = [
        "| | killed | while the run | at, s | iteration | computed again | s until further |",
        "|--:|---|---|--:|--:|--:|--:|",
    ]
    for number, kill in enumerate(kills, 1):
        cost = "with the next | " if kill.seconds is None else f"{kill.lost} | {kill.seconds:.0f}"
        rows.append(f"| {number} | {kill.what} | {kill.doing} | {kill.at:.0f} | {kill.iteration} | {cost} |")
    return "\n".join(rows)


def say(text: str) -> None:
    """Prints a line at once."""
    print(text, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs undisturbed, then with kills; the status is 0 where the run ended by itself with the same weights."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--iterations", type=int, default=90)
    parser.add_argument("--checkpoint-every", type=int, default=3)
    parser.add_argument("--away", type=float, default=5.0, help="seconds until a node or a server is back")
    parser.add_argument("--most", type=float, default=3600.0, help="seconds after which the run has failed to end")
    parser.add_argument("--vllm", metavar="PYTHON", help="interpreter with vLLM, for two servers of it")
    given = parser.parse_args(arguments)
    if reason := missing():
        parser.error(reason)
    shared = Path(tempfile.mkdtemp(prefix="losses-")) / "shared"
    ends = dict[str, dict[str, Tensor]]()
    for name in ("undisturbed", "killed"):
        logs = shared.parent / name
        logs.mkdir()
        with Nodes(TRAINING + SERVING + VLLM * bool(given.vllm), shared) as nodes:
            save_model(shared / "model")
            world = {"id": "TextCraft-v0", "kwargs": dict(BOOK), "max_episode_steps": 3}
            changes: dict[str, Any] = {
                "envs": [world | {"url": (shared / f"{name}.servers").as_uri()}],
                "evaluation.envs": [],
                "iterations": given.iterations,
                "checkpoint_every": given.checkpoint_every,
                "name": name,
            }
            # A lost server changes which requests the engine answers together, and so the rounding of what it says:
            # nothing that is computed takes the engine's log-probabilities.
            changes |= {"optim.old_logprobs": "trainer", "optim.correction": None}
            # An episode whose servers are all lost is left out after its attempts.
            changes |= {"rollout.deadline": 10.0, "rollout.attempts": 9}
            command = ""
            if given.vllm:
                # vLLM on a CPU wants heads of 32 dimensions
                changes |= {"model.path": str(CRAFT), "rollout.engine": "vllm", "rollout.engine_deadline": 300.0}
                changes["rollout.engine_options"] = {"python": given.vllm, "patience": 30.0}
                config, role = with_vllm(
                    checked(TrainConfig, settings(shared, **changes)),
                    JobSizes(TRAINING, vllm=VLLM), str(shared / "weights"), (shared / f"{name}.samplers").as_uri(),
                )  # fmt: skip
                changes["rollout.engine_options"], command = config.rollout.engine_options, role.command
            file = write_settings(shared, **changes)
            cluster = Cluster(nodes, file, shared / "runs" / name, logs, given.away, command)
            say(f"{name}: {cluster.run}, logs in {logs}")
            began = time.monotonic()
            moments = (
                plan(given.kills, given.seed, ROLES_WITH_VLLM if given.vllm else ROLES) if name == "killed" else []
            )
            kills = disturb(cluster, moments, random.Random(given.seed), given.most)
            say(f"{name}: ended by itself after {time.monotonic() - began:.0f} s")
            end = cluster.run / "checkpoints" / f"iteration-{given.iterations:05d}"
            ends[name] = {key: tensor for file in weights(end) for key, tensor in load_file(end / file).items()}
    records = [without_times(shared / "runs" / name) for name in ends]
    again = sum(kill.lost for kill in kills)
    gap = max((tensor - ends["killed"][key]).abs().max().item() for key, tensor in ends["undisturbed"].items())
    say(f"\n{table(kills)}\n\n{len(kills)} kills, {again} iterations of {given.iterations} computed again")
    differ = [(n, [key for key in one if one[key] != two.get(key)]) for n, (one, two) in
              enumerate(zip(*records, strict=True), 1) if one != two]  # fmt: skip
    if differ:
        say(f"metrics differ from iteration {differ[0][0]} on: {', '.join(differ[0][1])}; both runs are in {shared}")
    else:
        shutil.rmtree(shared)
    said = "are bit for bit those" if gap == 0 else f"differ by up to {gap:.2g} from those"
    say(f"weights and optimiser at the end {said} of the undisturbed run")
    return 0 if (gap == 0 or given.vllm) and len(kills) == given.kills else 1


if __name__ == "__main__":
    sys.exit(main())
