"""CUDA's branches on a CPU, with values: tensors that say they are on a GPU, and stand-ins for its kernels.

Within :func:`pretended_cuda` a tensor that is moved to or made on ``cuda`` is an :class:`OnGPU`: its memory is the
CPU's, and what is computed from it is one, too. Where code asks for its device it is told ``cuda:0``, so that it takes
the way of a GPU; autocast on ``cuda`` is that of the CPU. Nothing is refused where devices are mixed: that
:mod:`fake_gpu` does, without values. The stand-ins refuse what the kernels refuse, and are slow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from trainers.policy import attention

GIB = 1 << 30
_LENGTHS = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
M = TypeVar("M", bound=nn.Module)
GPU = torch.device("cuda", 0)
CPU = torch.device("cpu")


class OnGPU(Tensor):
    """A tensor whose memory is the CPU's."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The first GPU."""
        return GPU


def efficient_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, sums: bool, dropout: float = 0.0,
    causal: bool = False, *, scale: float | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """In the place of ``aten::_scaled_dot_product_efficient_attention``: in float32, rounded once.

    As there the log-sums are padded to a multiple of 32, here with NaN; rows of a mask begin at multiples of 16 bytes.
    """
    assert query.dtype == key.dtype == value.dtype and not dropout and sums
    scores = query.float() @ key.float().mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if mask is not None:
        assert mask.dtype == query.dtype and mask.shape == scores.shape, "the kernel takes no mask of another shape"
        assert mask.stride(-2) * mask.element_size() % 16 == 0 and mask.data_ptr() % 16 == 0, "rows are not aligned"
        scores = scores + mask.float()
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    total = scores.logsumexp(-1)
    padded = F.pad(total, (0, -total.shape[-1] % 32), value=torch.nan)
    return (scores.softmax(-1) @ value.float()).to(query.dtype), padded, torch.zeros(()), torch.zeros(())


def varlen_attention(
    query: Tensor, key: Tensor, value: Tensor, *, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int,
    max_seqlen_k: int, softmax_scale: float | None, causal: bool, window_size: tuple[int, int], softcap: float = 0.0,
) -> Tensor:  # fmt: skip
    """In the place of FlashAttention's ``flash_attn_varlen_func``: what its documentation says, in float32."""
    assert causal
    lengths, groups = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k), query.shape[1] // key.shape[1]
    wide = value.float().repeat_interleave(groups, 1)
    weights = _weights(query, key, lengths, softmax_scale, window_size[0], softcap)
    return torch.cat([torch.einsum("hqk,khd->qhd", own, wide[keys]) for _, keys, own in weights]).to(query.dtype)


def _weights(
    query: Tensor, key: Tensor, lengths: Any, scale: float | None, window: int, softcap: float = 0.0
) -> Iterator[tuple[slice, slice, Tensor]]:
    """Of each sequence the queries, the keys and the weights between them, (heads, queries, keys)."""
    starts, longest = [own.tolist() for own in lengths[:2]], lengths[2:]
    assert all(most == int(own.diff().max()) for own, most in zip(lengths[:2], longest, strict=True))
    for first, last, low, high in zip(starts[0], starts[0][1:], starts[1], starts[1][1:], strict=False):
        keys = key[low:high].float().repeat_interleave(query.shape[1] // key.shape[1], 1)
        scores = torch.einsum("qhd,khd->hqk", query[first:last].float(), keys) * (scale or query.shape[-1] ** -0.5)
        if softcap:
            scores = (scores / softcap).tanh() * softcap
        behind = torch.arange(last - first)[:, None] + (high - low) - (last - first) - torch.arange(high - low)
        hidden = (behind < 0) | ((window >= 0) & (behind > window))
        yield slice(first, last), slice(low, high), scores.masked_fill(hidden, -torch.inf).softmax(-1)


def _check_flash(query: Tensor, key: Tensor, value: Tensor, lengths: Any, dropout: float, causal: bool) -> None:
    """Refuses what PyTorch's FlashAttention refuses, or what changes its result."""
    assert query.dtype == key.dtype == value.dtype and query.shape[2] == value.shape[2] <= 256 and causal
    assert lengths[0].dtype == lengths[1].dtype == torch.int32 and not query.shape[2] % 8 and not dropout
    assert query.stride(2) == key.stride(2) == value.stride(2) == 1


def _flash_forward(
    query: Tensor, key: Tensor, value: Tensor, *lengths: Any, scale: float | None = None, window_size_left: int = -1,
    window_size_right: int = -1,
) -> tuple[Tensor, ...]:  # fmt: skip
    """In the place of ``aten::_flash_attention_forward``: in float32, rounded once."""
    *lengths, dropout, causal, _ = lengths
    _check_flash(query, key, value, lengths, dropout, causal)
    out = varlen_attention(
        query, key, value, **dict(zip(_LENGTHS, lengths, strict=True)), softmax_scale=scale, causal=causal,
        window_size=(window_size_left, window_size_right),
    )  # fmt: skip
    total, state = torch.full((query.shape[1], len(query)), torch.nan), torch.zeros(2, dtype=torch.uint64)
    return out, total, state, torch.zeros(()), torch.zeros(())


def _flash_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, total: Tensor, *lengths: Any,
    scale: float | None = None, window_size_left: int = -1, window_size_right: int = -1,
) -> tuple[Tensor, ...]:  # fmt: skip
    """In the place of ``aten::_flash_attention_backward``: the same."""
    *lengths, dropout, causal, state, _ = lengths
    _check_flash(query, key, value, lengths, dropout, causal)
    assert out.shape == grad.shape == query.shape and total.shape == query.shape[1::-1] and state.dtype == torch.uint64
    wide = [part.float() for part in (grad, out, query)]
    of_query, of_key, of_value = (torch.zeros(part.shape) for part in (query, key, value))
    groups, factor = query.shape[1] // key.shape[1], scale or query.shape[-1] ** -0.5
    for rows, keys, weights in _weights(query, key, lengths, scale, window_size_left):
        of_out, output, queries = (part[rows] for part in wide)
        own = [part[keys].float().repeat_interleave(groups, 1) for part in (key, value)]
        of_weights = torch.einsum("qhd,khd->hqk", of_out, own[1])
        of_scores = weights * (of_weights - (of_out * output).sum(-1).T[..., None]) * factor
        of_query[rows] = torch.einsum("hqk,khd->qhd", of_scores, own[0])
        for buffer, part, others in ((of_key, of_scores, queries), (of_value, weights, of_out)):
            buffer[keys] = torch.einsum("hqk,qhd->khd", part, others).unflatten(1, (-1, groups)).sum(2)
    return tuple(part.to(query.dtype) for part in (of_query, of_key, of_value))


