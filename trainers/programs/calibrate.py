"""``envsuite calibrate RUN``: by which layer, pooling and radius BiPACE sees states best."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from trainers.credit.calibration import RADII, calibrate
from trainers.policy.config import Pooling
from trainers.processes.distributed import run_guarded


def main(arguments: Sequence[str]) -> int:
    """Run the command line: the table and the settings on standard output; returns the exit status."""
    parser = argparse.ArgumentParser(prog="envsuite calibrate", description=__doc__)
    parser.add_argument("run", type=Path, help="Folder of a run, with config.yaml and episodes/.")
    parser.add_argument("--model", help="Folder of a model or checkpoint; by default the one the run began with.")
    parser.add_argument("--steps", type=int, default=600, help="About how many steps are read.")
    parser.add_argument("--radii", type=float, nargs="+", default=list(RADII), help="Cosine distances to try.")
    poolings = get_args(Pooling)
    parser.add_argument("--pooling", choices=poolings, nargs="+", default=list(poolings), help="Poolings to try.")
    options = parser.parse_args(arguments)

    def command() -> None:
        sys.stdout.write(calibrate(options.run, options.model, options.steps, options.radii, options.pooling))

    return run_guarded(command)
