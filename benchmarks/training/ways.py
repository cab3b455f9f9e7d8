"""What ways to compute the same loss and gradient have in common, and the plain one; torch and transformers alone.

The loss is the mean over all response tokens of -advantage x ratio, with the ratio's old log-probability that of the
model as it is: the first optimiser step of PPO or GRPO. Every way has the same weights and the same tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModelForCausalLM, PreTrainedModel

from benchmarks.training.rows import Rows, TrainedSequence, batches, padded


def device() -> torch.device:
    """The GPU if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def load(folder: Path, **options: Any) -> PreTrainedModel:
    """The model in ``folder``, float32, in training mode."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options)
    return model.to(device()).train()


class NotPossible(Exception):
    """This way cannot train on these rows, or not here; the message says why."""


class Way(ABC):
    """One way to compute the gradient of the loss.

    Args:
        folder: Folder of model and tokenizer.
        rows: The step rows.
        budget: Most tokens, padding included, of one forward pass; a longer sequence is a pass of its own.
    """

    @abstractmethod
    def __init__(self, folder: Path, rows: Rows, budget: int) -> None: ...

    model: PreTrainedModel
    sizes: Sequence[int]
    """Positions in each micro-batch, ascending with the length of its rows; a single 0 where :meth:`run` makes them."""

    @abstractmethod
    def run(self, part: int) -> float:
        """Adds the gradient of micro-batch ``part`` to that of the model; returns its part of the loss."""

    def warm(self) -> None:
        """Computes the largest micro-batch, as an update before this one would have."""
        self.run(len(self.sizes) - 1)


def mean_loss(logprob: Tensor, advantage: Tensor, tokens: int) -> Tensor:
    """The part of the loss that these response tokens make of ``tokens`` ones."""
    return -(advantage * torch.exp(logprob - logprob.detach())).sum() / tokens


class Padded(Way):
    """A padded batch of steps, as transformers takes it: right padding, an attention mask, loss on the responses.

    Rows of similar length are together, and the output layer computes the positions before response tokens alone.
    """

    def __init__(self, folder: Path, rows: Rows, budget: int) -> None:
        self.model = load(folder)
        self._tokens = rows.completion
        self._batches = [_tensors(batch) for batch in batches(rows.steps(), budget)]
        self.sizes = [ids.numel() for ids, *_ in self._batches]

    def run(self, part: int) -> float:
        """Adds its gradient; returns its part of the loss."""
        ids, mask, trained, advantage = self._batches[part]
        states = self.model.base_model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        logprob = response_logprobs(self.model, states[:, :-1], ids[:, 1:], trained[:, 1:])
        loss = mean_loss(logprob, advantage[:, None].expand(trained.shape)[:, 1:][trained[:, 1:]], self._tokens)
        loss.backward()
        return float(loss.detach())


def response_logprobs(model: PreTrainedModel, states: Tensor, targets: Tensor, trained: Tensor) -> Tensor:
    """Log-probability of each target that is trained on, as one vector."""
    head = model.get_output_embeddings()
    assert isinstance(head, nn.Module)
    return -functional.cross_entropy(head(states[trained]).float(), targets[trained], reduction="none")


def _tensors(batch: Sequence[TrainedSequence]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    ids = padded([sequence.tokens for sequence in batch])
    mask = padded([np.ones(len(sequence.tokens), np.int64) for sequence in batch])
    trained = padded([sequence.trained for sequence in batch])
    advantage = np.array([sequence.advantage for sequence in batch], np.float32)
    first, second, third, fourth = (torch.from_numpy(array).to(device()) for array in (ids, mask, trained, advantage))
    return first, second, third, fourth
