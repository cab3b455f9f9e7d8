"""Tiny models of many architectures with random weights: what the trainer must compute as each does by itself."""

from __future__ import annotations

import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

WINDOW = 7
_WIDE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_GROUPED = {**_WIDE, "num_key_value_heads": 2}
_HEADS = {**_GROUPED, "head_dim": 16}
_MIXED = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
_GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "initializer_range": 0.3}
_NO_IDS = {"bos_token_id": None, "eos_token_id": None}
_UNDROPPED = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}

COMPUTED = {
    "llama": (LlamaForCausalLM, LlamaConfig, _GROUPED),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {**_GROUPED, "tie_word_embeddings": True}),
    "qwen2-sliding": (Qwen2ForCausalLM, Qwen2Config, {**_GROUPED, **_MIXED, "use_sliding_window": True}),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, _HEADS),
    "mistral": (MistralForCausalLM, MistralConfig, {**_HEADS, "sliding_window": WINDOW}),
    "gemma2": (
        Gemma2ForCausalLM,
        Gemma2Config,
        {**_HEADS, **_MIXED, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 9.0},
    ),
    "gemma3": (Gemma3ForCausalLM, Gemma3TextConfig, {**_HEADS, **_MIXED}),
    "gpt2": (GPT2LMHeadModel, GPT2Config, {**_GPT2, **_NO_IDS, **_UNDROPPED}),
    "gpt_neox": (GPTNeoXForCausalLM, GPTNeoXConfig, _WIDE),
    "gpt_oss": (GptOssForCausalLM, GptOssConfig, {**_HEADS, **_MIXED, **_EXPERTS}),
}
BY_ROWS = {
    "llama4": (
        Llama4ForCausalLM,
        Llama4TextConfig,
        {**_HEADS, **_EXPERTS, "intermediate_size_mlp": 48, "attention_chunk_size": 8},
    ),
    "mamba": (MambaForCausalLM, MambaConfig, {"hidden_size": 16, "num_hidden_layers": 1, "state_size": 4, **_NO_IDS}),
    "bloom": (BloomForCausalLM, BloomConfig, {"hidden_size": 32, "n_layer": 2, "n_head": 4, **_NO_IDS}),
}


def architecture(name: str, size: int) -> PreTrainedModel:
    """A model for a vocabulary of ``size``, float32, in evaluation mode; the same weights each time."""
    torch.manual_seed(7)
    kind, config, settings = {**COMPUTED, **BY_ROWS}[name]
    model: PreTrainedModel = kind(config(vocab_size=size, **settings))
    return model.train(False)
