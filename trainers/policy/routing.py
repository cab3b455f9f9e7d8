"""Experts that the tokens of a mixture go to: noted as the model computes, or set to those that were noted before.

transformers declares a mixture's routers: modules that return logits, weights and indices of each token's experts.
Where the indices are given, the router's own code computes the weights of those experts from its own logits: what it
takes from ``topk`` over all experts is exchanged.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedConfig, PreTrainedModel

from trainers.policy.tree import TokenTree
from trainers.steps.experts import unknown

_ROUTERS: weakref.WeakKeyDictionary[PreTrainedModel, list[nn.Module]] = weakref.WeakKeyDictionary()
_WIDTH: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()
_GIVEN: ContextVar[Tensor | None] = ContextVar("given experts", default=None)


def routers(model: PreTrainedModel) -> list[nn.Module]:
    """The modules that choose experts, in the order of the layers; none in a model that is no mixture."""
    if model not in _ROUTERS:
        kinds: set[Any] = set()
        for part in model.modules():
            recorders = (getattr(part, "_can_record_outputs", None) or {}).get("router_logits", ())
            for recorder in recorders if isinstance(recorders, list | tuple) else [recorders]:
                kinds.add(getattr(recorder, "target_class", recorder))
        _ROUTERS[model] = [module for module in model.modules() if isinstance(module, tuple(kinds))]
    return _ROUTERS[model]


class Routing:
    """Choices of the routers in a pass.

    Args:
        logits: Whether their logits are kept.
    """

    def __init__(self, logits: bool) -> None:
        self._keeps = logits
        self._chosen: list[Tensor] = []
        self.logits: list[Tensor] = []
        """(tokens, experts) of each router, with their graph, where they are kept."""
        self.widths: list[int] = []
        """Number of experts of each router."""

    def add(self, router: nn.Module, output: Any, choice: Tensor | None) -> None:
        """Notes what a router returned, and what it would have chosen by itself where that is something else."""
        if isinstance(output, tuple) and len(output) > 2 and not output[2].is_floating_point():
            width = _WIDTH[router] = output[0].shape[-1]
            self.widths.append(width)
            own = output[2] if choice is None else choice
            self._chosen.append(own if own.dim() == 2 else own.flatten(0, -2))
            if self._keeps:
                self.logits.append(output[0])

    def experts(self, model: PreTrainedModel) -> Tensor | None:
        """The routers' own choices, (tokens, routers, k); ``None`` where not all routers tell them alike."""
        if len({choice.shape for choice in self._chosen}) != 1 or len(self._chosen) != len(routers(model)):
            return None
        return torch.stack(self._chosen, 1).to(torch.uint8 if max(self.widths) < 256 else torch.int16)

    def balance(self, weight: Tensor, experts: Tensor) -> Tensor:
        """The balance loss of the pass, a scalar with gradient.

        Args:
            weight: How often each token counts, (tokens,).
            experts: Weight of the probability of each expert, divided by their number; more than there are experts.
        """
        losses = []
        for logits in self.logits:
            wide, width = logits.flatten(0, -2).to(torch.promote_types(logits.dtype, torch.float32)), logits.shape[-1]
            losses.append((weight.to(wide.dtype) @ wide.softmax(-1)) @ (width * experts[:width]).to(wide.dtype))
        return torch.stack(losses).sum()

    def differing(self, model: PreTrainedModel, others: Tensor) -> Tensor:
        """Compares the routers' own choices with ``others``, those that an engine made, where these are known.

        Returns:
            How many tokens were compared, how many of them go to other experts in any layer, and the same two counts of
            tokens in single layers, shape (4,).
        """
        own = self.experts(model)
        if own is None:
            return torch.zeros(4, dtype=torch.long, device=others.device)
        is_known = others[:, 0, 0] != torch.iinfo(others.dtype).max
        differs = (own.sort(-1).values != others.sort(-1).values).any(-1) & is_known[:, None]
        tokens = is_known.sum()
        return torch.stack((tokens, differs.any(-1).sum(), tokens * differs.shape[1], differs.sum()))


class _ReplayMode(TorchFunctionMode):
    """Gives a router its experts, and keeps its own choice."""

    def __init__(self, given: Tensor, width: int) -> None:
        super().__init__()
        self._given, self._unknown, self._width = given.long(), torch.iinfo(given.dtype).max, width
        self.chosen: Tensor | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if func not in (torch.topk, Tensor.topk) or args[0].shape[-1] != self._width:
            return output
        if output.indices.numel() != self._given.numel():  # of the only group of experts
            return output
        self.chosen = output.indices
        experts = self._given.view(output.indices.shape)
        indices = torch.where(experts == self._unknown, output.indices, experts)
        return torch.return_types.topk((args[0].gather(-1, indices), indices))


def _route(
    router: nn.Module, own: Callable[..., Any], experts: Tensor | None, choices: Routing, *args: Any, **kwargs: Any
) -> Any:
    """Calls a router, whose ``forward`` is ``own``, with its experts given or not."""
    replay = None if experts is None else _ReplayMode(experts, _WIDTH[router])
    with replay or nullcontext():
        output = own(*args, **kwargs)
    choices.add(router, output, None if replay is None else replay.chosen)
    return output


@contextmanager
def routing(model: PreTrainedModel, given: Tensor | None = None, logits: bool = False) -> Iterator[Routing]:
    """Notes what the routers of a pass choose.

    Args:
        model: A model. Where experts are given, :func:`~trainers.policy.selfcheck.check_replay` has seen it.
        given: As :data:`~envsuite.playing.step.Experts`, a row for each token of the pass: the experts that tokens go
            to, whatever the routers would choose.
        logits: Whether the routers' logits are kept.
    """
    choices, before = Routing(logits), _GIVEN.set(given)
    forwards = [vars(router).get("forward") for router in routers(model)]  # of a router that something has changed
    for number, router in enumerate(routers(model)):
        of_router = None if given is None else given[:, number]
        vars(router)["forward"] = partial(_route, router, router.forward, of_router, choices)
    try:
        yield choices
    finally:
        _GIVEN.reset(before)
        for router, forward in zip(routers(model), forwards, strict=True):
            del vars(router)["forward"]
            if forward is not None:
                vars(router)["forward"] = forward


def again(model: PreTrainedModel) -> AbstractContextManager[Any]:
    """The surrounding :func:`routing`, to be entered once more where activations are computed again."""
    experts = _GIVEN.get()
    return nullcontext() if experts is None else routing(model, experts)


def balance_of(settings: PreTrainedConfig) -> float:
    """The coefficient of the balance loss that a model's configuration asks for; 0 where it asks for none."""
    own = settings.get_text_config(decoder=True)
    return float(getattr(own, "router_aux_loss_coef", 0.0)) if getattr(own, "output_router_logits", False) else 0.0


def balance_counts(trees: Sequence[TokenTree]) -> NDArray[np.float64]:
    """Tokens of all sequences, those of them whose experts are known, and how often each expert was taken.

    A token counts as often as it is in a sequence; it takes experts in each layer. Shape (2 + most experts,).
    """
    counts = np.zeros(2 + 2**15)
    for tree in trees:
        counts[0] += tree.rows.sum()
        if tree.experts is not None:
            is_known = tree.experts[:, 0, 0] != unknown(tree.experts.dtype)
            experts, rows = tree.experts[is_known], tree.rows[is_known]
            counts[1] += rows.sum()
            expert_counts = np.bincount(experts.ravel(), np.repeat(rows, experts[0].size) if len(experts) else None)
            counts[2 : 2 + len(expert_counts)] += expert_counts
    return counts
