"""Initialises heads for copying: they attend a fixed number of tokens back, or recall what followed a token before."""

from __future__ import annotations

import math
from typing import Any

import torch
from transformers import PreTrainedModel

from trainers.settings import ConfigError


def prepare_head(model: PreTrainedModel, layer: int, head: int, distance: int) -> None:
    """Initialises one head by :func:`look_back` or :func:`recall`, whichever its layer takes.

    Raises:
        ConfigError: The layer takes neither.
    """
    layers: Any = getattr(model.base_model, "layers", ())
    own: Any = layers[layer] if layer < len(layers) else None
    delta: Any = getattr(own, "linear_attn", None)
    has_keys = hasattr(delta, "in_proj_z") and head < delta.num_k_heads == delta.num_v_heads
    has_bias = model.config.model_type == "llama" and model.config.attention_bias
    if has_bias and own is not None and head < model.config.num_attention_heads:
        look_back(model, layer, head, distance)
    elif has_keys and distance < delta.conv_kernel_size:
        recall(delta, head, distance)
    else:
        raise ConfigError(
            f"architecture.look_back: {(layer, head, distance)} is neither a head of a Llama with biases nor of "
            "Qwen3.5's gated delta rule with as many keys as values and a wider convolution; set look_back: []"
        )


def look_back(model: Any, layer: int, head: int, distance: int, strength: float = 4.0) -> None:
    """Sets the biases of one attention head so that each token attends to the one ``distance`` before it.

    With rotary positions, the constant key k and the constant query R(-distance) k score highest where the key is
    ``distance`` tokens before the query, whatever the tokens are. A head that attends to the previous token is the
    first half of an induction circuit (Olsson et al. 2022); with such heads at the start, a model learns to copy in
    hundreds of steps. Heads that share their keys share k.

    Args:
        model: A Llama model whose attention has biases.
        layer: Index of the layer.
        head: Index of the query head.
        distance: Tokens to look back, at least 1.
        strength: Value of each component of k; a larger value gives sharper attention.
    """
    attention = model.model.layers[layer].self_attn
    size = attention.head_dim
    frequency = model.model.rotary_emb.inv_freq
    cos, sin = torch.cos(distance * frequency), torch.sin(distance * frequency)
    key = torch.full((size,), strength)
    first, second = key.chunk(2)
    query = torch.cat([first * cos + second * sin, second * cos - first * sin])
    key_head = head // attention.num_key_value_groups
    with torch.no_grad():
        attention.q_proj.bias[head * size : (head + 1) * size] = query
        attention.k_proj.bias[key_head * size : (key_head + 1) * size] = key


def recall(delta: Any, head: int, distance: int, decay: float = 0.003, gate: float = 10.0) -> None:
    """Sets up one head of a gated delta rule so that a token recalls what stood ``distance`` tokens after its like.

    The convolution gives each value the key of the token ``distance`` before it, queries are made as keys are, and the
    output gives back the value: an induction circuit in one layer. The state decays slowly. Gates with larger weights
    are closed for half of the tokens and open for the others; those of transformers are nearly closed for all.

    Args:
        delta: The layer of transformers' Qwen3.5.
        head: Index of the head.
        distance: Tokens to look back, less than the width of the convolution.
        decay: Share of the state that a token forgets.
        gate: Factor of the gate's weights.
    """
    query = slice(head * delta.head_k_dim, (head + 1) * delta.head_k_dim)
    key = slice(delta.key_dim + query.start, delta.key_dim + query.stop)
    own = slice(head * delta.head_v_dim, (head + 1) * delta.head_v_dim)
    value = slice(2 * delta.key_dim + own.start, 2 * delta.key_dim + own.stop)
    weight = delta.in_proj_qkv.weight
    with torch.no_grad():
        for part, back in ((query, 0), (key, distance), (value, 0)):
            delta.conv1d.weight[part] = 0.0
            delta.conv1d.weight[part, 0, -1 - back] = 1.0
        weight[key] = weight[query]
        delta.in_proj_z.weight[own] *= gate
        delta.out_proj.weight[:, own] = weight[value].T
        delta.A_log[head] = 0.0
        delta.dt_bias[head] = math.log(math.expm1(decay))
