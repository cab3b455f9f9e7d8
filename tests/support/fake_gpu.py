"""A device that computes nothing, but refuses what a GPU refuses: operations on tensors of two devices.

PyTorch's fake tensors on a back end of this module's own, since a PyTorch without CUDA takes ``cuda`` for fake
tensors in a few places only. It stands for a GPU in shapes, devices, number formats (autocast included) and in waiting:
reading a value on the host makes it wait, which :class:`FakeGPU` counts. Its values mean nothing: a tensor read on the
host is zeros, and a number read from one is 1. Of several processes there is one, by PyTorch's fake process group;
collectives take tensors on the device alone, as NCCL's do. Registering the back end changes the process: use it in one
of its own.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore, _create_fake_pg
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

M = TypeVar("M", bound=nn.Module)
DEVICE = "fakegpu"
ROOT = Path(__file__).parents[2]
_NUMPY = {torch.float32: np.float32, torch.float64: np.float64, torch.bfloat16: np.float32, torch.bool: np.bool_}
_LOWERED = ("linear", "mm", "addmm", "bmm", "baddbmm", "matmul", "scaled_dot_product_attention")


class _Module(_DummyBackendModule):
    Stream, Event, stream = torch.cpu.Stream, torch.cpu.Event, staticmethod(torch.cpu.stream)

    def current_stream(self, device: Any = None) -> torch.cpu.Stream:
        return torch.cpu.Stream()

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def is_available(self) -> bool:
        return False  # as of a PyTorch without it: fake mode then makes tensors from lists itself


def _lowered(name: str) -> Any:
    """The operation with its floating tensors in bfloat16, as autocast on CUDA computes it."""
    inner = getattr(torch.ops.aten, name)

    def cast(value: Any) -> Any:
        return value.to(torch.bfloat16) if isinstance(value, Tensor) and value.is_floating_point() else value

    def call(*args: Any, **named: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)):
            return inner(*map(cast, args), **{key: cast(value) for key, value in named.items()})

    return call


def register() -> list[torch.library.Library]:
    """Makes the back end, with autocast; what it returns must be kept."""
    _setup_privateuseone_for_python_backend(DEVICE, backend_module=_Module())
    dist.Backend.register_backend(DEVICE, _create_fake_pg, extended_api=True, devices=["cpu", DEVICE])
    fallback = torch.library.Library("_", "IMPL", "AutocastPrivateUse1")
    fallback.fallback(torch.library.fallthrough_kernel)
    library = torch.library.Library("aten", "IMPL", "AutocastPrivateUse1")
    for name in _LOWERED:
        library.impl(name, _lowered(name))
    return [fallback, library]


@contextmanager
def processes(count: int) -> Iterator[DeviceMesh]:
    """The mesh of so many processes, of which this one is the first and the only one."""
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group(DEVICE, rank=0, world_size=count, store=FakeStore())
    try:
        yield init_device_mesh(DEVICE, (count,))
    finally:
        dist.destroy_process_group()


class FakeGPU(TorchDispatchMode):
    """While it is entered, tensors are fake.

    Counts, by function, how often the host waited for the device to read from it, and to copy to it from memory that is
    not pinned; and the operations that compute something on it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()
        self.copies: Counter[str] = Counter()
        self.operations = 0
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)

    def __enter__(self) -> FakeGPU:
        self.mode.__enter__()
        self._numpy, self._tolist = Tensor.numpy, FakeTensor.tolist
        Tensor.numpy = lambda tensor, **_: self._as_numpy(tensor)  # type: ignore[method-assign]
        FakeTensor.tolist = lambda tensor: self._read(tensor).tolist()  # type: ignore[method-assign]
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        Tensor.numpy, FakeTensor.tolist = self._numpy, self._tolist  # type: ignore[method-assign]
        self.mode.__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._pin_memory.default:  # of which fake mode knows nothing
            return args[0]
        if "c10d" in func.namespace:
            tensors = [part for part in tree_leaves((args, kwargs)) if isinstance(part, Tensor)]
            assert all(part.device.type == DEVICE for part in tensors), f"{func} of a tensor in main memory"
        if func is torch.ops.aten._local_scalar_dense.default and isinstance(args[0], FakeTensor):
            self._wait(args[0])
            return (args[0].dtype.is_floating_point and 1.0) or args[0].dtype == torch.bool or 1
        if func is torch.ops.aten._to_copy.default:
            source, target = args[0].device.type, (kwargs or {}).get("device", args[0].device).type
            if (source, target) == ("cpu", DEVICE) and not (kwargs or {}).get("non_blocking"):
                self.copies[self._place()] += 1
            if isinstance(args[0], FakeTensor):
                args[0].constant = None  # computed with, where fake mode knows it
            else:
                args = (self.mode.from_tensor(args[0]),)
            if target == "cpu":
                self._wait(args[0])
        before = {part.untyped_storage()._cdata for part in tree_leaves((args, kwargs)) if isinstance(part, Tensor)}
        out = func(*args, **(kwargs or {}))
        there = [part for part in tree_leaves(out) if isinstance(part, Tensor) and part.device.type == DEVICE]
        is_view = not func._schema.is_mutable and all(part.untyped_storage()._cdata in before for part in there)
        self.operations += bool(there) and not is_view
        return out

    def moved(self, model: M) -> M:
        """``model``, made before this was entered, with fake weights on the device; tied ones stay tied."""
        seen: dict[int, nn.Parameter] = {}
        for module in model.modules():
            for name, parameter in [*module.named_parameters(recurse=False)]:
                if id(parameter) not in seen:
                    data = self.mode.from_tensor(parameter.data).to(DEVICE)
                    seen[id(parameter)] = nn.Parameter(data, requires_grad=parameter.requires_grad)
                setattr(module, name, seen[id(parameter)])
            for name, buffer in [*module.named_buffers(recurse=False)]:
                setattr(module, name, self.mode.from_tensor(buffer).to(DEVICE))
        self.copies.clear()
        self.operations = 0
        return model

    def _as_numpy(self, tensor: Tensor) -> np.ndarray:
        if not isinstance(tensor, FakeTensor):
            return self._numpy(tensor)
        assert tensor.device.type == "cpu", "numpy() of a tensor on the device"
        assert not tensor.requires_grad, "numpy() of a tensor with a gradient"
        assert tensor.dtype != torch.bfloat16, "NumPy has no bfloat16"
        return self._read(tensor)

    def _read(self, tensor: FakeTensor) -> np.ndarray:
        self._wait(tensor)
        return np.zeros(tuple(tensor.shape), _NUMPY.get(tensor.dtype, np.int64))

    def _wait(self, tensor: Tensor) -> None:
        if tensor.device.type != "cpu":
            self.waits[self._place()] += 1

    def _place(self) -> str:
        ours = [f for f in traceback.extract_stack() if f.filename.startswith(str(ROOT / "trainers"))]
        where = ours[-1] if ours else traceback.extract_stack()[-3]
        return f"{Path(where.filename).name}:{where.name}"
