"""Checks that a model computes the same in a token tree as one sequence at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from envsuite.core.errors import DataError
from trainers.policy.attention import NAME, attending, evaluating, narrow_windows, unsupported
from trainers.policy.flat import FlatBatch, flatten, to_device
from trainers.policy.kernels import kernel_of
from trainers.policy.precision import computing, float32_weights
from trainers.policy.statistics import OutputLayer
from trainers.policy.tree import Ints, TokenSequence, TokenTree, token_tree

REMEDY = "take a model whose layers are full or sliding attention, such as Llama, Qwen, Mistral or Gemma"
_WINDOW = 5  # sliding window of the check, in tokens
_TOLERANCE = 1e-3  # of the largest value; float32 differs by 1e-5
_QUANTISED = 5e-2  # quantised layers compute in bfloat16
_ROUNDED = 0.1  # kernels that compute in bfloat16, and the layers around them


def check_policy(model: PreTrainedModel) -> None:
    """Compares the logits of both ways.

    Raises:
        DataError: They differ.
    """
    if reason := unsupported(model):
        raise DataError(f"the trainer cannot compute {type(model).__name__}: {reason}; {REMEDY}")

    def packed(flat: FlatBatch) -> Tensor:
        logits: Tensor = model(**flat.arguments, logits_to_keep=flat.place).logits[0]
        return logits

    def alone(tokens: Tensor) -> Tensor:
        logits: Tensor = model(tokens, use_cache=False).logits[0]
        return logits

    _compare(model, packed, alone)


def output_layer(model: PreTrainedModel) -> OutputLayer | None:
    """Returns the output layer, if the logits are a linear function of the last hidden states, bounded or not.

    ``None`` where they are anything else (scaled, an adapted or quantised layer): the model then computes them whole.
    """
    layer = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    config = model.config.get_text_config(decoder=True)
    if type(layer) is not torch.nn.Linear:
        return None
    found = OutputLayer(layer, getattr(config, "final_logit_softcapping", None))
    tokens = torch.arange(_WINDOW, device=model.device)[None] % config.vocab_size
    with evaluating(model), computing("float32", model.device), float32_weights(model):
        own: Tensor = model(tokens, use_cache=False).logits
        ours = found.logits(model.base_model(tokens, use_cache=False).last_hidden_state)
    return found if bool((ours - own).abs().max() <= _TOLERANCE * own.abs().max()) else None


def check_backbone(model: PreTrainedModel) -> None:
    """Compares the hidden states of both ways, for a model without output layer.

    Raises:
        DataError: They differ.
    """

    def packed(flat: FlatBatch) -> Tensor:
        states: Tensor = model(**flat.arguments).last_hidden_state[0, flat.place]
        return states

    def alone(tokens: Tensor) -> Tensor:
        states: Tensor = model(tokens, use_cache=False).last_hidden_state[0]
        return states

    _compare(model, packed, alone)


def _compare(model: PreTrainedModel, packed: Callable[[FlatBatch], Tensor], alone: Callable[[Tensor], Tensor]) -> None:
    """Compares in float32, to tell a wrong mask from rounding; the sequences go past any sliding window."""
    tree, sequences = sample_tree(model.config.get_text_config(decoder=True).vocab_size)
    device, kernel = model.device, kernel_of(model)
    with evaluating(model), narrow_windows(model, _WINDOW):
        with computing("float32", device), float32_weights(model):
            with attending(model, NAME):
                ours = packed(flatten(tree, model)).float()
            with attending(model, "eager"):
                alike = [alone(to_device(tokens, device)[None])[:-1] for tokens in sequences]
                own = torch.cat(alike).float()
        if kernel != NAME:
            with computing("bfloat16", device), attending(model, kernel):
                chosen = packed(flatten(tree, model)).float()
    if not bool(torch.isfinite(own).all()):
        raise DataError(
            f"{type(model).__name__}: its weights give values that are not finite; where a run diverged, take an "
            "earlier checkpoint"
        )
    off = float((ours - own).abs().max() / own.abs().max())
    if not off <= (_TOLERANCE if all(p.is_floating_point() for p in model.parameters()) else _QUANTISED):
        raise DataError(
            f"{type(model).__name__} computes something else in a tree of tokens than in separate sequences (off by "
            f"{off:.2g} of the largest value in a short test): it does not take its attention from transformers' "
            f"attention interface, or it keeps state elsewhere; {REMEDY}"
        )
    if kernel != NAME and not (off := float((chosen - own).abs().max() / own.abs().max())) <= _ROUNDED:
        raise DataError(
            f"{type(model).__name__} computes something else with the kernel of model.attention than by itself (off by "
            f"{off:.2g} of the largest value in a short test); set it to sdpa"
        )


def sample_tree(vocabulary: int) -> tuple[TokenTree, list[Ints]]:
    """A small tree that branches twice, and the sequences in it; all but the first token of each are targets."""
    rng = np.random.default_rng(0)

    def some(count: int) -> Ints:
        return rng.integers(0, vocabulary, count)

    first, other = some(9), some(6)
    second = np.concatenate([first, some(5)])
    sequences = [np.concatenate([before, some(after)])
                 for before, after in ((first, 4), (second, 3), (second, 8), (other, 7))]  # fmt: skip
    starts = np.cumsum([0, *(len(tokens) - 1 for tokens in sequences)])
    parts = [TokenSequence.of(tokens, np.arange(len(tokens) - 1), int(start))
             for tokens, start in zip(sequences, starts[:-1], strict=True)]  # fmt: skip
    return token_tree(parts), sequences
