"""The measurements as a page of Markdown, which names the device."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Mapping
from typing import Any

import torch

from benchmarks.tables import markdown_table

PUBLISHED = (
    "Published for a step of 16 groups of 8 episodes of ALFWorld, of trained models, on other machines: 288 s with "
    "Qwen2.5-1.5B on two H100 (verl-agent; HGPO, table 3), 361 s with Qwen2.5-7B on four (BiPACE, figure 5)."
)

RANDOM = "Here weights are random, so each answer has the full number of tokens, and no action counts."
RATES = {
    "tokens_per_s": "tokens/s", "seconds": "seconds", "memory_gib": "most memory, GiB",
    "reserved_gib": "held by PyTorch, GiB", "percent_of_peak": "% of the peak", "step_ms": "ms a decoding step",
}  # fmt: skip
STEPS = {
    "seconds": "step, s", "engine": "engine, s", "env": "environments, s", "rollout": "rollout, s",
    "estimator": "credit, s", "update": "update, s", "tokens_per_s": "sampled tokens/s",
    "memory_gib": "most memory, GiB", "env_steps": "environment steps",
}  # fmt: skip
"""Figures of a part, and their columns."""


def described(smoke: bool) -> dict[str, Any]:
    """The machine and the versions."""
    gpus = [] if smoke or not torch.cuda.is_available() else range(torch.cuda.device_count())
    packages = ("torch", "transformers", "accelerate", "peft", "flash-attn", "torchao", "bitsandbytes", "vllm")
    packages += ("flash-linear-attention", "causal-conv1d", "mamba-ssm")
    versions = {}
    for name in packages:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "smoke": smoke,
        "gpus": [torch.cuda.get_device_name(gpu) for gpu in gpus],
        "memory_gib": [round(torch.cuda.get_device_properties(gpu).total_memory / 2**30, 1) for gpu in gpus],
        "cuda": torch.version.cuda,
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "versions": versions,
    }


def heading(machine: dict[str, Any]) -> str:
    """The machine and the versions in a line."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    gpus = ", ".join(f"{name} ({gib} GiB)" for name, gib in zip(machine["gpus"], machine["memory_gib"], strict=True))
    said = "**A trial on a CPU with tiny shapes: no figure here means anything.**" if machine["smoke"] else gpus
    return f"{said or 'No GPU'}; {machine['cpus']} CPU cores, Python {machine['python']}, {versions}."


def markdown(body: dict[str, Any]) -> str:
    """The page."""
    results = body["results"]
    parts = [heading(body["machine"]) + "\n"]
    for columns, is_step in ((RATES, False), (STEPS, True)):
        if found := [result for result in results if (result["part"]["kind"] in ("step", "vllm")) == is_step]:
            rows = [[result["name"], *_cells(result, columns)] for result in found]
            parts.append(markdown_table(["part", *columns.values()], rows))
    if any(result["part"]["kind"] in ("step", "vllm") for result in results):
        parts.append(f"{PUBLISHED}\n{RANDOM}\n")
    if failed := [result for result in results if result["status"] != "ok"]:
        parts.append("".join(f"- {r['name']}: {r['status']} ({_short(r['message'])})\n" for r in failed))
    return "\n".join(parts)


def _short(message: str) -> str:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def _cells(result: dict[str, Any], fields: Mapping[str, str]) -> list[str]:
    if result["status"] != "ok":
        return [result["status"], *[""] * (len(fields) - 1)]
    return [_number(result[field]) if field in result else "" for field in fields]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
