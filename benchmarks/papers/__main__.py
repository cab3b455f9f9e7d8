"""``python -m benchmarks.papers``: docs/papers.md on standard output; or all rows, or the plans that they show."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.papers.page import page, rows
from benchmarks.papers.plans import PLANS, plan_runs, read_plans, text_of
from trainers.papers.index import published_rows

PAGE = Path(__file__).resolve().parents[2] / "docs" / "papers.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers", description="docs/papers.md")
    parser.add_argument("--rows", action="store_true", help="print all rows of the papers' tables")
    parser.add_argument("--plan", action="store_true", help="plan every run, for minutes, and write plans.yaml")
    given = parser.parse_args(arguments)
    if not given.plan:
        sys.stdout.write((rows if given.rows else page)(read_plans()))
        return 0
    plans = dict(plan_runs(published_rows()))
    PLANS.write_text(text_of(plans), encoding="utf-8")
    sys.stdout.writelines(f"{run.name} does not fit: {plan}\n" for run, plan in plans.items() if not plan.fits)
    return 0


if __name__ == "__main__":
    sys.exit(main())
