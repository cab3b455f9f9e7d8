"""The critic: values of states, or of the text before each token, and their training."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from accelerate import Accelerator
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from trainers.credit.config import CriticConfig
from trainers.credit.estimators.base import Per
from trainers.credit.providers import Provider
from trainers.distributed import every
from trainers.policy.attention import attending
from trainers.policy.config import ComputeDtype, ModelConfig, OptimConfig
from trainers.policy.flat import flatten, to_device
from trainers.policy.guard import GuardedStep
from trainers.policy.hidden import Fingerprint, before_tokens, with_some_response
from trainers.policy.kernels import kernel_of
from trainers.policy.loading import load_backbone
from trainers.policy.loss.value_loss import value_loss
from trainers.policy.packing import micro_batches
from trainers.policy.partition import minibatches
from trainers.policy.precision import computing
from trainers.policy.tree import TokenTree, one_token
from trainers.settings import ConfigError
from trainers.stateful import Part
from trainers.steps import StepTable
from trainers.steps.columns import STATES, TARGET, VALUE

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class ValueHead(nn.Module):
    """A value for each hidden state: two layers, of which the last begins at zero."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.inner = nn.Linear(width, width)
        self.value = _zero(nn.Linear(width, 1))

    def forward(self, states: Tensor) -> Tensor:
        """Values of ``states`` (M, D), shape (M,)."""
        out: Tensor = self.value(nn.functional.gelu(self.inner(self.norm(states))))[:, 0]
        return out


class ValueModel(nn.Module):
    """A language model with one output, which begins at zero."""

    def __init__(self, backbone: PreTrainedModel, compute_dtype: ComputeDtype = "float32") -> None:
        super().__init__()
        self.backbone = backbone
        self.compute_dtype: ComputeDtype = compute_dtype
        self.value = _zero(nn.Linear(backbone.config.get_text_config(decoder=True).hidden_size, 1))

    def forward(self, tree: TokenTree) -> Tensor:
        """Values of the text before each target of ``tree``, in its order, float32."""
        flat = flatten(tree, self.backbone)
        with attending(self.backbone, kernel_of(self.backbone)), computing(self.compute_dtype, self.backbone.device):
            states = self.backbone(**flat.arguments).last_hidden_state[0, flat.place]
        out: Tensor = self.value(states.float())[:, 0]
        return out


def _zero(layer: nn.Linear) -> nn.Linear:
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


@dataclass(frozen=True)
class Lesson:
    """Steps whose values the critic learns."""

    table: StepTable
    """The steps, with some response in each row."""
    tokens: Ints
    """The response tokens before which there is a value, as indices into ``table.response.values``, shape (M,)."""
    value: Floats
    """(M,): values under the critic before it learns."""
    target: Floats
    """(M,): values that the critic is trained towards."""
    states: NDArray[np.float32] | None
    """(M, D): the states that a head reads; ``None`` for a model."""


