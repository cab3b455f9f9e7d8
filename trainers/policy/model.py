"""The policy: a transformers causal language model, and the log-probabilities it gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from envsuite.core.errors import DataError
from trainers.policy.attention import attending
from trainers.policy.config import ComputeDtype
from trainers.policy.flat import flatten
from trainers.policy.kernels import kernel_of
from trainers.policy.outline import is_outline
from trainers.policy.precision import computing
from trainers.policy.routing import balance_of, routing
from trainers.policy.selfcheck import check_policy, check_replay, output_layer
from trainers.policy.statistics import OutputLayer, TokenStats, token_stats
from trainers.policy.transfer import to_device
from trainers.policy.tree import TokenTree
from trainers.policy.vision import check_vision
from trainers.policy.walk import CachedPast, walk_tree


def stop_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, more: Sequence[int] = ()) -> tuple[int, ...]:
    """Token ids that end a response: the tokenizer's end token, those of the generation config, and ``more``."""
    ids: list[int] = [] if tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)]
    generation = model.generation_config.eos_token_id if model.generation_config is not None else None
    if generation is not None:
        ids += [int(generation)] if isinstance(generation, int) else [int(i) for i in generation]
    if not ids:
        raise DataError(f"{model.name_or_path}: neither tokenizer nor generation config name an end token")
    return tuple(dict.fromkeys([*ids, *more]))


class Policy(nn.Module):
    """Log-probabilities of a token tree in one ``forward``, as data-parallel wrappers need it.

    Args:
        model: Any decoder-only model that takes its attention from transformers' attention interface. One whose weights
            are still to be read is checked when they are (:func:`~trainers.policy.sharding.shard`).
        temperature: The sampler's temperature: log-probabilities, entropies and gradients are those of the distribution
            that is sampled from.
        compute_dtype: Number format of the forward pass.
        replay: Whether tokens of a mixture go to the experts that the tree has, where it has some.
        balance_coef: As :attr:`~trainers.policy.config.ModelConfig.balance_coef`.

    Raises:
        DataError: The model's log-probabilities, packed and with shared prefixes, differ from its own.
    """

    replay: bool = False
    balance_coef: float = 0.0
    rerouted: Tensor
    """Counts of tokens of the last tree that go to other experts than the tree has
    (:meth:`~trainers.policy.routing.Routing.differing`)."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        temperature: float = 1.0,
        compute_dtype: ComputeDtype = "float32",
        replay: bool = False,
        balance_coef: float | None = 0.0,
    ) -> None:
        super().__init__()
        self.model = model
        self.temperature = temperature
        self.compute_dtype: ComputeDtype = compute_dtype
        self.replay = replay
        self.balance_coef = balance_of(model.config) if balance_coef is None else balance_coef
        self.output: OutputLayer | None = None
        """Computes the logits a part of the tokens at a time; ``None`` where only the model itself can compute them."""
        if not is_outline(model):
            self.check()

    def check(self) -> None:
        """Compares the model's log-probabilities with its own; called by itself only where the weights came later.

        Raises:
            DataError: They differ.
        """
        check_policy(self.model)
        check_vision(self.model)
        if self.replay:
            check_replay(self.model)
        self.output = output_layer(self.model)

    def forward(self, tree: TokenTree) -> TokenStats:
        """Log-probability and entropy of each target of ``tree``, in its order.

        Raises:
            DataError: The model's code passes no gradient on to the weights that are trained.
        """
        self.rerouted = torch.zeros((), dtype=torch.long)  # of no device: a sum is where what is added is
        if tree.part is None or len(tree) <= tree.part:
            stats = self._pass(tree, 0, None)
            learns = stats.logprob.requires_grad or not torch.is_grad_enabled()
            if not learns and any(parameter.requires_grad for parameter in self.parameters()):
                raise DataError(f"{type(self.model).__name__} passes no gradient on to the weights that are trained")
            return stats
        parameters = list(self.parameters())
        return walk_tree(tree, tree.part, self._pass, next((p for p in parameters if p.requires_grad), parameters[0]))

    def _pass(self, tree: TokenTree, before: int, past: CachedPast | None) -> TokenStats:
        """Statistics of the targets; ``before`` tokens of the tree are in ``past``."""
        device = self.model.device
        flat = flatten(tree, self.model, before, past)
        target = to_device(tree.target, device)
        with (
            routing(self.model, flat.experts if self.replay else None, tree.balance is not None) as routes,
            attending(self.model, kernel_of(self.model)),
            computing(self.compute_dtype, device),
        ):
            if self.output is None:
                stats = token_stats(flat.logits(self.model), target, self.temperature)
            else:
                states = flat.states(self.model.base_model(**flat.arguments).last_hidden_state)
                stats = self.output.stats(states[flat.place], target, self.temperature)
        if tree.balance is not None:
            stats = replace(stats, balance=routes.balance(flat.rows, to_device(tree.balance, device)))
        if flat.experts is not None:
            self.rerouted = self.rerouted + routes.differing(self.model, flat.experts)
        return stats
