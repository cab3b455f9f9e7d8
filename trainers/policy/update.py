"""One policy update: advantages in, new weights out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from trainers.policy.accumulation import Accumulator, Batch, Floats, Tally, log_probabilities, teaching_rows
from trainers.policy.balance import attention_span, balance_batch
from trainers.policy.config import OptimConfig
from trainers.policy.guard import GuardedStep
from trainers.policy.loss import Objective
from trainers.policy.partition import Ints, minibatch_count, minibatch_of
from trainers.policy.rows import by_rows
from trainers.policy.sharding import whole
from trainers.processes.distributed import all_gather_object
from trainers.steps import StepTable


def learning_rate(config: OptimConfig, step: int, progress: float) -> float:
    """Learning rate of optimiser step ``step`` (from 0).

    How many optimiser steps an iteration takes may not be known beforehand, so the schedule runs over the progress of
    the run. The progress that the warm-up took is left out: with equally many steps in each iteration, the rate falls
    by equal parts from the end of the warm-up to the end of the run.

    Args:
        config: Peak, warm-up (in optimiser steps) and schedule.
        step: Optimiser steps taken before this one.
        progress: Share of the run before this step: iterations finished, and of the present one the share of its
            update.
    """
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    # (step - warmup) of the (step / progress - warmup) steps that the run will have after its warm-up at this pace.
    share = progress * (step - config.warmup) / (step - config.warmup * progress) if step > config.warmup else 0.0
    if config.schedule == "linear":
        return config.lr * (1.0 - 0.9 * share)
    if config.schedule == "cosine":
        return config.lr * (0.1 + 0.9 * 0.5 * (1.0 + math.cos(math.pi * share)))
    return config.lr


@dataclass(frozen=True)
class UpdateMetrics:
    """Metrics of an update, over all processes."""

    train: dict[str, float]
    """Metrics of the rows of the iteration, by their names under ``train/``."""
    replay: dict[str, float]
    """Metrics of the replayed rows, by their names under ``replay/``; empty where there were none."""


@dataclass
class Updater:
    """Takes optimiser steps on step tables; the same result for any micro-batch size and any number of processes.

    Args:
        accelerator: The run's accelerator.
        policy: As ``accelerator.prepare`` returned it.
        optimizer: As ``accelerator.prepare`` returned it.
        config: Optimiser settings.
        objective: Settings of the loss.
        iterations: Iterations of the whole run, for the learning-rate schedule.
        recompute: Whether the old log-probabilities are the trainer's (``OptimConfig.recomputes``).
    """

    accelerator: Accelerator
    policy: nn.Module
    optimizer: torch.optim.Optimizer
    config: OptimConfig
    objective: Objective
    iterations: int = field(default=1, kw_only=True)
    recompute: bool = field(default=False, kw_only=True)
    steps: int = field(default=0, init=False)
    """Optimiser steps taken since the run began."""

    def __post_init__(self) -> None:
        accelerator, policy, config, objective = self.accelerator, self.policy, self.config, self.objective
        self._span = attention_span(accelerator.unwrap_model(policy).model)
        self._accumulate = Accumulator(accelerator, policy, config, objective)
        name = f"policy (loss {objective.loss})"
        self._step = GuardedStep(accelerator, policy, self.optimizer, config.max_grad_norm, name)

    def update(
        self,
        own: Batch,
        rng: np.random.Generator,
        replay: Batch | None = None,
        *,
        iteration: int = 1,
        sampled: StepTable | None = None,
    ) -> UpdateMetrics:
        """Runs all epochs and minibatches; every process must call this.

        Args:
            own: The rows of this process that are trained on; may be empty.
            rng: Orders the minibatches; in the same state in every process.
            replay: Rows whose loss is added to that of ``own`` in each epoch, spread over its minibatches; each process
                must give some (which may be empty), or none.
            iteration: Number of the iteration, from 1.
            sampled: All rows of this process's iteration, those that are not trained on included, of whose tokens the
                mean entropy is a metric; by default those of ``own``.

        Raises:
            DivergenceError: Too many steps in a row had a gradient that is not finite, or a step left such weights.
        """
        self.policy.train()
        tally, replay_tally = Tally(), Tally()
        norms: list[float] = []
        losses = skips = 0
        before = self.steps
        has_rows = replay is None or any(all_gather_object(self.accelerator, len(own.table)))
        table = own.table if replay is None or has_rows else replay.table
        parts = minibatch_count(self.accelerator, table, self.config.minibatches, self.config.minibatch_rows)
        epochs = range(self.config.epochs)
        cut = np.stack([minibatch_of(self.accelerator, own.table, parts, rng) for _ in epochs])
        present = self.recompute and len(epochs) * parts == 1  # one step: the old log-probabilities are the new ones
        for epoch in epochs:
            own, cut = self._balance(own, cut, epoch)
            if self.recompute and not present and epoch == 0:
                own = replace(own, old=self._old(own, cut[0], parts))
            if replay is not None:
                again = minibatch_of(self.accelerator, replay.table, parts, rng)
                replay, (again,) = self._balance(replay, again[None], 0)
            for number in range(parts):
                seed = int(rng.integers(2**63))
                rows = own.take(np.flatnonzero(cut[epoch] == number))
                full = self._accumulate(rows, tally, seed=seed, first=self.steps == before, present=present)
                if replay is not None:
                    rows = replay.take(np.flatnonzero(again == number))
                    full |= self._accumulate(rows, replay_tally, seed=seed, first=False)
                if not full:
                    continue
                losses += 1
                progress = (iteration - 1 + (epoch * parts + number) / (len(epochs) * parts)) / self.iterations
                rate = learning_rate(self.config, self.steps, progress)
                norm = self._step(tally.culprit or replay_tally.culprit, rate)
                tally.culprit = replay_tally.culprit = None
                if norm is None:
                    skips += 1
                else:
                    norms.append(norm)
                    self.steps += 1
        if norms:
            self._step.check_weights()
        self.policy.eval()
        metrics = self._collect_metrics(own, replay, (tally, replay_tally), norms, max(losses, 1), skips)
        stale = all_gather_object(self.accelerator, own.table.staleness(before) * len(own.table.response.values))
        sampled = own.table if sampled is None else sampled
        metrics.train["entropy"] = self._entropy(own, sampled, metrics.train["entropy"])
        metrics.train["staleness"] = sum(stale) / max(metrics.train["tokens"], 1.0)
        return metrics

    @property
    def begun_steps(self) -> int:
        """Optimiser steps that this process has begun, one that an error broke off included."""
        return self._step.begun_steps

    def state(self) -> dict[str, int]:
        """Optimiser steps taken."""
        return {"steps": self.steps}

    def load(self, state: Mapping[str, int]) -> None:
        """Restores the number of optimiser steps taken."""
        self.steps = int(state["steps"])

    def gradient(self, table: StepTable, advantage: Floats) -> dict[str, Tensor]:
        """The whole gradient of one optimiser step over ``table``, averaged over processes, by parameter name."""
        self.policy.train()
        self._accumulate(Batch(table, advantage), Tally(), seed=0, first=True)
        self.policy.eval()
        module = self.accelerator.unwrap_model(self.policy)
        gradients = {name: whole(p.grad).clone() for name, p in module.named_parameters() if p.grad is not None}
        self.optimizer.zero_grad()
        return gradients

    def logprobs(self, table: StepTable) -> Floats:
        """Log-probability of each response token under the policy as it is now.

        No process waits for another, unless the policy is sharded: every process must call this then.
        """
        return log_probabilities(self.accelerator.unwrap_model(self.policy), table, self.config)

    def _balance(self, batch: Batch, cut: Ints, epoch: int) -> tuple[Batch, Ints]:
        share = not by_rows(self.policy)
        policy = self.accelerator.unwrap_model(self.policy)
        experts = policy.replay or bool(policy.balance_coef)
        return balance_batch(self.accelerator, batch, cut, epoch, share, self._span, experts)

    def _old(self, own: Batch, cut: Ints, parts: int) -> Floats:
        """Log-probabilities before the update of rows that teach, computed in the micro-batches of the first epoch.

        In bfloat16 they depend on what is computed together; so the first optimiser step's ratios are exactly 1.
        """
        logprobs = np.zeros(len(own.table.response.values))
        teaching, policy = teaching_rows(own, self.objective), self.accelerator.unwrap_model(self.policy)
        for part in range(parts):
            rows = teaching & (cut == part)
            table = own.table.take(np.flatnonzero(rows))
            logprobs[rows[own.table.response.row_of]] = log_probabilities(policy, table, self.config, as_trained=True)
        return logprobs

    def _entropy(self, own: Batch, sampled: StepTable, entropy: float) -> float:
        """Mean entropy at the tokens of ``sampled`` in all processes; ``entropy`` is that of the rows that teach.

        Of the others, which no pass computes, it is estimated: the mean of -log p of sampled tokens is the entropy.
        """
        logprob = own.table.logprob.values[teaching_rows(own, self.objective)[own.table.response.row_of]]
        surprisal = float(logprob.sum(dtype=np.float64) - sampled.logprob.values.sum(dtype=np.float64))
        sums = all_gather_object(self.accelerator, [len(logprob), len(sampled.logprob.values), surprisal])
        teaching_tokens, tokens, surprisal = np.sum(sums, axis=0).tolist()
        return float((entropy * teaching_tokens + (surprisal if tokens > teaching_tokens else 0.0)) / max(tokens, 1.0))

    def _collect_metrics(
        self, own: Batch, replay: Batch | None, tallies: Sequence[Tally], norms: list[float], losses: int, skips: int
    ) -> UpdateMetrics:
        """Metrics; the losses of one optimiser step add up, those of several are averaged."""
        metrics = tallies[0].gather_metrics(self.accelerator)
        names = (
            "approx_kl", "clip_fraction", "ratio_mean", "ratio_max", "kl", "entropy", "logprob_gap",
            "rerouted_tokens", "rerouted_choices", "balance_loss",
            "engine_weight_mean", "engine_weight_max", "engine_weight_cut", "selected_fraction", "row_cost",
        )  # fmt: skip
        train = {
            "loss": sum(value for name, value in metrics.items() if name.endswith("_loss")) / losses,
            "policy_loss": metrics.get("policy_loss", 0.0) / losses,
            "clip_fraction": 0.0, "ratio_mean": 1.0, "ratio_max": 1.0, "approx_kl": 0.0,
            **{name: metrics[name] for name in names if name in metrics},
            "grad_norm": float(np.mean(norms)) if norms else 0.0,
            "skipped_steps": float(skips),
            "tokens": float(sum(all_gather_object(self.accelerator, len(own.table.response.values)))),
            "computed_tokens": metrics["computed_tokens"], "idle_rows": metrics["idle_rows"],
            "lr": float(self.optimizer.param_groups[0]["lr"]),
            "optimizer_steps": float(self.steps),
        }  # fmt: skip
        if replay is None:
            return UpdateMetrics(train, {})
        again = tallies[1].gather_metrics(self.accelerator)
        return UpdateMetrics(train, {
            "loss": again.get("policy_loss", 0.0) / losses,
            "clip_fraction": again.get("clip_fraction", 0.0),
            "ratio_mean": again.get("ratio_mean", 1.0),
            "ratio_max": again.get("ratio_max", 1.0),
            "entropy": again["entropy"],
            "tokens": float(sum(all_gather_object(self.accelerator, len(replay.table.response.values)))),
        })  # fmt: skip
