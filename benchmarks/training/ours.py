"""The trainer's own update, and the yardstick of a token's cost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator

from benchmarks.training.rows import DENSE_SHARE, Rows
from benchmarks.training.ways import Way, device, load, mean_loss, response_logprobs
from trainers.policy.accumulation import Accumulator, Batch, Tally
from trainers.policy.config import OptimConfig
from trainers.policy.loss import Objective
from trainers.policy.model import Policy
from trainers.policy.packing import row_sequences
from trainers.policy.tree import depth_first, token_tree
from trainers.processes.cpu import keep_freed_memory
from trainers.steps import Ragged, StepTable


class Ours(Way):
    """The gradient of one optimiser step as the trainer computes it."""

    def __init__(self, folder: Path, rows: Rows, budget: int) -> None:
        keep_freed_memory()  # as trainers.train does
        self.model = load(folder)
        accelerator = Accelerator(cpu=device().type == "cpu")
        config = OptimConfig(tokens_per_microbatch=budget, correction=None)
        objective = Objective(aggregation="token-mean")
        self._accumulate = Accumulator(accelerator, Policy(self.model).train(), config, objective)
        self._batch = Batch(step_table(rows), np.repeat(rows.advantage, [len(row) for row in rows.responses]))
        self._budget = budget
        self.sizes = [0]

    def run(self, part: int) -> float:
        """Adds its gradient; returns its part of the loss."""
        return self._run(self._batch)

    def warm(self) -> None:
        """Computes as many rows as fill a micro-batch."""
        order, common = depth_first(row_sequences(self._batch.table)[0])
        lengths = self._batch.table.prompt.lengths + self._batch.table.response.lengths
        filled = np.searchsorted(np.cumsum(lengths[order] - common), self._budget) + 1
        self._run(self._batch.take(np.sort(order[:filled])))

    def _run(self, batch: Batch) -> float:
        tally = Tally()
        self._accumulate(batch, tally, seed=0, first=False, present=True)
        return tally.gather_metrics(self._accumulate.accelerator)["policy_loss"]


class Dense(Way):
    """Not the same loss: one causal batch without padding, whose cost for a token is the yardstick.

    Its rows have one length, at which a token sees as many tokens on average as one of the tree of all rows, and
    :attr:`share` of their tokens are trained on. Two shares tell the cost of the layers, for each token, from that of
    the output layer, for each token that is trained on.
    """

    share = DENSE_SHARE

    def __init__(self, folder: Path, rows: Rows, budget: int) -> None:
        keep_freed_memory()
        self.model = load(folder)
        tree = token_tree(row_sequences(step_table(rows))[0])
        width = 2 * round(float(tree.depth.mean())) + 1
        count = max(1, budget // width)
        self._ids = torch.from_numpy(np.resize(tree.tokens, (count, width))).to(device())
        self._trained = torch.zeros(count, width - 1, dtype=torch.bool, device=device())
        self._trained[:, : max(1, int(self.share * width))] = True
        self.sizes = [self._ids.numel()]

    def run(self, part: int) -> float:
        """Adds its gradient; returns its part of the loss."""
        states = self.model.base_model(input_ids=self._ids, use_cache=False).last_hidden_state
        logprob = response_logprobs(self.model, states[:, :-1], self._ids[:, 1:], self._trained)
        loss = mean_loss(logprob, torch.ones_like(logprob), len(logprob))
        loss.backward()
        return float(loss.detach())


class DenseLayers(Dense):
    """The same with one trained token a row."""

    share = 0.0


def step_table(rows: Rows) -> StepTable:
    """The rows as the trainer has them."""
    count = len(rows.prompts)
    return StepTable(
        group_id=rows.group,
        episode_id=rows.episode,
        t=rows.t,
        reward=np.zeros(count),
        state_key=np.array([""] * count, object),
        valid=np.ones(count, np.bool_),
        prompt=Ragged.of(rows.prompts, np.int32),
        response=Ragged.of(rows.responses, np.int32),
        logprob=Ragged.of([np.zeros(len(row)) for row in rows.responses], np.float32),
    )
