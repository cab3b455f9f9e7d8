"""Loads models, whole or without output layer, and tokenizers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModel,
    AutoModelForCausalLM,
    AutoProcessor,
    AutoTokenizer,
    BitsAndBytesConfig,
    GenerationConfig,
    GgufConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import GENERATION_CONFIG_NAME
from transformers.utils.logging import disable_progress_bar

from envsuite.core.errors import DataError, UsageError, require_extra
from envsuite.prompting import TemplateRenderer
from envsuite.prompting.shipped import read_template
from trainers.policy.adapter import add_adapter, check_adapter, continue_adapter, merge_adapter
from trainers.policy.attention import checkpoint_activations
from trainers.policy.config import ModelConfig
from trainers.policy.kernels import check_kernel, choose_kernel
from trainers.policy.outline import FileWeights, FirstProcessWeights, Outline, WeightSource, empty_model, places_in
from trainers.policy.rows import ALWAYS, use_rows
from trainers.policy.selfcheck import check_backbone
from trainers.policy.source import ModelSource, find
from trainers.policy.vision import ImageProcessing, choose_reading, class_of, set_format, set_vision, takes_images
from trainers.policy.weight_files import WeightFiles
from trainers.processes.cpu import warn_of_slow_bfloat16
from trainers.settings import ConfigError

_LOG = logging.getLogger(__name__)
_UNREADABLE = (OSError, ValueError, KeyError, RuntimeError, SafetensorError)


def model_settings(config: ModelConfig, key: str = "model.path") -> PreTrainedConfig:
    """Configuration of the model of ``config.path``, which the setting ``key`` gives; of its weights nothing is read.

    Raises:
        DataError: The model is missing, incomplete, or cannot be downloaded.
        ConfigError: The adapter does not fit it.
        MissingExtra: It needs a package that is not installed.
    """
    return _find_model(config, key)[1]


def load_model(config: ModelConfig, key: str = "model.path") -> PreTrainedModel:
    """The model of ``config.path``, which the setting ``key`` gives, with the adapter that is trained, if one is.

    Weights are read from safetensors or GGUF files only, and are float32 unless an adapter is trained and says
    otherwise. Dropout is off: the log-probabilities that are trained on must be those of the policy that sampled.

    Raises:
        DataError: The model is missing, incomplete, cannot be downloaded, or is not a causal language model.
        ConfigError: The adapter does not fit it, or ``config.attention`` needs another device.
        MissingExtra: It needs a package that is not installed.
    """
    source, settings = _find_model(config, key)
    return _prepare_model(_whole(source, settings, config, key), source, config)


def load_outline(config: ModelConfig, key: str = "model.path") -> Outline:
    """The model of :func:`load_model` without its weights, for a policy that will be sharded.

    An adapter has its weights. Where each process can read its rows of the model's files, it will; else (a GGUF file,
    an adapter that is merged, tensors that transformers makes of several) the first process loads the model whole.

    Raises:
        DataError: The model is missing, incomplete, or cannot be downloaded.
        ConfigError: The adapter does not fit it, or the model takes images.
        MissingExtra: It needs a package that is not installed.
    """
    source, settings = _find_model(config, key)
    if takes_images(settings):
        raise ConfigError(f"model.shard is {config.shard}, but {config.path} takes images; set model.shard: none")
    dtype = torch.float32 if config.adapter is None or config.adapter.base == "float32" else torch.bfloat16
    with _reading(key, config.path):
        model = empty_model(AutoModelForCausalLM, settings, dtype)
    model.name_or_path = str(source.folder)
    if (source.folder / GENERATION_CONFIG_NAME).is_file() and source.gguf is None:
        model.generation_config = GenerationConfig.from_pretrained(source.folder)
    weights = _weights_of(source, settings, config, model, key)
    if isinstance(weights, FirstProcessWeights):
        _LOG.info("the first process loads %s whole: %s", config.path, weights.reason)
    return Outline(_prepare_model(model, source, config), weights)


def _find_model(config: ModelConfig, key: str) -> tuple[ModelSource, PreTrainedConfig]:
    """Where a model lies, and its configuration; attention and adapter were checked."""
    check_kernel(config)
    source = find(config.path, key, tokenizer=False)
    settings = settings_of(source, key, config.path, config.sees)
    if config.sees and (source.gguf is not None or not takes_images(settings)):
        raise ConfigError(
            f"model.images is {config.images}, but {key} {config.path} is a model for text; set it to auto"
        )
    if config.adapter is not None:
        check_adapter(config.adapter, settings, config.path, config.shard)
    return source, settings


def _prepare_model(model: PreTrainedModel, source: ModelSource, config: ModelConfig) -> PreTrainedModel:
    """The model with the adapter that is trained, if one is."""
    if config.compute_dtype == "bfloat16":
        warn_of_slow_bfloat16()
    if config.adapter is not None:
        add_adapter(model, config.adapter, source.name, source.revision)
        if source.adapter is not None:
            continue_adapter(model, source.adapter, config.adapter)
    _set_computation(model, config)
    return model


def _set_computation(model: PreTrainedModel, config: ModelConfig) -> None:
    """Sets kernel, rows and checkpointing of ``model``."""
    choose_kernel(model, config.attention)
    if config.rows == "always":
        use_rows(model, ALWAYS)
    if config.gradient_checkpointing is True:
        checkpoint_activations(model)


def _whole(source: ModelSource, settings: PreTrainedConfig, config: ModelConfig, key: str) -> PreTrainedModel:
    """The model that is trained, or that an adapter is put on, with its weights."""
    model = _load(source, settings, config, key)
    return model if source.adapter is None or config.adapter is not None else merge_adapter(model, source.adapter)


def _weights_of(
    source: ModelSource, settings: PreTrainedConfig, config: ModelConfig, model: PreTrainedModel, key: str
) -> WeightSource:
    """Where the weights of ``model``, which has no adapter yet, are."""

    def whole() -> PreTrainedModel:
        return _whole(source, settings, config, key)

    if source.gguf is not None:
        return FirstProcessWeights(whole, "a GGUF file is dequantised whole")
    if source.adapter is not None and config.adapter is None:
        return FirstProcessWeights(whole, "an adapter is merged into it")
    if getattr(settings, "quantization_config", None) is not None:
        return FirstProcessWeights(whole, "its weights are quantised")
    with _reading(key, config.path):
        files = WeightFiles(source.folder)
        places = places_in(files, model)
        if isinstance(places, str):
            return FirstProcessWeights(whole, places)
        for name, buffer in model.named_buffers():
            if name in places:
                buffer.copy_(files.read(places[name]))
    return FileWeights(files, places)


def load_tokenizer(config: ModelConfig) -> PreTrainedTokenizerBase:
    """Tokenizer of ``config.path``.

    Raises:
        DataError: The model is missing or incomplete, or its tokenizer has no chat template, or that of
            ``config.chat_template`` is missing or cannot be rendered.
    """
    source = find(config.path, "model.path")
    tokenizer = read_tokenizer(source, "model.path", config.path)
    if config.chat_template is not None:
        tokenizer.chat_template = read_template(config.chat_template, "chat_templates", "model.chat_template")
        try:
            TemplateRenderer(tokenizer)([{"role": "user", "content": "Hello."}], None)
        except UsageError as error:
            raise DataError(f"model.chat_template {config.chat_template}: {error}") from error
    if source.gguf is None and takes_images(settings := settings_of(source, "model.path", config.path, config.sees)):
        set_format(tokenizer, _processing(source, settings, "model.path", config.path))
    if tokenizer.chat_template is None:
        raise DataError(
            f"model.path {config.path}: its tokenizer has no chat template; give it one by model.chat_template (a file)"
        )
    return tokenizer


def read_tokenizer(source: ModelSource, key: str, path: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a model, as it lies there; ``key`` and ``path`` are the setting and its value, for messages.

    Raises:
        DataError: It cannot be read.
    """
    with _reading(key, path):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(**source.tokenizer)
    return tokenizer


