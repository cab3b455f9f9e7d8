"""Checks of what a run on a GPU depends on besides the device, and of number formats where there is none."""

from __future__ import annotations

import os

from envsuite.installation.check import InstallationCheck
from envsuite.installation.packages import version_of
from envsuite.installation.probes import PRODUCTS, last_object, python, try_imports

ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Variables with settings of torch's allocator; the second is the older name."""
FORKED = "TOKENIZERS_PARALLELISM"
_OFF = ("", "off", "false", "f", "no", "n", "0")
"""Values, in small letters, that the library tokenizers reads as no."""
_FLASH = {"flash_attn": "flash-attn", "flash_attn_interface": "flash-attn-3"}


def bfloat16_on_cpu() -> list[InstallationCheck]:
    """Whether this processor multiplies bfloat16 about as fast as float32."""
    probe = python(PRODUCTS)
    speeds = last_object(probe.out) if probe.code == 0 else None
    if speeds is None:  # without torch or the trainer nothing is computed in it
        return []
    finding = f"a core multiplies at {speeds['bfloat16'] / 1e9:.3g} GFLOP/s, in float32 {speeds['float32'] / 1e9:.3g}"
    if not speeds["slow"]:
        return [InstallationCheck("accelerator", "CPU's bfloat16", "ok", finding)]
    mend = "where training runs on the CPU: --model.compute_dtype float32 (and model.adapter.base: float32)"
    finding += ": there are no instructions for it"
    return [InstallationCheck("accelerator", "CPU's bfloat16", "warning", finding, mend)]


def variables() -> list[InstallationCheck]:
    """Variables of the shell with which a run may hang or fail."""
    return [_tokenizers_parallelism(), _segments()]


def _tokenizers_parallelism() -> InstallationCheck:
    value = os.environ.get(FORKED)
    if value is None:
        finding = "not set: tokenizers stops its threads in a process that forks"
        return InstallationCheck("accelerator", FORKED, "ok", finding)
    if value.lower() in _OFF:
        return InstallationCheck("accelerator", FORKED, "ok", f"{value}: tokenizers has no threads")
    finding = f"{value}: tokenizers keeps its threads where a process forks, and the child may wait for them for ever"
    return InstallationCheck("accelerator", FORKED, "warning", finding, f"unset {FORKED}")


def _segments() -> InstallationCheck:
    for name in ALLOCATOR:
        words = os.environ.get(name, "").replace(" ", "").lower().split(",")
        if "expandable_segments:true" in words:
            finding = f"{name} sets expandable_segments, with which vLLM asleep may keep its memory, or refuse to start"
            if version_of("vllm") is None:
                return InstallationCheck("accelerator", "allocator", "ok", f"{finding}; no vLLM is installed here")
            mend = f"unset {name}, or rollout.engine_options: {{sleep: false}}"
            return InstallationCheck("accelerator", "allocator", "warning", finding, mend)
    return InstallationCheck("accelerator", "allocator", "ok", "no expandable_segments")


def flash_attention() -> list[InstallationCheck]:
    """Whether FlashAttention, which is compiled against one version of torch, goes with the one that is installed."""
    checks = []
    for module, why in try_imports(list(_FLASH)).items():
        name, missing = _FLASH[module], f"No module named '{module}'" in why
        if missing:
            finding = "not installed; model.attention has sdpa and flex"
            checks.append(InstallationCheck("accelerator", name, "absent", finding))
        elif why:
            finding = f"cannot be imported with torch {version_of('torch')}: {why}"
            mend = f"compile it against this torch: pip install --force-reinstall --no-deps --no-build-isolation {name}"
            checks.append(InstallationCheck("accelerator", name, "broken", finding, mend))
        else:
            checks.append(InstallationCheck("accelerator", name, "ok", f"imported with torch {version_of('torch')}"))
    return checks
