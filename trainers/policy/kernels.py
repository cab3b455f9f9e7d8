"""Kernels of the policy's attention besides PyTorch's own: FlexAttention, and FlashAttention 2 and 3.

Each computes what :func:`~trainers.policy.attention.prefix_attention` does, and is registered with transformers alike.
FlexAttention takes the pattern as a mask of blocks. FlashAttention has no such masks, but the pattern needs none: a
tail attends, causally, to the keys of its prefix followed by its own, as each sequence of its ``varlen`` function does.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import cache, partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from transformers import AttentionInterface, PreTrainedModel

from envsuite.core.errors import DataError, MissingExtra
from trainers.policy.attention import NAME, PrefixPlan
from trainers.policy.config import AttentionKernel, ModelConfig
from trainers.policy.precision import as_computed
from trainers.settings import ConfigError

Seen = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
NAMES: dict[AttentionKernel, str] = {
    "sdpa": NAME,
    "flex": f"{NAME}_blocks",
    "flash_attention_2": f"{NAME}_varlen_2",
    "flash_attention_3": f"{NAME}_varlen_3",
}
"""Names of the attention implementations that are registered with transformers, by the setting ``model.attention``;
none with "flash" in it, from which transformers would infer masks."""
_PACKAGES = {
    "flash_attention_2": "the package flash-attn: pip install flash-attn --no-build-isolation",
    "flash_attention_3": "the module flash_attn_interface, for Hopper GPUs: python setup.py install in the folder "
    "hopper of https://github.com/Dao-AILab/flash-attention",
}
_CHOSEN: weakref.WeakKeyDictionary[nn.Module, AttentionKernel] = weakref.WeakKeyDictionary()


def check_kernel(config: ModelConfig) -> None:
    """Checks that ``config.attention`` runs here, before any weight is read.

    Raises:
        ConfigError: There is no GPU that it runs on.
        MissingExtra: It needs a package that is not installed.
    """
    kernel = config.attention
    if kernel == "sdpa":
        return
    if not torch.cuda.is_available():
        raise ConfigError(f"model.attention is {kernel}, which needs CUDA, and torch finds none here; set it to sdpa")
    if kernel == "flash_attention_3" and torch.cuda.get_device_capability()[0] != 9:
        raise ConfigError(
            f"model.attention is {kernel}, which is for Hopper GPUs, and this one is {torch.cuda.get_device_name()}; "
            "set it to flash_attention_2, flex or sdpa"
        )
    if kernel != "flex":
        try:
            _varlen(kernel)
        except ImportError as error:
            raise MissingExtra(
                f"model.attention is {kernel}, which needs {_PACKAGES[kernel]} ({error}); or set it to flex or sdpa"
            ) from error


def choose_kernel(model: PreTrainedModel, kernel: AttentionKernel) -> None:
    """Sets the kernel that ``model`` computes with where it is on a GPU."""
    _CHOSEN[model] = kernel


def kernel_of(model: PreTrainedModel) -> str:
    """Name, for :func:`~trainers.policy.attention.attending`, of the attention that ``model`` computes with.

    On a CPU (while a model is loaded, or for ``method.reference: cpu``) that is PyTorch's own.
    """
    return NAME if model.device.type == "cpu" else NAMES[_CHOSEN.get(model, "sdpa")]


def _cut(plan: PrefixPlan) -> int:
    """Number of tokens of the row that belong to prefixes, padding included."""
    return int(plan.prefixes * plan.prefix_width)


# -- FlexAttention -----------------------------------------------------------------------------------------------------


def seen_tokens(plan: PrefixPlan, window: int | None) -> Seen:
    """The pattern as a function of FlexAttention: whether a query of the row sees a key.

    Padding sees what is before it in its own sequence, so that no row of the mask is empty.

    Args:
        plan: The micro-batch.
        window: Width of the sliding window.

    Returns:
        Given indices of batch, head, query and key, true where the query sees the key.
    """
    batch, cut = plan.batch, _cut(plan)
    tokens = cut + batch.tail.size
    column = np.arange(tokens)
    sequence, position, prefix = (np.full(tokens, -1) for _ in range(3))
    sequence[:cut], position[:cut] = np.divmod(column[:cut], max(plan.prefix_width, 1))
    sequence[cut:], place = np.divmod(column[cut:] - cut, plan.tail_width)
    position[cut:] = place + batch.prefix_lengths[batch.prefix_of][sequence[cut:]]
    prefix[cut:] = batch.prefix_of[sequence[cut:]]
    sequence[cut:] += plan.prefixes
    shared = np.full(tokens, -2)  # the prefix that a token is part of, if others may see it
    real = position[:cut] < batch.prefix_lengths[sequence[:cut]]
    shared[:cut][real] = sequence[:cut][real]
    own, at, of, given = (torch.from_numpy(values).to(plan.device) for values in (sequence, position, prefix, shared))

    def seen(_: Tensor, __: Tensor, query: Tensor, key: Tensor) -> Tensor:
        found = ((own[query] == own[key]) & (key <= query)) | (of[query] == given[key])
        return found if window is None else found & (at[query] - at[key] < window)

    return seen


def _block_mask(plan: PrefixPlan, window: int | None) -> BlockMask:
    tokens = _cut(plan) + plan.tails * plan.tail_width
    seen = seen_tokens(plan, window)
    return create_block_mask(seen, None, None, tokens, tokens, device=plan.device)


@cache
def _compiled() -> Callable[..., Any]:
    return torch.compile(flex_attention)


def flex_prefix_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    prefix_plan: PrefixPlan,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """FlexAttention of a row, compiled on GPUs; on a CPU without gradients. Arguments and result as the function above.

    Raises:
        DataError: The model's attention has sinks or a position bias.
    """
    _refuse(module, "flex", others)
    query, key, value = as_computed(query, key, value)
    mask = prefix_plan.once(("flex", sliding_window), lambda: _block_mask(prefix_plan, sliding_window))

    def capped(score: Tensor, *_: Tensor) -> Tensor:
        assert softcap is not None
        return (score / softcap).tanh() * softcap

    attend = _compiled() if query.device.type != "cpu" else cast(Callable[..., Any], flex_attention)
    out: Tensor = attend(
        query, key, value,
        score_mod=None if softcap is None else capped,
        block_mask=mask,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )  # fmt: skip
    return out.transpose(1, 2), None


# -- FlashAttention ----------------------------------------------------------------------------------------------------


def _varlen(kernel: AttentionKernel) -> Callable[..., Any]:
    """The function of FlashAttention for sequences of unequal length.

    Raises:
        ImportError: It is not installed.
    """
    if kernel == "flash_attention_2":
        from flash_attn import flash_attn_varlen_func
    else:
        from flash_attn_interface import flash_attn_varlen_func
    found: Callable[..., Any] = flash_attn_varlen_func
    return found


class _Sequences:
    """Prefixes and tails without padding: where their queries and keys are in the row, and where each sequence ends."""

    def __init__(self, plan: PrefixPlan) -> None:
        batch, cut = plan.batch, _cut(plan)
        queries = [
            number * plan.prefix_width + np.arange(length) for number, length in enumerate(batch.prefix_lengths)
        ] if plan.prefix_width else []  # fmt: skip
        keys = [*queries]
        for number, (length, prefix) in enumerate(zip(batch.tail_lengths, batch.prefix_of, strict=True)):
            own = cut + number * plan.tail_width + np.arange(length)
            keys.append(np.concatenate([keys[prefix], own]) if plan.prefix_width else own)
            queries.append(own)

        def ends(parts: list[Any]) -> Tensor:
            return torch.tensor([0, *np.cumsum([len(part) for part in parts])], dtype=torch.int32, device=plan.device)

        self.queries, self.keys = (torch.from_numpy(np.concatenate(of)).to(plan.device) for of in (queries, keys))
        self.lengths = {
            "cu_seqlens_q": ends(queries),
            "cu_seqlens_k": ends(keys),
            "max_seqlen_q": max(map(len, queries)),
            "max_seqlen_k": max(map(len, keys)),
        }


def varlen_prefix_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    varlen: Callable[[], Callable[..., Any]],
    prefix_plan: PrefixPlan,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """FlashAttention of a row; a tail's keys are gathered behind those of its prefix.

    Arguments and result as the function above, and ``varlen``: it returns FlashAttention's function, which is causal
    from the bottom right.

    Raises:
        DataError: The model's attention has sinks or a position bias.
    """
    _refuse(module, "flash_attention", others)
    rows = prefix_plan.once("flash", lambda: _Sequences(prefix_plan))
    queries, keys, values = (part[0].transpose(0, 1) for part in as_computed(query, key, value))
    found = varlen()(
        queries[rows.queries], keys[rows.keys], values[rows.keys],
        **rows.lengths,
        softmax_scale=scaling,
        causal=True,
        window_size=(-1, -1) if sliding_window is None else (sliding_window - 1, 0),
        **({} if softcap is None else {"softcap": softcap}),
    )  # fmt: skip
    found = found[0] if isinstance(found, tuple) else found  # version 3 returns log-sums, too, in some releases
    out = found.new_zeros(queries.shape[0], *found.shape[1:])
    return out.index_copy(0, rows.queries, found)[None], None


def _refuse(module: nn.Module, kernel: str, others: dict[str, Any]) -> None:
    for name, said in (("s_aux", "attention sinks"), ("position_bias", "a position bias")):
        if others.get(name) is not None:
            raise DataError(
                f"the attention of {type(module).__name__} has {said}, which model.attention: {kernel} lacks; set it "
                "to sdpa"
            )


AttentionInterface.register(NAMES["flex"], flex_prefix_attention)
for _kernel in ("flash_attention_2", "flash_attention_3"):
    AttentionInterface.register(NAMES[_kernel], partial(varlen_prefix_attention, varlen=partial(_varlen, _kernel)))
