"""The most main memory that a process took since it last asked."""

from __future__ import annotations

from pathlib import Path

from transformers import LlamaConfig, LlamaForCausalLM

SHAPE = {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 12}


def begin() -> float:
    """Forgets the peak; returns what the process takes now, in MB."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak() -> float:
    """The peak in MB, pages of mapped files included."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def large_model(folder: Path) -> tuple[float, float]:
    """Writes a model of 115 million weights, most of them in layers; returns MB of all and of a layer, in float32."""
    large = LlamaForCausalLM(LlamaConfig(**SHAPE, vocab_size=1024))
    large.save_pretrained(folder)
    whole, layer = (sum(p.numel() for p in part.parameters()) for part in (large, large.model.layers[0]))
    return whole * 4 / 2**20, layer * 4 / 2**20
