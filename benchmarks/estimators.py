"""Measure every estimator beside a plain-Python transcription of its equations.

    python -m benchmarks.estimators

The transcriptions loop over rows as the original implementations do (``benchmarks/plain_python.py``): over Python's
floats, and, once and at the smaller size, over torch numbers, which is what the originals' rows hold. Both are run in
turns on the same step tables: groups of 8 episodes of 50 steps, responses of 10 to 50 tokens. Times are CPU seconds,
the best round counts, since other programs only ever slow one down; that their results agree is checked. Memory is the
peak of what Python and NumPy allocate during a call, over the table itself.
"""

from __future__ import annotations

import argparse
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.plain_critics import CRITICS
from benchmarks.plain_graphs import GRAPHS
from benchmarks.plain_python import PLAIN, Plain, scpo, tensors
from benchmarks.plain_signals import SIGNALS
from trainers.credit.estimators import ESTIMATORS
from trainers.credit.scpo import SCPO
from trainers.steps import Ragged, StepTable
from trainers.steps.columns import ENTROPY, HINDSIGHT, MILESTONE, NEXT_STATE, SUCCESS, TEACHER

EPISODES, STEPS = 8, 50
"""Of a group; of an episode."""
STATES = 60
"""Different states of a group."""
DIMENSIONS = 256
"""Of the fingerprints that BiPACE is measured with."""


