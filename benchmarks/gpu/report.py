"""The measurements as a page of Markdown, which names the device."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from typing import Any

import torch

PUBLISHED = (
    "Published for a step of 16 groups of 8 episodes of ALFWorld, of trained models, on other machines: 288 s with "
    "Qwen2.5-1.5B on two H100 (verl-agent; HGPO, table 3), 361 s with Qwen2.5-7B on four (BiPACE, figure 5)."
)


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
    lines = [heading(body["machine"]), ""]
    rates = [r for r in results if r["part"]["kind"] != "step"]
    if rates:
        lines += [
            "| part | tokens/s | seconds | most memory, GiB | held by PyTorch, GiB |",
            "|---|---:|---:|---:|---:|",
        ]
        lines += [
            f"| {r['name']} | {_cells(r, 'tokens_per_s', 'seconds', 'memory_gib', 'reserved_gib')} |" for r in rates
        ]
    steps = [r for r in results if r["part"]["kind"] == "step"]
    if steps:
        fields = (
            "seconds",
            "engine",
            "env",
            "rollout",
            "estimator",
            "update",
            "tokens_per_s",
            "memory_gib",
            "env_steps",
        )
        names = ("step, s", "engine, s", "environments, s", "rollout, s", "credit, s", "update, s", "sampled tokens/s")
        lines += ["", f"| part | {' | '.join(names)} | most memory, GiB | environment steps |", f"|---|{'---:|' * 9}"]
        lines += [f"| {r['name']} | {_cells(r, *fields)} |" for r in steps]
        lines += [
            "",
            PUBLISHED,
            "Here weights are random, so each answer has the full number of tokens, and no action counts.",
        ]
    failed = [r for r in results if r["status"] != "ok"]
    if failed:
        lines += ["", *(f"- {r['name']}: {r['status']} ({_short(r['message'])})" for r in failed)]
    return "\n".join(lines) + "\n"


def _short(message: str) -> str:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def _cells(result: dict[str, Any], *fields: str) -> str:
    if result["status"] != "ok":
        return " | ".join([result["status"], *[""] * (len(fields) - 1)])
    return " | ".join(_number(result[field]) if field in result else "" for field in fields)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
