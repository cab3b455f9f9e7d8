"""Figures of every method's advantages on the episodes of ``credit_of_ranks.py``, recorded to notice what changes them.

``python tests/support/recorded_credit.py`` records them anew.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import orjson
from safetensors.numpy import load_file

FILE = Path(__file__).with_suffix(".json")


def read(folder: Path) -> dict[str, list[float]]:
    """Of each method: tokens, those kept, sums of the advantages, of their sizes, and of both with random weights."""
    found = {}
    for path in sorted(folder.glob("*-1.safetensors")):
        credit = load_file(path)["credit"]
        kept, advantage = credit[:, 3], credit[:, 4]
        weights = np.random.default_rng(0).normal(size=len(advantage))
        values = (
            kept.sum(),
            advantage.sum(),
            np.abs(advantage).sum(),
            weights @ advantage,
            weights @ np.abs(advantage),
        )
        found[path.name.removesuffix("-1.safetensors")] = [float(len(credit)), *(round(float(v), 9) for v in values)]
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        subprocess.run([sys.executable, str(Path(__file__).with_name("credit_of_ranks.py")), name], check=True)
        FILE.write_bytes(orjson.dumps(read(Path(name)), option=orjson.OPT_INDENT_2) + b"\n")