def step_table(rows: int, seed: int = 0, dimensions: int = DIMENSIONS) -> StepTable:
    """A step table with every column that a method needs.

    Args:
        rows: A multiple of 400, the steps of a group.
        seed: Of its numbers.
        dimensions: Of the column ``embedding``, vectors near that of their state.
    """
    rng = np.random.default_rng(seed)
    episode = np.repeat(np.arange(rows // STEPS), STEPS)
    group = episode // EPISODES
    state = rng.integers(STATES, size=rows)
    names = np.array(
        [f"You are in room {n}. You see a desk, a drawer and a lamp; the lamp is off." for n in range(STATES)]
    )
    t = np.tile(np.arange(STEPS), rows // STEPS)
    won = rng.random(rows // STEPS) < 0.4
    offsets = np.concatenate([[0], np.cumsum(rng.integers(10, 51, rows))])
    tokens = Ragged(rng.integers(1000, size=offsets[-1]), offsets)
    action = np.array([f"go to shelf {n}" for n in range(6)], object)[rng.integers(6, size=rows)]
    keys = names[state].astype(object)
    texts = action + " -> " + keys
    centres = rng.standard_normal((STATES, dimensions), np.float32)
    look = centres[state] + np.float32(0.2) * rng.standard_normal((rows, dimensions), np.float32)
    return StepTable(
        group_id=group,
        episode_id=episode,
        t=t,
        reward=np.where((t == STEPS - 1) & won[episode], 1.0, 0.0),
        state_key=keys,
        valid=np.ones(rows, np.bool_),
        prompt=Ragged(np.zeros(rows, np.int64), np.arange(rows + 1)),
        response=tokens,
        logprob=Ragged(np.zeros(offsets[-1], np.float32), offsets),
        extra={
            "action": action,
            "step_text": texts,
            SUCCESS: won[episode],
            NEXT_STATE: keys[rng.permutation(rows)],
            MILESTONE: rng.random(rows) < 0.1,
            "value": rng.random(rows),
            "mc_value": rng.random(rows),
            "next_mc_value": rng.random(rows),
            "tree": episode // 2,
            "greedy_return": (group % 2).astype(np.float64),
            "embedding": look,
            "switch": (switches := rng.random(rows) < 0.3),
            "segment": switches | (t == 0),
            "switch_probability": rng.random(rows),
            "low_start": np.full(rows, 5),
            "value_high": rng.random(rows),
            "value_low": rng.random(rows),
        },
        token_extra={
            "value": Ragged(rng.random(offsets[-1]), offsets),
            "block": Ragged(np.minimum((np.arange(offsets[-1]) - offsets[tokens.row_of]) // 2, 3), offsets),
            ENTROPY: Ragged(rng.exponential(size=offsets[-1]), offsets),
            HINDSIGHT: Ragged(-rng.exponential(3.0, offsets[-1]), offsets),
            TEACHER: Ragged(-rng.exponential(size=offsets[-1]), offsets),
        },
    )


Work = Callable[[StepTable], NDArray[np.float64]]


@dataclass(frozen=True)
class Case:
    """A method and its transcription; each gives one number per step or per token."""

    name: str
    ours: Work
    plain: Plain


def cases() -> list[Case]:
    """Every registered estimator, and the shaper ``scpo``."""

    def estimator(name: str) -> Work:
        made = ESTIMATORS[name]()

        def call(steps: StepTable) -> NDArray[np.float64]:
            given = made(steps)
            out = given.per_step if given.per_step is not None else given.per_token
            assert out is not None
            return out

        return call

    def shaped(steps: StepTable) -> NDArray[np.float64]:
        return np.asarray(SCPO()(steps).extra["step_score"], np.float64)

    plain = PLAIN | GRAPHS | SIGNALS | CRITICS
    return [*(Case(name, estimator(name), plain[name]) for name in ESTIMATORS), Case("scpo (shaper)", shaped, scpo)]


@dataclass(frozen=True)
class Figures:
    """What was measured at one size."""

    seconds: float
    plain_seconds: float
    peak: int
    """Bytes allocated at most during a call."""
    torch_seconds: float | None
    """Of the transcription over torch numbers; None where that was not measured."""

    @property
    def ratio(self) -> float:
        """How many times faster than plain Python."""
        return self.plain_seconds / self.seconds


def measure(case: Case, steps: StepTable, rounds: int, torch_too: bool = False) -> Figures:
    """Run method and transcription in turns; with ``torch_too``, the transcription over torch numbers once besides.

    Raises:
        AssertionError: Their results differ.
    """
    ours, plain = [], []
    for _ in range(rounds):
        start = time.process_time()
        found = case.ours(steps)
        ours.append(time.process_time() - start)
        start = time.process_time()
        wanted = case.plain(steps)
        plain.append(time.process_time() - start)
        # Float32 fingerprints may fall on the other side of a radius; nothing else may differ.
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6, err_msg=case.name)
    torch_seconds = None
    if torch_too:
        start = time.process_time()
        case.plain(steps, tensors)
        torch_seconds = time.process_time() - start
    tracemalloc.start()
    case.ours(steps)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return Figures(min(ours), min(plain), peak, torch_seconds)


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.estimators",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", type=int, nargs=2, default=(6_400, 64_000), help="two sizes (default 6400 64000)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each measurement (default 3)")
    parser.add_argument("--only", nargs="*", help="methods; by default all")
    args = parser.parse_args(argv)
    if min(args.rows) < 400 or any(rows % 400 for rows in args.rows):
        parser.error("--rows are multiples of 400, the steps of a group")
    console = Console(width=120)
    small, large = (step_table(rows) for rows in args.rows)
    sizes = [f"{rows:,} rows" for rows in args.rows]
    faster = [f"x floats, {sizes[0]}", f"x floats, {sizes[1]}", f"x torch, {sizes[0]}"]
    table = Table("method", *sizes, "growth", *faster, "peak memory", box=None, header_style="bold")
    for case in cases():
        if args.only and case.name not in args.only:
            continue
        one, many = measure(case, small, args.rounds, torch_too=True), measure(case, large, args.rounds)
        assert one.torch_seconds is not None
        times = (f"{1e3 * one.seconds:.2f} ms", f"{1e3 * many.seconds:.1f} ms", f"{many.seconds / one.seconds:.1f}")
        ratios = (one.ratio, many.ratio, one.torch_seconds / one.seconds)
        table.add_row(case.name, *times, *(f"{ratio:.0f}" for ratio in ratios), f"{many.peak / 1e6:.1f} MB")
    console.print(table)
    rows_ratio = args.rows[1] / args.rows[0]
    console.print(f"growth: time at {args.rows[1]:,} rows over time at {args.rows[0]:,}; {rows_ratio:g} is linear")


if __name__ == "__main__":
    main()
