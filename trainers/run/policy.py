"""The policy of a run: loaded, spread over the processes where it is sharded, beside the model it is compared with."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy

import torch
from accelerate import Accelerator
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from envsuite.prompting import Codec
from trainers.policy.adapter import is_adapted, keep_reference, merged_weights
from trainers.policy.config import ModelConfig
from trainers.policy.loading import load_model, load_outline
from trainers.policy.model import Policy, stop_ids
from trainers.policy.optimizer import ShardedOptimizerState, make_optimizer
from trainers.policy.rows import rows_reason
from trainers.policy.sharding import each_whole, is_sharded, shard, spreads
from trainers.policy.stateful import OptimizerState
from trainers.policy.tree import one_token
from trainers.processes.cpu import keep_freed_memory
from trainers.processes.distributed import data_parallel
from trainers.rollout.environments import ends_of
from trainers.run.config import TrainConfig


class RunPolicy:
    """The policy that a run trains.

    Args:
        config: All settings.
        accelerator: The run's accelerator.

    Raises:
        DataError: The model cannot be loaded.
    """

    structure: PreTrainedModel | None = None
    """Where the policy is sharded: its model without weights, as it was before."""

    def __init__(self, config: TrainConfig, accelerator: Accelerator) -> None:
        self.config, self.accelerator = config, accelerator
        keeps, replay = config.method.needs_reference, config.model.routing == "replay"
        outline = load_outline(config.model) if spreads(config.model, accelerator) else None
        model = load_model(config.model).to(accelerator.device) if outline is None else outline.model
        self.policy = self._policy(model, replay)
        """Gives log-probabilities of the distribution that is sampled from."""
        if keeps and is_adapted(model):
            keep_reference(model)
        if outline is not None:
            self.structure = deepcopy(model)
            shard(self.policy, config.model, accelerator, outline.weights)
        elif accelerator.device.type == "cpu":
            keep_freed_memory()
        self.rows_reason = rows_reason(model)
        """Why it is trained row by row; ``None`` where it is trained in trees of tokens."""

    @property
    def model(self) -> PreTrainedModel:
        """The policy's model."""
        return self.policy.model

    def make_reference(self) -> Policy | None:
        """The model that the run starts from, where the method compares with it; the policy itself under an adapter."""
        if not self.config.method.needs_reference:
            return None
        return self.policy if is_adapted(self.model) else self.load_frozen(self.config.model, "model.path")

    def load_frozen(self, model: ModelConfig, key: str) -> Policy:
        """A model that is not trained, spread over the processes where the policy is; the setting ``key`` names it."""
        if not spreads(model, self.accelerator) or self.config.method.reference != "device":
            return self._policy(load_model(model, key).requires_grad_(False))
        outline = load_outline(model, key)
        frozen = self._policy(outline.model.requires_grad_(False))
        shard(frozen, model, self.accelerator, outline.weights)
        return frozen

    def prepare(self) -> tuple[nn.Module, torch.optim.Optimizer, OptimizerState]:
        """The policy as it is trained, sharded or a copy in each process, its optimiser, and the state of both."""
        optimizer = make_optimizer(self.policy.parameters(), self.config.optim)
        if is_sharded(self.policy):
            optimizer = self.accelerator.prepare(optimizer)
            return self.policy, optimizer, ShardedOptimizerState(self.policy, optimizer)
        module, optimizer = data_parallel(
            self.accelerator, self.policy, optimizer, lambda: self.policy(one_token()).logprob
        )
        return module, optimizer, OptimizerState(module, optimizer)

    def stop_ids(self, tokenizer: PreTrainedTokenizerBase, codec: Codec) -> tuple[int, ...]:
        """The tokens that end an answer."""
        return stop_ids(self.model, tokenizer, ends_of(self.config.prompt, tokenizer, codec))

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields each weight whole, with its name, an adapter's merged."""
        return each_whole(merged_weights(self.model))

    def _policy(self, model: PreTrainedModel, replay: bool = False) -> Policy:
        settings = self.config.model
        return Policy(
            model, temperature=self.config.rollout.sampling.temperature, compute_dtype=settings.compute_dtype,
            replay=replay, balance_coef=settings.balance_coef,
        )  # fmt: skip
