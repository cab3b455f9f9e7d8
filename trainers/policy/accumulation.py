"""The loss and the gradient of one optimiser batch, spread over micro-batches and processes."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from accelerate import Accelerator
from numpy.typing import NDArray
from torch import Tensor, nn

from trainers.policy.attention import evaluating
from trainers.policy.config import OptimConfig
from trainers.policy.loss import BatchTotals, Objective, token_weights
from trainers.policy.loss.policy_loss import PolicyLoss, merge_metrics, policy_loss, read_scalars
from trainers.policy.loss.selection import SELECTING, selected_tokens
from trainers.policy.model import Policy
from trainers.policy.packing import distinct_tokens, micro_batches
from trainers.policy.recurrent import is_recurrent
from trainers.policy.routing import balance_counts, routers
from trainers.policy.rows import by_rows
from trainers.policy.sharding import is_sharded, rounds, without_sync
from trainers.policy.statistics import TokenStats
from trainers.policy.transfer import to_device
from trainers.policy.tree import Ints, TokenTree, one_token
from trainers.processes.distributed import all_gather_object
from trainers.steps import StepTable
from trainers.steps.columns import REFERENCE

Floats = NDArray[np.float64]
_RECOMPUTED = 4 / 3  # cost of a token whose forward pass is made twice, with a backward pass of two
_ONCE = 1.0  # cost of a token whose forward pass is made once, without a backward pass


@dataclass(frozen=True)
class Batch:
    """One process's rows of one optimiser step, or of an update of several."""

    table: StepTable
    advantage: Floats
    """Advantage of each response token of ``table``."""
    factor: Floats | None = None
    """Factor of each response token's weight in the loss; 1 where not given."""
    old: Floats | None = None
    """Log-probability of each response token that the importance ratio compares with, as the trainer computed it; the
    engine's where not given."""

    def take(self, rows: Ints) -> Batch:
        """Returns the batch of these rows, in the given order."""
        offsets, lengths = self.table.response.offsets, self.table.response.lengths[rows]
        starts = np.cumsum(lengths) - lengths
        tokens = np.arange(lengths.sum()) + np.repeat(offsets[rows] - starts, lengths)
        factor, old = (None if column is None else column[tokens] for column in (self.factor, self.old))
        return Batch(self.table.take(rows), self.advantage[tokens], factor, old)

    @classmethod
    def join(cls, batches: Sequence[Batch]) -> Batch:
        """Returns the rows of all batches, one after the other; each has the same columns, or no row."""
        parts = [batch for batch in batches if len(batch.table)] or list(batches[:1])
        factor, old = ([getattr(part, name) for part in parts] for name in ("factor", "old"))
        return cls(
            StepTable.join([part.table for part in parts]),
            np.concatenate([part.advantage for part in parts]),
            None if factor[0] is None else np.concatenate(factor),
            None if old[0] is None else np.concatenate(old),
        )


