"""docs/papers.md: paper, row, file, what was published, and what it would take to run it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.papers.configs import figures_of
from benchmarks.papers.index import NAMES, Index, Paper, Row, Run, Table
from benchmarks.papers.plans import MEANS, STEPPO_STEPS, Planned
from benchmarks.papers.setting import ENVIRONMENTS, MODELS
from benchmarks.papers.settings import setting_of

INTRODUCTION = Path(__file__).with_name("introduction.md")


SCPO_HOURS = {
    ("qwen2.5-1.5b", "alfworld"): 13, ("qwen2.5-1.5b", "webshop"): 7,
    ("qwen2.5-7b", "alfworld"): 36, ("qwen2.5-7b", "webshop"): 27,
}  # fmt: skip
"""Hours of a run that SCPO states (appendix A.2), for 150 iterations."""


def page(index: Index, plans: Mapping[Run, Planned]) -> str:
    """The whole page."""
    means = ", ".join(f"{ENVIRONMENTS[env]} {a} / {b:,} / {c}" for env, (a, b, c) in MEANS.items())
    stated = "; ".join(
        f"{MODELS[model].rpartition('/')[2]} on {ENVIRONMENTS[env]} {hours} hours, planned {plans[run].hours(150):.0f}"
        for (model, env), hours in SCPO_HOURS.items()
        for run in [Run("scpo", "table1", env, model, "scpo")]
    )
    text = INTRODUCTION.read_text(encoding="utf-8")
    text = text.format(means=means, steppo=STEPPO_STEPS, plans=len(plans), stated=stated)
    lines = [text.rstrip("\n")]
    files = Counter(run.paper for run in index.runs)
    for paper in index.papers:
        rows = [row for table in paper.tables for row in table.rows]
        lines.append(
            f"| [{NAMES[paper.key]}](#{NAMES[paper.key].lower()}) | {len(rows)} | "
            f"{sum(bool(row.runs) for row in rows)} | "
            f"{sum(row.evaluate is not None for row in rows)} | "
            f"{sum(not row.runs and row.evaluate is None for row in rows)} | {files[paper.key]} |"
        )
    lines.append(f"| GiGPO, as quoted | | | | | {files['gigpo']} |")
    for paper in index.papers:
        lines += ["", *_paper(paper, index, plans)]
    return "\n".join(lines) + "\n"


def _paper(paper: Paper, index: Index, plans: Mapping[Run, Planned]) -> Iterator[str]:
    where = f", [arXiv {paper.arxiv}](https://arxiv.org/abs/{paper.arxiv})" if paper.arxiv else ""
    yield f"## {NAMES[paper.key]}"
    yield ""
    yield f"{paper.authors}, *{paper.title}*{where}."
    others = [table for table in paper.tables if table.kind != "results"]
    for table in paper.tables:
        if table not in others:
            yield from ("", f"### {NAMES[paper.key]}, table {table.number}", "", f"{_capital(table.caption)}.")
            yield from ("", "| model | row | published | file | ours |", "|---|---|---|---|---|")
            for row in table.rows:
                yield _row(row, table, index, plans)
    if others:
        yield ""
    for table in others:
        said = "settings, which are not in the text that was read." if table.absent else _KINDS[table.kind]
        yield f"- Table {table.number}, {table.caption}: {said}"


_KINDS = {
    "formulas": "no results.",
    "settings": "settings, which the files have.",
    "calibration": "no training; [`envsuite calibrate`](methods/bipace.md#calibration) makes it of a run's episodes.",
}


def _row(row: Row, table: Table, index: Index, plans: Mapping[Run, Planned]) -> str:
    model = MODELS.get(row.model, row.model).rpartition("/")[2] or "none"
    label = row.label.replace("|", "\\|") + (f" ({row.note})" if row.note else "")
    metric = f"`{row.metric}`: " if row.metric else ""
    shown = [env for env in table.metrics if env in row.values or env in row.runs] or list(table.metrics)
    cells: list[tuple[str, str, str]] = []
    for env in shown:
        figures = figures_of(row, env, table) or "not in the text that was read"
        figures += f" [{row.source}]" if row.source and env in row.values else ""
        run = row.runs.get(env)
        if run is not None:
            file = f"[{run.path.stem}](../configs/papers/{run.path.as_posix()})"
            ours = _needs(run, plans[run])
        else:
            file = ""
            ours = f"not run: prompted, `--baseline {row.evaluate}`" if row.evaluate else ""
            if env in row.missing:
                ours = f"not covered: {index.reasons[row.missing[env]]}"
        cells.append((f"{ENVIRONMENTS.get(env, env)}: {metric}{figures}", file, ours))
    published, files, ours_of = ("<br>".join(dict.fromkeys(column)) for column in zip(*cells, strict=True))
    return f"| {model} | {label} | {published} | {files} | {ours_of} |"


def _needs(run: Run, plan: Planned) -> str:
    hours = plan.hours(setting_of(run).settings["iterations"])
    count = plan.ranks
    memory = "" if plan.fits else f", which have {plan.room:.1f} GiB each where it needs {plan.gib:.1f}"
    return f"not run: needs {count} GPUs x {hours:,.0f} hours ({plan.gpus}){memory}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
