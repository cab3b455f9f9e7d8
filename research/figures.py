"""``python -m research.figures``: the papers' own small figures, of small agents (``docs/benchmarks.md``).

    python -m research.figures ALFWorld-v0=0.8 WebShop-v0=0.5   # groups: of an expert that errs so often
    python -m research.figures runs/figures/bipace              # groups: of the saved episodes of a run
    python -m research.figures steppo scpo                      # learning, in the laboratory's worlds

Of an environment 16 tasks of split train are played, 8 episodes each, without a model. Of a run each iteration is
measured by itself, and the mean is told; what its own estimator said of its clusters stands beside it. What learns is a
table of logits, with 20 seeds, each method at its best rate. Each source adds lines to ``research/figures.jsonl``.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from research.credit.environments import play
from research.lab.claims import trained
from research.lab.craft import textcraft
from research.lab.learning import learn
from research.lab.mdp import World
from research.lab.methods import Method
from research.lab.worlds import delayed
from trainers.credit.estimators.bipace import BiPACE
from trainers.credit.estimators.hgpo import HGPO
from trainers.credit.scpo import SCPO
from trainers.report.metrics import read_metrics
from trainers.steps import StepTable
from trainers.steps.parquet import read_episodes

RESULTS = Path(__file__).with_suffix(".jsonl")
TASKS, EPISODES, DEPTH = 16, 8, 4
SEEDS, ITERATIONS = 20, 40
CLUSTERS = ("cluster/singleton_rate", "cluster/size_mean", "branch/pace", "action_keys_per_cluster", "matched_pairs")
"""What is told of clusters."""
EMBEDDERS = {"exact": BiPACE(embedder="identity"), "ngram": BiPACE(embedder="ngram_hash", radius=0.25)}


def measure(steps: StepTable) -> dict[str, list[float]]:
    """Shares of the steps at each level of HGPO, and the figures :data:`CLUSTERS` of equal and of alike states.

    ``shared`` is of the steps that another of the group shares their level with; ``shared_code`` the same where steps
    with fewer than k before them have no level k, as in the authors' code; ``credited`` is of those with an advantage.
    """
    hgpo = HGPO(depth=DEPTH)
    groups, exists = HGPO(depth=DEPTH, short_history="skip").levels(steps)
    shared = np.array([np.bincount(group)[group] > 1 for group in groups])
    credited = hgpo(steps).diagnostics
    return {
        "steps": [float(len(steps))],
        "shared": shared.mean(1).tolist(),
        "shared_code": (shared & exists).mean(1).tolist(),
        "credited": [credited[f"level_{k}/step_utilisation"] for k in range(DEPTH + 1)],
    } | {name: _clusters(bipace(steps).diagnostics) for name, bipace in EMBEDDERS.items()}


def _clusters(diagnostics: Mapping[str, float]) -> list[float]:
    return [diagnostics[name] for name in CLUSTERS]


def of_environment(env_id: str, share: float) -> Iterator[dict[str, list[float]]]:
    """Plays an environment's expert, a share of whose moves are random; yields one measurement."""
    env: Any = gymnasium.make(env_id, disable_env_checker=True, split="train")
    tasks = random.Random(0).sample(env.unwrapped.tasks.ids("train"), TASKS)
    plans = [(group, task, number) for number, (group, task) in product(range(EPISODES), enumerate(tasks))]
    episodes = [play(env, env_id, share, plan) for plan in plans]
    yield {"success": [float(np.mean([e.success for e in episodes]))], **measure(StepTable.from_episodes(episodes))}


def of_run(folder: Path) -> Iterator[dict[str, list[float]]]:
    """Yields the measurements of each iteration of a run."""
    for line in read_metrics(folder / "metrics.jsonl"):
        for file in (folder / "episodes").glob(f"iteration-{line['iteration']:05d}*"):
            own = {name.removeprefix("diag/"): value for name, value in line.items()}
            hidden = {"hidden": _clusters(own)} if CLUSTERS[0] in own else {}
            yield {
                "success": [line["train/success"]],
                **measure(StepTable.from_episodes(read_episodes(file))),
                **hidden,
            }


def learners() -> dict[str, list[tuple[World, Method]]]:
    """The worlds and methods of StepPO's table 4 and of SCPO's table 2."""
    gammas, worlds = (0.99, 0.95), (delayed(), textcraft())
    shapers = {
        "default": SCPO(), "chronological": SCPO(order="chronological"), "repeated": SCPO(monotonic=False),
        "shortest": SCPO(reference="shortest"),
    }  # fmt: skip
    return {
        "steppo": [(delayed(8), method) for method in trained(gammas)],
        "scpo": [(world, Method(name, "gigpo", scpo=scpo)) for world in worlds for name, scpo in shapers.items()],
    }


def of_learning(world: World, method: Method) -> dict[str, Any]:
    """Lets a table of logits learn; tells of each seed the mean return over the curve, and that at its end."""
    records = learn("", world, method, SEEDS, ITERATIONS)
    curves = np.array([record["score"] for record in records], np.float64).reshape(SEEDS, -1)
    told = {"world": world.name, "method": method.name, "rate": records[0]["rate"]}
    return {**told, "mean": curves.mean(1).round(4).tolist(), "end": curves[:, -1].round(4).tolist()}


def lines(source: str) -> Iterator[dict[str, Any]]:
    """The lines of a source."""
    if source in learners():
        yield from (of_learning(*learner) for learner in learners()[source])
        return
    env_id, equals, share = source.partition("=")
    rounds = list(of_environment(env_id, float(share)) if equals else of_run(Path(source)))
    means = {name: np.mean([one[name] for one in rounds], 0).round(4).tolist() for name in rounds[0]}
    yield {"iterations": len(rounds), **means}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures each source."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="+", metavar="ENV=SHARE|RUN|PAPER")
    parser.add_argument("--results", type=Path, default=RESULTS, help="(default: %(default)s)")
    given = parser.parse_args(arguments)
    for source in given.sources:
        for line in lines(source):
            text = json.dumps({"source": source, **line})
            print(text, flush=True)
            with given.results.open("a", encoding="utf-8") as file:
                file.write(text + "\n")


if __name__ == "__main__":
    main()