@dataclass
class Tally:
    """Sums over the passes of one process over one kind of rows."""

    losses: list[PolicyLoss] = field(default_factory=list)
    entropy: Tensor = field(default_factory=partial(torch.zeros, (), dtype=torch.float64))
    scored: int = 0
    """Response tokens that passes computed, whose entropies are in ``entropy``."""
    tokens: int = 0
    """Response tokens of all passes, those of idle rows included."""
    computed: int = 0
    """Tokens that the passes computed, prompts included ..."""
    distinct: int = 0
    """... and, of a model that is computed by rows, those that trees of the optimiser batches would have."""
    rows: int = 0
    """Step rows with a response ..."""
    idle: int = 0
    """... and those of them that no pass computed, as nothing in the loss depends on them."""
    gap: Tensor = field(default_factory=partial(torch.zeros, (), dtype=torch.float64))
    """Sum of |engine's - trainer's| log-probability in the first optimiser step ..."""
    gap_tokens: int = 0
    """... and the tokens in it."""
    rerouted: Tensor = field(default_factory=partial(torch.zeros, (), dtype=torch.long))
    """Counts of tokens in it that engine and trainer would send to other experts
    (:meth:`~trainers.policy.routing.Routing.differing`)."""
    culprit: str | None = None
    """The first quantity that was not finite, and where; see :data:`trainers.policy.guard.REMEDIES`."""

    def gather_metrics(self, accelerator: Accelerator) -> dict[str, float]:
        """Returns metrics over all processes; each must call this.

        Losses are sums over the optimiser steps, others means.
        """
        scalars = [value for loss in self.losses for value in loss.metrics.values()]
        numbers = iter(read_scalars([self.entropy, self.gap, *scalars]))
        entropy, gap = next(numbers), next(numbers)
        losses = merge_metrics([(dict(zip(loss.metrics, numbers, strict=False)), loss.tokens) for loss in self.losses])
        counts = np.array([self.computed, self.rows, self.idle, self.distinct, *self.rerouted.expand(4).tolist()])
        own = (losses, self.tokens, entropy, gap, self.gap_tokens, counts, self.scored)
        parts = all_gather_object(accelerator, own)
        metrics = merge_metrics([(part[0], part[1]) for part in parts])
        # Each process's share of the loss is multiplied by their number.
        metrics |= {name: value / len(parts) for name, value in metrics.items() if name.endswith("_loss")}
        metrics["entropy"] = sum(part[2] for part in parts) / max(sum(part[6] for part in parts), 1)
        metrics["logprob_gap"] = sum(part[3] for part in parts) / max(sum(part[4] for part in parts), 1)
        sums = np.sum([part[5] for part in parts], axis=0).tolist()
        computed_tokens, rows, idle, distinct, routed_tokens, rerouted_tokens, choices, rerouted_choices = sums
        metrics |= {"computed_tokens": float(computed_tokens), "idle_rows": idle / max(rows, 1)}
        if routed_tokens:
            metrics["rerouted_tokens"] = rerouted_tokens / routed_tokens
            metrics["rerouted_choices"] = rerouted_choices / choices
        return metrics | ({"row_cost": computed_tokens / distinct} if distinct else {})


