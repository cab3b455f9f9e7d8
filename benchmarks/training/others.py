"""The same loss by libraries of others, each with its own code: TRL and PrefixGrouper."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface, AutoTokenizer

from benchmarks.training.rows import Rows, TrainedSequence, batches, padded
from benchmarks.training.ways import NotPossible, Way, device, load, mean_loss


class TRLSteps(Way):
    """TRL's GRPOTrainer, one row a step: its ``training_step`` on prepared tensors.

    Two things are in TRL's favour. Rows of similar length are together and padded as widely as they need, where it pads
    all rows of an iteration to the longest; and its output layer computes completion tokens alone, as it does on GPUs,
    where on a CPU it computes every position.
    """

    def __init__(self, folder: Path, rows: Rows, budget: int) -> None:
        installed("trl", "TRL")
        self._trainer = _trainer(folder)
        self.model = self._trainer.model
        total = torch.tensor(rows.completion, device=device())
        self._batches = [_inputs(batch) | {"num_items_in_batch": total} for batch in batches(self.rows(rows), budget)]
        self.sizes = [sum(one[f"{part}_ids"].numel() for part in ("prompt", "completion")) for one in self._batches]

    def rows(self, rows: Rows) -> list[TrainedSequence]:
        """The sequences that are rows of TRL's batch."""
        return rows.steps()

    def run(self, part: int) -> float:
        """Adds its gradient; returns its part of the loss."""
        return float(self._trainer.training_step(self.model, self._batches[part], None))


class TRLEpisodes(TRLSteps):
    """TRL's GRPOTrainer, one row an episode, with a ``tool_mask`` over what the policy did not write."""

    def rows(self, rows: Rows) -> list[TrainedSequence]:
        """The parts of episodes whose prompts continue each other."""
        found = rows.episodes()
        if len(found) == len(rows.prompts):
            raise NotPossible("no prompt continues the step before, so an episode is no sequence")
        return found


def installed(module: str, name: str) -> None:
    """Raises :class:`NotPossible` where ``module`` is missing."""
    if importlib.util.find_spec(module) is None:
        raise NotPossible(f"{name} is not installed; name a Python that has it with --trl-python")


def _trainer(folder: Path) -> Any:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer
    from trl.trainer import utils

    utils._use_triton = lambda _: True  # read there for one thing: whether the output layer skips masked positions

    class Prepared(GRPOTrainer):
        """Takes tensors as they are instead of sampling them."""

        def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
            return inputs

    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="trl-"), per_device_train_batch_size=2, num_generations=2,
        gradient_accumulation_steps=1, steps_per_generation=1, beta=0.0, loss_type="dapo", temperature=1.0,
        gradient_checkpointing=False, bf16=False, use_cpu=device().type == "cpu", report_to="none",
    )  # fmt: skip
    made = Prepared(
        model=load(folder),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=config,
        train_dataset=Dataset.from_dict({"prompt": ["one", "two"]}),
        processing_class=AutoTokenizer.from_pretrained(folder),
    )
    made.current_gradient_accumulation_steps = 1
    return made


def _inputs(batch: Sequence[TrainedSequence]) -> dict[str, Tensor]:
    """TRL's tensors: prompts padded on the left, completions on the right."""
    prompts = [one.tokens[: one.prompt] for one in batch]
    completions = [one.tokens[one.prompt :] for one in batch]
    arrays = {
        "prompt_ids": padded(prompts, left=True),
        "prompt_mask": padded([np.ones_like(prompt) for prompt in prompts], left=True),
        "completion_ids": padded(completions),
        "completion_mask": padded([np.ones_like(completion) for completion in completions]),
        "tool_mask": padded([one.trained[one.prompt :].astype(np.int64) for one in batch]),
        "advantages": np.array([one.advantage for one in batch], np.float32),
    }
    return {name: torch.from_numpy(array).to(device()) for name, array in arrays.items()}


