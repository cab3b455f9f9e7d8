"""``envsuite report``: reports of runs, comparisons, advantages of an episode, a run followed live."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from envsuite.core.errors import UsageError, require_extra
from envsuite.evaluation.writers import SHEETS
from envsuite.exits import status_of
from envsuite.remote.protocol import TOKEN_VARIABLE
from envsuite.remote.tokens import read_token
from trainers.report.compare import RunComparison, write_comparison
from trainers.report.graphs import draw, pictures
from trainers.report.html import printable, write_html
from trainers.report.methods import DEFAULT, OWN, Advantages, saved_advantages
from trainers.report.plots import write_plots
from trainers.report.run import RunData, iteration_of
from trainers.report.stats import before_after_sheet, before_after_table
from trainers.settings.console import EscapingConsole
from trainers.steps.parquet import StepKey, parse_action, read_table

EXAMPLES = """examples:
  envsuite report runs/textcraft
  envsuite report runs/textcraft --advantages own grpo gigpo/webshop 'hgpo:{depth: 4}'
  envsuite report runs/grpo runs/gigpo --out compared.html
  envsuite report runs/textcraft --serve
  envsuite report runs/textcraft --episode 17 --advantages own rloo
  envsuite report runs/textcraft --graph 3 --advantages gigpo --out group-3.png
