"""Results as evaluations write them, drawn by chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np

from envsuite.evaluation.groups import ResultGroup, groups_of
from envsuite.evaluation.results import Conditions, EpisodeResult, ResultFile

CONDITIONS = Conditions("direct", "endpoint", "TextCraft-v0", "builtin", "test", "ab" * 32, 30, None, 50)


def draw(
    policy: str = "direct",
    rate: float = 0.5,
    tasks: int = 30,
    seeds: int = 3,
    correlation: float = 0.5,
    broken: float = 0.0,
    graded: bool = False,
    rng: int = 0,
    **conditions: object,
) -> list[EpisodeResult]:
    """Episodes of every task with every seed; tasks of three strata in equal numbers."""
    dice = np.random.default_rng(rng)
    own = replace(CONDITIONS, policy=policy, panel_size=tasks, **conditions)  # type: ignore[arg-type]
    odds = (1 - correlation) / correlation
    chances = dice.beta(rate * odds, (1 - rate) * odds, tasks)
    results = []
    for seed in range(seeds):
        for task in range(tasks):
            stratum, success = f"depth-{task % 3 + 1}", bool(dice.random() < chances[task])
            score = 1.0 if success else float(dice.uniform(0, 0.9)) if graded else 0.0
            steps = int(dice.integers(1, 20))
            plain = EpisodeResult(
                own, f"task {task:03}", stratum, seed, success, score, score, steps, "done" if success else "budget",
                parsed=int(dice.integers(0, steps + 1)), valid=int(dice.integers(0, steps + 1)), cut=steps // 7,
                prompt_tokens=steps * 200, answer_tokens=steps * int(dice.integers(5, 30)),
                seconds=float(dice.uniform(0.1, 2)), metrics={"calls": float(steps)},
            )  # fmt: skip
            if dice.random() < broken:
                (plain,) = lost([plain])
            results.append(plain)
    return results


def lost(results: Sequence[EpisodeResult], why: str = "HTTP 500") -> list[EpisodeResult]:
    """The same episodes, none of which ended."""
    return [replace(one, success=False, score=0.0, ending="broken", broken=why) for one in results]


def group(results: Sequence[EpisodeResult]) -> ResultGroup:
    return groups_of([results])[0]


def write(folder: Path, evaluations: Mapping[str, Sequence[EpisodeResult]]) -> Path:
    for name, results in evaluations.items():
        with closing(ResultFile(folder / f"{name}.jsonl", results[0].conditions)) as file:
            file._file.write(b"".join(result.to_line() for result in results))  # at once: a sync for each takes seconds
    return folder
