"""AdamW, with its moments in float32 or in 8 bit, and its state where what it trains is sharded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

from envsuite.core.errors import require_extra
from trainers.policy.config import OptimConfig
from trainers.policy.sharding import assign, spread_as
from trainers.policy.stateful import OptimizerState, StatefulPart, compare


def make_optimizer(parameters: Iterable[nn.Parameter], config: OptimConfig) -> torch.optim.Optimizer:
    """AdamW over the parameters that are trained; in one kernel, which makes no copies of them, where all are on a GPU.

    Args:
        parameters: On the device where they are trained. Frozen ones are left out.
        config: Learning rate, moments and their format.

    Raises:
        MissingExtra: The moments are to be held in 8 bit, and torchao is not installed.
    """
    weights = [parameter for parameter in parameters if parameter.requires_grad]
    options: dict[str, Any] = {"lr": config.lr, "betas": config.betas, "weight_decay": config.weight_decay}
    if config.state == "8bit":
        with require_extra("optim.state: 8bit needs torchao", "8bit"):
            from torchao.optim import AdamW8bit
        eight_bit: torch.optim.Optimizer = AdamW8bit(weights, **options)
        return eight_bit
    is_fused = all(weight.device.type == "cuda" for weight in weights) or None

    def keep_kernel(_: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:  # others' may have another
        return {**state, "param_groups": [{**group, "fused": is_fused} for group in state["param_groups"]]}

    optimizer = torch.optim.AdamW(weights, fused=is_fused, **options)
    optimizer.register_load_state_dict_pre_hook(keep_kernel)
    return optimizer


@dataclass(frozen=True)
class ShardedOptimizerState(OptimizerState):
    """The state of an optimiser of sharded parameters, which no process ever holds whole."""

    def state(self) -> dict[str, Any]:
        """Returns its tensors by parameter and name, sharded as the parameters are, and its settings."""
        if not self.optimizer.state:
            return {}
        whole: Mapping[str, Any] = get_optimizer_state_dict(self.wrapped, self.optimizer, options=StateDictOptions())
        return {"state": whole["state"], "param_groups": whole["param_groups"]}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restores the optimiser from :meth:`state`, with whole tensors, of which each process takes its part."""
        if not state:
            return
        own = dict(self.wrapped.named_parameters())
        index = {id(p): i for i, p in enumerate(p for group in self.optimizer.param_groups for p in group["params"])}
        states: dict[int, dict[str, Any]] = {}
        for name, values in state["state"].items():
            self.check(name, values, tuple(own[name].shape) if name in own else None)
            states[index[id(own[name])]] = {key: spread_as(value, own[name]) for key, value in values.items()}
        groups = [{**group, "params": [index[id(own[n])] for n in group["params"]]} for group in state["param_groups"]]
        self.optimizer.load_state_dict({"state": states, "param_groups": groups})


@dataclass(frozen=True)
class ShardedModule(StatefulPart):
    """A sharded module besides the policy; no process ever holds its weights or its optimiser's state whole."""

    def state(self) -> dict[str, Any]:
        """Returns the weights that are trained by name, and the state of the optimiser, sharded as they are."""
        weights = {name: parameter.detach().clone() for name, parameter in self._trained_weights.items()}
        return {"weights": weights, "optimizer": ShardedOptimizerState(self.wrapped, self.optimizer).state()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restores the weights and the optimiser, from whole tensors, of which each process takes its part."""
        own = self._trained_weights
        compare(state["weights"], own)
        for name, parameter in own.items():
            assign(parameter, state["weights"][name])
        ShardedOptimizerState(self.wrapped, self.optimizer).load(state["optimizer"])

    @property
    def _trained_weights(self) -> dict[str, nn.Parameter]:
        return {name: parameter for name, parameter in self.wrapped.named_parameters() if parameter.requires_grad}