"""


def main(arguments: list[str] | None = None) -> int:
    """Writes the report, the plots and the tables of a run, or compares several; returns the exit status."""
    options = _parser().parse_args(arguments)
    return status_of(lambda: _run(options, EscapingConsole(stderr=True)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="envsuite report", description=main.__doc__, epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run folder; several are compared")
    parser.add_argument("--out", type=Path, metavar="FILE", help="page that compares several runs")
    parser.add_argument("--format", choices=("text", "markdown", "latex"), default="text", help="format of the tables")
    parser.add_argument(
        "--advantages", nargs="+", metavar="METHOD", default=list(DEFAULT),
        help="methods under which each step's advantage is computed from the saved episodes: 'own', an estimator, a "
        "recipe, a composition such as gigpo+scpo, each with settings of its own after a colon; 'none' for none "
        f"(default: {' '.join(repr(name) if ' ' in name else name for name in DEFAULT)})",
    )  # fmt: skip
    parser.add_argument(
        "--episode", type=int, metavar="ID", help="print the advantages of this training episode's steps; write nothing"
    )
    parser.add_argument(
        "--graph", type=int, metavar="GROUP",
        help="draw the states that this group of training episodes met to --out, a .png, .svg or .pdf file, with the "
        "advantages of the first of --advantages (default: as trained)",
    )  # fmt: skip
    live = parser.add_argument_group("following a run that goes on")
    live.add_argument("--serve", action="store_true", help="show the run in a browser as it is now; read-only")
    live.add_argument("--host", default="127.0.0.1", help="(default: %(default)s, only this machine can connect)")
    live.add_argument("--port", type=int, default=8090, help="(default: %(default)s; 0: any free one)")
    live.add_argument(
        "--token-file", type=Path,
        help=f"file with the token that readers need where other machines can connect (default: ${TOKEN_VARIABLE})",
    )  # fmt: skip
    return parser


def _run(options: argparse.Namespace, problems: Console) -> None:
    methods = [] if options.advantages == ["none"] else options.advantages
    if options.serve:
        _serve(options, methods, problems)
    elif len(options.runs) > 1:
        _compare([RunData.load(folder) for folder in options.runs], options.out, problems)
    elif options.out is not None and options.graph is None:
        raise UsageError("--out is the page that compares several runs; the report of one is written to its folder")
    elif options.graph is not None:
        method = OWN if methods == list(DEFAULT) else (methods or [OWN])[0]
        _graph(RunData.load(options.runs[0]), options.graph, method, options.out, problems)
    elif options.episode is not None:
        _episode(RunData.load(options.runs[0]), options.episode, methods, problems)
    else:
        _report(RunData.load(options.runs[0]), options.format, methods, problems)


def _report(run: RunData, form: str, methods: list[str], problems: Console) -> None:
    """Prints what changed from the first evaluation to the last, and writes the plots and the page."""
    console = EscapingConsole()
    for before, after in run.pairs():
        if form == "text":
            console.print(before_after_table(before, after))
        else:
            sys.stdout.write(SHEETS[form]([before_after_sheet(before, after)]))
    for path in (*write_plots(run), write_html(run, methods)):
        _tell(problems, f"wrote {path}")


def _serve(options: argparse.Namespace, methods: list[str], problems: Console) -> None:
    """Serves a run until Ctrl-C.

    Raises:
        MissingExtra: The server is not installed.
        UsageError: More than one run is named, or the address does not do.
    """
    with require_extra("--serve needs packages of its own", "serve"):
        from trainers.report.server import ServeSettings, serve
    if len(options.runs) > 1:
        raise UsageError("--serve follows one run; start one server, with a --port of its own, for each")
    if (options.runs[0] / "config.yaml").exists():
        Advantages(RunData.load(options.runs[0]), methods)  # methods that do not exist are told now
    token = read_token(options.token_file)
    with contextlib.suppress(KeyboardInterrupt):
        settings = ServeSettings(options.runs[0], options.host, options.port, token, methods)
        serve(settings, lambda text: _tell(problems, text))


def _compare(runs: list[RunData], out: Path | None, problems: Console) -> None:
    """Writes the page that compares runs, and says which are not comparable.

    Raises:
        UsageError: No file is named.
    """
    if out is None:
        raise UsageError("several runs are compared on one page: name it with --out, e.g. --out compared.html")
    comparison = RunComparison(runs)
    for text in comparison.warnings():
        _tell(problems, text, style="yellow")
    _tell(problems, f"wrote {write_comparison(comparison, out)}")


def _episode(run: RunData, episode: int, methods: list[str], problems: Console) -> None:
    """Prints the advantage of each step of an episode under each method.

    Raises:
        UsageError: No file of training episodes has it.
    """
    advantages = Advantages(run, methods)
    for label, path in run.episode_files():  # noqa: B007  (the last ones are used below)
        if iteration_of(path) is not None:
            rows = read_table(path, ["episode_id", "t", "action", "valid"]).to_pylist()
            if rows := [row for row in rows if row["episode_id"] == episode and row["t"] >= 0]:
                break
    else:
        raise UsageError(f"{run.folder / 'episodes'}: no training episode has the id {episode} and steps")
    results, own = advantages.of_file(path), saved_advantages(path)
    columns = [("trained with", own)] * bool(own) + [
        (result.method.name, result.values)
        for result in results
        if result.values is not None and not (own and result.method.name == OWN)
    ]
    console, title = EscapingConsole(), f"Episode {episode}, {label}: advantage of each step"
    count = max(1, (console.width - 40) // 13)  # methods that fit beside the actions; the others get a table below
    for start in range(0, max(1, len(columns)), count):
        table = Table(title=title if start == 0 else None, title_justify="left")
        table.add_column("step", justify="right", no_wrap=True)
        table.add_column("action", min_width=20)
        for name, _ in columns[start : start + count]:
            table.add_column(Text(name), justify="right", width=10, overflow="fold")
        for row in rows:
            values = [column.get((episode, row["t"])) for _, column in columns[start : start + count]]
            cells = ["–" if value is None else f"{value:.4f}" for value in values]  # noqa: RUF001
            table.add_row(str(row["t"]), Text(_call(row["action"]), style="" if row["valid"] else "red"), *cells)
        console.print(table)
    for result in results:
        if result.values is None:
            text = f"{result.method.name}: not computed: {result.lacks}"
            problems.print(text, markup=False, highlight=False, soft_wrap=not problems.is_terminal)
    if advantages.problem:
        _tell(problems, f"not computed: {advantages.problem}")


def _graph(run: RunData, group: int, method: str, out: Path | None, problems: Console) -> None:
    """Draws the graph of a group, in the last iteration that has it.

    Raises:
        UsageError: No file is named, or has another suffix; no training episode has the group.
    """
    if out is None or out.suffix not in (".png", ".svg", ".pdf"):
        raise UsageError("--graph draws to a file: name it with --out, e.g. --out group.png (or .svg, .pdf)")
    files = [(label, path) for label, path in reversed(run.episode_files()) if iteration_of(path) is not None]
    matches = ((label, path, picture) for label, path in files for picture in pictures(path) if picture.group == group)
    label, path, picture = next(matches, ("", Path(), None))
    if picture is None:
        raise UsageError(f"{run.folder / 'episodes'}: no training episode of the group {group} has steps")
    values: Mapping[StepKey, float] = saved_advantages(path) if method == OWN else {}
    if not values:
        advantages = Advantages(run, [method])
        result = next(iter(advantages.of_file(path)), None)
        values = {} if result is None or result.values is None else result.values
        if not values:
            _tell(problems, f"drawn without advantages: {advantages.problem if result is None else result.lacks}")
    rows = read_table(path, ["episode_id", "t", "action"]).to_pylist()
    actions = {(row["episode_id"], row["t"]): printable(_words(row["action"])) for row in rows}
    draw(out, picture, values, actions, f"{label}, group {group}: {'as trained' if method == OWN else method}")
    _tell(problems, f"wrote {out}")


def _words(action: str | None) -> str:
    """Returns the values of a step's arguments on one line."""
    calls = (" ".join(map(str, call.arguments.values())) or call.name for call in parse_action(action) or ())
    return " ".join("; ".join(calls).split()) or "no action"


def _call(action: str | None) -> str:
    """Returns the calls of a step on one line."""
    calls = parse_action(action) or ()
    return "; ".join(f"{call.name}({', '.join(map(repr, call.arguments.values()))})" for call in calls) or "none"


def _tell(problems: Console, text: str, style: str | None = None) -> None:
    problems.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
