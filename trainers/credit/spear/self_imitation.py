"""SPEAR's self-imitation in a run: fills the buffer and adds its rows to the update, over all processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from accelerate import Accelerator
from numpy.typing import NDArray

from trainers.credit.crediting import Credit
from trainers.credit.estimators.groups import Bools, Floats, Ints, group_codes
from trainers.credit.estimators.tokens import row_means
from trainers.credit.providers import Provider
from trainers.credit.spear.replay import ReplayBuffer, ReplayConfig, group_means, joined_states
from trainers.credit.spear.schedules import cosine_rise
from trainers.policy.accumulation import Batch
from trainers.policy.loss.selection import covariances, token_sums
from trainers.processes.distributed import all_gather_object
from trainers.steps import StepTable
from trainers.steps.columns import ITERATION

LOW_SHARE, HIGH_SHARE = 0.02, 0.0002
"""Shares of the first iteration's greatest covariances whose means are the range that is masked, by default."""


def mean_of_top(values: Floats, share: float, count: int | None = None) -> float:
    """Mean of the greatest ``share`` of ``count`` values (of as many as there are by default), at least of one."""
    top = max(1, int(share * (len(values) if count is None else count)))
    return float(np.sort(values)[-top:].mean()) if len(values) else 0.0


def clipped_tokens(covariance: Floats, episode: Ints, low: float, high: float, share: float, draws: Floats) -> Bools:
    """Which tokens are masked: of each episode, a random few of those whose covariance lies in [low, high].

    Args:
        covariance: Shape (T,).
        episode: Code of each token's episode, shape (T,).
        low: ω_lb.
        high: ω_ub.
        share: λ: at most this share of an episode's tokens is masked (rounded, at least one token).
        draws: Random number of each token, shape (T,); the tokens with the smallest are masked.
    """
    mask = np.zeros(len(covariance), np.bool_)
    if share == 0.0 or not len(covariance):
        return mask
    budget = np.maximum(1, np.rint(share * np.bincount(episode))).astype(np.int64)
    inside = np.flatnonzero((covariance >= low) & (covariance <= high))
    tokens = inside[np.argsort(draws[inside], kind="stable")]
    tokens = tokens[np.argsort(episode[tokens], kind="stable")]
    sizes = np.bincount(episode[tokens], minlength=len(budget))
    place = np.arange(len(tokens)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    mask[tokens[place < budget[episode[tokens]]]] = True
    return mask


_BOUNDS = "cov_bounds"


class SelfImitation:
    """The replay buffer of a run (SPEAR, Algorithm 1, lines 18-38). Each process keeps the episodes that it played.

    Args:
        config: Settings.
        accelerator: The run's accelerator.
        seed: The run's seed; draws the tokens that are masked.
        reference: Supplies the reference policy's log-probabilities, where the loss needs them.
    """

    def __init__(
        self, config: ReplayConfig, accelerator: Accelerator, seed: int, reference: Provider | None = None
    ) -> None:
        self.config = config
        self.reference = reference
        self.accelerator = accelerator
        self.seed = seed
        self.buffer = ReplayBuffer(config)
        self.bounds = config.cov
        """Range of covariances in which tokens may be masked; ``None`` before the first iteration with a signal."""

    def advance(
        self, credit: Credit, iteration: int, logprobs: Callable[[StepTable], Floats]
    ) -> tuple[Batch | None, dict[str, float]]:
        """Adds an iteration to the buffer, or replays a full buffer; every process must call this.

        Args:
            credit: Credited steps of the iteration.
            iteration: Its number, from 1.
            logprobs: Gives the present policy's log-probabilities of a table's response tokens.

        Returns:
            This process's rows to imitate in the update (``None`` in all processes where the buffer was not full, or no
            row of it beats the baseline any more), and metrics by their names under ``replay/``.
        """
        every_group = all_gather_object(self.accelerator, group_means(credit.table))
        ids, means = (np.concatenate(part) for part in zip(*every_group, strict=True))
        self.buffer.enter_means(means[np.argsort(ids, kind="stable")])
        if self.bounds is None and self.config.mask > 0.0:
            self.bounds = self._measure_bounds(credit)
        evictions = self.buffer.forget(iteration)
        count = sum(all_gather_object(self.accelerator, self.buffer.useful_count))
        batch, sums = None, {"admitted": 0.0, "forgotten": float(evictions), "updates": 0.0}
        if self.buffer.full(count):
            batch, replay_sums = self._replay(iteration, logprobs)
            sums |= replay_sums
            self.buffer.clear()
        else:
            advantage = credit.advantage.per_step
            if advantage is None:
                advantage = row_means(credit.table, credit.advantage.tokens(credit.table))
            sums["admitted"] = float(self.buffer.admit(credit.table, advantage, credit.keep))
        sums["stored"] = float(self.buffer.entry_count)
        parts = all_gather_object(self.accelerator, sums)
        totals = {name: sum(part[name] for part in parts) for name in sums}
        totals["updates"] /= len(parts)
        return batch, self._metrics(iteration, count, totals)

    def _replay(self, iteration: int, logprobs: Callable[[StepTable], Floats]) -> tuple[Batch | None, dict[str, float]]:
        """Returns this process's batch to imitate (``None`` if empty in all processes), and its sums for metrics."""
        before = len(self.buffer.table)
        table, advantage = self.buffer.select_rows()
        sums = {"rows": float(before), "kept": float(len(table)), "tokens": float(len(table.response.values))}
        sums["advantage"], sums["age"] = float(advantage.sum()), float((iteration - table.extra[ITERATION]).sum())
        sums |= {"masked": 0.0, "candidates": 0.0}
        if not any(all_gather_object(self.accelerator, len(table.response.values))):
            return None, sums
        per_token = np.repeat(advantage, table.response.lengths)
        factor = np.full(len(per_token), float(cosine_rise(iteration, self.config.warmup)))
        if self.config.mask > 0.0 and self.bounds is not None:
            logprob = logprobs(table)
            covariance, _ = self._covariances(logprob, per_token)
            episode = group_codes(table.episode_id)[table.response.row_of]
            draws = token_draws(table, self.seed, iteration)
            mask = clipped_tokens(covariance, episode, *self.bounds, self.config.mask, draws)
            factor[mask] = 0.0
            sums["masked"] = float(mask.sum())
            low, high = self.bounds
            sums["candidates"] = float(((covariance >= low) & (covariance <= high)).sum())
        if self.reference is not None:
            table = self.reference.columns(table)
        return Batch(table, per_token, factor), {**sums, "updates": 1.0}

    def _measure_bounds(self, credit: Credit) -> tuple[float, float] | None:
        """Returns bounds from the distribution of an iteration's covariances; ``None`` if all advantages are equal."""
        mask = credit.keep[credit.table.response.row_of]
        logprob = credit.table.logprob.values[mask].astype(np.float64)
        advantage = credit.advantage.tokens(credit.table)[mask]
        covariance, count = self._covariances(logprob, advantage)
        top = max(1, int(LOW_SHARE * count))
        greatest = np.concatenate(all_gather_object(self.accelerator, np.sort(covariance)[-top:]))
        low, high = (mean_of_top(greatest, share, count) for share in (LOW_SHARE, HIGH_SHARE))
        return (low, high) if high > 0.0 else None

    def _covariances(self, logprob: Floats, advantage: Floats) -> tuple[Floats, int]:
        """Covariance of each token over those of all processes, and their number; every process must call this."""
        sums = np.sum(all_gather_object(self.accelerator, token_sums(logprob, advantage)), axis=0)
        return covariances(logprob, advantage, sums), int(sums[0])

    def _metrics(self, iteration: int, count: int, totals: Mapping[str, float]) -> dict[str, float]:
        values = {
            "gamma": float(cosine_rise(iteration, self.config.warmup)),
            "baseline": self.buffer.baseline,
            "fill": totals["stored"] / self.config.size,
            "counted": float(count),
            **{name: totals[name] for name in ("stored", "admitted", "forgotten", "updates")},
        }
        if self.bounds is not None:
            values |= {"cov_low": self.bounds[0], "cov_high": self.bounds[1]}
        if "rows" in totals:
            rows, tokens = max(totals["kept"], 1.0), max(totals["tokens"], 1.0)
            values |= {
                "recalibrated": totals["kept"] / max(totals["rows"], 1.0),
                "advantage": totals["advantage"] / rows,
                "age": totals["age"] / rows,
                "masked": totals["masked"] / tokens,
                "candidates": totals["candidates"] / tokens,
            }
        return {f"replay/{name}": value for name, value in values.items()}

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, NDArray[Any]]:
        """Returns the joint state of all processes as arrays; every process must call this."""
        bounds = np.array((np.nan, np.nan) if self.bounds is None else self.bounds)
        return {**joined_states(all_gather_object(self.accelerator, self.buffer.state())), _BOUNDS: bounds}

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restores :meth:`state`; each process takes the groups that it would have played."""
        low, high = state[_BOUNDS].tolist()
        self.bounds = None if np.isnan(low) else (low, high)
        self.buffer.restore(state, self.accelerator.process_index, self.accelerator.num_processes)


def token_draws(table: StepTable, seed: int, iteration: int) -> Floats:
    """Random numbers in [0, 1), one for each response token, shape (T,).

    A token's number depends on seed, iteration, its episode and its place there, never on which process has it.

    Args:
        table: Rows, each episode's in the order of its steps.
        seed: The run's seed.
        iteration: From 1.
    """
    draws = np.empty(len(table.response.values))
    episode = table.episode_id[table.response.row_of]
    for number in np.unique(episode).tolist():
        tokens = np.flatnonzero(episode == number)
        draws[tokens] = np.random.default_rng([seed, iteration, number]).random(len(tokens))
    return draws
