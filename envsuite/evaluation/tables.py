"""Rows of a table: what the episodes of each policy on each split come to. :mod:`.writers` has the formats."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from envsuite.core.errors import UsageError, unknown
from envsuite.evaluation.groups import ALL, ResultGroup, TaskSums, natural
from envsuite.evaluation.results import EpisodeResult
from envsuite.evaluation.statistics import clustered_wilson, over_seeds, pass_at_k, pass_hat_k, score_interval


@dataclass(frozen=True)
class TableRow:
    """One policy on the tasks of one stratum. Every mean is over episodes, whichever seed or file they are from."""

    env_id: str
    source: str
    split: str
    policy: str
    stratum: str
    """A type of tasks, :data:`~envsuite.evaluation.groups.ALL`, or ``"seed 2"``."""
    tasks: int
    """Number of tasks with a finished episode."""
    seeds: int
    episodes: int
    """Number of finished episodes, the n of every rate and mean."""
    broken: int
    """Number of episodes that the infrastructure broke; they are in no rate."""
    missing: int
    """Number of episodes that were not played, of all tasks with all seeds."""
    successes: int
    success: float | None
    """Success rate; like every rate, mean and bound ``None`` where nothing finished."""
    success_low: float | None
    success_high: float | None
    """95 % interval: Wilson's, clustered by task where tasks are repeated."""
    success_std: float | None
    """Standard deviation of the seeds' rates; ``None`` with one seed."""
    score: float | None
    score_low: float | None
    score_high: float | None
    """95 % interval: bootstrap by task."""
    score_std: float | None
    reward: float | None
    """Mean sum of rewards."""
    parsed: float | None
    """Share of steps whose completion parsed to an action; ``None`` for a policy that writes none."""
    valid: float | None
    """Share of steps whose action was valid."""
    cut: float | None
    """Share of steps whose completion reached the token limit."""
    steps: float | None
    """Mean number of steps of an episode."""
    prompt_tokens: float | None
    answer_tokens: float | None
    """Mean number of tokens of an episode; ``None`` for a policy that writes none."""
    cost: float | None
    """Mean cost of an episode; ``None`` without prices."""
    seconds: float | None
    """Mean duration of an episode."""
    endings: Mapping[str, int] = field(default_factory=dict)
    """Number of finished episodes by their ending."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Means of the environment's own measures, over the episodes that have them."""
    attempts: Mapping[str, float] = field(default_factory=dict)
    """``pass@k`` and ``pass^k``, where they were asked for."""
    why_broken: Mapping[str, int] = field(default_factory=dict)
    """Number of broken episodes by their reason."""

    @property
    def complete(self) -> bool:
        """Returns whether every task was played with every seed."""
        return not self.broken and not self.missing


def _kind(stratum: str) -> str:
    head, _, tail = stratum.rpartition("-")
    return head if head and tail.isdecimal() else stratum


def _level(stratum: str) -> str:
    tail = stratum.rpartition("-")[2]
    return f"level {tail}" if tail.isdecimal() else stratum


DIVISIONS: dict[str, Callable[[str], str] | None] = {
    "all": None,
    "stratum": str,
    "kind": _kind,
    "level": _level,
    "seed": None,
}
"""Divisions that rows are made of, besides all tasks: strata, strata without or by the number at their end, seeds."""


def make_rows(groups: Sequence[ResultGroup], by: str = "all", attempts: Sequence[int] = ()) -> list[TableRow]:
    """Returns the rows of each group: all tasks first, then those of the division.

    Args:
        groups: As :func:`~envsuite.evaluation.groups.load_groups` returns them.
        by: One of :data:`DIVISIONS`.
        attempts: Values k for which pass@k and pass^k are computed.

    Raises:
        UnknownName: There is no such division.
        UsageError: A task has fewer finished episodes than ``attempts`` needs.
    """
    if by not in DIVISIONS:
        raise unknown("division of a table", by, DIVISIONS)
    return [row for group in groups for row in _rows(group, by, attempts)]