def _processing(source: ModelSource, settings: PreTrainedConfig, key: str, path: str) -> ImageProcessing:
    """Returns the processor of a model that takes images.

    Raises:
        DataError: It cannot be loaded.
    """
    with _reading(key, path, (*_UNREADABLE, ImportError, AttributeError)):
        processor = AutoProcessor.from_pretrained(source.folder)  # type: ignore[no-untyped-call]
        # The same pixels whether torchvision, which processors of videos need, is installed or not.
        processor.image_processor = AutoImageProcessor.from_pretrained(source.folder, backend="pil")  # type: ignore[no-untyped-call]
        return ImageProcessing(processor, int(settings.image_token_id))


def load_backbone(config: ModelConfig, key: str, layers: int | None = None) -> PreTrainedModel:
    """The model of ``config.path`` without its output layer; dropout is off, and how it computes images is frozen.

    Where an adapter is trained, it has a new one, on the model with whatever adapter ``config.path`` names merged.

    Args:
        config: Path, checkpointing and adapter.
        key: The setting's key, for messages.
        layers: How many of its layers are kept, from the first on, below its final norm; all by default. Weights of
            the others are not read, unless an adapter is merged.

    Raises:
        DataError: The model is missing, incomplete, or cannot be downloaded, or its hidden states, packed and with
            shared prefixes, differ from its own.
        ConfigError: The adapter does not fit it, or it has fewer than ``layers``.
        MissingExtra: It needs a package that is not installed.
    """
    config = replace(config, images="frozen" if config.sees else "auto")
    source = find(config.path, key, tokenizer=False)
    settings = settings_of(source, key, config.path, config.sees)
    if config.adapter is not None:
        check_adapter(config.adapter, settings, config.path, config.shard)
    if source.adapter is None:
        if layers is not None:
            truncate(settings, layers, config.path)
        backbone = _load(source, settings, config, key, AutoModel)
    else:  # it is one to the whole model, and has its names
        backbone = cast(PreTrainedModel, merge_adapter(_load(source, settings, config, key), source.adapter).base_model)
        if layers is not None:
            _remove_layers(backbone, truncate(backbone.config, layers, config.path), layers)
    if config.adapter is not None:
        add_adapter(backbone, config.adapter, source.name, source.revision)
    _set_computation(backbone, config)
    check_backbone(backbone)
    return backbone


