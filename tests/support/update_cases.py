"""Cases of the update that several processes compute together, for ``ranks.on_ranks``."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from tiny_runs import model, step_table

from trainers.policy.accumulation import Accumulator, Batch, Tally
from trainers.policy.balance import balance_batch
from trainers.policy.config import OptimConfig
from trainers.policy.guard import DivergenceError
from trainers.policy.loss import Objective
from trainers.policy.loss.config import CorrectionConfig
from trainers.policy.model import Policy
from trainers.policy.update import Updater
from trainers.steps import StepTable

SIZE = 31
LOSSES = ("ppo", "cispo", "gmpo", "gpg", "clip_cov", "kl_cov")
RATIOS = {"ppo": ("token", "step", "sequence", "product"), "cispo": ("token", "step", "sequence", "product")}
AGGREGATIONS = {
    "token-mean": {},
    "token-sum": {},
    "seq-mean-token-sum": {"count_empty": True},
    "seq-mean-token-mean": {"average": "episodes"},
    "seq-mean-token-sum-norm": {"horizon": 16},
}
GROUPS_OF = {1: [[0, 1, 2, 3, 4]], 2: [[0, 1, 3], [2, 4]], 4: [[0, 3, 4], [], [1], [2]]}
"""Groups of each process, by their number."""


def objectives() -> dict[str, Objective]:
    """Every loss with every ratio and aggregation."""
    found = {}
    for loss, (aggregation, options) in product(
        ("ppo", "cispo", "gmpo", "gpg", "clip_cov", "kl_cov"), AGGREGATIONS.items()
    ):
        for ratio in RATIOS.get(loss, ("token",)):
            picks = {"cov_fraction": 0.1, "cov_low": 0.0, "clip_low": 0.5, "clip_high": 0.5}
            found[f"{loss}-{ratio}-{aggregation}"] = Objective(
                loss=loss, ratio=ratio, aggregation=aggregation, **options, **picks
            )
    found["entropy"] = Objective(entropy_coef=0.1)
    return found


def table() -> StepTable:
    """Five groups; the engine's log-probabilities differ from the policy's."""
    found = step_table(np.random.default_rng(0), SIZE, groups=5)
    found.logprob.values[:] = np.random.default_rng(2).normal(-3.4, 0.2, len(found.logprob.values))
    return found


def share(accelerator: Accelerator, whole: StepTable) -> Batch:
    """The rows of this process."""
    advantage = np.random.default_rng(1).normal(size=len(whole.response.values))
    groups = GROUPS_OF[accelerator.num_processes][accelerator.process_index]
    return Batch(whole, advantage).take(np.flatnonzero(np.isin(whole.group_id, groups)))


def gradients(accelerator: Accelerator) -> dict[str, tuple[torch.Tensor, float]]:
    """Gradient and loss of one optimiser batch, by case."""
    policy = accelerator.prepare(Policy(model("qwen2", SIZE)))
    own, found = share(accelerator, table()), {}
    cases = [(name, objective, None) for name, objective in objectives().items()]
    for level, floor in product(("token", "sequence"), (None, 0.0)):
        correction = CorrectionConfig(level=level, floor=floor, cap=1.1)
        cases.append((f"{level}-{floor}", Objective(), correction))
    for name, objective, correction in cases:
        config = OptimConfig(tokens_per_microbatch=60, correction=correction)
        old = None if correction is None else own.table.logprob.values + 0.1 * np.sin(own.table.response.values)
        tally = Tally()
        Accumulator(accelerator, policy, config, objective)(replace(own, old=old), tally, seed=5, first=True)
        gradient = torch.cat([p.grad.flatten() for p in policy.parameters()])
        policy.zero_grad()
        merged = tally.gather_metrics(accelerator)
        found[name] = gradient, sum(value for key, value in merged.items() if key.endswith("_loss"))
    return found


def updates(accelerator: Accelerator) -> dict[str, tuple[torch.Tensor, dict[str, float]]]:
    """Weights and metrics after whole updates of several optimiser steps, by case."""
    found = {}
    for name, optim, objective in (
        ("parts", {"minibatches": 3, "epochs": 2}, Objective()),
        ("more parts than episodes", {"minibatches": 12}, Objective()),
        ("rows", {"minibatch_rows": 6, "schedule": "linear", "warmup": 2}, Objective(average="episodes")),
        ("trainer", {"minibatches": 2, "old_logprobs": "trainer"}, Objective(ratio="step", clip_low=3e-4)),
        ("clip_cov", {"minibatches": 2}, Objective(loss="clip_cov", cov_fraction=0.1, cov_low=0.0)),
    ):
        config = OptimConfig(lr=0.01, tokens_per_microbatch=60, max_grad_norm=0.5, **optim)
        policy = Policy(model("qwen2", SIZE))
        policy, optimizer = accelerator.prepare(policy, torch.optim.SGD(policy.parameters(), lr=config.lr))
        updater = Updater(
            accelerator, policy, optimizer, config, objective,
            iterations=2, recompute=config.recomputes("float32", "hf"),
        )  # fmt: skip
        told = updater.update(share(accelerator, table()), np.random.default_rng([3, 1]), iteration=1)
        found[name] = torch.cat([p.detach().flatten() for p in policy.parameters()]), told.train
    return found


def not_finite(accelerator: Accelerator) -> dict[str, Any]:
    """One process's advantages are not a number: metrics of an update, then the error of the next."""
    policy = Policy(model("qwen2", SIZE))
    policy, optimizer = accelerator.prepare(policy, torch.optim.SGD(policy.parameters(), lr=0.1))
    updater = Updater(accelerator, policy, optimizer, OptimConfig(), Objective())
    own = share(accelerator, table())
    if accelerator.process_index == 1:
        own.advantage[:] = np.nan
    before = [p.detach().clone() for p in policy.parameters()]
    told = [updater.update(own, np.random.default_rng(0)).train for _ in range(2)][-1]
    same = all(torch.equal(p, old) for p, old in zip(policy.parameters(), before, strict=True))
    try:
        updater.update(own, np.random.default_rng(0))
    except DivergenceError as error:
        return {"same": same, "skipped": told["skipped_steps"], "message": str(error)}
    raise AssertionError("the third step in a row was skipped without a word")


def exchanged(accelerator: Accelerator) -> dict[str, Any]:
    """The rows of this process before and after they are balanced, each with all that a loss reads of it."""
    own = share(accelerator, table())
    own = replace(own, factor=own.advantage + 1.0, old=own.advantage + 2.0)
    own = replace(own, table=own.table.with_token_columns(reference=own.advantage + 3.0))
    parts = np.stack([own.table.episode_id % 2, own.table.episode_id % 3])

    def rows(batch: Batch, parts: Any) -> list[str]:
        found = []
        for row in range(len(batch.table)):
            one = batch.take(np.array([row]))
            of = one.table
            columns = [of.prompt, of.response, of.logprob, of.policy_version, of.token_extra["reference"]]
            numbers = [of.group_id, of.episode_id, of.t, of.valid, of.reward, one.advantage, one.factor, one.old]
            found.append(
                str([*(column[0].tolist() for column in columns), *map(np.ndarray.tolist, numbers), parts[:, row]])
            )
        return found

    new, moved = balance_batch(accelerator, own, parts, 1, True)
    return {
        "before": rows(own, parts), "after": rows(new, moved), "episodes": new.table.episode_id.tolist(),
        "came": sorted(set(new.table.episode_id.tolist()) - set(own.table.episode_id.tolist())),
    }  # fmt: skip
