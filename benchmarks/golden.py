"""Agreement with the original implementations: ``python -m benchmarks.golden DIR``.

Reads every file of expected output (schemas ``golden-expected/1`` and ``golden-unit/1``) under DIR, computes each case
through this project's public API with the named options that reproduce the original, and compares within the tolerance
that the case states. What is not covered is listed by name with the reason. Exit code 1 on a disagreement or a case
that could not be computed, 2 where there was nothing to compare.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.golden_data import Json, NotCovered
from benchmarks.golden_dispatch import UNITS, Outcome, Rounding, run_case
from envsuite.core.errors import EnvsuiteError

EXPECTED = "golden-expected/1"
UNIT = "golden-unit/1"
NEEDED = ("id", "estimator", "function", "params", "dtype", "tolerance", "expect")
UNIT_TOLERANCE = {"rtol": 1e-7, "atol": 1e-8}
"""That of the recorded float64 cases; unit vectors state none."""
SPECIAL = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf}
"""Numbers that JSON has as words."""
for _name in "critics estimators graphs losses replay signals step_methods token_methods".split():
    import_module(f"benchmarks.golden_{_name}")  # enters its handlers


@dataclass(frozen=True)
class Comparison:
    """One recorded quantity of one case."""

    key: str
    agrees: bool
    error: float
    """Largest absolute difference."""
    excess: float
    """Largest difference in units of what the tolerance allows; at most 1 where it agrees."""
    where: str
    aside: int = 0
    """Rows set aside because rounding in the original exceeds the tolerance there."""
    aside_error: float = 0.0
    """Largest such difference; ours is exact."""
    aside_explained: int = 0
    """How many of them the original's formula, computed in its number format here, gives within the tolerance."""


@dataclass(frozen=True)
class CaseResult:
    """What became of one case."""

    file: str
    peer: str
    case_id: str
    estimator: str
    options: str = ""
    """This project's settings that reproduced it."""
    comparisons: tuple[Comparison, ...] = ()
    not_covered: tuple[tuple[str, str], ...] = ()
    """(quantity or "" for the whole case, reason)."""

    @property
    def covered(self) -> bool:
        """At least one quantity was compared."""
        return bool(self.comparisons)

    @property
    def agrees(self) -> bool:
        """Every compared quantity agrees."""
        return all(comparison.agrees for comparison in self.comparisons)


@dataclass(frozen=True)
class Report:
    """All cases of a folder, and the files that could not be read."""

    results: tuple[CaseResult, ...]
    unread: tuple[tuple[str, str], ...]
    others: tuple[str, ...] = field(default=())
    """JSON files of other schemas."""

    @property
    def disagreements(self) -> list[CaseResult]:
        """Covered cases with a quantity out of tolerance."""
        return [result for result in self.results if result.covered and not result.agrees]


def _pairs(expected: Any, got: Any) -> Iterator[tuple[Any, Any]]:
    """Yields recorded values with ours, those of dictionaries by their keys.

    Raises:
        LookupError: Ours has no such key, or another number of entries; says which.
    """
    if isinstance(expected, dict):
        missing = sorted(set(expected) - set(got)) if isinstance(got, dict) else sorted(expected)
        if missing:
            raise LookupError(f"missing {missing[:3]}")
        for name in expected:
            yield from _pairs(expected[name], got[name])
    elif isinstance(expected, list):
        ours = got.tolist() if isinstance(got, np.ndarray) else got
        if len(ours) != len(expected):
            raise LookupError(f"{len(ours)} values for {len(expected)}")
        for pair in zip(expected, ours, strict=True):
            yield from _pairs(*pair)
    else:
        yield expected, got


def _numeric(value: Any) -> bool:
    return (isinstance(value, int | float) and not isinstance(value, bool)) or str(value).lower() in (*SPECIAL, "none")


def _number(value: Any) -> float:
    return SPECIAL[value.lower()] if isinstance(value, str) else float(value)


def _wrong(key: str, where: str) -> Comparison:
    return Comparison(key, False, float("inf"), float("inf"), where)


