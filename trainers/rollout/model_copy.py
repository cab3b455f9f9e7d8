"""A copy of the policy's model, for an engine that cannot sample from the policy itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from trainers.policy.adapter import adapter_tensors, is_adapted, trained_weights
from trainers.policy.config import ComputeDtype
from trainers.policy.outline import in_memory, is_outline
from trainers.policy.precision import is_rounded
from trainers.policy.sharding import each_whole


class ModelCopy:
    """A copy in the compute format: weights that each forward pass would round are held rounded.

    Args:
        model: The policy's model; if it is sharded, every process must make its copy.
        structure: What becomes the copy: the model as it was before it was sharded, with or without weights.
        compute_dtype: Number format of forward passes.
        device: Where the copy is kept.
    """

    def __init__(
        self, model: PreTrainedModel, structure: PreTrainedModel, compute_dtype: ComputeDtype, device: torch.device
    ) -> None:
        self.model = structure.train(False)
        """The model to sample from."""
        self._source = model
        names: dict[int, str] = {}
        places = [(name, names.setdefault(id(p), name)) for name, p in _parameters(self.model)]
        if compute_dtype == "bfloat16":
            _round(self.model)
        unread = is_outline(self.model)
        in_memory(self.model, device)
        own = dict(_parameters(self.model))
        self._places: dict[str, list[Tensor]] = {}
        for place, name in places:
            self._places.setdefault(name, []).append(own[place].detach())
        self._trained = self._places
        if is_adapted(model):
            self._trained = {name: [tensor] for name, tensor in adapter_tensors(self.model).items()}
        self._is_whole = True
        if unread:
            self._take(model.named_parameters(), self._places)

    def refresh(self) -> None:
        """Takes over the weights of the policy that are trained, all after :meth:`release`.

        If the policy is sharded, every process must call this.
        """
        if self._is_whole:
            self._take(trained_weights(self._source), self._trained)
            return
        for tensor in self._tensors():
            tensor.untyped_storage().resize_(tensor.nbytes)
        self._take(self._source.named_parameters(), self._places)
        self._is_whole = True

    def release(self) -> None:
        """Gives back the memory of the weights until :meth:`refresh`."""
        for tensor in self._tensors():
            tensor.untyped_storage().resize_(0)
        self._is_whole = False

    def _tensors(self) -> Iterator[Tensor]:
        return (tensor for places in self._places.values() for tensor in places)

    def _take(self, weights: Iterable[tuple[str, Tensor]], places: Mapping[str, Sequence[Tensor]]) -> None:
        for name, tensor in each_whole(weights):
            for place in places[name]:
                place.copy_(tensor)


def _parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Every parameter under each of its names: tied ones have several."""
    return list(model.named_parameters(remove_duplicate=False))


def _round(model: nn.Module) -> None:
    """Holds what autocast rounds in bfloat16; a weight that is tied to an embedding becomes one of its own."""
    for module in model.modules():
        for name, parameter in [*module.named_parameters(recurse=False)]:
            if is_rounded(module, parameter):
                weight = nn.Parameter(parameter.detach().to(torch.bfloat16), requires_grad=parameter.requires_grad)
                setattr(module, name, weight)