class Critic(Provider):
    """Values for the methods that read them, by a head on the policy or a model of its own.

    Args:
        config: Settings.
        accelerator: The run's accelerator.
        policy: The policy; it is read, and never trained through.
        model: The policy's settings.
        optim: The optimiser's settings, of which the critic shares all but the learning rate.
        per: Whether to value the state before a step's response, or the text before each of its tokens.
        seed: Seed of the head's initial weights.

    Raises:
        DataError: The critic's model cannot be loaded.
        ConfigError: It has another vocabulary.
    """

    supplies: ClassVar[tuple[str, ...]] = (VALUE, STATES)

    def __init__(
        self,
        config: CriticConfig,
        accelerator: Accelerator,
        policy: PreTrainedModel,
        model: ModelConfig,
        optim: OptimConfig,
        per: Per,
        seed: int,
    ) -> None:
        self.config = config
        self.accelerator = accelerator
        self.policy = policy
        self.optim = optim
        self.per = per
        self.compute_dtype: ComputeDtype = model.compute_dtype
        module: ValueHead | ValueModel
        with torch.random.fork_rng(devices=[]):  # the run's other random numbers are those of a run without a critic
            torch.manual_seed(seed)
            if config.kind == "head":
                module = ValueHead(policy.config.hidden_size)
            else:
                own = model if config.path is None else replace(model, path=config.path)
                key = "model.path" if config.path is None else "method.critic.path"
                module = ValueModel(load_backbone(own, key), model.compute_dtype)
                _same_vocabulary(module.backbone, policy, own.path)
        optimizer = torch.optim.AdamW(
            [p for p in module.parameters() if p.requires_grad],
            lr=config.lr,
            betas=optim.betas,
            weight_decay=optim.weight_decay,
        )
        wrapped, self.optimizer = accelerator.prepare(module, optimizer)
        self.wrapped: nn.Module = wrapped
        self.module = module
        self._step = GuardedStep(
            accelerator, wrapped, self.optimizer, optim.max_grad_norm, optim.max_skipped, "critic"
        )  # fmt: skip

    @property
    def parts(self) -> tuple[Part, ...]:
        """The critic with its optimiser."""
        return (Part("critic", self.wrapped, self.optimizer),)

    def columns(self, steps: StepTable) -> StepTable:
        """``steps`` with the value of each step, or of each response token, and the states that a head reads."""
        table, tokens = self._places(steps)
        value = np.zeros(len(tokens))
        budget, share = self.optim.tokens_per_microbatch, self.optim.share_prefix
        self.module.eval()
        found: dict[str, NDArray[Any]] = {VALUE: value}
        if self.config.kind == "head":
            (states,) = before_tokens(
                self.policy,
                table,
                [Fingerprint()],
                tokens,
                budget=budget,
                share_prefix=share,
                compute_dtype=self.compute_dtype,
            )
            with torch.no_grad():
                value[:] = self.module(to_device(states, self._device)).double().cpu().numpy()
            found[STATES] = states
        elif len(table):
            flat = np.zeros(len(table.response.values))
            with torch.no_grad():
                for tree in micro_batches(table, budget, share):
                    flat[tree.index] = self.module(tree).double().cpu().numpy()
            value[:] = flat[tokens]
        return steps.with_columns(**found) if self.per == "step" else steps.with_token_columns(**found)

    def learn(self, steps: StepTable, rng: np.random.Generator) -> dict[str, float]:
        """Trains for all epochs and minibatches towards ``value_target``; returns metrics under ``train/``."""
        lesson = self._lesson(steps)
        self.module.train()
        losses: list[float] = []
        clipped: list[float] = []
        norms: list[float] = []
        for _ in range(self.config.epochs):
            for rows in minibatches(self.accelerator, lesson.table, self.config.minibatches, rng):
                count = int(np.isin(lesson.table.response.row_of[lesson.tokens], rows).sum())
                total = sum(every(self.accelerator, count))
                if not total:
                    continue
                loss, share = self._accumulate(lesson, rows, total)
                losses.append(loss)
                clipped.append(share)
                norm = self._step()
                if norm is not None:
                    norms.append(norm)
        self.module.eval()
        taken = max(len(losses), 1)
        return {
            "value_loss": sum(losses) / taken,
            "value_clip_fraction": sum(clipped) / taken,
            "value_grad_norm": sum(norms) / max(len(norms), 1),
        }

    def _places(self, steps: StepTable) -> tuple[StepTable, Ints]:
        """``steps`` with some response in each row, and the response tokens before which there is a value."""
        if self.per == "step":
            table = with_some_response(steps)
            return table, table.response.offsets[:-1]
        return steps, np.arange(len(steps.response.values))

    def _lesson(self, steps: StepTable) -> Lesson:
        table, tokens = self._places(steps)
        if self.per == "step":
            columns: dict[str, NDArray[Any]] = dict(steps.extra)
        else:
            columns = {name: column.values for name, column in steps.token_extra.items()}
        states = columns[STATES] if self.config.kind == "head" else None
        return Lesson(table, tokens, columns[VALUE], columns[TARGET], states)

    def _accumulate(self, lesson: Lesson, rows: Ints, total: int) -> tuple[float, float]:
        """Runs the backward passes of one optimiser step; returns loss and clipped share of this process's values."""
        pieces = list(self._pieces(lesson, rows))
        rounds = max(every(self.accelerator, len(pieces)))
        loss, clipped = 0.0, 0.0
        for number in range(rounds):
            last = number == rounds - 1
            with contextlib.nullcontext() if last else self.accelerator.no_sync(self.wrapped):
                if number >= len(pieces):  # another process has more: take part in its synchronisation, adding nothing
                    self.accelerator.backward(self.wrapped(self._nothing()).sum() * 0.0)
                    continue
                piece = pieces[number]
                value = self.wrapped(piece.inputs)[to_device(piece.picked, self._device)]
                old, target = (
                    to_device(of[piece.places], self._device).float() for of in (lesson.value, lesson.target)
                )
                weight = torch.full_like(value, self.accelerator.num_processes / total)
                found = value_loss(value, old, target, weight, clip=self.config.clip)
                self.accelerator.backward(found.loss)
                loss += float(found.loss.detach())
                clipped += float(found.clip_fraction) * len(piece.places) * self.accelerator.num_processes / total
        return loss, clipped

    def _pieces(self, lesson: Lesson, rows: Ints) -> Iterator[_Piece]:
        table = lesson.table
        places = np.flatnonzero(np.isin(table.response.row_of[lesson.tokens], rows))
        if lesson.states is not None:
            if len(places):
                states = to_device(lesson.states[places], self._device)
                yield _Piece(states, np.arange(len(places)), places)
            return
        place_of = np.full(len(table.response.values), -1)
        place_of[lesson.tokens] = np.arange(len(lesson.tokens))
        place_of = place_of[np.isin(table.response.row_of, rows)]  # by token of the chosen rows
        chosen = table.take(rows)
        budget, share = self.optim.tokens_per_microbatch, self.optim.share_prefix
        for tree in micro_batches(chosen, budget, share):
            found = place_of[tree.index]
            yield _Piece(tree, np.flatnonzero(found >= 0), found[found >= 0])

    def _nothing(self) -> Tensor | TokenTree:
        if self.config.kind == "model":
            return one_token()
        return torch.zeros(1, self.policy.config.hidden_size, device=self._device)

    @property
    def _device(self) -> torch.device:
        return next(self.module.parameters()).device


@dataclass(frozen=True)
class _Piece:
    """Values that one forward pass computes."""

    inputs: Tensor | TokenTree
    picked: Ints
    """Indices of the values in the output that the loss uses."""
    places: Ints
    """Their indices in the lesson."""


def _same_vocabulary(critic: PreTrainedModel, policy: PreTrainedModel, path: str) -> None:
    own, other = (int(model.config.vocab_size) for model in (critic, policy))
    if own != other:
        raise ConfigError(
            f"method.critic.path {path}: has {own} tokens, the policy {other}; a critic reads the policy's tokens, so "
            f"take a model with the same tokenizer"
        )
