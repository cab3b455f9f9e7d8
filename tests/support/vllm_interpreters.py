"""Stand-ins for interpreters with a vLLM: the metadata that its wheels have, and no code of it."""

from __future__ import annotations

import sys
from pathlib import Path

REQUIRED = dict.fromkeys(("0.33.0", "0.40.0"), "torch==2.14.0")
REQUIRED["0.32.0"] = "torch==2.13.0+cpu; platform_machine == 'x86_64'"
"""What versions require of torch, by their wheels on PyPI; 0.40.0 is none of them."""


def vllm_interpreter(folder: Path, vllm: str | None, torch: str) -> str:
    """Writes an interpreter that has these versions installed; returns its path."""
    for name, version, required in (("vllm", vllm, REQUIRED.get(vllm or "", "")), ("torch", torch, "")):
        if version is not None:
            (folder / name).mkdir(parents=True)
            (folder / name / "__init__.py").write_text("raise ImportError('imported')")
            about = folder / f"{name}-{version}.dist-info"
            about.mkdir()
            lines = [f"Name: {name}", f"Version: {version}", *[f"Requires-Dist: {required}"] * bool(required)]
            (about / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", *lines, ""]))
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    return str(python)
