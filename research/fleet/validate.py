"""Real runs beside their simulation, with constants measured in between: ``python -m research.fleet.validate``.

Trains the model of configs/textcraft.yaml for a few iterations, once with environments in the process and once on an
`envsuite serve http`; measures engine, environment and calls on the same machine; simulates both runs. CPU seconds of
the training process are compared, which other programs on the machine disturb least.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import yaml
from rich.console import Console

from benchmarks.serving import served
from research.fleet.check import checked_against, table
from research.fleet.constants import Constants
from research.fleet.measure import engine_of, environment
from research.fleet.measure_serving import serving
from trainers.report.run import RunData
from trainers.run.config import TrainConfig
from trainers.settings import checked

CONFIG = Path("configs/textcraft.yaml")


def main() -> None:
    """Run, measure, simulate, and print a table for each run."""
    parser = argparse.ArgumentParser(prog="python -m research.fleet.validate", description=main.__doc__)
    parser.add_argument("--iterations", type=int, default=6, help="of each run (default: %(default)s)")
    parser.add_argument("--tasks", type=int, default=8, help="groups of an iteration (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="folder of the runs (default: a temporary one)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        out = arguments.out or Path(folder)
        for name, url in (("in-process", None), ("over-http", "server")):
            with served() if url else contextlib.nullcontext((None, 0)) as (address, _):
                run = trained(out, name, address, arguments.iterations, arguments.tasks)
            constants = constants_of(RunData.load(run))
            constants.write(out / f"{name}.json")
            rows = checked_against(run, constants)
            Console(width=110).print(
                table(rows, f"TextCraft {name.replace('-', ' ')}, {arguments.iterations} iterations")
            )


def constants_of(run: RunData) -> Constants:
    """Returns what a simulation of the run needs, measured now."""
    config = checked(TrainConfig, run.config)
    here = replace(config, envs=[replace(env, url=None) for env in config.envs])
    found = {config.envs[0].id: environment(run, here)}
    return Constants("this machine", "now", "python -m research.fleet.validate", serving(), found, engine_of(run))


def trained(out: Path, name: str, address: str | None, iterations: int, tasks: int) -> Path:
    """Trains; returns the folder of the run."""
    config = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    changed = {
        "name": name, "output": str(out), "iterations": iterations, "evaluation": {"envs": []}, "episodes_every": 1,
        "checkpoint_every": iterations, "rollout": {**config["rollout"], "tasks": tasks},
        "envs": [{**env, **({"url": address} if address else {})} for env in config["envs"]],
    }  # fmt: skip
    file = out / f"{name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump({**config, **changed}), encoding="utf-8")
    command = [sys.executable, "-m", "trainers.train", "--config", str(file)]
    subprocess.run(command, check=True, env={**os.environ, "ACCELERATE_USE_CPU": "true"}, stdout=subprocess.DEVNULL)
    return out / name


if __name__ == "__main__":
    main()
