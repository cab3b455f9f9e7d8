"""LoRA: low-rank adapters on the linear layers and experts of a frozen model, by peft, inside the model's own modules.

The model stays what transformers made of it, so whatever reads its configuration, its base model or its parameters by
name works on it as before. An adapter is kept as peft writes it: ``adapter_config.json``, which names the base, and
``adapter_model.safetensors``.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import safetensors
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from envsuite.core.errors import DataError, MissingExtra, nearest, require_extra
from trainers.policy.config import AdapterConfig, Sharding
from trainers.policy.outline import as_if_on_cpu
from trainers.policy.sharding import assign
from trainers.policy.stateful import StateMismatch, compare
from trainers.policy.vision import class_of, projector_layers, takes_images
from trainers.settings import ConfigError

if TYPE_CHECKING:
    from peft import LoraConfig

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_TRAINED, _REFERENCE = "default", "reference"  # names of the adapters in the model
_HARMLESS = {
    "auto_mapping", "base_model_name_or_path", "eva_config", "exclude_modules", "fan_in_fan_out", "inference_mode",
    "layers_pattern", "layers_to_transform", "lora_dropout", "peft_version", "revision", "target_modules",
    "target_parameters", "task_type",
}  # fmt: skip
"""Fields of an adapter's configuration that change no number, or that the names of its tensors tell."""
_FROM_BASE = (True, False, "gaussian", "eva", "orthogonal")
"""Ways to begin an adapter that leave the base as it is."""
_PREFIX = "base_model.model."  # of every tensor in the file


def check_adapter(config: AdapterConfig, settings: PreTrainedConfig, path: str, shard: Sharding = "none") -> None:
    """Checks that the adapter can be made, before any weight is read.

    Args:
        config: The adapter.
        settings: Configuration of the model that it is for.
        path: ``model.path``, for messages.
        shard: How the model is sharded.

    Raises:
        MissingExtra: peft, or what ``base: nf4`` needs, is not installed.
        ConfigError: A target is neither a linear layer of the model nor a tensor of experts; the message lists those
            that are. Or the adapter's other settings do not fit it, or ``base: nf4`` without CUDA.
    """
    with require_extra("model.adapter needs peft", "lora"):
        import peft  # noqa: F401
    if config.base == "nf4":
        _check_nf4()
    if config.targets != "all-linear":
        with torch.device("meta"):
            model = class_of(settings).from_config(settings)
        targets, experts = linear_layers(model), expert_tensors(model)
        tensors = sorted(set(config.targets) & set(experts))
        if tensors and (config.base != "float32" or shard != "none"):
            raise ConfigError(
                f"model.adapter.targets: {', '.join(tensors)}: an adapter on experts in one tensor has a base in "
                "float32, and is not sharded; set base: float32 and model.shard: none"
            )
        targets += experts
        if strange := sorted(set(config.targets) - set(targets)):
            near = nearest(strange[0], targets)
            raise ConfigError(
                f"model.adapter.targets: {', '.join(strange)}: not a linear layer of model.path {path} that an adapter "
                f"can be put on{f' (nearest: {near[0]})' if near else ''}; there are: {', '.join(targets)}"
            )


def _check_nf4() -> None:
    if not torch.cuda.is_available():
        raise ConfigError(
            "model.adapter.base is nf4, which needs CUDA (bitsandbytes' kernels), and torch finds none here; set "
            "base: bfloat16, which runs anywhere"
        )
    try:
        import bitsandbytes  # noqa: F401
    except ImportError as error:
        raise MissingExtra("model.adapter.base: nf4 needs bitsandbytes: pip install bitsandbytes") from error


def linear_layers(model: PreTrainedModel) -> list[str]:
    """Names of the linear layers that adapters can be put on, such as q_proj: all of text but the output layer.

    Neither those that the model's own code computes otherwise (routers), nor those whose weights kernels read without
    calling the layer (Mamba's).
    """
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    images = set(_of_images(model))
    layers, other_names = [], set()
    for name, module in model.named_modules():
        plain = isinstance(module, nn.Linear | Conv1D) and not _computes_otherwise(module)
        parent, _, last = name.rpartition(".")
        states = dict(model.get_submodule(parent).named_parameters(recurse=False)).keys()
        if plain and module is not head and not (last == "out_proj" and {"A_log", "D"} <= states):
            layers += [name] if name not in images else []
        else:
            other_names.add(last)
    # A name that other modules have, too, such as a number, is told apart by the module that it is in.
    return sorted({".".join(name.split(".")[-1 - (name.rpartition(".")[2] in other_names) :]) for name in layers})


