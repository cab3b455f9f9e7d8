"""The critic: values of states, or of the text before each token, and their training."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from accelerate import Accelerator
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from trainers.credit.config import CriticConfig
from trainers.credit.estimators.base import CriticValue, Per
from trainers.credit.providers import Provider
from trainers.policy.attention import attending
from trainers.policy.config import ComputeDtype, ModelConfig, OptimConfig
from trainers.policy.flat import flatten
from trainers.policy.guard import GuardedStep
from trainers.policy.hidden import Fingerprint, before_tokens, with_some_response
from trainers.policy.kernels import kernel_of
from trainers.policy.loading import load_backbone
from trainers.policy.loss.value_loss import value_loss
from trainers.policy.optimizer import ShardedModule
from trainers.policy.packing import micro_batches
from trainers.policy.partition import minibatches
from trainers.policy.precision import computing
from trainers.policy.rows import by_rows
from trainers.policy.sharding import is_sharded, rounds, spread, spreads
from trainers.policy.stateful import StatefulPart
from trainers.policy.transfer import to_device
from trainers.policy.tree import TokenTree, one_token
from trainers.processes.distributed import all_gather_object, data_parallel
from trainers.steps import StepTable
from trainers.steps.columns import STATES, SUPPLIERS, VALUES

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class ValueHead(nn.Module):
    """Values for each hidden state: two layers, of which the last has a row for each value and begins at zero."""

    def __init__(self, width: int, outputs: int = 1) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.inner = nn.Linear(width, width)
        self.value = _zero(nn.Linear(width, outputs))

    def forward(self, states: Tensor) -> Tensor:
        """Values of ``states`` (M, D), shape (M, outputs)."""
        out: Tensor = self.value(nn.functional.gelu(self.inner(self.norm(states))))
        return out


class ValueModel(nn.Module):
    """A language model with an output for each value, which begins at zero."""

    def __init__(self, backbone: PreTrainedModel, compute_dtype: ComputeDtype = "float32", outputs: int = 1) -> None:
        super().__init__()
        self.backbone = backbone
        self.compute_dtype: ComputeDtype = compute_dtype
        self.value = _zero(nn.Linear(backbone.config.get_text_config(decoder=True).hidden_size, outputs))

    def forward(self, tree: TokenTree) -> Tensor:
        """Values of the text before each target of ``tree``, in its order, float32, shape (targets, outputs)."""
        flat = flatten(tree, self.backbone)
        with attending(self.backbone, kernel_of(self.backbone)), computing(self.compute_dtype, self.backbone.device):
            states = flat.states(self.backbone(**flat.arguments).last_hidden_state)[flat.place]
        out: Tensor = self.value(states.float())
        return out


def _zero(layer: nn.Linear) -> nn.Linear:
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


@dataclass(frozen=True)
class OutputTargets:
    """One value of each step, or of each response token, that the critic learns."""

    tokens: Ints
    """The response tokens before which it is read, as indices into ``table.response.values``, shape (M,)."""
    value: Floats
    """(M,): values under the critic before it learns."""
    target: Floats
    """(M,): values that the critic is trained towards."""
    states: NDArray[np.float32] | None
    """(M, D): the states that a head reads; ``None`` for a model."""


@dataclass(frozen=True)
class CriticTargets:
    """Steps whose values the critic learns."""

    table: StepTable
    """The steps, with some response in each row whose state is valued."""
    outputs: tuple[OutputTargets, ...]
    """Targets of each output of the critic."""


class Critic(Provider):
    """Values for the methods that read them, by a head on the policy or a model of its own.

    Args:
        config: Settings.
        accelerator: The run's accelerator.
        policy: The policy; it is read, and never trained through.
        model: The policy's settings.
        optim: The optimiser's settings, of which the critic shares all but the learning rate.
        values: The values that the method reads, each of which has an output.
        seed: Seed of the head's initial weights.

    Raises:
        DataError: The critic's model cannot be loaded.
        ConfigError: It has another vocabulary, or fewer layers than ``blocks``.
    """

    supplies: ClassVar[tuple[str, ...]] = (*VALUES, STATES)

    def __init__(
        self,
        config: CriticConfig,
        accelerator: Accelerator,
        policy: PreTrainedModel,
        model: ModelConfig,
        optim: OptimConfig,
        values: Sequence[CriticValue],
        seed: int,
    ) -> None:
        self.config = config
        self.accelerator = accelerator
        self.policy = policy
        self.optim = optim
        self.values = tuple(values)
        self.compute_dtype: ComputeDtype = model.compute_dtype
        module: ValueHead | ValueModel
        with torch.random.fork_rng(devices=[]):  # the run's other random numbers are those of a run without a critic
            torch.manual_seed(seed)
            if config.kind == "head":
                module = ValueHead(_text(policy).hidden_size, len(self.values))
            else:
                backbone = load_backbone(model, "model.path", config.layers)
                module = ValueModel(backbone, model.compute_dtype, len(self.values))
        if isinstance(module, ValueModel) and spreads(model, accelerator):
            spread(module, module.backbone, model, accelerator)
            with torch.no_grad():
                module(one_token())  # the first pass makes it the root
        trainable = [p for p in module.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trainable, lr=config.lr, betas=optim.betas, weight_decay=optim.weight_decay)
        self.wrapped: nn.Module = module
        if is_sharded(module):
            self.optimizer = accelerator.prepare(optimizer)
        else:
            self.wrapped, self.optimizer = data_parallel(accelerator, module, optimizer, lambda: module(self._empty()))
        self.module = module
        self._step = GuardedStep(accelerator, self.wrapped, self.optimizer, optim.max_grad_norm, "critic")

    @property
    def parts(self) -> tuple[StatefulPart, ...]:
        """The critic with its optimiser."""
        return ((ShardedModule if is_sharded(self.wrapped) else StatefulPart)("critic", self.wrapped, self.optimizer),)

    def columns(self, steps: StepTable) -> StepTable:
        """``steps`` with the values of each step, or of each response token, and the states that a head reads."""
        table, places = self._places(steps)
        self.module.eval()
        if self.config.kind == "head":
            return self._read_states(steps, table, places)
        flat = np.zeros((len(table.response.values), len(self.values)))
        trees = list(micro_batches(table, self.optim.tokens_per_microbatch, rows=by_rows(self.module)))
        count = rounds(self.module, len(trees))
        with torch.no_grad():
            for tree in trees:
                flat[tree.index] = self.module(tree).double().cpu().numpy()
            for _ in range(len(trees), count):
                self.module(one_token())
        for output, (value, tokens) in enumerate(zip(self.values, places, strict=True)):
            steps = _with(steps, value.per, **{value.name: flat[tokens, output]})
        return steps

    def _read_states(self, steps: StepTable, table: StepTable, places: Sequence[Ints]) -> StepTable:
        """``steps`` with the policy's states at all places, read in one pass, and their values by the heads."""
        union = np.unique(np.concatenate(places))
        budget, dtype = self.optim.tokens_per_microbatch, self.compute_dtype
        (states,) = before_tokens(self.policy, table, [Fingerprint()], union, budget=budget, compute_dtype=dtype)
        for read, outputs in self._reads.items():
            tokens = places[outputs[0]]
            own = states if len(self._reads) == 1 else states[np.searchsorted(union, tokens)]
            with torch.no_grad():
                values = self.module(to_device(own, self.accelerator.device)).double().cpu().numpy()
            steps = _with(steps, read[0], **{_states_of(read[1]): own})
            steps = _with(steps, read[0], **{self.values[output].name: values[:, output] for output in outputs})
        return steps

    def learn(self, steps: StepTable, rng: np.random.Generator) -> dict[str, float]:
        """Trains for all epochs and minibatches towards the targets; returns metrics under ``train/``."""
        targets = self._targets(steps)
        self.module.train()
        losses: list[float] = []
        clip_shares: list[float] = []
        norms: list[float] = []
        for _ in range(self.config.epochs):
            for rows in minibatches(self.accelerator, targets.table, self.config.minibatches, rng):
                mask = np.isin(targets.table.response.row_of, rows)
                counts = [int(mask[own.tokens].sum()) for own in targets.outputs]
                totals = np.sum(all_gather_object(self.accelerator, counts), axis=0)
                if not totals.any():
                    continue
                loss, share = self._accumulate(targets, rows, totals)
                losses.append(loss)
                clip_shares.append(share)
                norm = self._step()
                if norm is not None:
                    norms.append(norm)
        self.module.eval()
        updates = max(len(losses), 1)
        return {
            "value_loss": sum(losses) / updates,
            "value_clip_fraction": sum(clip_shares) / updates,
            "value_grad_norm": sum(norms) / max(len(norms), 1),
        }

    @cached_property
    def _reads(self) -> dict[_Read, list[int]]:
        """The outputs by where they are read."""
        outputs: dict[_Read, list[int]] = {}
        for output, value in enumerate(self.values):
            outputs.setdefault((value.per, value.at, value.learns), []).append(output)
        return outputs

    def _places(self, steps: StepTable) -> tuple[StepTable, list[Ints]]:
        """Steps with some response where a state is valued, and of each output the tokens before which it is read."""
        table = with_some_response(steps) if any(value.per == "step" for value in self.values) else steps
        lengths, places = table.response.lengths, []
        for value in self.values:
            if value.per == "token":
                places.append(np.flatnonzero(np.repeat(steps.response.lengths > 0, lengths)))
            elif value.at is None:
                places.append(table.response.offsets[:-1])
            else:
                at = steps.column(value.at, "the critic", SUPPLIERS.get(value.at, "nothing")).astype(np.int64)
                places.append(table.response.offsets[:-1] + np.clip(at, 0, lengths - 1))
        return table, places

    def _targets(self, steps: StepTable) -> CriticTargets:
        table, places = self._places(steps)
        outputs = []
        for value, tokens in zip(self.values, places, strict=True):
            columns: Mapping[str, NDArray[Any]] = steps.extra
            if value.per == "token":
                columns = {name: column.values for name, column in steps.token_extra.items()}
            states = columns[_states_of(value.at)] if self.config.kind == "head" else None
            learns = slice(None) if value.learns is None else np.flatnonzero(columns[value.learns])
            outputs.append(OutputTargets(
                tokens[learns], columns[value.name][learns], columns[value.target][learns],
                None if states is None else states[learns],
            ))  # fmt: skip
        return CriticTargets(table, tuple(outputs))

    def _accumulate(self, targets: CriticTargets, rows: Ints, totals: Ints) -> tuple[float, float]:
        """Runs the backward passes of one optimiser step; returns loss and clipped share of this process's values.

        Args:
            targets: What is learnt.
            rows: The rows of this step.
            totals: Number of values of each output in these rows of all processes, shape (outputs,).
        """
        shares = self.accelerator.num_processes / np.maximum(totals, 1)
        pieces = list(self._pieces(targets, rows))
        rounds = max(all_gather_object(self.accelerator, len(pieces)))
        loss, clip_share = 0.0, 0.0
        for number in range(rounds):
            last = number == rounds - 1
            with contextlib.nullcontext() if last else self.accelerator.no_sync(self.wrapped):
                if number >= len(pieces):  # another process has more: take part in its synchronisation, adding nothing
                    self.accelerator.backward(self.wrapped(self._empty()).sum() * 0.0)
                    continue
                out, losses = self.wrapped(pieces[number].inputs), []
                for output, (indices, places) in pieces[number].reads.items():
                    own, share = targets.outputs[output], float(shares[output])
                    value = out[to_device(indices, self.accelerator.device), output]
                    old, target = (
                        to_device(of[places], self.accelerator.device).float() for of in (own.value, own.target)
                    )
                    weight = torch.full_like(value, share)
                    output_loss = value_loss(value, old, target, weight, clip=self.config.clip)
                    losses.append(output_loss.loss)
                    clip_share += float(output_loss.clip_fraction) * len(places) * share / len(targets.outputs)
                total = sum(losses[1:], start=losses[0])
                self.accelerator.backward(total)
                loss += float(total.detach())
        return loss, clip_share

    def _pieces(self, targets: CriticTargets, rows: Ints) -> Iterator[_Piece]:
        table = targets.table
        mask = np.isin(table.response.row_of, rows)
        if self.config.kind == "head":
            for outputs in self._reads.values():
                own = targets.outputs[outputs[0]]
                places = np.flatnonzero(mask[own.tokens])
                if len(places):
                    assert own.states is not None
                    states = to_device(own.states[places], self.accelerator.device)
                    yield _Piece(states, dict.fromkeys(outputs, (np.arange(len(places)), places)))
            return
        place_of = np.full((len(targets.outputs), len(table.response.values)), -1)
        for output, own in enumerate(targets.outputs):
            place_of[output, own.tokens] = np.arange(len(own.tokens))
        place_of = place_of[:, mask]  # by token of the chosen rows
        for tree in micro_batches(table.take(rows), self.optim.tokens_per_microbatch, rows=by_rows(self.module)):
            tree_places = place_of[:, tree.index]
            yield _Piece(tree, {n: (np.flatnonzero(own >= 0), own[own >= 0]) for n, own in enumerate(tree_places)})

    def _empty(self) -> Tensor | TokenTree:
        if self.config.kind != "head":
            return one_token()
        return torch.zeros(1, _text(self.policy).hidden_size, device=self.accelerator.device)


@dataclass(frozen=True)
class _Piece:
    """Values that one forward pass computes."""

    inputs: Tensor | TokenTree
    reads: dict[int, tuple[Ints, Ints]]
    """By output: indices of the values that the loss uses in the output's values, and in its targets."""


_Read = tuple[Per, str | None, str | None]
"""``per``, ``at`` and ``learns`` of a value."""


def _states_of(at: str | None) -> str:
    """Name of the column of the states that are read there."""
    return STATES if at is None else f"{STATES}_{at}"


def _with(steps: StepTable, per: Per, **columns: NDArray[Any]) -> StepTable:
    return steps.with_columns(**columns) if per == "step" else steps.with_token_columns(**columns)


def _text(model: PreTrainedModel) -> PreTrainedConfig:
    return model.config.get_text_config(decoder=True)