class PrefixGrouped(Way):
    """PrefixGrouper: the longest prefix of all rows of a group once, then what follows it in each row.

    It is given whole episodes where prompts continue each other, and its attention is PyTorch's
    ``scaled_dot_product_attention``.
    """

    def __init__(self, folder: Path, rows: Rows, budget: int) -> None:
        installed("prefix_grouper", "PrefixGrouper")
        AttentionInterface.register("prefix_grouper", _attention)
        self.model = load(folder, attn_implementation="prefix_grouper")
        self._tokens = rows.completion
        groups = itertools.groupby(rows.episodes(), key=lambda one: one.group)
        self._batches = [part for _, group in groups for part in _grouped(list(group), budget)]
        self.sizes = [length + sum(len(one.tokens) - length for one in batch) for length, batch in self._batches]

    def run(self, part: int) -> float:
        """Adds its gradient; returns its part of the loss."""
        from prefix_grouper import PrefixGrouper

        length, batch = self._batches[part]
        tails = [one.tokens[length:] for one in batch]
        info = [[length, *map(len, tails)]]
        with _silence():
            grouper = PrefixGrouper(info, device=device(), padding_mode="right")
        ids = torch.from_numpy(np.concatenate([batch[0].tokens[:length], *tails]))[None].to(device())
        positions = np.concatenate([np.arange(length), *(length + np.arange(len(tail)) for tail in tails)])
        states = self.model.base_model(
            input_ids=ids, position_ids=torch.from_numpy(positions)[None].to(device()), use_cache=False,
            prefix_grouper=grouper,
        ).last_hidden_state[0]  # fmt: skip
        starts = length + np.cumsum([0, *map(len, tails)])[:-1]
        place, target, advantage = [], [], []
        for one, start in zip(batch, starts, strict=True):
            trained = np.flatnonzero(one.trained)
            # The output of the prefix's last token predicts the first token of every tail.
            place.append(np.where(trained == length, length - 1, start + trained - length - 1))
            target.append(one.tokens[trained])
            advantage.append(np.full(len(trained), one.advantage, np.float32))
        where, targets, advantages = (
            torch.from_numpy(np.concatenate(column)).to(device()) for column in (place, target, advantage)
        )
        logits = self.model.get_output_embeddings()(states[where]).float()
        logprob = -functional.cross_entropy(logits, targets, reduction="none")
        loss = mean_loss(logprob, advantages, self._tokens)
        loss.backward()
        return float(loss.detach())


def _grouped(group: Sequence[TrainedSequence], budget: int) -> Iterator[tuple[int, list[TrainedSequence]]]:
    """The group's prefix, which ends before any trained token, and as many rows as the budget holds."""
    first = group[0].tokens
    length = min(one.prompt for one in group)
    for one in group:
        differ = np.flatnonzero(one.tokens[:length] != first[:length])
        length = int(differ[0]) if len(differ) else length
    if not length:
        raise NotPossible("the rows of a group begin with different tokens")
    batch: list[TrainedSequence] = []
    used = length
    for one in group:
        if batch and used + len(one.tokens) - length > budget:
            yield length, batch
            batch, used = [], length
        batch.append(one)
        used += len(one.tokens) - length
    yield length, batch


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, prefix_grouper: Any = None,
    scaling: float | None = None, **_: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Attention of transformers' interface; heads of keys and values are repeated for grouped queries."""
    from prefix_grouper.forward import AttentionForward

    repeat = query.shape[1] // key.shape[1]
    key, value = (tensor.repeat_interleave(repeat, dim=1) for tensor in (key, value))
    return AttentionForward(_masked)(prefix_grouper, query, key, value, scaling), None


def _masked(query: Tensor, key: Tensor, value: Tensor, real: Tensor, scaling: float | None) -> Tensor:
    """Causal attention of the last positions; ``real`` (rows, keys) says which keys are no padding."""
    queries, keys = query.shape[2], key.shape[2]
    causal = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril(keys - queries)
    mask = causal & real[:, None, None, :].bool()
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling).transpose(1, 2)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Discards what a library prints."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


WAYS: dict[str, Callable[[Path, Rows, int], Way]] = {
    "trl-episodes": TRLEpisodes, "trl-steps": TRLSteps, "prefix-grouper": PrefixGrouped,
}  # fmt: skip
