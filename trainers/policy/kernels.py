"""Kernels of the policy's attention besides PyTorch's own: FlexAttention, and FlashAttention 2 and 3.

Each computes what :func:`~trainers.policy.attention.tree_attention` does, and is registered with transformers alike.
FlexAttention takes the pattern as a mask of blocks. FlashAttention has no such masks, but the pattern needs none: a
chain of tokens attends, causally, to the keys of its path followed by its own, as each sequence of its ``varlen``
function does.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from functools import cache, partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.exc import FailOnRecompileLimitHit
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from transformers import AttentionInterface, PreTrainedModel

from envsuite.core.errors import DataError, MissingExtra
from trainers.policy.attention import NAME, Scoring, rows_of
from trainers.policy.config import AttentionKernel, ModelConfig
from trainers.policy.rows import rows_reason
from trainers.policy.transfer import to_device
from trainers.policy.tree_plan import TreePlan
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
    """Sets the kernel that ``model`` computes with where it is on a GPU.

    Raises:
        ConfigError: It cannot compute heads of the model's size there.
    """
    if kernel == "flex" and torch.cuda.is_available():
        shape = model.config.get_text_config(decoder=True)
        heads = getattr(shape, "num_attention_heads", None)
        numbers = getattr(shape, "head_dim", None) or (shape.hidden_size // heads if heads else _LEAST)
        if numbers < _LEAST:
            raise ConfigError(
                f"model.attention is flex, which on a GPU needs heads of {_LEAST} numbers or more, and this model's "
                f"have {numbers}; set it to sdpa"
            )
    _CHOSEN[model] = kernel


def kernel_of(model: PreTrainedModel) -> str:
    """Name, for :func:`~trainers.policy.attention.attending`, of the attention that ``model`` computes with.

    On a CPU (while a model is loaded, or for ``method.reference: cpu``) that is PyTorch's own; by rows, that which
    transformers chose.
    """
    if rows_reason(model) is not None:
        own: str = model.config.get_text_config(decoder=True)._attn_implementation
        return own
    return NAME if model.device.type == "cpu" else NAMES[_CHOSEN.get(model, "sdpa")]


# -- FlexAttention -----------------------------------------------------------------------------------------------------

_VARIANTS = 16  # most that one function is compiled to; test_kernels.py counts those that there are
_LEAST = 16  # numbers of a head that FlexAttention compiles
_INTERPRETED = {"cpu"}  # devices on which nothing is compiled


def seen_tokens(plan: TreePlan, window: int | None) -> Seen:
    """The pattern as a function of FlexAttention: whether a query, of the tokens that are computed, sees a key.

    Args:
        plan: The row.
        window: Width of the sliding window.

    Returns:
        Given indices of batch, head, query and key, true where the query sees the key.
    """
    depth, end = plan.depth, to_device(plan.tree.end, plan.device)
    before = torch.tensor(plan.before, device=plan.device)  # a number would be compiled in

    def is_visible(_: Tensor, __: Tensor, query: Tensor, key: Tensor) -> Tensor:
        query = query + before
        visible = (key <= query) & (query < end[key])
        return visible if window is None else visible & (depth[query] - depth[key] < window)

    return is_visible


def _block_mask(plan: TreePlan, window: int | None) -> BlockMask:
    keys, make = len(plan.tree), _compile(create_block_mask, plan.device.type, window)
    with torch.no_grad():  # as for gradients, or it would be compiled for both
        mask: BlockMask = make(seen_tokens(plan, window), None, None, keys - plan.before, keys, device=plan.device)
    return mask


@cache
def _compile(function: Callable[..., Any], device: str, *use: Hashable) -> Callable[..., Any]:
    """``function`` as compiled for rows of any length, by itself for each ``use``; on a CPU the function itself.

    PyTorch compiles a variant where a length is 1, where two are equal, and where a row is shorter than a block. At its
    limit of variants it would otherwise go on, without a word, with a matrix of all scores.

    Raises (when called):
        DataError: There are more variants than :data:`_VARIANTS`.
    """
    if device in _INTERPRETED:
        return function
    how: Any = {"isolate_recompiles": True, "recompile_limit": _VARIANTS}
    settings: dict[str, Any] = {"specialize_float": True}  # scale and soft cap are the model's own
    if not how.keys() <= signature(torch.compile).parameters.keys():  # before PyTorch 2.13 one limit is for all uses
        how, settings = {}, {**settings, "recompile_limit": 4 * _VARIANTS}
    compiled_function = torch.compile(function, dynamic=True, fullgraph=True, **how)

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            with torch._dynamo.config.patch(settings):
                return compiled_function(*args, **kwargs)
        except FailOnRecompileLimitHit as error:
            raise DataError(
                f"model.attention is flex, which was compiled {_VARIANTS} times for one kind of layer and does not fit "
                "the rows yet; set it to sdpa, or see why by TORCH_LOGS=recompiles"
            ) from error

    return call


def flex_tree_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    tree_plan: TreePlan,
    **options: Any,
) -> tuple[Tensor, None]:
    """FlexAttention of a row, compiled on GPUs; on a CPU without gradients. Arguments and result as the function above.

    Raises:
        DataError: The model's attention has sinks or a position bias.
    """
    _refuse(module, "flex", options)
    how = Scoring.of(options)
    softcap = how.softcap
    query, key, value = (part.transpose(0, 1)[None] for part in rows_of(module, query, key, value, tree_plan))
    mask = tree_plan.once(("flex", how.window), lambda: _block_mask(tree_plan, how.window))

    def cap_score(score: Tensor, *_: Tensor) -> Tensor:
        assert softcap is not None
        return (score / softcap).tanh() * softcap

    attend = _compile(flex_attention, query.device.type, how.window, torch.is_grad_enabled())
    out: Tensor = attend(
        query, key, value,
        score_mod=None if softcap is None else cap_score,
        block_mask=mask,
        scale=how.scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )  # fmt: skip
    return out.transpose(1, 2), None


# -- FlashAttention ----------------------------------------------------------------------------------------------------

_LENGTHS = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")


def _varlen(kernel: AttentionKernel) -> Callable[..., Any]:
    """The function of FlashAttention for sequences of unequal length.

    Raises:
        ImportError: It is not installed.
    """
    if kernel == "flash_attention_2":
        from flash_attn import flash_attn_varlen_func
    else:
        from flash_attn_interface import flash_attn_varlen_func
    function: Callable[..., Any] = flash_attn_varlen_func
    return function


def varlen_tree_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    varlen: Callable[[], Callable[..., Any]],
    tree_plan: TreePlan,
    **options: Any,
) -> tuple[Tensor, None]:
    """FlashAttention of a row; the keys of a chain's path are gathered before its own.

    Arguments and result as the function above, and ``varlen``: it returns FlashAttention's function, which is causal
    from the bottom right.

    Raises:
        DataError: The model's attention has sinks or a position bias.
    """
    _refuse(module, "flash_attention", options)
    how = Scoring.of(options)
    (call,) = tree_plan.sequences()
    queries, keys, values = rows_of(module, query, key, value, tree_plan)
    output = varlen()(
        queries.contiguous(), keys[call.keys], values[call.keys],
        **dict(zip(_LENGTHS, call.lengths, strict=True)),
        softmax_scale=how.scale,
        causal=True,
        window_size=(-1, -1) if how.window is None else (how.window - 1, 0),
        **({} if how.softcap is None else {"softcap": how.softcap}),
    )  # fmt: skip
    # Version 3 returns log-sums, too, in some releases.
    out: Tensor = output[0] if isinstance(output, tuple) else output
    return out[None], None


def _refuse(module: nn.Module, kernel: str, options: dict[str, Any]) -> None:
    for name, feature in (("s_aux", "attention sinks"), ("position_bias", "a position bias")):
        if options.get(name) is not None:
            raise DataError(
                f"the attention of {type(module).__name__} has {feature}, which model.attention: {kernel} lacks; set "
                "it to sdpa"
            )


AttentionInterface.register(NAMES["flex"], flex_tree_attention)
for _kernel in ("flash_attention_2", "flash_attention_3"):
    AttentionInterface.register(NAMES[_kernel], partial(varlen_tree_attention, varlen=partial(_varlen, _kernel)))
