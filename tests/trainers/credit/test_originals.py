"""docs/originals.md: each option that it names exists, and has the value that it states in every run that it names."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from functools import cache
from typing import Any

import pytest
import yaml
from gymnasium.envs.registration import load_env_creator

from benchmarks.papers.plans import config_of
from docs.build import ROOT
from envsuite.core.registration import ENVIRONMENTS
from trainers.papers.index import published_rows

RUNS = {run.name.removeprefix("papers/"): run for run in published_rows()}
CODE = re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class Row:
    """A row of a table of the page."""

    section: str
    setting: str
    ours: str
    runs: tuple[str, ...]
    """Patterns of the names of runs after ``papers/``, or ids of environments."""
    verdict: str


def rows() -> Iterator[Row]:
    """The rows of the page; the runs of ``all`` are those that the section names before its table."""
    for section in (ROOT / "docs" / "originals.md").read_text(encoding="utf-8").split("\n## ")[1:]:
        title, _, body = section.partition("\n")
        named = tuple(CODE.findall(body.partition("\n|")[0]))
        for line in body.splitlines():
            if line.startswith("| ") and not line.startswith("| setting |"):
                setting, _, ours, runs, verdict = line.strip("| ").split(" | ")
                yield Row(title, setting, ours, named if runs == "all" else tuple(CODE.findall(runs)), verdict)


ROWS = list(rows())


def matched(row: Row) -> list[str]:
    """The names of a row's runs."""
    return [name for pattern in row.runs for name in fnmatch.filter(RUNS, pattern)]


@cache
def settings(name: str) -> dict[str, Any]:
    """The settings of a run, resolved."""
    return asdict(config_of(RUNS[name]))


def defaults(env_id: str) -> dict[str, Any]:
    """The defaults of an environment's arguments, and its horizon."""
    kind: Any = load_env_creator(ENVIRONMENTS[env_id].entry_point)
    return {one.name: one.default for one in fields(kind.takes)} | {
        "max_episode_steps": ENVIRONMENTS[env_id].max_episode_steps
    }


def value(found: Any, key: str) -> Any:
    """The value of a dotted key; of a list the values of its items, as one where they are equal."""
    for name in key.split("."):
        found = [one[name] for one in found] if isinstance(found, list) else found[name]
    if isinstance(found, list) and found and all(one == found[0] for one in found):
        return found[0]
    return found


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.section}: {row.setting}")
def test_every_option_on_the_page_exists_and_has_the_stated_value(row: Row) -> None:
    stated = [text for text in CODE.findall(row.ours) if re.match(r"[a-z_.]+: ", text)]
    environments = [name for name in row.runs if name in ENVIRONMENTS]
    names = matched(row)
    assert environments or names, row.runs
    for text in stated:
        ((key, wanted),) = yaml.safe_load(text).items()
        for where in (*environments, *names):
            found = value(defaults(where) if where in environments else settings(where), key)
            assert found == wanted, f"{where}: {key} is {found!r}, not {wanted!r}"
    assert row.ours and row.verdict.partition(":")[0] in ("same", "differs")


def test_every_run_and_every_pattern_is_on_the_page() -> None:
    assert not RUNS.keys() - {name for row in ROWS for name in matched(row)}
    for row in ROWS:
        for pattern in row.runs:
            assert pattern in ENVIRONMENTS or fnmatch.filter(RUNS, pattern), f"{row.setting}: {pattern}"
