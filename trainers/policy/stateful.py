"""Parts of a run that a checkpoint holds: how each saves and restores its state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from envsuite.core.errors import DataError

_OPTIONS = StateDictOptions(full_state_dict=True, cpu_offload=True)


class StateMismatch(DataError):
    """Raised where a state does not fit the part that restores it; the message names the difference."""


class Stateful(Protocol):
    """A part of a run with state that a checkpoint must hold."""

    def state(self) -> Mapping[str, Any]:
        """Returns the state over all processes: nested mappings and lists of JSON values, arrays and tensors.

        Every process must call this; the result of the first one is written, and of sharded tensors each one's part.
        """
        ...

    def load(self, state: Mapping[str, Any]) -> None:
        """Restores the part from its :meth:`state`; every process must call this.

        Raises:
            StateMismatch: The state does not fit the part.
        """
        ...


@dataclass(frozen=True)
class OptimizerState:
    """The state of an optimiser, by parameter name."""

    wrapped: nn.Module
    """The module whose parameters ``optimizer`` holds."""
    optimizer: torch.optim.Optimizer

    def state(self) -> dict[str, Any]:
        """Returns its tensors by parameter and name, and its settings; empty before its first step.

        (Before that, torch would take a step with zero gradients to make the state, and count it.)
        """
        if not self.optimizer.state:
            return {}
        state_dict: Mapping[str, Any] = get_optimizer_state_dict(self.wrapped, self.optimizer, options=_OPTIONS)
        if not state_dict:  # torch gathers it in the first process alone
            return {}
        states = state_dict["state"].items()
        tensors = {name: {key: _plain(value) for key, value in values.items()} for name, values in states}
        return {"state": tensors, "param_groups": state_dict["param_groups"]}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restores the optimiser from :meth:`state`."""
        if not state:
            return
        own = {name: tuple(p.shape) for name, p in tensors_of(self.wrapped, trained=True, whole=False).items()}
        states: dict[str, Any] = {
            name: {key: _quantise(value) for key, value in values.items()} for name, values in state["state"].items()
        }
        for name, values in states.items():
            self.check(name, values, own.get(name))
        set_optimizer_state_dict(self.wrapped, self.optimizer, {**state, "state": states}, options=_OPTIONS)

    def check(self, parameter: str, values: Mapping[str, Tensor], shape: tuple[int, ...] | None) -> None:
        """Compares the state of a parameter with its ``shape``; ``None`` where there is no such parameter.

        Raises:
            StateMismatch: It does not fit.
        """
        shapes = {tuple(tensor.shape) for tensor in values.values() if tensor.ndim}
        if shape is None or shapes - {shape}:
            raise StateMismatch(
                f"{parameter} has shape {', '.join(map(str, sorted(shapes)))}, that of the config "
                f"{shape or 'no such parameter'}"
            )


def _plain(value: Any) -> Tensor | dict[str, Any]:
    """A copy of a tensor of an optimiser's state; of a quantised one, its parts."""
    tensor = torch.as_tensor(value).detach()
    if not is_traceable_wrapper_subclass(tensor):
        return tensor.clone()
    names, settings = tensor.__tensor_flatten__()
    return {"parts": {name: getattr(tensor, name).clone() for name in names}, "signed": settings[0]}


def _quantise(value: Tensor | Mapping[str, Any]) -> Tensor:
    """Reverses :func:`_plain`."""
    if isinstance(value, Tensor):
        return value
    from torchao.optim.subclass_8bit import OptimState8bit

    tensor: Tensor = OptimState8bit(**value["parts"], signed=value["signed"], dtype=torch.float32)
    return tensor


@dataclass(frozen=True)
class StatefulPart:
    """A module besides the policy, with an optimiser of its own."""

    name: str
    wrapped: nn.Module
    """The module whose parameters ``optimizer`` holds."""
    optimizer: torch.optim.Optimizer

    def state(self) -> dict[str, Any]:
        """Returns the weights that are trained by name, and the state of the optimiser."""
        weights = {name: tensor.detach().clone() for name, tensor in tensors_of(self.wrapped, trained=True).items()}
        return {"weights": weights, "optimizer": OptimizerState(self.wrapped, self.optimizer).state()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restores the weights and the optimiser."""
        compare(state["weights"], tensors_of(self.wrapped, trained=True))
        set_model_state_dict(self.wrapped, dict(state["weights"]), options=replace(_OPTIONS, strict=False))
        OptimizerState(self.wrapped, self.optimizer).load(state["optimizer"])


def tensors_of(wrapped: nn.Module, *, trained: bool = False, whole: bool = True) -> dict[str, Tensor]:
    """Parameters and buffers of a module by name, in every process; each must call this.

    Args:
        wrapped: The module.
        trained: Leave out parameters that are frozen.
        whole: Gather those that are sharded.
    """
    options = StateDictOptions(full_state_dict=whole, ignore_frozen_params=trained)
    state_dict: Mapping[str, Any] = get_model_state_dict(wrapped, options=options)
    return dict(state_dict)


def compare(tensors: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    """Checks that two sets of weights have the same names and shapes.

    Raises:
        StateMismatch: They differ; the message names the first tensor that does.
    """
    for name in sorted({*own, *tensors}):
        shape, own_shape = (tuple(side[name].shape) if name in side else "no such tensor" for side in (tensors, own))
        if shape != own_shape:
            raise StateMismatch(f"{name} has shape {shape}, that of the config {own_shape}")
