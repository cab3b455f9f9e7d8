"""``python -m benchmarks.agents``: every kind of agent on every environment, in one table.

    python -m benchmarks.agents --runs runs --out results/agents

On the tasks that the shipped configurations evaluate on, these play: the environment's players (expert, lexical,
random), the model that imitation left (the run's first), and the one that training left (its last checkpoint, also of
the runs NAME-POLICY beside NAME), five seeds of each that draws anything. It goes on where it stopped. Then it prints
the table.
The runs are those of the commands on the configurations' first lines.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from envsuite.core.errors import DataError, EnvsuiteError
from envsuite.core.registration import ENVIRONMENTS
from trainers.run.cli import EVALUATE, parse
from trainers.run.config import TrainConfig

CONFIGS = ("textcraft", "alfworld", "webshop", "sokoban", "pythonmath", "papersearch", "searchqa")
PLAYERS = ("expert", "lexical", "random")


def players(config: TrainConfig, out: Path) -> Iterator[list[str]]:
    """Yields the command for each of a configuration's environments that plays its players."""
    for env in config.evaluation.envs:
        known = [name for name in PLAYERS if name == "random" or name in ENVIRONMENTS[env.id].players]
        options: dict[str, Any] = dict(env.kwargs)
        types = options.pop("tasks", [])
        options.pop("observation", None)  # how a model sees the world: these look into it, or read the default
        yield [
            sys.executable, "-m", "envsuite.cli", "eval", "run", env.id, "--split", env.split, "--out", str(out),
            *(["--steps", str(env.max_episode_steps)] if env.max_episode_steps else []),
            *(["--sample", str(config.evaluation.episodes)] if config.evaluation.episodes else []),
            *(["--source", str(options.pop("source"))] if "source" in options else []),
            *(["--types", *types] if types else []),
            *(word for name, value in options.items() for word in ("--option", f"{name}={json.dumps(value)}")),
            *(word for name in known for word in ("--policy", name)),
        ]  # fmt: skip


def models(name: str, config: TrainConfig, runs: Path, out: Path) -> Iterator[list[str]]:
    """Yields the commands that play the model before training and the one after, of each run.

    Raises:
        DataError: There is no such run.
    """
    played = [("imitation", config.model.path), *trained(config.name, runs)]
    if len(played) == 1:
        raise DataError(f"{runs / config.name}: no checkpoint; train with configs/{name}.yaml first")
    for policy, path in played:
        yield [
            sys.executable, "-m", "envsuite.cli", "eval", "model",
            "--config", f"configs/{name}.yaml", "--model.path", path,
            "--evaluation.repeats", "1", "--seeds", "5", "--out", str(out),
            "--policy", policy,
        ]  # fmt: skip


def trained(name: str, runs: Path) -> Iterator[tuple[str, str]]:
    """Yields policy and last checkpoint of the runs ``name`` (``trained``) and ``name-POLICY``, such as ``name-0``."""
    for run in (runs / name, *sorted(runs.glob(f"{name}-*"))):
        checkpoints = sorted((run / "checkpoints").glob("iteration-*"))
        if checkpoints:
            yield run.name.removeprefix(f"{name}-") if run.name != name else "trained", str(checkpoints[-1])


def main(arguments: Sequence[str] | None = None) -> int:
    """Plays, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the runs (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("results/agents"), help="(default: %(default)s)")
    parser.add_argument("--configs", nargs="+", default=CONFIGS, metavar="NAME", help="(default: all)")
    given = parser.parse_args(arguments)
    try:
        for name in given.configs:
            config = parse(["--config", f"configs/{name}.yaml"], EVALUATE).config
            for command in (*players(config, given.out), *models(name, config, given.runs, given.out)):
                print("+", *command[1:], file=sys.stderr)
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    except EnvsuiteError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except subprocess.CalledProcessError as error:
        return error.returncode
    table = [sys.executable, "-m", "envsuite.cli", "eval", "table", str(given.out)]
    for form, rows in (("markdown", "all"), ("latex", "all"), ("json", "stratum")):
        file = given.out / f"table.{form}"
        subprocess.run([*table, "--format", form, "--by", rows, "--out", str(file)], check=True)
    print((given.out / "table.markdown").read_text(encoding="utf-8"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
