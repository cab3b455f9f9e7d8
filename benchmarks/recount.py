"""``python -m benchmarks.recount``: counts results again, from their lines, and compares with a table.

    envsuite eval table results --by stratum --format json --out table.json
    python -m benchmarks.recount results --table table.json

It imports nothing of envsuite, and no library: a table that was computed wrongly is not confirmed by the same error.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

EXACT = ("tasks", "episodes", "broken", "successes")
CLOSE = ("success", "success_std", "score", "score_std", "steps", "seconds")
TOLERANCE = 1e-9


def read(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """The last line of each episode."""
    episodes: dict[str, dict[str, Any]] = {}
    for path in paths:
        for file in sorted(path.glob("*.jsonl")) if path.is_dir() else [path]:
            lines = file.read_text(encoding="utf-8").split("\n")
            for line in lines[:-1]:  # after the last end of a line is nothing, or a line that was cut
                episode = json.loads(line)
                key = json.dumps([episode["conditions"], episode["task_id"], episode["seed"]], sort_keys=True)
                episodes[key] = episode
    return list(episodes.values())


def recount(episodes: Iterable[Mapping[str, Any]]) -> dict[tuple[str, ...], dict[str, Any]]:
    """Counts, rates, means and deviations by environment, source, split, policy and stratum."""
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for one in episodes:
        conditions = one["conditions"]
        head = (conditions["env_id"], conditions["source"], conditions["split"], conditions["policy"])
        for stratum in ("all", one["stratum"]):
            groups.setdefault((*head, stratum), []).append(one)
    return {key: _count(group) for key, group in groups.items()}


def _count(group: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    played = [one for one in group if one["broken"] is None]
    counted: dict[str, Any] = {
        "tasks": len({one["task_id"] for one in played}),
        "episodes": len(played),
        "broken": len(group) - len(played),
        "successes": sum(1 for one in played if one["success"]),
    }
    for name in ("success", "score", "steps", "seconds"):
        counted[name] = sum(one[name] for one in played) / len(played) if played else None
    for name in ("success", "score"):
        rates = []
        for seed in sorted({one["seed"] for one in played}):
            own = [one[name] for one in played if one["seed"] == seed]
            rates.append(sum(own) / len(own))
        mean = sum(rates) / len(rates) if rates else 0.0
        deviation = math.sqrt(sum((r - mean) ** 2 for r in rates) / (len(rates) - 1)) if len(rates) > 1 else None
        counted[f"{name}_std"] = deviation
    return counted


def read_table(path: Path) -> list[dict[str, Any]]:
    """The rows of a table in JSON or CSV."""
    if path.suffix == ".json":
        rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["rows"]
        return rows
    with path.open(encoding="utf-8", newline="") as file:
        texts = list(csv.DictReader(file))
    numbers = (*EXACT, *CLOSE)
    return [{k: (float(v) if v else None) if k in numbers else v for k, v in row.items()} for row in texts]


def differences(counted: Mapping[tuple[str, ...], Mapping[str, Any]], rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """What the table says otherwise, or does not have, one line each."""
    found, seen = [], set()
    for row in rows:
        key = tuple(str(row[name]) for name in ("env_id", "source", "split", "policy", "stratum"))
        seen.add(key)
        if key not in counted:
            found.append(f"{' / '.join(key)}: no episode is of this row")
            continue
        for name in (*EXACT, *CLOSE):
            told, real = row[name], counted[key][name]
            same = told == real if told is None or real is None else abs(told - real) <= TOLERANCE
            if not same:
                found.append(f"{' / '.join(key)}: {name} is {real}, and the table has {told}")
    found += [f"{' / '.join(key)}: the table has no such row" for key in counted if key not in seen]
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the counts, or what a table has otherwise; exit status 1 where it does."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", type=Path, help="files *.jsonl, or folders of them")
    parser.add_argument("--table", type=Path, help="table of the same results, by stratum (.json or .csv)")
    given = parser.parse_args(arguments)
    counted = recount(read(given.results))
    if given.table is None:
        for key, counts in sorted(counted.items()):
            rate = "-" if counts["success"] is None else f"{100 * counts['success']:.1f} %"
            print(
                f"{' / '.join(key)}: {counts['successes']} of {counts['episodes']}, {rate}; {counts['broken']} broken"
            )
        return 0
    wrong = differences(counted, read_table(given.table))
    print(*wrong, f"{len(counted)} rows counted, {len(wrong)} differences", sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
