"""Writes episodes as results, a line for each as it ends, and says which are left to play."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from envsuite.core.boundary import without_task
from envsuite.evaluation.protocol import stem_of
from envsuite.evaluation.results import Conditions, Ending, EpisodeResult, ResultFile
from envsuite.playing.episode import EpisodeCost, EpisodePlan
from envsuite.playing.player import GAVE_UP
from envsuite.playing.step import Episode
from envsuite.prompting.endpoints import AnswerTokens, cost_of


class EpisodeRecorder:
    """The results of one environment of an evaluation; each process of it writes a file of its own.

    Args:
        folder: Where they are; made if need be.
        conditions: Those of every result.
        strata: The tasks that are played, in their order, and the stratum of each.
        seeds: Episodes of each.
        prices: Of a million tokens, for the cost.
        rank: Number of this process.

    Raises:
        DataError: The folder cannot be read or written.
        UsageError: It has results of other conditions.
    """

    def __init__(
        self,
        folder: Path,
        conditions: Conditions,
        strata: Mapping[str, str],
        seeds: int,
        prices: Mapping[str, float] | None = None,
        rank: int = 0,
    ) -> None:
        stem = stem_of(conditions.env_id, conditions.split, conditions.policy)
        self.conditions = conditions
        self.strata = strata
        self.seeds = seeds
        self.prices = prices
        path = folder / (f"{stem}.{rank}.jsonl" if rank else f"{stem}.jsonl")
        pattern = re.compile(re.escape(stem) + r"(\.[0-9]+)?\.jsonl")
        other_files = (file for file in sorted(folder.glob("*.jsonl")) if pattern.fullmatch(file.name) and file != path)
        self._file = ResultFile(path, conditions, other_files)

    def _key(self, plan: EpisodePlan) -> tuple[str, int]:
        """Returns task and number of the repetition; plans are numbered seed by seed."""
        return plan.task_id, plan.episode_id // len(self.strata)

    def open_plans(self, plans: Sequence[EpisodePlan]) -> list[EpisodePlan]:
        """Returns the plans that have no sound result yet."""
        missing = {*self._file.missing(self.strata, range(self.seeds))}
        return [plan for plan in plans if self._key(plan) in missing]

    def result(self, plan: EpisodePlan) -> EpisodeResult | None:
        """Returns the result of a plan; ``None`` where it was not played."""
        return self._file.results.get(self._key(plan))

    def add(self, plan: EpisodePlan, episode: Episode, cost: EpisodeCost) -> EpisodeResult:
        """Writes an episode that has ended; returns its result."""
        steps, failure = episode.steps, None if episode.context_truncated else episode.error
        info = steps[-1].info if steps else {}
        metrics = {name: float(value) for name, value in info.get("metrics", {}).items()}
        if gave_up := GAVE_UP in metrics:
            steps = steps[:-1]
        trials = [steps[begin:end] for begin, end in zip(cost.trials, (*cost.trials[1:], None), strict=True)]
        if self.conditions.trials > 1 and failure is None:
            solved = [bool(trial) and bool(trial[-1].info["success"]) for trial in trials]
            for count in range(1, self.conditions.trials + 1):
                metrics[f"success_within_{count}"] = float(any(solved[:count]))
        result = EpisodeResult(
            self.conditions,
            episode.task_id,
            self.strata[episode.task_id],
            self._key(plan)[1],
            success=episode.success and failure is None,
            score=episode.score,
            reward=float(sum(step.reward for step in trials[-1])),
            steps=len(steps),
            ending="done" if gave_up else self._ending(episode, len(trials[-1])),
            parsed=sum(step.action is not None for step in steps),
            valid=sum(step.valid for step in steps),
            cut=sum(step.finish_reason == "length" for step in steps),
            prompt_tokens=cost.prompt_tokens,
            answer_tokens=cost.answer_tokens,
            cost=self._money(cost),
            seconds=round(cost.seconds, 3),
            trials=len(trials),
            seeds=self.seeds,
            metrics=metrics,
            broken=None if failure is None else without_task(failure),
        )
        self._file.add(result)
        return result

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _ending(self, episode: Episode, steps: int) -> Ending:
        if episode.context_truncated:
            return "context"
        if episode.error is not None:
            return "broken"
        if episode.terminated:
            return "done"
        limited = self.conditions.sampling.get("episode_tokens") is not None
        return "tokens" if limited and steps < self.conditions.budget else "budget"

    def _money(self, cost: EpisodeCost) -> float | None:
        """Returns the cost of an episode; ``None`` without prices, or where the endpoint did not count."""
        tokens = AnswerTokens(cost.prompt_tokens, cost.cached_tokens, cost.answer_tokens)
        return cost_of(tokens, self.prices) if cost.counted and self.prices is not None else None