@dataclass(frozen=True)
class Accumulator:
    """Adds the gradient of a batch to that of the policy: the same for any micro-batch size and number of processes.

    Args:
        accelerator: The run's accelerator.
        policy: As ``accelerator.prepare`` returned it.
        config: Optimiser settings.
        objective: Settings of the loss.
    """

    accelerator: Accelerator
    policy: nn.Module
    config: OptimConfig
    objective: Objective

    def __call__(self, batch: Batch, tally: Tally, *, seed: int, first: bool, present: bool = False) -> bool:
        """Runs the backward passes over ``batch``; every process must call this.

        Args:
            batch: Rows of this process; may be empty.
            tally: Receives the sums.
            seed: Seed of the losses that draw tokens at random.
            first: Whether the policy is still the one that sampled ``batch``, so that engine and trainer can be
                compared.
            present: The ratio compares with the policy as it is now, instead of with ``batch.old`` or the engine.

        Returns:
            Whether any process has response tokens in its batch; without, nothing is done.
        """
        table, ranks = batch.table, self.accelerator.num_processes
        lengths, episodes = table.response.lengths, table.episode_id
        totals = BatchTotals.of(lengths, self.objective, episodes)
        parts = all_gather_object(self.accelerator, (totals.tokens, totals.sequences, totals.episodes))
        totals = BatchTotals(*(int(sum(column)) for column in zip(*parts, strict=True)))
        if not totals.tokens:
            return False
        weight = token_weights(lengths, self.objective, totals=totals, episode=episodes) * ranks
        if batch.factor is not None:
            weight = weight * batch.factor
        teaching = teaching_rows(batch, self.objective)
        tally.rows += int((lengths > 0).sum())
        tally.idle += int(((lengths > 0) & ~teaching).sum())
        if not teaching.all():
            weight = weight[teaching[table.response.row_of]]
            batch = batch.take(np.flatnonzero(teaching))
            table = batch.table
        columns: dict[str, NDArray[np.generic]] = {"weight": weight, "advantage": batch.advantage}
        columns["engine"] = table.logprob.values
        if not present:
            columns["old"] = table.logprob.values if batch.old is None else batch.old
        if self.objective.kl != "none":
            columns["reference"] = table.token_column(REFERENCE, "objective.kl", "the reference policy")
        if self.objective.loss in SELECTING:
            columns["selected"] = self._select_tokens(batch, seed, present)
        row_of = table.response.row_of
        policy: Policy = self.accelerator.unwrap_model(self.policy)
        pieces = self._with_balance_loss(policy, _trees(policy, table, self.config, _RECOMPUTED))
        if by_rows(policy):
            tally.distinct += distinct_tokens(table)
        # A tree in parts exchanges nothing in its backward pass: another pass follows.
        passes = len(pieces) + any(piece.part is not None for piece in pieces)
        count = max(1, *all_gather_object(self.accelerator, passes))
        outputs: list[tuple[Tensor, TokenTree, TokenStats]] = []
        for number in range(count):
            with contextlib.nullcontext() if number == count - 1 else without_sync(self.accelerator, self.policy):
                # Another process has more, no row teaches, or nothing was exchanged: take part, adding nothing.
                if number >= len(pieces):
                    idle: TokenStats = self.policy(one_token())
                    self.accelerator.backward(idle.logprob.sum() * 0.0)
                    continue
                piece = pieces[number]
                stats: TokenStats = self.policy(piece)
                if first and piece.experts is not None:
                    tally.rerouted = tally.rerouted + policy.rerouted
                _, rows = np.unique(row_of[piece.index], return_inverse=True)
                loss = self._loss(piece, stats, rows, columns, correct=present or batch.old is not None)
                if policy.balance_coef:  # none in a step of which no row has experts
                    balance = loss.loss.new_zeros(()) if stats.balance is None else stats.balance
                    metrics = {**loss.metrics, "balance_loss": balance.detach()}
                    loss = replace(loss, loss=loss.loss + balance, metrics=metrics)
                self.accelerator.backward(loss.loss)
            # Neither may keep the graph of this pass, whose masks are large, while the next one is made.
            loss, stats = replace(loss, loss=loss.loss.detach()), stats.detach()
            outputs.append((loss.loss, piece, stats))
            tally.losses.append(loss)
            tally.computed += len(piece)
            tally.entropy = tally.entropy + stats.entropy.sum()
            tally.scored += len(stats.entropy)
            if first:
                engine = to_device(table.logprob.values[piece.index], stats.logprob.device)
                tally.gap = tally.gap + (stats.logprob - engine).abs().sum()
                tally.gap_tokens += len(engine)
        for value, (_, piece, stats) in zip(read_scalars([loss for loss, _, _ in outputs]), outputs, strict=True):
            if tally.culprit is None and not math.isfinite(value):
                tally.culprit = self._culprit(batch, piece, stats)
        tally.tokens += len(table.response.values)
        return True

    def _with_balance_loss(self, policy: Policy, trees: list[TokenTree]) -> list[TokenTree]:
        """Returns the trees with the balance loss of a mixture, where it is part of the loss; of all processes."""
        if not policy.balance_coef:
            return trees
        tokens, known_tokens, *choices = np.sum(all_gather_object(self.accelerator, balance_counts(trees)), axis=0)
        if not known_tokens:
            return trees
        layers = len(routers(policy.model))
        share, scale = np.array(choices) / (known_tokens * layers), policy.balance_coef / (tokens * layers)
        return [replace(tree, balance=scale * self.accelerator.num_processes * share) for tree in trees]

    def _loss(
        self, piece: TokenTree, stats: TokenStats, rows: Ints, columns: dict[str, NDArray[np.generic]], correct: bool
    ) -> PolicyLoss:
        new = stats.logprob
        cut = {name: to_device(values[piece.index], new.device) for name, values in columns.items()}
        cut |= {name: column.to(new.dtype) for name, column in cut.items() if column.is_floating_point()}
        return policy_loss(
            new,
            cut.get("old", new.detach()),
            cut["advantage"],
            to_device(rows, new.device),
            cut["weight"],
            config=self.objective,
            ref_logprob=cut.get("reference"),
            entropy=stats.entropy,
            selected=cut.get("selected"),
            engine_logprob=cut["engine"],
            correction=self.config.correction if correct else None,
        )

    def _select_tokens(self, batch: Batch, seed: int, present: bool) -> NDArray[np.bool_]:
        """Selects the tokens that the loss picks, by a forward pass of its own over the whole batch."""
        table = batch.table
        new = log_probabilities(self.accelerator.unwrap_model(self.policy), table, self.config, as_trained=True)
        engine = table.logprob.values.astype(np.float64)
        old = new if present else engine if batch.old is None else batch.old
        ids = zip(table.episode_id.tolist(), table.t.tolist(), table.response.lengths.tolist(), strict=True)
        draws = [np.random.default_rng([seed, episode, t]).random(length) for episode, t, length in ids]
        draw, gather = np.concatenate([np.zeros(0), *draws]), partial(all_gather_object, self.accelerator)
        return selected_tokens(new, old, batch.advantage, draw, self.objective, gather)

    def _culprit(self, batch: Batch, piece: TokenTree, stats: TokenStats) -> str:
        """Names the quantity that made the loss not finite, and the step in which it occurred."""
        suspects: list[tuple[str, Tensor | NDArray[np.floating]]] = [
            ("advantage", batch.advantage[piece.index]),
            ("log-probability of the engine", batch.table.logprob.values[piece.index]),
            ("log-probability", stats.logprob.cpu().numpy()),
        ]
        if self.objective.kl != "none":
            reference = batch.table.token_column(REFERENCE, "objective.kl", "the reference policy")
            suspects.append(("log-probability of the reference", reference[piece.index]))
        for name, values in suspects:
            bad = np.flatnonzero(~np.isfinite(np.asarray(values)))
            if len(bad):
                row = int(batch.table.response.row_of[piece.index[bad[0]]])
                step = f"episode {batch.table.episode_id[row]}, step {batch.table.t[row]}"
                return f"{name}: {np.asarray(values)[bad[0]]} in {step}"
        return f"loss: {self.objective.loss}"


