"""Column providers: they compute the columns that a method needs beyond the rollout's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import nullcontext
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import torch
from transformers import PreTrainedModel

from trainers.credit.config import Place
from trainers.credit.rows import with_greedy_return
from trainers.policy.accumulation import log_probabilities, token_scores
from trainers.policy.adapter import as_reference, is_adapted
from trainers.policy.config import ComputeDtype, OptimConfig, Pooling
from trainers.policy.hidden import Fingerprint, at_prompt_ends
from trainers.policy.model import Policy
from trainers.policy.sharding import is_sharded
from trainers.policy.stateful import StatefulPart
from trainers.settings import ConfigError
from trainers.steps import StepTable
from trainers.steps.columns import EMBEDDING, ENTROPY, GREEDY_RETURN, OLD, REFERENCE, TEACHER

DEPTH, LAYER = 28, 8
"""BiPACE's layer of a 7B model: the eighth from the end of 28."""


class Provider(ABC):
    """Supplies columns of a step table, and trains the model that computes them."""

    supplies: ClassVar[tuple[str, ...]]
    """Names of the columns."""
    before_shaping: ClassVar[bool] = False
    """Reward shapers read the columns, so they are computed first."""

    @abstractmethod
    def columns(self, steps: StepTable) -> StepTable:
        """Returns ``steps``, those of this process, with the columns added; refills of an iteration ask again."""

    def learn(self, steps: StepTable, rng: np.random.Generator) -> dict[str, float]:
        """Trains on the credited steps, once an iteration; returns metrics by their names under ``train/``.

        Args:
            steps: Steps of this process that :meth:`columns` has seen, with the columns of the estimator.
            rng: Orders the minibatches; the same in all processes.
        """
        return {}

    @property
    def parts(self) -> tuple[StatefulPart, ...]:
        """Modules with their optimisers that a checkpoint holds."""
        return ()


@dataclass(frozen=True)
class Reference(Provider):
    """Log-probabilities under the reference policy, scored once an iteration."""

    supplies: ClassVar[tuple[str, ...]] = (REFERENCE,)
    before_shaping: ClassVar[bool] = True

    policy: Policy
    """The model that the run starts from; or the policy itself, where an adapter is trained: it has kept that
    model (:func:`~trainers.policy.adapter.keep_reference`)."""
    place: Place
    """Where its weights are kept; an adapter's base stays where it is."""
    device: torch.device
    """The accelerator's."""
    optim: OptimConfig
    """Bounds the size of a forward pass."""

    def __post_init__(self) -> None:
        if not is_adapted(self.policy.model):
            self.policy.requires_grad_(False)
            if not is_sharded(self.policy):
                self.policy.to(self.device if self.place == "device" else "cpu")

    def columns(self, steps: StepTable) -> StepTable:
        """``steps`` with the log-probabilities as a token column; a mixture chooses its own experts."""
        has_adapter = is_adapted(self.policy.model)
        moves = self.place == "offload" and not has_adapter
        if moves:
            self.policy.to(self.device)
        with as_reference(self.policy.model) if has_adapter else nullcontext():
            logprobs = log_probabilities(self.policy, steps.without_experts(), self.optim)
        if moves:
            self.policy.to("cpu")
        return steps.with_token_columns(**{self.supplies[0]: logprobs})


@dataclass(frozen=True)
class LocalTeacher(Reference):
    """Log-probabilities under a teacher, a frozen model of its own, scored once an iteration."""

    supplies: ClassVar[tuple[str, ...]] = (TEACHER,)
    before_shaping: ClassVar[bool] = False


@dataclass(frozen=True)
class OldLogprobs(Provider):
    """Log-probabilities under the policy before the update, to be compared with those of the reference or teacher."""

    supplies: ClassVar[tuple[str, ...]] = (OLD,)
    before_shaping: ClassVar[bool] = True

    policy: Policy
    optim: OptimConfig
    """Bounds the size of a forward pass."""

    def columns(self, steps: StepTable) -> StepTable:
        """``steps`` with the token column ``old_logprob``."""
        return steps.with_token_columns(**{OLD: log_probabilities(self.policy, steps, self.optim)})


@dataclass(frozen=True)
class Entropy(Provider):
    """Entropy of the policy at each response token, computed once an iteration, before the update."""

    supplies: ClassVar[tuple[str, ...]] = (ENTROPY,)

    policy: Policy
    optim: OptimConfig
    """Bounds the size of a forward pass."""

    def columns(self, steps: StepTable) -> StepTable:
        """``steps`` with the token column ``entropy``."""
        _, entropy = token_scores(self.policy, steps, self.optim)
        return steps.with_token_columns(**{ENTROPY: entropy})


class GreedyReturn(Provider):
    """Supplies the return of the greedy episode of each step's task; removes greedy steps from the table."""

    supplies: ClassVar[tuple[str, ...]] = (GREEDY_RETURN,)

    def columns(self, steps: StepTable) -> StepTable:
        """The sampled steps with the column ``greedy_return`` (:func:`~trainers.credit.rows.with_greedy_return`)."""
        return with_greedy_return(steps)


@dataclass(frozen=True)
class HiddenStates(Provider):
    """The actor's hidden state of the state that each step answers."""

    supplies: ClassVar[tuple[str, ...]] = (EMBEDDING,)

    model: PreTrainedModel
    """The policy."""
    fingerprint: Fingerprint
    """Layer and pooling."""
    optim: OptimConfig
    """Bounds the size of a forward pass."""
    compute_dtype: ComputeDtype = "float32"
    """Number format of the forward pass."""

    @classmethod
    def of(
        cls, layer: int | None, pooling: Pooling, model: PreTrainedModel, optim: OptimConfig, dtype: ComputeDtype
    ) -> Self:
        """The provider that the settings describe.

        Raises:
            ConfigError: The model does not have the layer.
        """
        layers = int(model.config.get_text_config(decoder=True).num_hidden_layers)
        if layer is not None and layer < -layers:
            raise ConfigError(
                f"method.options.layer is {layer}, but the model has {layers} layers: -1 to {-layers}; "
                "leave it out for a late one"
            )
        return cls(model, Fingerprint(late_layer(layers) if layer is None else layer, pooling), optim, dtype)

    def columns(self, steps: StepTable) -> StepTable:
        """``steps`` with the column ``embedding``, (N, D)."""
        budget, dtype = self.optim.tokens_per_microbatch, self.compute_dtype
        (states,) = at_prompt_ends(self.model, steps, [self.fingerprint], budget=budget, compute_dtype=dtype)
        return steps.with_columns(**{EMBEDDING: states})


def late_layer(layers: int) -> int:
    """Returns BiPACE's layer of 28, scaled to a model of ``layers``, counted from the end."""
    return -max(1, round(layers * LAYER / DEPTH))