def expert_tensors(model: PreTrainedModel) -> list[str]:
    """Names of the tensors of a mixture's experts that adapters can be put on, such as experts.down_proj."""
    return sorted({
        f"{name.rpartition('.')[2]}.{own}"
        for name, module in model.named_modules()
        for own, parameter in module.named_parameters(recurse=False)
        if parameter.dim() == 3 and len(parameter) == getattr(module, "num_experts", None)
    })  # fmt: skip


def _computes_otherwise(layer: nn.Module) -> bool:
    """Whether a linear layer is one of a model's own kind that gives no vector for a vector."""
    if not (isinstance(layer, nn.Linear) and type(layer).__module__.startswith("transformers.models.")):
        return False
    try:
        output: object = layer(layer.weight.new_zeros(2, 1, layer.in_features))
    except (RuntimeError, ValueError, IndexError):
        return True
    return not (isinstance(output, Tensor) and output.shape == (2, 1, layer.out_features))


def _of_images(model: PreTrainedModel) -> list[str]:
    """Returns the full names of the linear layers that compute images, which are frozen."""
    if not takes_images(model.config):
        return []
    own: Any = model
    text = {*map(id, own.get_decoder().modules()), id(own.get_output_embeddings())}
    return [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and id(module) not in text]


def add_adapter(model: PreTrainedModel, config: AdapterConfig, base: str, revision: str | None = None) -> None:
    """Freezes ``model`` and puts a new adapter on it, in float32, which changes nothing yet.

    Args:
        model: A model as transformers loads it.
        config: The adapter.
        base: Name under which ``adapter_config.json`` will name the model.
        revision: Commit of the hub's repository that it was loaded from.
    """
    _put(model, _lora(model, config, base, revision), _TRAINED)
    adapter_config(model).base_model_name_or_path = base  # add_adapter entered the model's own name
    _as_float32(model)


def _lora(model: PreTrainedModel, config: AdapterConfig, base: str, revision: str | None) -> LoraConfig:
    from peft import LoraConfig

    targets = linear_layers(model) if config.targets == "all-linear" else config.targets
    projector, experts = projector_layers(model), expert_tensors(model)
    return LoraConfig(
        task_type="CAUSAL_LM",
        base_model_name_or_path=base,
        revision=revision,
        r=config.rank,
        lora_alpha=config.alpha,
        target_modules=[name for name in (*targets, *projector) if name not in experts],
        target_parameters=[name for name in targets if name in experts] or None,
        exclude_modules=sorted({*_of_images(model)} - {*projector}) or None,
        # Conv1D is transformers' linear layer of GPT-2, whose weight is transposed.
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),
    )


def _put(model: PreTrainedModel, lora: LoraConfig, name: str) -> None:
    with _quietly(), as_if_on_cpu(model):
        model.add_adapter(lora, name)


@contextmanager
def _quietly() -> Iterator[None]:
    """Without warnings that there are two adapters, and of calls that are peft's own."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Already found a `peft_config`")
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated")
        yield


def adapter_config(model: PreTrainedModel) -> LoraConfig:
    """The configuration of the adapter that is trained, as peft has it."""
    return cast("LoraConfig", model.peft_config[_TRAINED])


def _as_float32(model: PreTrainedModel) -> None:
    """Keeps the adapters in float32, where peft takes over the format of the layer, and leaves casts to autocast."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    for module in model.modules():
        if isinstance(module, BaseTunerLayer):
            vars(module)["cast_input_dtype_enabled"] = False
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()


def is_adapted(model: PreTrainedModel) -> bool:
    """Whether an adapter is trained, in the place of the model's own weights."""
    return bool(model._hf_peft_config_loaded)


