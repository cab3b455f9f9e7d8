"""The papers' tables, row by row, and the runs that train the rows: reads ``index.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from trainers.settings.words import Loader


@dataclass(frozen=True, order=True)
class PaperRun:
    """One training of a paper."""

    paper: str
    """Key of the paper that publishes the settings."""
    table: str
    """``table1``, or ``quoted`` where the figures are known from other papers alone."""
    env: str
    model: str
    method: str
    """Method, and what sets the row apart: ``hgpo-k2``."""

    @property
    def name(self) -> str:
        """The name that ``--config`` takes."""
        return f"papers/{self.paper}/{self.table}-{self.env}-{self.model}-{self.method}"


@dataclass(frozen=True)
class Row:
    """One row of a table."""

    paper: str
    table: str
    """Number of the table, as the paper has it."""
    model: str
    label: str
    figures: Mapping[str, Mapping[str, str]]
    """Figures as they are printed, by environment and metric."""
    runs: Mapping[str, PaperRun]
    """Runs whose result the row is, by environment."""
    missing: Mapping[str, str]
    """Reason why there is no run, by environment."""
    evaluate: str | None
    """Prompting style of a row that is not trained: direct, react or reflexion."""
    metric: str | None
    """Name in ``metrics.jsonl``, where the row is no rate of success."""
    source: str | None
    """Place in the running text where the figures stand, if not in the table."""
    note: str | None

    def figures_in(self, env: str) -> str:
        """The figures in one environment with their names, empty where there are none."""
        return ", ".join(f"{metric} {figure}" for metric, figure in self.figures.get(env, {}).items())


@dataclass(frozen=True)
class Table:
    """One table."""

    number: str
    caption: str
    kind: str
    """``results``, ``formulas``, ``settings`` or ``calibration``."""
    envs: tuple[str, ...]
    rows: tuple[Row, ...]
    absent: bool
    """Whether the text that the figures were read from lacks the table's cells."""


@dataclass(frozen=True)
class Paper:
    """One paper."""

    key: str
    title: str
    authors: str
    arxiv: str | None
    tables: tuple[Table, ...]


@cache
def read_papers() -> tuple[Paper, ...]:
    """All papers, in the order of ``index.yaml``."""
    body = read_data("index.yaml")
    papers = []
    for key, entry in body["papers"].items():
        tables = tuple(_table(key, table, body["reasons"]) for table in entry["tables"])
        papers.append(Paper(key, entry["title"], entry["authors"], entry.get("arxiv"), tables))
    return tuple(papers)


@cache
def published_rows() -> Mapping[PaperRun, tuple[Row, ...]]:
    """The rows that each run is the result of, by run, sorted."""
    rows: dict[PaperRun, tuple[Row, ...]] = {}
    for row in (row for paper in read_papers() for table in paper.tables for row in table.rows):
        for run in row.runs.values():
            rows[run] = (*rows.get(run, ()), row)
    return dict(sorted(rows.items()))


def display_name(key: str) -> str:
    """The name of a paper or an environment for people."""
    return str(read_data("index.yaml")["names"].get(key, key))


@cache
def read_data(name: str) -> dict[str, Any]:
    """The content of a file of this package."""
    return dict(yaml.load(files(__package__).joinpath(name).read_text(encoding="utf-8"), Loader))


def _table(paper: str, entry: Mapping[str, Any], reasons: Mapping[str, str]) -> Table:
    rows = tuple(_row(paper, entry, row, reasons) for row in entry.get("rows", []))
    envs, kind = tuple(entry.get("metrics", {})), entry.get("kind", "results")
    return Table(entry["table"], entry["caption"], kind, envs, rows, entry.get("body") == "absent")


def _row(paper: str, table: Mapping[str, Any], entry: Mapping[str, Any], reasons: Mapping[str, str]) -> Row:
    metrics = table["metrics"]
    figures = {
        env: {metric: word for metric, word in zip(names, entry[env].split(), strict=True) if word != "-"}
        for env, names in metrics.items()
        if env in entry
    }
    number, model, texts = table["table"], entry.get("model", ""), entry.get("run", {})
    uncovered = {} if "evaluate" in entry else table.get("uncovered", {})  # a prompted model needs no run
    missing = dict.fromkeys(metrics, entry["missing"]) if "missing" in entry else uncovered
    if isinstance(texts, str):  # one for all environments
        texts = {env: texts for env in metrics if env not in missing}
    runs = {env: _run(paper, number, env, model, text) for env, text in texts.items()}
    missing = {env: reasons[reason] for env, reason in missing.items()}
    details = map(entry.get, ("evaluate", "metric", "source", "note"))
    return Row(paper, number, model, entry["row"], figures, runs, missing, *details)


def _run(paper: str, table: str, env: str, model: str, text: str) -> PaperRun:
    """Reads ``METHOD``, of a row's own paper and table, or ``PAPER/TABLE:METHOD``."""
    place, _, method = text.rpartition(":")
    key, _, number = (place or f"{paper}/table{table.replace('.', '')}").partition("/")
    return PaperRun(key, number, env, model, method)
