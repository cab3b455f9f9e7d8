"""Results of evaluations, and tables of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from envsuite.core.errors import DataError
from envsuite.evaluation.groups import natural
from envsuite.evaluation.sheets import DASH, Cell, Name, Sheet, rate
from envsuite.evaluation.statistics import clustered_wilson
from envsuite.playing.step import Episode


@dataclass(frozen=True)
class StratumResult:
    """Result on the tasks of one type."""

    stratum: str
    """Task type, or ``"all"``."""
    n: int
    """Number of episodes that count: those that failed are left out."""
    successes: int
    mean_score: float
    """Mean score in [0, 1]."""
    mean_steps: float
    """Mean length of the episodes that did not fail."""
    low: float
    """Lower bound of the 95 % Wilson interval of the success rate, clustered by task where tasks are repeated."""
    high: float
    tasks: int
    """Number of different tasks."""

    @property
    def success(self) -> float:
        """Success rate, 0 to 1; 0 where n = 0."""
        return self.successes / self.n if self.n else 0.0


@dataclass(frozen=True)
class EvalResult:
    """One evaluation: policy, tasks, and the result per stratum."""

    name: str
    """``"before"``, ``"after"``, ``"iteration 40"``."""
    env_id: str
    split: str
    manifest_hash: str
    """Content hash of the task set."""
    policy_version: int
    """Number of optimiser steps that the evaluated weights had seen."""
    temperature: float
    failed: int
    """Number of episodes that crashed or missed a deadline; they are in no rate."""
    wall_s: float
    """Seconds."""
    strata: tuple[StratumResult, ...]
    """The first is ``"all"``."""
    context_truncated: int = 0
    """Number of episodes truncated because their next prompt exceeded the context."""
    unanswered: int = 0
    """Number of episodes that the engine gave no answer for. They are in no stratum either, since they say nothing
    of the policy."""
    usage: dict[str, Any] | None = None
    """Requests, tokens and cost of an engine for messages."""

    @property
    def all(self) -> StratumResult:
        """Returns the result over all tasks."""
        return self.strata[0]

    def stratum(self, name: str) -> StratumResult | None:
        """Returns the result on ``name``, if it was evaluated."""
        return next((stratum for stratum in self.strata if stratum.stratum == name), None)

    def metrics(self) -> dict[str, float]:
        """Returns the values for ``metrics.jsonl``."""
        values: dict[str, float] = {
            "eval/success": self.all.success,
            "eval/low": self.all.low,
            "eval/high": self.all.high,
            "eval/score": self.all.mean_score,
            "eval/episode_length": self.all.mean_steps,
            "eval/episodes": self.all.n,
            "eval/tasks": self.all.tasks,
            "eval/context_truncated": self.context_truncated,
            "eval/failed": self.failed,
            "eval/unanswered": self.unanswered,
            "time/eval": self.wall_s,
        }
        for stratum in self.strata[1:]:
            values[f"eval/success/{stratum.stratum}"] = stratum.success
            values[f"eval/score/{stratum.stratum}"] = stratum.mean_score
        return values

    def to_json(self) -> dict[str, Any]:
        """Returns plain dictionaries, lists and numbers, for ``summary.json``."""
        body = asdict(self)
        body["strata"] = [{**asdict(stratum), "success": stratum.success} for stratum in self.strata]
        return body

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> EvalResult:
        """Returns the result that :meth:`to_json` encoded.

        Raises:
            DataError: A field is missing or of the wrong kind.
        """
        try:
            strata = tuple(StratumResult(**{k: v for k, v in row.items() if k != "success"}) for row in body["strata"])
            result = cls(**{**body, "strata": strata})
            if not strata or strata[0].stratum != "all":
                raise ValueError("the first stratum must be 'all'")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"not an evaluation result ({type(error).__name__}: {error})") from error
        return result


@dataclass(frozen=True)
class EpisodeOutcome:
    """One episode as the summary counts it."""

    task_id: str
    task_type: str
    success: bool
    score: float
    steps: int
    error: str | None = None
    """Why it failed, which says nothing of the policy."""
    unanswered: bool = False
    """It failed because the engine gave no answer."""
    context_truncated: bool = False

    @classmethod
    def of(cls, episode: Episode) -> EpisodeOutcome:
        """Returns the outcome of an episode; one whose first prompt had no room is the policy's own failure."""
        error = None if episode.context_truncated else episode.error
        return cls(
            episode.task_id, episode.task_type, episode.success, episode.score, len(episode.steps), error,
            episode.unanswered, episode.context_truncated,
        )  # fmt: skip


