"""``report.html``: one file with everything about a run; opens from disk, fetches nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from envsuite.data.files import atomic_file, file_errors
from envsuite.playing.step import REFUSALS
from trainers.report.events import read_events
from trainers.report.graphs import pack_pictures, pictures
from trainers.report.methods import DEFAULT, Advantages
from trainers.report.metrics import METRICS, is_share
from trainers.report.pack import STEP_FIELDS, PackedEpisodes, pack, pack_advantages
from trainers.report.run import PARTS, PHASE_COLOURS, RunData, flat, iteration_of
from trainers.report.stats import NOTE, comparison

SCRIPTS = ("charts.js", "episodes.js", "list.js", "graph.js", "browser.js", "report.js")
LIVE_SCRIPTS = (*SCRIPTS[:-1], "live.js", "report.js")


def write_html(run: RunData, methods: Sequence[str] = DEFAULT) -> Path:
    """Writes ``report.html`` to the run folder; replaces an old one atomically.

    Args:
        run: The run.
        methods: Methods whose advantages are computed, as :class:`~trainers.report.methods.Advantages` takes them.

    Raises:
        DataError: A file of episodes is damaged, or the report cannot be written.
        UsageError: A method does not exist, or its settings are wrong.
    """
    # The page is made in pieces, with the episodes of only one iteration in memory at a time.
    data = _data(run, Advantages(run, methods))
    return write_page(run.folder / "report.html", page("template.html", run.name, data, SCRIPTS))


def write_page(path: Path, parts: Iterable[str]) -> Path:
    """Writes the text of ``parts`` to ``path``, which holds either the old page or the whole new one at any time.

    Raises:
        DataError: It cannot be written.
    """
    with file_errors(path, "written"), atomic_file(path) as out:
        out.writelines(part.encode() for part in parts)
    return path


def page(template: str, title: str, data: Iterable[str], scripts: Sequence[str], live: bool = False) -> Iterator[str]:
    """Yields a page in pieces.

    Args:
        template: Name of the file with the page's elements.
        title: Its title.
        data: Elements with the page's data.
        scripts: Names of the files with its scripts.
        live: Lets it ask the server that it comes from.
    """
    package = files("trainers.report")
    text = (package / template).read_text(encoding="utf-8").replace("{{TITLE}}", escape(printable(title)))
    text = text.replace("img-src data:", "img-src data:; connect-src 'self'" if live else "img-src data:")
    head, text = text.split("<!-- STYLE -->")
    before_data, text = text.split("<!-- DATA -->")
    before_script, tail = text.split("<!-- SCRIPT -->")
    yield head
    yield f"<style>\n{(package / 'report.css').read_text(encoding='utf-8')}</style>\n"
    yield before_data
    yield from data
    yield before_script
    for name in scripts:
        yield f"<script>\n{(package / name).read_text(encoding='utf-8')}</script>\n"
    yield tail


def _data(run: RunData, advantages: Advantages) -> Iterator[str]:
    entries = []
    for number, (label, path) in enumerate(run.episode_files()):
        bundle = pack(path)
        yield f'<script type="text/plain" id="episodes-{number}">{bundle.payload}</script>\n'
        yield f'<script type="text/plain" id="graphs-{number}">{pack_pictures(bundle, pictures(path))}</script>\n'
        if results := advantages.of_file(path):
            yield f'<script type="text/plain" id="advantages-{number}">{pack_advantages(bundle, results)}</script>\n'
        entries.append(file_entry(label, path, bundle, bool(results)))
    body = {**page_data(run), **methods_data(advantages), "files": entries}
    yield f'<script type="application/json" id="data">{script_json(body)}</script>\n'


def file_entry(label: str, path: Path, packed: PackedEpisodes, credited: bool) -> dict[str, Any]:
    """Returns what the page knows of a file of episodes before it is unpacked."""
    short = label.replace("evaluation at iteration", "eval")
    return {
        "label": label,
        "short": short.replace("iteration", "it.").replace("environment", "env."),
        "kind": "evaluation" if iteration_of(path) is None else "iteration",
        "episodes": packed.episodes,
        "solved": packed.solved,
        "failed": packed.failed,
        "differing": packed.differing,
        "credited": credited,
    }


def methods_data(advantages: Advantages) -> dict[str, Any]:
    """Returns what the page knows of the methods whose advantages it may show."""
    return {"methods": advantages.summaries(), "methods_problem": advantages.problem}


def page_data(run: RunData) -> dict[str, Any]:
    """Returns the page's data besides the episodes."""
    names = run.metric_names()
    return {
        "name": run.name,
        "state": run.state(),
        "settings": [[key, setting_text(value)] for key, value in flat(run.config)],
        "config": run.config_text,
        "summary": [[k, setting_text(v)] for k, v in flat(run.summary) if k not in ("evaluations", "events")],
        "events": [[event.iteration, event.time, event.kind, event.message] for event in read_events(run.folder)],
        "evaluations": [result.to_json() for result in run.evaluations],
        "comparisons": [
            {
                "title": f"{after.env_id}, split {after.split}",
                "before": before.to_json(),
                "after": after.to_json(),
                "rows": comparison(before, after),
            }
            for before, after in run.pairs()
        ],
        "note": NOTE,
        "metrics": {name: dict(zip("xy", run.series(name), strict=True)) for name in names},
        "descriptions": {name: METRICS[name] for name in names if name in METRICS},
        "shares": [name for name in names if is_share(name)],
        "evaluation_points": run.evaluation_points(),
        "times": run.times(),
        "time_parts": {label: f"time/{name}" for name, label in PARTS.items()},
        "phase_colours": PHASE_COLOURS,
        "step_fields": STEP_FIELDS,
        "refusals": REFUSALS,
    }


def setting_text(value: Any) -> str:
    """Returns a setting as text: JSON, or the text itself."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def script_json(value: Any) -> str:
    """Returns JSON that is safe inside a script element: no ``<``, so no end tag or comment; ASCII only."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def printable(text: str) -> str:
    """Returns ``text`` with U+FFFD for characters that HTML forbids: NUL and other controls, lone surrogates."""
    return "".join("\ufffd" if (c < " " and c not in "\t\n") or "\ud800" <= c <= "\udfff" else c for c in text)
