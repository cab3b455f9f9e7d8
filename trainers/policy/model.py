"""The policy: a transformers causal language model, and the log-probabilities it gives."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.logging import disable_progress_bar

from envsuite.core.errors import DataError
from trainers.policy.attention import NAME, attending, checkpoint_activations
from trainers.policy.config import ComputeDtype, ModelConfig
from trainers.policy.flat import flatten, to_device
from trainers.policy.packing import MicroBatch
from trainers.policy.precision import computing
from trainers.policy.selfcheck import check_backbone, check_policy, output_layer
from trainers.policy.statistics import TokenStats, token_stats


def load_policy(config: ModelConfig) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model (safetensors only, float32) and tokenizer of ``config.path``.

    Dropout is off: the log-probabilities that are trained on must be those of the policy that sampled.

    Raises:
        DataError: The folder is missing, incomplete or not a causal language model.
    """
    tokenizer = load_tokenizer(config)
    settings = _settings(config.path, "model.path", ("config.json",))
    try:
        model = AutoModelForCausalLM.from_pretrained(config.path, config=settings, **_HOW)
    except _UNREADABLE as error:
        raise _unreadable("model.path", config.path, error) from error
    if config.gradient_checkpointing:
        checkpoint_activations(model)
    return model, tokenizer


def load_tokenizer(config: ModelConfig) -> PreTrainedTokenizerBase:
    """Tokenizer of ``config.path``.

    Raises:
        DataError: The folder is missing or incomplete, or the tokenizer has no chat template.
    """
    _settings(config.path, "model.path", ("config.json", "tokenizer_config.json"))
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(config.path)
    except _UNREADABLE as error:
        raise _unreadable("model.path", config.path, error) from error
    if tokenizer.chat_template is None:
        raise DataError(f"model.path {config.path}: its tokenizer has no chat template; add chat_template.jinja")
    return tokenizer


def load_backbone(config: ModelConfig, key: str) -> PreTrainedModel:
    """The model (safetensors only, float32) of ``config.path`` without its output layer; dropout is off.

    Args:
        config: Path and checkpointing.
        key: The setting's key, for messages.

    Raises:
        DataError: The folder is missing, incomplete or not a model, or its hidden states, packed and with shared
            prefixes, differ from its own.
    """
    settings = _settings(config.path, key, ("config.json",))
    try:
        model: PreTrainedModel = AutoModel.from_pretrained(config.path, config=settings, **_HOW)
    except _UNREADABLE as error:
        raise _unreadable(key, config.path, error) from error
    check_backbone(model)
    if config.gradient_checkpointing:
        checkpoint_activations(model)
    return model


_HOW = {"dtype": torch.float32, "use_safetensors": True}
_UNREADABLE = (OSError, ValueError, KeyError, RuntimeError, SafetensorError)


def _unreadable(key: str, path: str, error: Exception) -> DataError:
    return DataError(f"{key} {path}: cannot be loaded ({type(error).__name__}: {error})")


def _settings(name: str, key: str, files: tuple[str, ...]) -> PreTrainedConfig:
    """The model's own configuration, without dropout, once a local folder is seen to hold ``files`` and weights."""
    disable_progress_bar()  # type: ignore[no-untyped-call]  # the run has a display of its own
    path = Path(name)
    if path.is_absolute() or path.parts[:1] in ((".",), ("..",)) or path.exists() or "models" in path.parts[:1]:
        for file in files:
            if not (path / file).is_file():
                raise DataError(f"{key} {name}: no {file} there; give a folder that save_pretrained wrote")
        if not any(path.glob("*.safetensors")):
            raise DataError(
                f"{key} {name}: no *.safetensors there; weights in other formats can hold code and are not "
                "read (convert them with save_pretrained)"
            )
    try:
        settings: PreTrainedConfig = AutoConfig.from_pretrained(name)
    except _UNREADABLE as error:
        raise _unreadable(key, name, error) from error
    for field, value in settings.to_dict().items():
        if isinstance(value, float) and field.endswith(("dropout", "pdrop")):
            setattr(settings, field, 0.0)
    return settings


def stop_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Token ids that end a response: the tokenizer's end token and those of the generation config."""
    ids: list[int] = [] if tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)]
    generation = model.generation_config.eos_token_id if model.generation_config is not None else None
    if generation is not None:
        ids += [int(generation)] if isinstance(generation, int) else [int(i) for i in generation]
    if not ids:
        raise DataError(f"{model.name_or_path}: neither tokenizer nor generation config name an end token")
    return tuple(dict.fromkeys(ids))


class Policy(nn.Module):
    """Log-probabilities of a micro-batch in one ``forward``, as data-parallel wrappers need it.

    Args:
        model: Any decoder-only model that takes its attention from transformers' attention interface.
        temperature: The sampler's temperature: log-probabilities, entropies and gradients are those of the distribution
            that is sampled from.
        compute_dtype: Number format of the forward pass.

    Raises:
        DataError: The model's log-probabilities, packed and with shared prefixes, differ from its own.
    """

    def __init__(
        self, model: PreTrainedModel, *, temperature: float = 1.0, compute_dtype: ComputeDtype = "float32"
    ) -> None:
        super().__init__()
        self.model = model
        self.temperature = temperature
        self.compute_dtype: ComputeDtype = compute_dtype
        check_policy(model)
        self.output = output_layer(model)
        """Computes the logits a part of the tokens at a time; ``None`` where only the model itself can compute them."""

    def forward(self, batch: MicroBatch) -> TokenStats:
        """Log-probability and entropy of each response token of ``batch``, in its order."""
        device = self.model.device
        flat = flatten(batch, device)
        target = to_device(batch.target, device)
        with attending(self.model, NAME), computing(self.compute_dtype, device):
            if self.output is None:
                logits: Tensor = self.model(**flat.arguments, logits_to_keep=flat.place).logits[0]
                return token_stats(logits, target, self.temperature)
            states: Tensor = self.model.base_model(**flat.arguments).last_hidden_state[0]
            return self.output.stats(states[flat.place], target, self.temperature)
