"""One policy update: advantages in, new weights out."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass

import numpy as np
import torch
from accelerate import Accelerator
from numpy.typing import NDArray
from torch import Tensor, nn

from trainers.config import OptimConfig
from trainers.objectives import BatchTotals, ObjectiveConfig, token_weights
from trainers.objectives.policy_loss import PolicyLoss, merge_metrics, policy_loss
from trainers.policy.model import Policy, TokenStats
from trainers.policy.packing import MicroBatch, merge_steps, micro_batches
from trainers.processes import every
from trainers.steps import StepTable


def learning_rate(config: OptimConfig, step: int, total: int) -> float:
    """Learning rate of optimiser step ``step`` (from 0) of ``total``."""
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    share = min(1.0, (step - config.warmup) / max(1, total - config.warmup))
    if config.schedule == "linear":
        return config.lr * (1.0 - 0.9 * share)
    if config.schedule == "cosine":
        return config.lr * (0.1 + 0.9 * 0.5 * (1.0 + math.cos(math.pi * share)))
    return config.lr


@dataclass(frozen=True)
class Batch:
    """One rank's rows of one optimiser step."""

    table: StepTable
    advantage: NDArray[np.float64]
    """Per response token of ``table``."""


class Updater:
    """Takes optimiser steps on step tables; the same result for any micro-batch size and any number of ranks.

    Args:
        accelerator: Of the run.
        policy: As ``accelerator.prepare`` returned it.
        optimizer: As ``accelerator.prepare`` returned it.
        config: Optimiser settings.
        objective: What is minimised.
        reference: Policy that the KL term compares with; needed unless ``objective.kl`` is ``"none"``.
        total_steps: Optimiser steps of the whole run, for the learning-rate schedule.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        policy: nn.Module,
        optimizer: torch.optim.Optimizer,
        config: OptimConfig,
        objective: ObjectiveConfig,
        reference: Policy | None,
        total_steps: int,
    ) -> None:
        self.accelerator = accelerator
        self.policy = policy
        self.optimizer = optimizer
        self.config = config
        self.objective = objective
        self.reference = reference
        self.total_steps = total_steps
        self.steps = 0
        """Optimiser steps taken since the run began."""

    def update(self, table: StepTable, advantage: NDArray[np.float64], rng: np.random.Generator) -> dict[str, float]:
        """All epochs and minibatches over ``table``; returns metrics by their names under ``train/``.

        Args:
            table: The rows of this rank that are trained on; may be empty.
            advantage: Per response token.
            rng: Orders the minibatches.
        """
        self.policy.train()
        parts: list[PolicyLoss] = []
        norms: list[float] = []
        entropies: list[tuple[float, int]] = []
        gap: float | None = None
        groups = np.unique(table.group_id)
        for _ in range(self.config.epochs):
            for chosen in np.array_split(rng.permutation(groups), self.config.minibatches):
                rows = np.flatnonzero(np.isin(table.group_id, chosen))
                batch = Batch(table.take(rows), advantage[np.isin(table.response.row_of, rows)])
                if not any(every(self.accelerator, len(batch.table.response.values))):
                    continue
                losses, entropy, difference = self._accumulate(batch)
                norms.append(
                    float(self.accelerator.clip_grad_norm_(self.policy.parameters(), self.config.max_grad_norm))
                )
                self._step()
                parts += losses
                entropies.append(entropy)
                gap = difference if gap is None else gap
        self.policy.eval()
        merged = merge_metrics(parts)
        shares = max(len(norms), 1)  # the losses of one optimiser step add up, those of several are averaged
        tokens = sum(count for _, count in entropies)
        return {
            "loss": (merged.get("policy_loss", 0.0) + merged.get("kl_loss", 0.0)) / shares,
            "policy_loss": merged.get("policy_loss", 0.0) / shares,
            "policy_shift": merged.get("approx_kl", 0.0),
            "clip_fraction": merged.get("clip_fraction", 0.0),
            "ratio_mean": merged.get("ratio_mean", 1.0),
            "ratio_max": merged.get("ratio_max", 1.0),
            **({"kl": merged["kl"]} if "kl" in merged else {}),
            "grad_norm": float(np.mean(norms)) if norms else 0.0,
            "entropy": sum(total for total, _ in entropies) / max(tokens, 1),
            "logprob_gap": gap or 0.0,
            "tokens": float(len(table.response.values)),
            "lr": float(self.optimizer.param_groups[0]["lr"]),
            "optimizer_steps": float(self.steps),
        }

    def gradient(self, table: StepTable, advantage: NDArray[np.float64]) -> dict[str, Tensor]:
        """The gradient of one optimiser step over ``table``, averaged over ranks, by parameter name."""
        self.policy.train()
        self._accumulate(Batch(table, advantage))
        self.policy.eval()
        module = self.accelerator.unwrap_model(self.policy)
        found = {name: p.grad.detach().clone() for name, p in module.named_parameters() if p.grad is not None}
        self.optimizer.zero_grad()
        return found

    def _accumulate(self, batch: Batch) -> tuple[list[PolicyLoss], tuple[float, int], float]:
        """Backward passes of one optimiser step; losses, (summed entropy, tokens), mean |engine - trainer| log-prob."""
        table, ranks = batch.table, self.accelerator.num_processes
        lengths, episodes = table.response.lengths, table.episode_id
        totals = BatchTotals.of(lengths, self.objective, episodes)
        parts = every(self.accelerator, (totals.tokens, totals.sequences, totals.episodes))
        totals = BatchTotals(*(int(sum(column)) for column in zip(*parts, strict=True)))
        weight = token_weights(lengths, self.objective, totals=totals, episode=episodes) * ranks
        pieces = list(
            micro_batches(table, merge_steps(table), self.config.tokens_per_microbatch, self.config.share_prefix)
        )
        rounds = max(every(self.accelerator, len(pieces)))
        row_of = table.response.row_of
        losses: list[PolicyLoss] = []
        entropy, difference = 0.0, 0.0
        for number in range(rounds):
            last = number == rounds - 1
            with contextlib.nullcontext() if last else self.accelerator.no_sync(self.policy):
                if number >= len(pieces):  # another rank has more: take part in its synchronisation, adding nothing
                    stats: TokenStats = self.policy(one_token())
                    self.accelerator.backward(stats.logprob.sum() * 0.0)
                    continue
                piece = pieces[number]
                stats = self.policy(piece)
                loss = self._loss(batch, piece, stats, weight, row_of)
                self.accelerator.backward(loss.loss)
            losses.append(loss)
            entropy += float(stats.entropy.sum())
            old = torch.from_numpy(table.logprob.values[piece.index])
            difference += float((stats.logprob.detach().cpu() - old).abs().sum())
        tokens = len(table.response.values)
        return losses, (entropy, tokens), difference / max(tokens, 1)

    def _loss(
        self, batch: Batch, piece: MicroBatch, stats: TokenStats, weight: NDArray[np.float64], row_of: NDArray[np.int64]
    ) -> PolicyLoss:
        device = stats.logprob.device

        def column(values: NDArray[np.generic]) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(values)).to(device)

        _, rows = np.unique(row_of[piece.index], return_inverse=True)
        reference = None
        if self.reference is not None:
            with torch.no_grad():
                reference = self.reference(piece).logprob
        return policy_loss(
            stats.logprob,
            column(batch.table.logprob.values[piece.index]).float(),
            column(batch.advantage[piece.index]).float(),
            column(rows),
            column(weight[piece.index]).float(),
            config=self.objective,
            ref_logprob=reference,
        )

    def _step(self) -> None:
        rate = learning_rate(self.config, self.steps, self.total_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1


def one_token() -> MicroBatch:
    """The smallest micro-batch, for a process that has none while another has."""
    zero, one = np.zeros(1, np.int64), np.ones(1, np.int64)
    return MicroBatch(zero[:, None][:, :0], zero, zero, zero[:, None], one, zero, zero, zero, zero)
