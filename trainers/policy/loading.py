"""Loads models, whole or without output layer, and tokenizers."""

from __future__ import annotations

from typing import Any, cast

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    GgufConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.logging import disable_progress_bar

from envsuite.core.errors import DataError, MissingExtra, UsageError
from envsuite.prompting import Renderer
from envsuite.prompting.shipped import read_template
from trainers.policy.adapter import add_adapter, check_adapter, continue_adapter, merged
from trainers.policy.attention import checkpoint_activations
from trainers.policy.config import ModelConfig
from trainers.policy.kernels import check_kernel, choose_kernel
from trainers.policy.selfcheck import check_backbone
from trainers.policy.source import Source, find

_UNREADABLE = (OSError, ValueError, KeyError, RuntimeError, SafetensorError)


def load_model(config: ModelConfig) -> PreTrainedModel:
    """The model of ``config.path``, with the adapter that is trained, if one is.

    Weights are read from safetensors or GGUF files only, and are float32 unless an adapter is trained and says
    otherwise. Dropout is off: the log-probabilities that are trained on must be those of the policy that sampled.

    Raises:
        DataError: The model is missing, incomplete, cannot be downloaded, or is not a causal language model.
        ConfigError: The adapter does not fit it, or ``config.attention`` needs another device.
        MissingExtra: It needs a package that is not installed.
    """
    check_kernel(config)
    source = find(config.path, "model.path", tokenizer=False)
    settings = settings_of(source, "model.path", config.path)
    if config.adapter is not None:
        check_adapter(config.adapter, settings, config.path)
    model = _load(source, settings, config, "model.path")
    if config.adapter is not None:
        add_adapter(model, config.adapter, source.name, source.revision)
        if source.adapter is not None:
            continue_adapter(model, source.adapter, config.adapter)
    elif source.adapter is not None:
        model = merged(model, source.adapter)
    choose_kernel(model, config.attention)
    if config.gradient_checkpointing:
        checkpoint_activations(model)
    return model


def load_tokenizer(config: ModelConfig) -> PreTrainedTokenizerBase:
    """Tokenizer of ``config.path``.

    Raises:
        DataError: The model is missing or incomplete, or its tokenizer has no chat template, or that of
            ``config.chat_template`` is missing or cannot be rendered.
    """
    source = find(config.path, "model.path")
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(**source.tokenizer)
    except _UNREADABLE as error:
        raise _unreadable("model.path", config.path, error) from error
    if config.chat_template is not None:
        tokenizer.chat_template = read_template(config.chat_template, "chat_templates", "model.chat_template")
        try:
            Renderer(tokenizer)([{"role": "user", "content": "Hello."}], None)
        except UsageError as error:
            raise DataError(f"model.chat_template {config.chat_template}: {error}") from error
    if tokenizer.chat_template is None:
        raise DataError(
            f"model.path {config.path}: its tokenizer has no chat template; give it one by model.chat_template (a file)"
        )
    return tokenizer


def load_backbone(config: ModelConfig, key: str) -> PreTrainedModel:
    """The model of ``config.path`` without its output layer; dropout is off.

    Where an adapter is trained, it has a new one, on the model with whatever adapter ``config.path`` names merged.

    Args:
        config: Path, checkpointing and adapter.
        key: The setting's key, for messages.

    Raises:
        DataError: The model is missing, incomplete, or cannot be downloaded, or its hidden states, packed and with
            shared prefixes, differ from its own.
        ConfigError: The adapter does not fit it.
        MissingExtra: It needs a package that is not installed.
    """
    source = find(config.path, key, tokenizer=False)
    settings = settings_of(source, key, config.path)
    if config.adapter is not None:
        check_adapter(config.adapter, settings, config.path)
    backbone = _load(source, settings, config, key, AutoModel if source.adapter is None else AutoModelForCausalLM)
    if source.adapter is not None:  # it is one to the whole model, and has its names
        backbone = cast(PreTrainedModel, merged(backbone, source.adapter).base_model)
    if config.adapter is not None:
        add_adapter(backbone, config.adapter, source.name, source.revision)
    choose_kernel(backbone, config.attention)
    check_backbone(backbone)
    if config.gradient_checkpointing:
        checkpoint_activations(backbone)
    return backbone


def read(
    source: Source, settings: PreTrainedConfig, key: str, name: str, kind: Any = AutoModelForCausalLM, **how: Any
) -> PreTrainedModel:
    """The model in ``source.folder``, without the adapter that may be named there.

    Args:
        source: Where it lies.
        settings: Its configuration.
        key: The setting's key, for messages.
        name: The setting's value, for messages.
        kind: The class of transformers that reads it.
        how: Further arguments of ``from_pretrained``.

    Raises:
        DataError: It cannot be read.
    """
    if source.gguf is not None:
        how |= {"quantization_config": GgufConfig(dequantize=True)}
    else:
        how |= {"use_safetensors": True}
    try:
        model: PreTrainedModel = kind.from_pretrained(config=settings, **source.load, **how)
    except _UNREADABLE as error:
        raise _unreadable(key, name, error) from error
    return model


def settings_of(source: Source, key: str, name: str) -> PreTrainedConfig:
    """The model's own configuration, without dropout.

    Args:
        source: Where it lies.
        key: The setting's key, for messages.
        name: The setting's value, for messages.

    Raises:
        DataError: It cannot be read.
        MissingExtra: It is a GGUF file, and the package gguf is not installed.
    """
    disable_progress_bar()  # type: ignore[no-untyped-call]  # the run has a display of its own
    if source.gguf is not None:
        try:
            import gguf  # noqa: F401
        except ImportError as error:
            raise MissingExtra(
                f"{key} {name}: a GGUF file needs the package gguf: pip install 'envsuite[gguf]'"
            ) from error
    try:
        settings: PreTrainedConfig = AutoConfig.from_pretrained(**source.load)
    except _UNREADABLE as error:
        raise _unreadable(key, name, error) from error
    for field, value in settings.to_dict().items():
        if isinstance(value, float) and field.endswith(("dropout", "pdrop")):
            setattr(settings, field, 0.0)
    return settings


def _load(
    source: Source, settings: PreTrainedConfig, config: ModelConfig, key: str, kind: Any = AutoModelForCausalLM
) -> PreTrainedModel:
    """The model, frozen weights in their format, and the adapter that ``source`` names not yet on it."""
    base = "float32" if config.adapter is None else config.adapter.base
    how: dict[str, Any] = {"dtype": torch.float32 if base == "float32" else torch.bfloat16}
    if base == "nf4":
        how["quantization_config"] = BitsAndBytesConfig(  # type: ignore[no-untyped-call]
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.bfloat16,
        )
    return read(source, settings, key, config.path, kind, **how)


def _unreadable(key: str, path: str, error: Exception) -> DataError:
    return DataError(f"{key} {path}: cannot be loaded ({type(error).__name__}: {error})")