def evaluate_summary(
    episodes: Sequence[Episode | EpisodeOutcome],
    name: str,
    env_id: str,
    split: str,
    manifest_hash: str,
    policy_version: int,
    temperature: float,
    wall_s: float,
    usage: dict[str, Any] | None = None,
) -> EvalResult:
    """Counts ``episodes`` per task type.

    An episode that failed, through its environment or since the engine gave no answer, says nothing of the policy: it
    is in no rate, and counted apart.
    """
    outcomes = [episode if isinstance(episode, EpisodeOutcome) else EpisodeOutcome.of(episode) for episode in episodes]
    sound = [outcome for outcome in outcomes if outcome.error is None]
    types = sorted({outcome.task_type for outcome in sound} - {""}, key=natural)  # "" is no type
    groups = {"all": sound, **{t: [outcome for outcome in sound if outcome.task_type == t] for t in types}}
    return EvalResult(
        name=name,
        env_id=env_id,
        split=split,
        manifest_hash=manifest_hash,
        policy_version=policy_version,
        temperature=temperature,
        failed=sum(outcome.error is not None and not outcome.unanswered for outcome in outcomes),
        wall_s=wall_s,
        strata=tuple(_stratum(stratum, group) for stratum, group in groups.items()),
        context_truncated=sum(outcome.context_truncated for outcome in sound),
        unanswered=sum(outcome.unanswered for outcome in outcomes),
        usage=usage,
    )


def _stratum(name: str, sound: Sequence[EpisodeOutcome]) -> StratumResult:
    n, successes = len(sound), sum(outcome.success for outcome in sound)
    counts, success_counts = Counter(e.task_id for e in sound), Counter(e.task_id for e in sound if e.success)
    low, high = clustered_wilson([(success_counts[task], count) for task, count in counts.items()])
    return StratumResult(
        stratum=name,
        n=n,
        successes=successes,
        mean_score=sum(outcome.score for outcome in sound) / n if n else 0.0,
        mean_steps=sum(outcome.steps for outcome in sound) / n if n else 0.0,
        low=low,
        high=high,
        tasks=len(counts),
    )


def first_and_last(results: Iterable[EvalResult]) -> list[tuple[EvalResult, EvalResult]]:
    """Returns the first and the last evaluation of each environment, split and task set; one alone is both."""
    pairs: dict[tuple[str, str, str], tuple[EvalResult, EvalResult]] = {}
    for result in results:
        key = (result.env_id, result.split, result.manifest_hash)
        pairs[key] = (pairs[key][0] if key in pairs else result, result)
    return list(pairs.values())


def by_stratum(results: Sequence[EvalResult]) -> list[tuple[str, int, list[StratumResult | None]]]:
    """Returns each stratum, all tasks last, with its greatest number of episodes, and the result of each in it."""
    names = {stratum.stratum for result in results for stratum in result.strata[1:]}
    rows = []
    for name in [*sorted(names, key=natural), "all"]:
        own = [result.stratum(name) for result in results]
        rows.append((name, max(stratum.n for stratum in own if stratum is not None), own))
    return rows


def interval(stratum: StratumResult | None) -> str:
    """Formats success rate and 95 % interval in percent, as ``63.4 [57.3, 69.1]``; a dash without a result."""
    return DASH if stratum is None else rate(stratum.success, stratum.low, stratum.high, None)


def difference(before: StratumResult | None, after: StratumResult | None) -> str:
    """Formats the change of the success rate in percentage points, with ``*`` if the intervals are disjoint."""
    if before is None or after is None:
        return DASH
    apart = "*" if before.high < after.low or after.high < before.low else ""
    return f"{100 * (after.success - before.success):+.1f}{apart}"


NOTE = "95 % Wilson intervals, clustered by task where tasks are repeated; * the intervals do not overlap"


def comparison(before: EvalResult, after: EvalResult) -> list[tuple[str, int, str, str, str]]:
    """Returns the rows of a before/after table: stratum (all tasks last), n, before, after, change in points."""
    rows = by_stratum([before, after])
    return [(name, n, interval(old), interval(new), difference(old, new)) for name, n, (old, new) in rows]


def _heads(before: EvalResult, after: EvalResult) -> tuple[str, ...]:
    return ("tasks", "n", f"{before.name}, %", f"{after.name}, %", "change")


def before_after_table(before: EvalResult, after: EvalResult) -> Table:
    """Returns the comparison for the terminal: success rate per stratum, in percent."""
    title = f"Success on {after.env_id}, split {after.split}"
    table = Table(title=title, caption=NOTE, title_justify="left")
    rows = comparison(before, after)
    for index, head in enumerate(_heads(before, after)):
        if index == 0:  # the column that may wrap on a narrow terminal
            table.add_column(head, overflow="fold")
        else:
            width = max(len(head), *(len(str(row[index])) for row in rows))
            table.add_column(head, justify="right", no_wrap=True, min_width=width)
    for name, n, old, new, change in rows:
        if name == "all":
            table.add_section()
        style = "bold green" if change.startswith("+") and change.endswith("*") else ""
        table.add_row(*(Text(cell) for cell in (name, str(n), old, new)), Text(change, style=style))
    return table


def before_after_sheet(before: EvalResult, after: EvalResult) -> Sheet:
    """Returns the comparison for the formats of :data:`~envsuite.evaluation.writers.SHEETS`."""
    rows: list[tuple[Cell, ...]] = [(Name(name), str(n), *cells) for name, n, *cells in comparison(before, after)]
    title = Name(f"Success on {after.env_id}, split {after.split}")
    heads = tuple(map(Name, _heads(before, after)))
    return Sheet(title, heads, tuple(tuple(block) for block in (rows[:-1], rows[-1:]) if block), 1, ((NOTE,),))
