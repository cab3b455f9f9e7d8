"""What the measurements of all environments share."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

ROUNDS = 5

Row = tuple[str, str]
"""What was measured, and the figure with its unit."""


def seconds(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    """CPU seconds that ``work`` takes, at best."""
    times = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def import_seconds() -> float:
    """CPU seconds that ``import envsuite`` takes in a fresh interpreter that has imported gymnasium."""
    code = "import gymnasium, time; start = time.process_time(); import envsuite; print(time.process_time() - start)"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(3)]
    return min(float(run.stdout) for run in runs)