@contextmanager
def flash_attention() -> Iterator[None]:
    """While it is entered PyTorch's FlashAttention computes on a CPU, in float32, rounded once."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("_flash_attention_forward", _flash_forward, "CPU")
    library.impl("_flash_attention_backward", _flash_backward, "CPU")
    try:
        yield
    finally:
        library._destroy()


@contextmanager
def flash_on_cpu() -> Iterator[None]:
    """While it is entered trees are computed by FlashAttention, in float32, too."""
    with flash_attention(), patch.object(attention, "_runs_flash", lambda *_: True):
        yield


class _Pretended(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if func is torch.ops.aten._scaled_dot_product_efficient_attention:
            assert all(isinstance(part, OnGPU) for part in args[:3])
            func = efficient_attention
        if func is F.scaled_dot_product_attention and isinstance(args[0], OnGPU):
            with sdpa_kernel(SDPBackend.MATH):
                return func(*args, **named)
        if func is Tensor.pin_memory:
            return args[0]
        there = any(_is_cuda(value) for value in (*args, *named.values()))
        here = func in (Tensor.cpu, Tensor.numpy) or (func is Tensor.to and CPU in (*args[1:], *named.values()))
        if there:
            args = [CPU if _is_cuda(value) else value for value in args]
            named = {name: CPU if _is_cuda(value) else value for name, value in named.items()}
        if here:
            args = [args[0].as_subclass(Tensor), *args[1:]]
        found = func(*args, **named)
        return found.as_subclass(OnGPU) if there and isinstance(found, Tensor) else found


def _is_cuda(value: Any) -> bool:
    return isinstance(value, str | torch.device) and str(value).startswith("cuda")


class _Autocast(torch.autocast):
    def __init__(self, device_type: str, *args: Any, **named: Any) -> None:
        super().__init__("cpu" if device_type == "cuda" else device_type, *args, **named)


def _of_cpu(function: Callable[[str], Any], kind: str) -> Any:
    return function("cpu" if kind == "cuda" else kind)


@contextmanager
def pretended_cuda() -> Iterator[torch.device]:
    """While it is entered there is a GPU of 80 GiB, which it yields: 60 are free, and 3 more kept by PyTorch."""
    mode, backward = _Pretended(), torch.autograd._engine_run_backward

    def run(*args: Any, **named: Any) -> Any:  # the mode is off while a function of PyTorch runs
        with torch._C._EnableTorchFunction(), mode:
            return backward(*args, **named)

    own = {name: partial(_of_cpu, getattr(torch, name)) for name in ("is_autocast_enabled", "get_autocast_dtype")}
    with (
        patch.multiple(torch, autocast=_Autocast, **own),
        patch.object(torch.autograd, "_engine_run_backward", run),
        patch.multiple(
            torch.cuda, is_available=lambda: True, device_count=lambda: 1, synchronize=lambda: None,
            mem_get_info=lambda device: (60 * GIB, 80 * GIB), memory_reserved=lambda device: 5 * GIB,
            memory_allocated=lambda device: 2 * GIB, max_memory_allocated=lambda: 7 * GIB,
            get_device_capability=lambda device=None: (9, 0),
        ),
        patch.object(torch.backends.cuda, "is_flash_attention_available", lambda: True),
        flash_attention(),
        mode,
    ):  # fmt: skip
        yield GPU


def moved(model: M) -> M:
    """``model`` with weights on the GPU; tied ones stay tied. ``Module.to`` would leave their class as it is."""
    seen: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            data = parameter.data.as_subclass(OnGPU)
            made = seen.setdefault(id(parameter), nn.Parameter(data, requires_grad=parameter.requires_grad))
            module._parameters[name] = made
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = buffer.as_subclass(OnGPU)
    return model