def compare(key: str, expected: Any, got: Any, tolerance: Json, rounding: Rounding | None) -> Comparison:
    """Compare a recorded quantity with ours; ``null`` in the record is undefined and matches anything."""
    try:
        pairs = list(_pairs(expected, got))
    except LookupError as error:
        return _wrong(key, str(error))
    for index, (want, have) in enumerate(pairs):
        if not _numeric(want):
            if want != have:
                return _wrong(key, f"index {index}: {have!r}")
            pairs[index] = (None, None)
    numbers = [(0.0, 0.0) if want is None else (_number(want), float(have)) for want, have in pairs]
    a, b = np.array(numbers, np.float64).reshape(-1, 2).T
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        off = np.where(same, 0.0, np.abs(a - b))
        allowed = tolerance["atol"] + tolerance["rtol"] * np.abs(a)
        excess = np.where(same, 0.0, off / np.where(np.isfinite(allowed), allowed, 1.0))
    off, excess = np.nan_to_num(off, nan=np.inf), np.nan_to_num(excess, nan=np.inf)
    aside, explained = np.zeros(len(a), bool), 0
    if rounding is not None and len(rounding.bound) == len(a):
        reproduced = np.abs(rounding.as_original - a) <= allowed
        aside = (excess > 1.0) & np.where(np.isinf(rounding.bound), reproduced, off <= rounding.bound)
        explained = int(reproduced[aside].sum())
    aside_error = float(off[aside].max(initial=0.0))
    off, excess = np.where(aside, 0.0, off), np.where(aside, 0.0, excess)
    top = float(excess.max(initial=0.0))
    where = f"index {(worst := int(excess.argmax()))}: {b[worst]:.9g}, recorded {a[worst]:.9g}" if top > 1.0 else ""
    return Comparison(
        key, top <= 1.0, float(off.max(initial=0.0)), top, where, int(aside.sum()), aside_error, explained
    )


def _check(result: CaseResult, compute: Callable[[], Outcome], expect: Json | None, case: Json) -> CaseResult:
    """``result`` with what was compared; ``expect`` is ``None`` for a unit case, which has all that we compute."""
    try:
        outcome = compute()
    except NotCovered as reason:
        return replace(result, not_covered=(("", str(reason)),))
    except (EnvsuiteError, KeyError, IndexError, TypeError, ValueError) as error:
        # A file of unknown origin must not stop the run, and must not pass either.
        failed = _wrong("all", f"not computed: {type(error).__name__}: {error}")
        return replace(result, comparisons=(failed,))
    tolerance, in_float32 = case.get("tolerance", UNIT_TOLERANCE), case.get("dtype") == "float32"
    comparisons, skipped = [], list(outcome.skipped)
    for key, recorded in ({key: case[key] for key in outcome.values} if expect is None else expect).items():
        if key in outcome.values:
            rounding = outcome.rounding.get(key)
            if rounding is not None and not (in_float32 or rounding.every_dtype):
                rounding = None
            comparisons.append(compare(key, recorded, outcome.values[key], tolerance, rounding))
        elif key not in dict(outcome.skipped):
            skipped.append((key, "this quantity is not known to the runner"))
    return replace(result, options=outcome.options, comparisons=tuple(comparisons), not_covered=tuple(skipped))


def _check_case(case: Json, document: Json, data: Json, file: str) -> CaseResult:
    peer = str(document.get("peer", {}).get("name"))
    result = CaseResult(file, peer, str(case.get("id")), str(case.get("estimator")))
    if absent := [key for key in NEEDED if key not in case]:
        return replace(result, not_covered=(("", f"the case has no {absent[0]!r}"),))
    return _check(result, lambda: run_case(case, peer, data, document["cases"]), case["expect"], case)


def _check_unit(case: Json, cases: list[Json], file: str, number: int, source: str) -> CaseResult:
    result = CaseResult(file, "unit", str(number), source)
    compute = next((unit for keys, unit in UNITS.items() if keys <= case.keys()), None)
    if compute is None:
        reason = f"unit vectors ({', '.join(map(str, case))}) of a method that is not here yet"
        return replace(result, not_covered=(("", reason),))
    return _check(result, lambda: compute(case, cases), None, case)


