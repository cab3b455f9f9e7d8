"""Models with heads of 32 numbers, which all kernels of attention take; random weights."""

from __future__ import annotations

import torch
from transformers import (
    BambaConfig,
    BambaForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
)

SIZE = 61
_SHAPE = {
    "vocab_size": SIZE, "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "initializer_range": 0.1, "bos_token_id": None,
    "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
_FLAT = {**_SHAPE, "initializer_range": 0.05}  # hybrids at 0.1 have log-probabilities too large to compare in bfloat16
_MIXED = {"sliding_window": 7, "layer_types": ["sliding_attention", "full_attention"]}


def gpu_model(name: str) -> PreTrainedModel:
    """A model on the CPU, float32, in evaluation mode; the same weights each time."""
    torch.manual_seed(1)
    if name == "llama":
        return LlamaForCausalLM(LlamaConfig(**_SHAPE)).train(False)
    if name == "gemma2":
        capped = {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 9.0, "head_dim": 32}
        return Gemma2ForCausalLM(Gemma2Config(**_SHAPE, **_MIXED, **capped)).train(False)
    if name == "gpt2":
        ids = {"bos_token_id": None, "eos_token_id": None}
        shape = {"n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": 512, "initializer_range": 0.1}
        shape |= dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)  # as where the trainer loads a model
        return GPT2LMHeadModel(GPT2Config(vocab_size=SIZE, **shape, **ids)).train(False)
    if name == "qwen3_5":
        layers = {"layer_types": ["linear_attention", "full_attention"], "head_dim": 32}
        heads = {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
        heads |= dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 32)
        return Qwen3_5ForCausalLM(Qwen3_5TextConfig(**_FLAT, **layers, **heads)).train(False)
    if name == "lfm2":
        return Lfm2ForCausalLM(Lfm2Config(**_FLAT, layer_types=["conv", "full_attention"])).train(False)
    if name == "bamba":
        mixer = {"mamba_n_heads": 8, "mamba_d_head": 32, "mamba_d_state": 32, "mamba_expand": 2}
        return BambaForCausalLM(BambaConfig(**_FLAT, **mixer, attn_layer_indices=[1])).train(False)
    windows = {**_MIXED, "use_sliding_window": True} if name == "qwen2-sliding" else {}
    return Qwen2ForCausalLM(Qwen2Config(**_SHAPE, **windows, tie_word_embeddings=True)).train(False)
