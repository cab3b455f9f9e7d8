"""The policy: a transformers causal language model, and the log-probabilities it gives."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    DynamicCache,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.logging import disable_progress_bar

from envsuite.core.errors import DataError
from trainers.config import ModelConfig
from trainers.policy.packing import MicroBatch


@dataclass(frozen=True)
class TokenStats:
    """What the policy says of the response tokens of a micro-batch."""

    logprob: Tensor
    """(T,) float32, at temperature 1."""
    entropy: Tensor
    """(T,) float32, in nats; no gradient."""


def load_policy(config: ModelConfig) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model (safetensors only) and tokenizer of ``config.path``.

    Dropout is off: the log-probabilities that are trained on must be those of the policy that sampled.

    Raises:
        DataError: The folder is missing, incomplete or not a causal language model.
    """
    disable_progress_bar()  # type: ignore[no-untyped-call]  # the run has a display of its own
    path = Path(config.path)
    if path.is_absolute() or path.parts[:1] in ((".",), ("..",)) or path.exists() or "models" in path.parts[:1]:
        for name in ("config.json", "tokenizer_config.json"):
            if not (path / name).is_file():
                raise DataError(f"model.path {config.path}: no {name} there; give a folder that save_pretrained wrote")
        if not any(path.glob("*.safetensors")):
            raise DataError(
                f"model.path {config.path}: no *.safetensors there; weights in other formats can hold code and are not "
                "read (convert them with save_pretrained)"
            )
    try:
        settings = AutoConfig.from_pretrained(config.path)
        for name, value in settings.to_dict().items():
            if isinstance(value, float) and name.endswith(("dropout", "pdrop")):
                setattr(settings, name, 0.0)
        tokenizer = AutoTokenizer.from_pretrained(config.path)
        model = AutoModelForCausalLM.from_pretrained(
            config.path,
            config=settings,
            dtype=getattr(torch, config.dtype),
            attn_implementation=config.attention,
            use_safetensors=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise DataError(f"model.path {config.path}: cannot be loaded ({type(error).__name__}: {error})") from error
    if tokenizer.chat_template is None:
        raise DataError(f"model.path {config.path}: its tokenizer has no chat template; add chat_template.jinja")
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable()  # type: ignore[no-untyped-call]
    return model, tokenizer


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
    """Log-probabilities of a micro-batch in one ``forward``, as data-parallel wrappers need it."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: MicroBatch) -> TokenStats:
        """Log-probability and entropy of each response token of ``batch``, in its order."""
        device = self.model.device

        def on_device(array: Any) -> Tensor:
            return torch.from_numpy(array).to(device)

        tail, tail_lengths = on_device(batch.tail), on_device(batch.tail_lengths)
        width = tail.shape[1]
        mask = torch.arange(width, device=device) < tail_lengths[:, None]
        positions = torch.arange(width, device=device)[None]
        cache = None
        if batch.prefix.shape[1]:
            prefix_of, lengths = on_device(batch.prefix_of), on_device(batch.prefix_lengths)
            cache, prefix_mask = self._prefix(on_device(batch.prefix), lengths, prefix_of)
            mask = torch.cat([prefix_mask, mask], dim=1)
            positions = positions + lengths[prefix_of][:, None]
        hidden = self.model(
            input_ids=tail,
            attention_mask=mask.long(),
            position_ids=positions.expand_as(tail),
            past_key_values=cache,
            use_cache=cache is not None,
        )
        logits = hidden.logits[on_device(batch.sequence), on_device(batch.position)].float()
        logprobs = torch.log_softmax(logits, dim=-1)
        with torch.no_grad():
            entropy = -(logprobs.exp() * logprobs).sum(-1)
        chosen = logprobs.gather(-1, on_device(batch.target)[:, None]).squeeze(-1)
        return TokenStats(chosen, entropy)

    def _prefix(self, prefix: Tensor, lengths: Tensor, prefix_of: Tensor) -> tuple[DynamicCache, Tensor]:
        """Keys and values of the shared prefixes, one row per tail, and the mask of what is not padding."""
        mask = torch.arange(prefix.shape[1], device=prefix.device) < lengths[:, None]
        positions = torch.arange(prefix.shape[1], device=prefix.device)[None].expand_as(prefix)
        out = self.model(
            input_ids=prefix, attention_mask=mask.long(), position_ids=positions, use_cache=True, logits_to_keep=1
        )
        shared = DynamicCache()
        for number, layer in enumerate(out.past_key_values.layers):
            shared.update(layer.keys[prefix_of], layer.values[prefix_of], number)
        return shared, mask[prefix_of]
