"""``python research/credit/recount.py``: the comparisons of the second protocol again, from the stored runs alone.

It shares no code with the report, and draws a million changes of signs where the report counts all of them. It prints
one line of JSON for each comparison: the texts that the report must have, and p with the error of the draws.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from scipy.stats import t as student

HERE = Path(__file__).parent
SEEDS, DRAWS = (900, 901, 902), 1_000_000


def main(runs_file: Path, plan_file: Path) -> None:
    """Prints the comparisons whose runs are all there."""
    plan = {"seeds": 30, **yaml.safe_load(Path(plan_file).read_text())}
    runs = [json.loads(line) for line in Path(runs_file).read_text().splitlines()]
    runs = [run for run in runs if run["stage"] in ("guard", "second") and run.get("guard") == plan["guard"]]

    def areas(run: dict[str, Any]) -> tuple[float, float]:
        values = [0.0] if run["error"] else [100 * value for value in run["success"][1:]]
        return sum(values) / len(values), max(values)

    def tuned_rate(cell: str, arm: str) -> float:
        walk = "h{}-k3-p30".format(cell[1:].split("-")[0]) + "-large" * ('size="large"' in cell)
        worst: dict[float, float] = {}
        for run in runs:
            if (run["stage"], run["cell"], run["arm"]) == ("guard", walk, arm) and run["seed"] in SEEDS:
                worst[run["rate"]] = min(worst.get(run["rate"], 1e9), areas(run)[0])
        return max(sorted(worst), key=worst.__getitem__)

    rows: list[tuple[list[str], NDArray[np.float64]]] = []
    for rates in ("one", "tuned"):
        for one in plan["comparisons"]:
            arms = one["arm"], one.get("against", "grpo")
            for cell in one["cells"]:
                found = []
                for arm in arms:
                    rate = plan["rate"] if rates == "one" else tuned_rate(cell, arm)
                    sort = ["second", cell, arm, rate]
                    mine = [run for run in runs if [run[key] for key in ("stage", "cell", "arm", "rate")] == sort]
                    found.append({run["seed"]: areas(run) for run in mine})
                if len(found[0]) == len(found[1]) == plan["seeds"]:
                    gaps = [np.subtract(found[0][seed], found[1][seed]) for seed in sorted(found[0])]
                    rows.append(([rates, cell, *arms], np.array(gaps)))
    draws = [[by_chance(each[:, column]) for _, each in rows] for column in (0, 1)]
    asked = 2 * sum(len(one["cells"]) for one in plan["comparisons"])
    whole = [holm([*column, *[1.0] * (asked - len(rows))]) for column in draws]
    for number, (names, each) in enumerate(rows):
        area, best = (interval(each[:, column]) for column in (0, 1))
        print(json.dumps({"row": names, "area": area, "best": best, "p": whole[0][number],
                          "p best": whole[1][number]}))  # fmt: skip


def by_chance(differences: NDArray[np.float64]) -> float:
    """Returns the share of changes of signs that are as far from 0 as what was seen."""
    rng, beyond = np.random.default_rng(1), 0
    for _ in range(DRAWS // 100_000):
        signs = rng.integers(0, 2, (100_000, len(differences)), dtype=np.int8) * 2.0 - 1.0
        beyond += int((abs(signs @ differences) >= abs(differences.sum()) - 1e-9).sum())
    return (beyond + 1) / (DRAWS + 1)


def holm(values: Sequence[float]) -> list[float]:
    """Returns Holm's corrected p-values."""
    result, largest = [0.0] * len(values), 0.0
    for rank, place in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        largest = max(largest, min(1.0, (len(values) - rank) * values[place]))
        result[place] = largest
    return result


def interval(differences: NDArray[np.float64]) -> str:
    """Returns the mean and its 95 % interval as the report writes them."""
    half = student.ppf(0.975, len(differences) - 1) * stdev(differences) / len(differences) ** 0.5
    return f"{mean(differences):+.1f} [{mean(differences) - half:+.1f}, {mean(differences) + half:+.1f}]"


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:] or (HERE / "results.jsonl", HERE / "second.yaml")))
