"""Flat response tokens for the tests of objectives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import strategies as st

from trainers.policy.loss import Objective, token_weights
from trainers.policy.loss.config import CorrectionConfig
from trainers.policy.loss.policy_loss import PolicyLoss, policy_loss
from trainers.policy.loss.selection import SELECTING, selected_tokens


@dataclass(frozen=True)
class Batch:
    """Tokens of some step rows, one advantage a row."""

    lengths: np.ndarray
    episode: np.ndarray
    new: torch.Tensor
    old: torch.Tensor
    ref: torch.Tensor
    advantage: torch.Tensor

    @property
    def row(self) -> torch.Tensor:
        return torch.from_numpy(np.repeat(np.arange(len(self.lengths)), self.lengths))

    def weight(self, config: Objective) -> torch.Tensor:
        episode = self.episode if config.average == "episodes" else None
        return torch.from_numpy(token_weights(self.lengths, config, episode=episode))

    def selected(self, config: Objective) -> torch.Tensor | None:
        """What a loss picks of the whole batch; equal tokens have equal draws in every order."""
        if config.loss not in SELECTING:
            return None
        new, old, advantage = (column.double().numpy() for column in (self.new, self.old, self.advantage))
        draw = new * 1e6 % 1.0
        return torch.from_numpy(selected_tokens(new, old, advantage, draw, config))

    def loss(
        self,
        config: Objective,
        new: torch.Tensor | None = None,
        correction: CorrectionConfig | None = None,
    ) -> PolicyLoss:
        rows = np.arange(len(self.lengths))
        return self.part(config, rows, self.new if new is None else new, correction)

    def part(
        self,
        config: Objective,
        rows: np.ndarray,
        new: torch.Tensor,
        correction: CorrectionConfig | None = None,
    ) -> PolicyLoss:
        """The loss of some rows as one micro-batch, with the weights of the whole batch; ``ref`` is the engine, too."""
        chosen = torch.from_numpy(np.isin(self.row.numpy(), rows))
        _, local = np.unique(np.repeat(np.arange(len(rows)), self.lengths[rows]), return_inverse=True)
        selected = self.selected(config)
        return policy_loss(
            new[chosen],
            self.old[chosen],
            self.advantage[chosen],
            torch.from_numpy(local),
            self.weight(config)[chosen],
            config=config,
            ref_logprob=self.ref[chosen],
            entropy=entropy(new)[chosen] if config.entropy_coef > 0.0 else None,
            selected=None if selected is None else selected[chosen],
            engine_logprob=None if correction is None else self.ref[chosen],
            correction=correction,
        )


def entropy(new: torch.Tensor) -> torch.Tensor:
    """Entropy of two outcomes, of which one has log-probability ``new``."""
    p = new.clamp(max=-1e-3).exp()
    return -p * p.log() - (1 - p) * (1 - p).log()


def make_batch(lengths: list[int], seed: int, spread: float = 0.5) -> Batch:
    rng = np.random.default_rng(seed)
    tokens = sum(lengths)
    old = rng.uniform(-4, -0.05, tokens)
    return Batch(
        np.array(lengths, np.int64),
        rng.integers(0, 3, len(lengths)),
        torch.from_numpy(old + rng.normal(0, spread, tokens)),
        torch.from_numpy(old),
        torch.from_numpy(old + rng.normal(0, spread, tokens)),
        torch.from_numpy(np.repeat(rng.normal(0, 1, len(lengths)), lengths)),
    )


batches = st.builds(
    make_batch, st.lists(st.integers(0, 6), min_size=1, max_size=6).filter(any), st.integers(0, 2**32 - 1)
)
