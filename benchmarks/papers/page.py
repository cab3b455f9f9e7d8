"""docs/papers.md: paper, row, run, what was published, and what the run would take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from benchmarks.papers.plans import MEANS, STEPPO_STEPS, Planned
from trainers.papers.index import Paper, PaperRun, Row, Table, display_name, published_rows, read_papers
from trainers.papers.settings import setting_of

INTRODUCTION = Path(__file__).with_name("introduction.md")
SCPO_HOURS = {
    ("qwen2.5-1.5b", "alfworld"): 13, ("qwen2.5-1.5b", "webshop"): 7,
    ("qwen2.5-7b", "alfworld"): 36, ("qwen2.5-7b", "webshop"): 27,
}  # fmt: skip
"""Hours of a run that SCPO states (appendix A.2), for 150 iterations."""


def page(plans: Mapping[PaperRun, Planned]) -> str:
    """The page, without the papers' rows."""
    means = ", ".join(f"{display_name(env)} {a} / {b:,} / {c}" for env, (a, b, c) in MEANS.items())
    stated = "; ".join(
        f"{_models()[model]} on {display_name(env)} {hours} hours, planned {plans[run].hours(150):.0f}"
        for (model, env), hours in SCPO_HOURS.items()
        for run in [PaperRun("scpo", "table1", env, model, "scpo")]
    )
    text = INTRODUCTION.read_text(encoding="utf-8")
    text = text.format(means=means, steppo=STEPPO_STEPS, plans=len(plans), stated=stated)
    lines = [text.rstrip("\n")]
    counts = Counter(run.paper for run in published_rows())
    for paper in read_papers():
        own = [row for table in paper.tables for row in table.rows]
        lines.append(
            f"| {display_name(paper.key)} | {len(own)} | "
            f"{sum(bool(row.runs) for row in own)} | "
            f"{sum(row.evaluate is not None for row in own)} | "
            f"{sum(not row.runs and row.evaluate is None for row in own)} | {counts[paper.key]} |"
        )
    lines.append(f"| GiGPO, as quoted | | | | | {counts['gigpo']} |")
    return "\n".join(lines) + "\n"


def rows(plans: Mapping[PaperRun, Planned]) -> str:
    """All rows of all papers, as Markdown."""
    return "\n".join(line for paper in read_papers() for line in (*_paper(paper, plans), "")) + "\n"


@cache
def _models() -> Mapping[str, str]:
    """Names of the models that are trained, without their owners."""
    return {run.model: setting_of(run).settings["model"]["path"].rpartition("/")[2] for run in published_rows()}


def _paper(paper: Paper, plans: Mapping[PaperRun, Planned]) -> Iterator[str]:
    where = f", [arXiv {paper.arxiv}](https://arxiv.org/abs/{paper.arxiv})" if paper.arxiv else ""
    name = display_name(paper.key)
    yield f"## {name}"
    yield ""
    yield f"{paper.authors}, *{paper.title}*{where}."
    without_results = [table for table in paper.tables if table.kind != "results"]
    for table in paper.tables:
        if table not in without_results:
            yield from ("", f"### {name}, table {table.number}", "", f"{_capital(table.caption)}.")
            yield from ("", "| model | row | published | run | ours |", "|---|---|---|---|---|")
            for row in table.rows:
                yield _row(row, table, plans)
    if without_results:
        yield ""
    for table in without_results:
        kind = "settings, which are not in the text that was read." if table.absent else _KINDS[table.kind]
        yield f"- Table {table.number}, {table.caption}: {kind}"


_KINDS = {
    "formulas": "no results.",
    "settings": "settings, which the runs have.",
    "calibration": "no training; [`envsuite calibrate`](methods/bipace.md#calibration) makes it of a run's episodes.",
}


def _row(row: Row, table: Table, plans: Mapping[PaperRun, Planned]) -> str:
    model = _models().get(row.model, row.model) or "none"
    label = row.label.replace("|", "\\|") + (f" ({row.note})" if row.note else "")
    metric = f"`{row.metric}`: " if row.metric else ""
    shown = [env for env in table.envs if env in row.figures or env in row.runs] or table.envs
    cells: list[tuple[str, str, str]] = []
    for env in shown:
        figures = row.figures_in(env) or "not in the text that was read"
        figures += f" [{row.source}]" if row.source and env in row.figures else ""
        run = row.runs.get(env)
        if run is not None:
            ours = _needs(run, plans[run])
        elif env in row.missing:
            ours = f"not covered: {row.missing[env]}"
        else:
            ours = f"not run: prompted, `--baseline {row.evaluate}`" if row.evaluate else ""
        cells.append((f"{display_name(env)}: {metric}{figures}", f"`{run.name}`" if run else "", ours))
    published, runs, ours_of = ("<br>".join(dict.fromkeys(column)) for column in zip(*cells, strict=True))
    return f"| {model} | {label} | {published} | {runs} | {ours_of} |"


def _needs(run: PaperRun, plan: Planned) -> str:
    hours = plan.hours(setting_of(run).settings["iterations"])
    memory = "" if plan.fits else f", which have {plan.room:.1f} GiB each where it needs {plan.gib:.1f}"
    return f"not run: needs {plan.ranks} GPUs x {hours:,.0f} hours ({plan.gpus}){memory}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
