"""A model without its weights, and where they are: what a sharded policy begins as.

No process holds the whole model then. Each makes the modules without memory for their weights, shards them, and reads
its own rows of each tensor from the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.distributed as dist
from accelerate import init_empty_weights
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key
from transformers.initialization import no_init_weights

from envsuite.core.errors import DataError
from trainers.policy.weight_files import WeightFiles


class WeightSource(Protocol):
    """The weights of a model without adapter, by their names in it."""

    def open(self) -> None:
        """Called once before the first is read.

        Raises:
            DataError: They cannot be read.
        """
        ...

    def rows(self, name: str, like: DTensor) -> Tensor:
        """This process's rows of a tensor, on any device; every process must call this, for the same names in turn.

        Args:
            name: Name in the model.
            like: Says how the tensor is spread.
        """
        ...


@dataclass(frozen=True)
class Outline:
    """A model whose weights are on the meta device; buffers are real."""

    model: PreTrainedModel
    weights: WeightSource


def empty_model(kind: Any, settings: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """The modules of a model with weights on the meta device, and buffers as they are without any file.

    Args:
        kind: The class of transformers that makes it.
        settings: Its configuration.
        dtype: Format of the weights.
    """
    with no_init_weights(), init_empty_weights(include_buffers=False):
        model: PreTrainedModel = kind.from_config(settings, dtype=dtype)
    model.tie_weights()
    wide = model._keep_in_fp32_modules_strict or ()
    exchange(model, lambda p, name: _meta(p, torch.float32 if any(part in name for part in wide) else p.dtype))
    return model.train(False)  # type: ignore[no-any-return]


def _meta(parameter: nn.Parameter, dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(torch.empty_like(parameter, device="meta", dtype=dtype), parameter.requires_grad)


def exchange(model: nn.Module, make: Callable[[nn.Parameter, str], nn.Parameter]) -> None:
    """Puts ``make(parameter, name)`` in the place of every parameter; tied ones stay tied."""
    replacements: dict[nn.Parameter, nn.Parameter] = {}
    for prefix, module in model.named_modules():
        for name, parameter in [*module.named_parameters(recurse=False)]:
            if parameter not in replacements:
                replacements[parameter] = make(parameter, f"{prefix}.{name}" if prefix else name)
            setattr(module, name, replacements[parameter])


@contextmanager
def as_if_on_cpu(model: nn.Module) -> Iterator[None]:
    """Parameters on the meta device seem to lie on the CPU, without memory: what is made beside them is made there."""
    absent: dict[nn.Parameter, nn.Parameter] = {}

    def replace_meta(parameter: nn.Parameter, _: str) -> nn.Parameter:
        if not parameter.is_meta:
            return parameter
        stand_in = nn.Parameter(torch.empty((), dtype=parameter.dtype).expand(parameter.shape), parameter.requires_grad)
        absent[stand_in] = parameter
        return stand_in

    exchange(model, replace_meta)
    try:
        yield
    finally:
        for stand_in, parameter in absent.items():
            parameter.requires_grad_(stand_in.requires_grad)
        exchange(model, lambda p, _: absent.get(p, p))


def is_outline(model: nn.Module) -> bool:
    """Whether weights of the model are still to be read."""
    return any(parameter.is_meta for parameter in model.parameters())


def in_memory(model: nn.Module, device: torch.device) -> None:
    """Moves a model to ``device``; weights that are still to be read get memory there, and any values."""
    exchange(model, lambda p, _: nn.Parameter(torch.empty_like(p, device=device), p.requires_grad) if p.is_meta else p)
    model.to(device)


# -- where the weights are -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FileWeights:
    """Weights in safetensors files, of which each process reads its own rows."""

    files: WeightFiles
    places: dict[str, str]
    """Name in the files of each tensor, by its name in the model."""

    def open(self) -> None:
        """Does nothing: each tensor's file is opened as it is read."""

    def rows(self, name: str, like: DTensor) -> Tensor:
        """This process's rows of a tensor, from the file."""
        return self.files.read(self.places[name], own_rows(like))