def trained_weights(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Name and tensor of every parameter of the model, or of its adapter where one is trained."""
    yield from adapter_tensors(model).items() if is_adapted(model) else model.named_parameters()


def saved_weights(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Name and tensor of all that a file of the model, or of its adapter, holds; tied weights once."""
    yield from trained_weights(model)
    if not is_adapted(model):
        persistent = model.state_dict().keys()
        yield from ((name, buffer) for name, buffer in model.named_buffers() if name in persistent)


def merged_weights(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Name and tensor of every parameter of the whole model; an adapted layer's is merged in float32 as it is read."""
    return _whole_weights(model, merged=True)


def frozen_weights(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Name and tensor of every parameter of the model below its adapter, as without one."""
    return _whole_weights(model, merged=False)


def _whole_weights(model: PreTrainedModel, merged: bool) -> Iterator[tuple[str, Tensor]]:
    if not is_adapted(model):
        yield from model.named_parameters()
        return
    from peft.tuners.lora import LoraLayer, ParamWrapper
    from peft.utils.integrations import dequantize_module_weight

    layers: dict[str, Any] = {}
    for name, layer in model.named_modules():
        if isinstance(layer, LoraLayer):
            parts = model.get_submodule(name).named_modules()
            below = next(path for path, part in parts if part is layer.get_base_layer())
            layers[f"{name}.{below}.{getattr(layer, 'parameter_name', 'weight')}"] = layer
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            continue
        if (layer := layers.get(name)) is not None:
            with torch.no_grad():
                whole = parameter if isinstance(layer, ParamWrapper) else dequantize_module_weight(layer.base_layer)
                own: Tensor = whole.float()
                yield name.replace(".base_layer", ""), own + layer.get_delta_weight(_TRAINED) if merged else own
        else:
            yield name.replace(".base_layer", ""), parameter


def adapter_tensors(model: PreTrainedModel) -> dict[str, Tensor]:
    """The weights of the adapter that is trained, by their names in ``adapter_model.safetensors``; not copies."""
    from peft import get_peft_model_state_dict

    own = {name: parameter.detach() for name, parameter in model.named_parameters()}
    tensors = get_peft_model_state_dict(model, own, _TRAINED, save_embedding_layers=False)
    return {f"{_PREFIX}{name}": tensor for name, tensor in tensors.items()}


def set_adapter_tensors(model: PreTrainedModel, tensors: Mapping[str, Tensor]) -> None:
    """Replaces the weights of the adapter that is trained.

    Args:
        model: A model with an adapter.
        tensors: By their names in ``adapter_model.safetensors``.

    Raises:
        StateMismatch: Names or shapes differ.
    """
    own = adapter_tensors(model)
    compare(tensors, own)
    for name, tensor in tensors.items():
        assign(own[name], tensor)


def save_adapter(model: PreTrainedModel, folder: Path, tensors: Mapping[str, Tensor] | None = None) -> None:
    """Writes the adapter that is trained to ``folder``, as peft, transformers and vLLM read it.

    Args:
        model: A model with an adapter.
        folder: An existing folder.
        tensors: The whole :func:`adapter_tensors`, where the model is sharded.

    Raises:
        OSError: A file cannot be written.
        SafetensorError: Alike.
    """
    adapter_config(model).save_pretrained(str(folder))
    weights = adapter_tensors(model) if tensors is None else tensors
    save_file({n: t.cpu().contiguous() for n, t in weights.items()}, folder / WEIGHTS, metadata={"format": "pt"})


def continue_adapter(model: PreTrainedModel, folder: Path, config: AdapterConfig) -> None:
    """Loads the adapter in ``folder`` into the one that :func:`add_adapter` put on ``model``.

    Raises:
        ConfigError: It is another adapter than ``model.adapter`` describes; names the setting.
        DataError: It cannot be read.
    """
    from peft import PeftConfig

    whole = f"or leave model.adapter out to train the whole model, with {folder} merged into it"
    settings = adapter_config(model).to_dict()  # type: ignore[no-untyped-call]
    file_settings = PeftConfig.from_pretrained(str(folder)).to_dict()
    names = {"peft_type": "peft_type", "r": "rank", "lora_alpha": "alpha"}
    if file_settings.get("init_lora_weights") in _FROM_BASE:
        file_settings["init_lora_weights"] = settings["init_lora_weights"]
    for field in sorted({*file_settings, *settings} - _HARMLESS, key=lambda field: (field not in names, field)):
        if (file_settings.get(field) or None) != (settings.get(field) or None):
            what = f"adapter.{names[field]}" if field in names else f"the adapter's {field}"
            raise ConfigError(
                f"model: path {folder} is an adapter with {field} {file_settings.get(field)!r}, but {what} is "
                f"{settings.get(field)!r}; set it to that where it is a setting, {whole}"
            )
    try:
        tensors = load_file(folder / WEIGHTS)
    except (OSError, safetensors.SafetensorError) as error:
        raise DataError(f"model.path {folder}: {WEIGHTS} cannot be read ({error})") from error
    own = adapter_tensors(model)
    if own.keys() != tensors.keys():
        layers = sorted({name.rsplit(".", 3)[-3] for name in tensors})
        if file_settings.get("target_parameters"):
            layers = sorted({*file_settings["target_modules"], *file_settings["target_parameters"]})
        raise ConfigError(
            f"model: path {folder} is an adapter of other layers than adapter.targets ({config.targets}) names; set "
            f"targets: [{', '.join(layers)}], {whole}"
        )
    try:
        set_adapter_tensors(model, tensors)
    except StateMismatch as error:
        raise DataError(f"model.path {folder}: the adapter does not fit its base: {error}") from error


def keep_reference(model: PreTrainedModel) -> None:
    """Keeps what the adapter is now as the reference: as a second adapter, unless it changes nothing yet."""
    if any(bool(tensor.any()) for name, tensor in adapter_tensors(model).items() if ".lora_B." in name):
        tensors = {name: tensor.clone() for name, tensor in adapter_tensors(model).items()}
        _put(model, copy(adapter_config(model)), _REFERENCE)
        own = dict(model.named_parameters())
        for name, tensor in tensors.items():
            layer, part = name.removeprefix(_PREFIX).rsplit(".", 1)
            own[f"{layer}.{_REFERENCE}.{part}"].data = tensor
        model.set_adapter(_TRAINED)


@contextmanager
def as_reference(model: PreTrainedModel) -> Iterator[None]:
    """The model as it was when :func:`keep_reference` was called: with that adapter, or with none."""
    if _REFERENCE in model.peft_config:
        model.set_adapter(_REFERENCE)
    else:
        model.disable_adapters()
    try:
        yield
    finally:
        model.enable_adapters()
        model.set_adapter(_TRAINED)


def merge_adapter(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """``model`` with the adapter in ``folder``, of any kind that peft can merge, merged into its weights.

    Raises:
        DataError: It cannot be read, or does not fit the model.
    """
    with require_extra(f"model.path {folder} is an adapter, which needs peft", "lora"):
        from peft import PeftModel
    try:
        _untie(model, folder)
        trained_names = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        with _quietly():
            whole: PreTrainedModel = PeftModel.from_pretrained(model, str(folder)).merge_and_unload(safe_merge=True)
    except (OSError, ValueError, KeyError, RuntimeError, safetensors.SafetensorError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise DataError(f"model.path {folder}: the adapter cannot be merged ({reason})") from error
    for name, parameter in whole.named_parameters():
        parameter.requires_grad_(name in trained_names)
    return whole


def _untie(model: PreTrainedModel, folder: Path) -> None:
    """Gives the output layer weights of its own, where the adapter changes it or the embeddings but not both alike."""
    own: Any = model
    head, embeddings = own.get_output_embeddings(), own.get_input_embeddings()
    if head is None or head.weight is not embeddings.weight:
        return
    with safetensors.safe_open(folder / WEIGHTS, "pt") as file:
        tensors = [name for name in file.keys() if "trainable_tokens" not in name]  # which peft ties itself
    names = [name.rpartition(".")[2] for name, part in model.named_modules() if part is head or part is embeddings]
    if any(f".{name}." in tensor for name in names for tensor in tensors):
        head.weight = nn.Parameter(head.weight.detach().clone(), head.weight.requires_grad)
        model.config.tie_word_embeddings = False
