"""Speed and memory of devices, by their makers' data sheets; and of this machine, measured."""

from __future__ import annotations

import os
import re
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from envsuite.core.errors import UnknownName, nearest
from trainers.processes.memory import available
from trainers.settings import ConfigError

GIB = 2**30
SOURCE = "the makers' data sheets: dense products, memory, its bandwidth, links between devices in one direction"


@dataclass(frozen=True)
class Device:
    """One device."""

    name: str
    bfloat16: float
    """Floating-point operations a second in dense products."""
    float32: float
    """The same in float32."""
    memory: float
    """Bytes."""
    bandwidth: float
    """Bytes a second of its memory."""
    link: float
    """Bytes a second to another device of the same machine, in one direction."""
    overhead: float = 24e-6
    """Seconds to start one operation from Python; of a GPU, as in the engine's steps beside one H100 (docs/gpu.md)."""
    measured: bool = False
    """Whether the figures were measured here: utilisation is in them then."""


def _gpu(name: str, bfloat16: float, float32: float, memory: float, bandwidth: float, link: float) -> Device:
    """TFLOP/s, TFLOP/s, GiB, GB/s, GB/s."""
    return Device(name, bfloat16 * 1e12, float32 * 1e12, memory * GIB, bandwidth * 1e9, link * 1e9)


_SHEETS = tomllib.loads(Path(__file__).with_name("gpus.toml").read_text(encoding="utf-8"))
GPUS = {name: _gpu(name, *figures) for name, figures in _SHEETS.items()}
"""Devices by name; memory is what the driver shows, the link is NVLink where there is one, else PCIe."""


@dataclass(frozen=True)
class Machines:
    """Machines of equal devices, one process each."""

    nodes: int
    per_node: int
    device: Device

    @property
    def ranks(self) -> int:
        """Number of processes."""
        return self.nodes * self.per_node

    @property
    def on_cpu(self) -> bool:
        """Whether the processes share this machine's memory and cores."""
        return self.device.measured

    @property
    def room(self) -> float:
        """Bytes that one process may take."""
        return self.device.memory / (self.per_node if self.on_cpu else 1)

    def __str__(self) -> str:
        return f"{f'{self.nodes}x' if self.nodes > 1 else ''}{self.per_node}x{self.device.name}"


def machines(text: str) -> Machines:
    """Reads ``8xH100``, ``2x8xH100`` (machines, GPUs of each), ``H100``, ``cpu`` or ``2xcpu`` (processes).

    Raises:
        ConfigError: It is written otherwise.
        UnknownName: There is no such device; the message lists those that are known.
    """
    match = re.fullmatch(r"(?:(\d+)x)?(?:(\d+)x)?([A-Za-z].*)", text)
    if match is None or "0" in match.groups()[:2]:
        raise ConfigError(f"--gpus {text}: write it like 8xH100, 2x8xH100 (machines, GPUs of each), or cpu")
    first, second, name = match.groups()
    nodes, count = (int(first or 1), int(second)) if second else (1, int(first or 1))
    if name.lower() == "cpu":
        if nodes > 1:
            raise ConfigError(f"--gpus {text}: cpu is this machine; write cpu, or 2xcpu for two processes")
        return Machines(1, count, this_machine(count))
    devices = {label.lower(): device for label, device in GPUS.items()}
    if name.lower() not in devices:
        near = nearest(name, GPUS)
        hint = f" (nearest: {near[0]})" if near else ""
        raise UnknownName(f"--gpus {text}: no device {name!r} is known{hint}; known: {', '.join(GPUS)}, cpu")
    return Machines(nodes, count, devices[name.lower()])


def this_machine(processes: int = 1) -> Device:
    """This machine's processor, measured for about a second; products and bandwidth are one process's share."""
    n = 768
    speed = {}
    for dtype in (torch.float32, torch.bfloat16):
        a, b = torch.ones(n, n, dtype=dtype), torch.ones(n, n, dtype=dtype)
        speed[dtype] = 2.0 * n**3 / _seconds(lambda a=a, b=b: torch.mm(a, b))  # type: ignore[misc]
    large, small = torch.ones(2**24), torch.ones(4)
    bandwidth = 2.0 * large.numel() * 4 / _seconds(lambda: large.add_(1.0))
    overhead = _seconds(lambda: small + small)
    share = min(1.0, (os.cpu_count() or 1) / (processes * torch.get_num_threads()))
    return Device(
        "cpu", speed[torch.bfloat16] * share, speed[torch.float32] * share, available(), bandwidth * share,
        bandwidth * share / 4, overhead, measured=True,
    )  # fmt: skip


def _seconds(work: Callable[[], object]) -> float:
    """The least time of one call, of many within a fifth of a second."""
    work()
    least, end = float("inf"), time.perf_counter() + 0.2
    while time.perf_counter() < end:
        began = time.perf_counter()
        work()
        least = min(least, time.perf_counter() - began)
    return least
