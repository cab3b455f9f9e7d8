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

GIB = 1 << 30
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
    assert causal and max_seqlen_q == int(cu_seqlens_q.diff().max()) and max_seqlen_k == int(cu_seqlens_k.diff().max())
    out = []
    ends = zip(
        cu_seqlens_q.tolist(), cu_seqlens_q[1:].tolist(), cu_seqlens_k.tolist(), cu_seqlens_k[1:].tolist(), strict=False
    )
    for first, last, low, high in ends:
        queries, keys, values = query[first:last].float(), key[low:high].float(), value[low:high].float()
        groups = query.shape[1] // key.shape[1]
        keys, values = keys.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1)
        scores = torch.einsum("qhd,khd->hqk", queries, keys) * (softmax_scale or query.shape[-1] ** -0.5)
        if softcap:
            scores = (scores / softcap).tanh() * softcap
        behind = torch.arange(last - first)[:, None] + (high - low) - (last - first) - torch.arange(high - low)
        hidden = (behind < 0) | ((window_size[0] >= 0) & (behind > window_size[0]))
        out.append(torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), values))
    return torch.cat(out).to(query.dtype)


class _Pretended(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if func is torch.ops.aten._scaled_dot_product_efficient_attention:
            assert all(isinstance(part, OnGPU) for part in args[:3])
            func = efficient_attention
        if func is F.scaled_dot_product_attention and isinstance(args[0], OnGPU):
            with sdpa_kernel(SDPBackend.MATH):
                return func(*args, **named)
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
        ),
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