def truncate(settings: PreTrainedConfig, layers: int, path: str) -> int:
    """Makes ``settings`` those of a model of its first ``layers``; returns how many it had.

    Args:
        settings: Configuration of the model; its lists with an entry for each layer are cut, too.
        layers: How many are kept.
        path: The model, for messages.

    Raises:
        ConfigError: It has fewer.
    """
    text = settings.get_text_config(decoder=True)
    depth = int(text.num_hidden_layers)
    if layers > depth:
        raise ConfigError(
            f"a critic of kind truncated has {layers} layers, but {path} has {depth}; set method.critic.kind: model"
        )
    for field, value in vars(text).items():
        if isinstance(value, list) and len(value) == depth and not field.endswith("token_id"):
            setattr(text, field, value[:layers])
    text.num_hidden_layers = layers
    return depth


def _remove_layers(backbone: PreTrainedModel, depth: int, layers: int) -> None:
    """Removes all but the first ``layers`` of the ``depth`` layers of a model that was loaded whole."""
    for module in getattr(backbone, "language_model", backbone).modules():
        for name, child in module.named_children():
            if isinstance(child, torch.nn.ModuleList) and len(child) == depth:
                setattr(module, name, child[:layers])


def read(
    source: ModelSource, settings: PreTrainedConfig, key: str, name: str, kind: Any = None, **how: Any
) -> PreTrainedModel:
    """The model in ``source.folder``, without the adapter that may be named there.

    Args:
        source: Where it lies.
        settings: Its configuration.
        key: The setting's key, for messages.
        name: The setting's value, for messages.
        kind: The class of transformers that reads it; by default the one for its configuration, with output layer.
        how: Further arguments of ``from_pretrained``.

    Raises:
        DataError: It cannot be read.
    """
    how |= {"use_safetensors": True} if source.gguf is None else {"quantization_config": GgufConfig(dequantize=True)}
    with _reading(key, name):
        model: PreTrainedModel = (kind or class_of(settings)).from_pretrained(config=settings, **source.load, **how)
        for module in model.modules() if settings.model_type == "phimoe" else ():
            if hasattr(module, "router_jitter_noise"):  # draws experts at random in training
                module.train(False).train = lambda mode=True, own=module: own  # type: ignore[method-assign,misc]
    return model


def settings_of(source: ModelSource, key: str, name: str, images: bool = False) -> PreTrainedConfig:
    """The model's own configuration, without dropout and noise.

    Args:
        source: Where it lies.
        key: The setting's key, for messages.
        name: The setting's value, for messages.
        images: Whether a model that could also be read for text alone has its vision tower.

    Raises:
        DataError: It cannot be read.
        MissingExtra: It is a GGUF file, and the package gguf is not installed.
    """
    disable_progress_bar()  # type: ignore[no-untyped-call]  # the run has a display of its own
    if source.gguf is not None:
        with require_extra(f"{key} {name}: a GGUF file needs gguf", "gguf"):
            import gguf  # noqa: F401
    with _reading(key, name):
        settings: PreTrainedConfig = AutoConfig.from_pretrained(**source.load)
    without_noise(settings)
    choose_reading(settings, images)
    return settings


def without_noise(settings: PreTrainedConfig) -> None:
    """Switches off what is drawn at random in training: the log-probabilities of engine and trainer are to be equal."""
    for field, value in settings.to_dict().items():
        # attention_dropout, resid_pdrop, hidden_dropout_prob, …; jitter is noise of training, but for PhiMoE's routers.
        noise = "jitter" in field and not (settings.model_type == "phimoe" and field == "router_jitter_noise")
        if isinstance(value, float) and ("drop" in field or noise):
            setattr(settings, field, 0.0)


def _load(
    source: ModelSource, settings: PreTrainedConfig, config: ModelConfig, key: str, kind: Any = None
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
    model = read(source, settings, key, config.path, kind, **how)
    if source.gguf is None and takes_images(settings):
        set_vision(model, _processing(source, settings, key, config.path), config.images == "train-projector")
    return model


@contextmanager
def _reading(key: str, path: str, kinds: tuple[type[Exception], ...] = _UNREADABLE) -> Iterator[None]:
    """Makes an error of reading a model, of these ``kinds``, a :class:`DataError` that names the path."""
    try:
        yield
    except kinds as error:
        raise DataError(f"{key} {path}: cannot be loaded ({type(error).__name__}: {error})") from error