def run(folder: Path) -> Report:
    """Compare every case under ``folder``; files are known by their schema, not by their names."""
    documents: dict[Path, Json] = {}
    unread: list[tuple[str, str]] = []
    for path in sorted(folder.rglob("*.json")):
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            unread.append((str(path.relative_to(folder)), str(error)))
            continue
        documents[path] = document if isinstance(document, dict) else {}
    inputs = {path.stem: document for path, document in documents.items() if document.get("schema") != EXPECTED}
    results: list[CaseResult] = []
    others = [path.name for path, d in documents.items() if not str(d.get("schema", "")).startswith("golden-")]
    for path, document in documents.items():
        name = str(path.relative_to(folder))
        if document.get("schema") == UNIT:
            for number, case in enumerate(document["cases"]):
                results.append(_check_unit(case | case["expect"], [], name, number, str(document["unit"])))
        if document.get("schema") != EXPECTED:
            continue
        wanted = document.get("input")
        if not isinstance(document.get("cases"), list):
            unread.append((name, "has no list of 'cases'"))
        elif wanted is None:
            source = str(document.get("source", "unnamed source"))
            for number, case in enumerate(document["cases"]):
                results.append(_check_unit(case, document["cases"], name, number, source))
        elif wanted not in inputs:
            unread.append((name, f"its input {wanted}.json is not in the folder"))
        else:
            for case in document["cases"]:
                results.append(_check_case(case, document, inputs[wanted], name))
    return Report(tuple(results), tuple(unread), tuple(others))


def show(report: Report, console: Console, verbose: bool) -> None:
    """Print the table, the disagreements, what was set aside and what is not covered."""
    columns = ("file", "cases", "covered", "agree", "disagree", "not covered", "rows set aside")
    table = Table(*columns, title="Agreement with the originals")
    for file in dict.fromkeys(result.file for result in report.results):
        table.add_row(file, *_counts([result for result in report.results if result.file == file]))
    table.add_section()
    table.add_row("all", *_counts(report.results))
    console.print(table)
    if verbose:
        for result in report.results:
            state = "not covered" if not result.covered else "agrees" if result.agrees else "DISAGREES"
            worst = max((c.excess for c in result.comparisons), default=0.0)
            what = (
                result.not_covered[0][1] if not result.covered else f"{result.options}; at {worst:.2g} of the tolerance"
            )
            console.print(
                f"{state:12} {result.file} :: {result.case_id} [{what}]", markup=False, highlight=False, soft_wrap=True
            )
    _list(console, "Disagreements", _disagreement_lines(report))
    _list(console, "Rows set aside, where rounding counts in the original", _aside_lines(report))
    _list(console, "Not covered", _uncovered_lines(report))
    _list(console, "Not read", [f"{name}: {reason}" for name, reason in report.unread])
    if report.others:
        _list(console, "Other files, not in a golden schema", [", ".join(report.others)])


def _counts(results: Sequence[CaseResult]) -> list[str]:
    covered = [result for result in results if result.covered]
    agree = sum(result.agrees for result in covered)
    aside = sum(comparison.aside for result in covered for comparison in result.comparisons)
    return [
        str(n) for n in (len(results), len(covered), agree, len(covered) - agree, len(results) - len(covered), aside)
    ]


def _list(console: Console, title: str, lines: list[str]) -> None:
    if lines:
        console.print(f"\n{title}:", style="bold")
        for line in lines:
            console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)


def _disagreement_lines(report: Report) -> list[str]:
    return [
        f"{result.file} :: {result.case_id} :: {c.key}: off by {c.error:.3g}, {c.excess:.3g} times the tolerance "
        f"({c.where}) [{result.options}]"
        for result in report.disagreements
        for c in result.comparisons
        if not c.agrees
    ]


def _aside_lines(report: Report) -> list[str]:
    return [
        f"{result.file} :: {result.case_id} :: {c.key}: {c.aside} rows, recorded up to {c.aside_error:.3g} from the "
        f"exact value; the original's formula in its number format gives {c.aside_explained} of them"
        for result in report.results
        for c in result.comparisons
        if c.aside
    ]


def _uncovered_lines(report: Report) -> list[str]:
    counts: Counter[tuple[str, str, str, str]] = Counter()
    for result in report.results:
        for key, reason in result.not_covered:
            counts[result.peer, result.estimator, key, reason] += 1
    return [
        f"{peer} {estimator}{f' ({key})' if key else ''}: {reason} [{n} case{'s' if n > 1 else ''}]"
        for (peer, estimator, key, reason), n in sorted(counts.items())
    ]


def main(argv: list[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.golden", description=__doc__)
    parser.add_argument("folder", type=Path, help="folder with expected_*.json and their inputs")
    parser.add_argument("--verbose", action="store_true", help="list every case")
    arguments = parser.parse_args(argv)
    console = Console()
    if not arguments.folder.is_dir():
        console.print(f"golden: {arguments.folder} is not a folder", style="red")
        return 2
    report = run(arguments.folder)
    show(report, console, arguments.verbose)
    if report.disagreements:
        return 1
    return 0 if any(result.covered for result in report.results) else 2


if __name__ == "__main__":
    sys.exit(main())