def walks(policy: nn.Module) -> bool:
    """Whether trees may be computed in parts: by each process alone, and twice."""
    return not (is_sharded(policy) or by_rows(policy) or is_recurrent(policy))


def teaching_rows(batch: Batch, objective: Objective) -> NDArray[np.bool_]:
    """Returns which rows of ``batch`` the loss may have a gradient at, shape (N,); the others need not be computed.

    A row without advantage has none, unless the divergence from a reference or the entropy is part of the loss, or the
    loss picks its tokens from the whole batch.
    """
    lengths = batch.table.response.lengths
    if objective.loss in SELECTING or objective.kl != "none" or objective.entropy_coef:
        return lengths > 0
    mask = np.zeros(len(lengths), np.bool_)
    mask[batch.table.response.row_of[batch.advantage != 0]] = True
    if batch.factor is not None:
        is_weighed = np.zeros(len(lengths), np.bool_)
        is_weighed[batch.table.response.row_of[batch.factor != 0]] = True
        mask &= is_weighed
    return mask


def _trees(policy: nn.Module, table: StepTable, config: OptimConfig, walk: float) -> list[TokenTree]:
    """The micro-batches of ``table``; ``walk`` is what a token costs in a tree that is computed in parts."""
    cost = walk if walks(policy) else None
    return list(micro_batches(table, config.tokens_per_microbatch, walk=cost, rows=by_rows(policy)))


def log_probabilities(policy: nn.Module, table: StepTable, config: OptimConfig, *, as_trained: bool = False) -> Floats:
    """Log-probability of each response token of ``table`` under ``policy``: the first of :func:`token_scores`."""
    return token_scores(policy, table, config, as_trained=as_trained)[0]


def token_scores(
    policy: nn.Module, table: StepTable, config: OptimConfig, *, as_trained: bool = False
) -> tuple[Floats, Floats]:
    """Log-probability and entropy of each response token of ``table``, in their order; no gradient.

    Both are of the distribution that is sampled from, the entropy (in nats) of the whole vocabulary.

    Args:
        policy: A :class:`~trainers.policy.model.Policy`. If it is sharded, every process must call this.
        table: Any step rows.
        config: Bounds the size of a forward pass.
        as_trained: Compute in the micro-batches of a pass with gradients over the same rows, where others may cost
            less: rounding depends on what is computed together, so the values are then equal bit for bit.
    """
    logprob, entropy = np.zeros((2, len(table.response.values)))
    pieces = _trees(policy, table, config, _RECOMPUTED if as_trained else _ONCE)
    count = rounds(policy, len(pieces))
    with evaluating(policy):
        scores = [torch.stack([stats.logprob, stats.entropy]) for stats in map(policy, pieces)]
        for _ in range(len(pieces), count):
            policy(one_token())
    if pieces:
        index = np.concatenate([piece.index for piece in pieces])
        logprob[index], entropy[index] = torch.cat(scores, 1).double().cpu().numpy()
    return logprob, entropy