@dataclass
class FirstProcessWeights:
    """Weights that the first process alone loads, whole, into main memory, and sends to the others one by one."""

    load: Callable[[], PreTrainedModel]
    reason: str
    """Why each process cannot read its part."""
    _tensors: dict[str, Tensor] | None = field(default=None, init=False)

    def open(self) -> None:
        """Loads the model, in the first process."""
        if dist.get_rank() == 0:
            self._tensors = {name: p.detach() for name, p in self.load().named_parameters(remove_duplicate=False)}

    def rows(self, name: str, like: DTensor) -> Tensor:
        """This process's rows of a tensor, which the first one sends."""
        device, dtype = like.device_mesh.device_type, like.dtype
        if self._tensors is None:
            tensor = torch.empty(like.shape, dtype=dtype, device=device)
        else:
            tensor = self._tensors[name].to(device, dtype)
        dist.broadcast(tensor, 0)
        return tensor[own_rows(like)].clone()


def own_rows(like: DTensor) -> slice:
    """The rows of a tensor that this process holds where it is spread as ``like`` is: over the last mesh dimension."""
    mesh = like.device_mesh
    assert like.placements[-1] == Shard(0), like.placements
    last = mesh.ndim - 1
    size, first = Shard.local_shard_size_and_offset(like.shape[0], mesh.size(last), mesh.get_local_rank(last))
    return slice(first, first + size)


def from_rows(own: Tensor, like: DTensor, whole: Tensor) -> DTensor:
    """The tensor of the shape of ``whole`` of which this process has the rows ``own``, spread as ``like`` is."""
    mesh, placements = like.device_mesh, like.placements
    return DTensor.from_local(own, mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride())


def places_in(files: WeightFiles, model: PreTrainedModel) -> dict[str, str] | str:
    """Name in ``files`` of each parameter and buffer of ``model``, or why they cannot be read as they are.

    transformers renames some tensors as it loads a model, which this follows, and makes others from several in the
    files (experts that are kept as one tensor), which it does not.
    """
    transforms = get_model_conversion_mapping(model)
    renamings = [transform for transform in transforms if isinstance(transform, WeightRenaming)]
    converters = [transform for transform in transforms if isinstance(transform, WeightConverter)]
    own, places = model.state_dict(), {}
    for key in files.names:
        name, pattern = rename_source_key(key, renamings, converters, model.base_model_prefix, own)
        if name not in own:
            name, pattern = rename_source_key(key, [], [], model.base_model_prefix, own)
        if name not in own:
            continue
        if pattern is not None:
            return f"{key} is converted as it is loaded"
        if files.shape(key) != tuple(own[name].shape):
            return f"{key} has shape {files.shape(key)} in the file, and {tuple(own[name].shape)} in the model"
        places[name] = key
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    for tied in names.values():
        there = [places[name] for name in tied if name in places]
        if not there:
            return f"the files have no {tied[0]}"
        places |= dict.fromkeys(tied, there[0])
    return places


def fill(model: PreTrainedModel, weights: WeightSource, device: torch.device) -> None:
    """Reads this process's part of every weight that is on the meta device; every process must call this.

    Args:
        model: Sharded.
        weights: Where they are; of a model with an adapter, those of its base.
        device: Where they are kept.

    Raises:
        DataError: A tensor cannot be read.
    """

    def read(parameter: nn.Parameter, name: str) -> nn.Parameter:
        if not parameter.is_meta:
            return parameter
        assert isinstance(parameter, DTensor)
        try:
            own = weights.rows(name.replace(".base_layer.", "."), parameter).to(device, parameter.dtype)
        except KeyError as error:
            raise DataError(f"{type(model).__name__}: its files have no {name}") from error
        return nn.Parameter(from_rows(own, parameter, parameter), parameter.requires_grad)

    exchange(model, read)