def _rows(group: ResultGroup, by: str, attempts: Sequence[int]) -> Iterable[TableRow]:
    yield _row(group, ALL, group.size, attempts)
    if by == "seed":
        for seed in group.seeds:
            own = [result for result in group.results if result.seed == seed]
            yield _row(group.only(own, group.expected), f"seed {seed}", group.size, (), 1)
    elif (divide := DIVISIONS[by]) is not None:
        for name in sorted({divide(stratum) for stratum in group.expected.values()}, key=natural):
            tasks = {task: stratum for task, stratum in group.expected.items() if divide(stratum) == name}
            own = [result for result in group.results if result.task_id in tasks]
            yield _row(group.only(own, tasks), name, len(tasks), attempts, len(group.seeds))


def _row(group: ResultGroup, stratum: str, size: int, attempts: Sequence[int], seeds: int | None = None) -> TableRow:
    conditions, results = group.conditions, group.finished_results
    seeds = len(group.seeds) if seeds is None else seeds
    successes, scores = group.successes, group.scores
    low, high = clustered_wilson(successes.pairs()) if results else (None, None)
    least, most = score_interval(scores.totals, scores.episodes) if results else (None, None)
    writes = conditions.kind != "player"
    steps = sum(result.steps for result in results)
    return TableRow(
        env_id=conditions.env_id,
        source=conditions.source,
        split=conditions.split,
        policy=group.name,
        stratum=stratum,
        tasks=len(successes.tasks),
        seeds=seeds,
        episodes=len(results),
        broken=len(group.broken_results),
        missing=max(0, size * seeds - len(group.results)),
        successes=sum(result.success for result in results),
        success=_mean([result.success for result in results]),
        success_low=low,
        success_high=high,
        success_std=_deviation(results, lambda result: float(result.success)),
        score=_mean([result.score for result in results]),
        score_low=least,
        score_high=most,
        score_std=_deviation(results, lambda result: result.score),
        reward=_mean([result.reward for result in results]),
        parsed=sum(result.parsed for result in results) / steps if writes and steps else None,
        valid=sum(result.valid for result in results) / steps if steps else None,
        cut=sum(result.cut for result in results) / steps if writes and steps else None,
        steps=_mean([result.steps for result in results]),
        prompt_tokens=_mean([result.prompt_tokens for result in results]) if writes else None,
        answer_tokens=_mean([result.answer_tokens for result in results]) if writes else None,
        cost=_mean([result.cost for result in results if result.cost is not None]),
        seconds=_mean([result.seconds for result in results]),
        endings=dict(sorted(Counter(result.ending for result in results).items())),
        metrics=_metrics(results),
        attempts=_attempts(successes, attempts, group.name) if results else {},
        why_broken=dict(sorted(Counter(result.broken or "" for result in group.broken_results).items())),
    )


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _deviation(results: Sequence[EpisodeResult], value: Callable[[EpisodeResult], float]) -> float | None:
    """Returns the standard deviation over seeds."""
    by_seed: dict[int, list[float]] = {}
    for result in results:
        by_seed.setdefault(result.seed, []).append(value(result))
    return over_seeds([math.fsum(own) / len(own) for _, own in sorted(by_seed.items())])[1] if by_seed else None


def _metrics(results: Sequence[EpisodeResult]) -> dict[str, float]:
    names = sorted({name for result in results for name in result.metrics})
    values = {name: [result.metrics[name] for result in results if name in result.metrics] for name in names}
    return {name: math.fsum(own) / len(own) for name, own in values.items()}


def _attempts(successes: TaskSums, attempts: Sequence[int], name: str) -> dict[str, float]:
    rates: dict[str, float] = {}
    try:
        for k in attempts:
            rates[f"pass@{k}"], rates[f"pass^{k}"] = pass_at_k(successes.pairs(), k), pass_hat_k(successes.pairs(), k)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from error
    return rates
