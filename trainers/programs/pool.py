"""``envsuite pool``: list, show, tag, reward, export and delete what a pool has of agents' episodes.

Settings of a query choose sessions: envsuite pool list --help. While another process writes the pool, only list, show
and export work.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from envsuite.core.errors import UsageError
from envsuite.data.files import write_atomically
from envsuite.exits import status_of
from envsuite.playing.step import Episode
from trainers.pool import Pool, PoolWriter, Query
from trainers.report.html import printable
from trainers.settings import checked
from trainers.settings.console import EscapingConsole
from trainers.settings.words import describe_settings, over
from trainers.steps.parquet import write_episodes

_SESSION = {"name": "name of the session"}
_COMMANDS = {
    "list": ("list sessions", {}),
    "show": ("print a session step by step", _SESSION),
    "tag": ("give sessions a tag; with --remove take it away", {"tag": "the tag"}),
    "reward": ("set what a session earned beyond its steps", {**_SESSION, "value": "the reward"}),
    "export": ("write episodes", {"out": "FILE.parquet, or the folder of a run for envsuite report"}),
    "prune": ("delete sessions; without --yes say how many", {}),
    "delete-session": ("delete one session", _SESSION),
}
_OPTIONS = {"list": {"--json": "store_true"}, "tag": {"--remove": "store_true", "--name": "store"},
            "prune": {"--yes": "store_true"}, "reward": {"--success": "store", "--score": "store"}}  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="envsuite pool", description=__doc__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command, (text, words) in _COMMANDS.items():
        subparser = commands.add_parser(command, help=text, allow_abbrev=False)
        for word, meaning in {"folder": "folder of the pool", **words}.items():
            subparser.add_argument(word, help=meaning)
        for option, action in _OPTIONS.get(command, {}).items():
            subparser.add_argument(option, action=action)
        for setting in describe_settings(Query) if "name" not in words else ():
            subparser.add_argument(f"--{setting.path}", nargs="?", const="true", metavar="VALUE", help=setting.text)
    options = parser.parse_args(arguments)
    return status_of(lambda: _run(options, EscapingConsole(highlight=False)))


def _run(options: argparse.Namespace, out: Console) -> None:
    command = options.command
    settings = [(f"--{setting.path}", vars(options).get(setting.path)) for setting in describe_settings(Query)]
    query = checked(Query, over(Query, {"order": "oldest"}, [pair for pair in settings if pair[1] is not None]))
    with Pool(options.folder) as pool:
        if command == "list":
            rows = _rows(pool, query)
            if options.json:
                print(json.dumps(rows, indent=1))
                return
            _list(rows, out)
        elif command == "show":
            _show(pool, options.name, out)
        elif command == "export":
            _export(pool.episodes(query), Path(options.out))
        if (name := vars(options).get("name")) is None:
            names = [session.session for session in pool.sessions(query, ended=command != "list")]
        else:
            names = [name]
    if command in ("tag", "reward", "delete-session") or (command == "prune" and options.yes):
        with PoolWriter(options.folder, f"envsuite pool {command}") as writer:
            if command == "tag":
                writer.tag(names, [options.tag], options.remove)
            elif command == "reward":
                writer.reward(options.name, options.value, options.success, options.score)
            else:
                writer.delete(names)
    more = "; --yes deletes them" if command == "prune" and not options.yes else ""
    out.print(f"{command}: {len(names)} session{'s' * (len(names) != 1)}{more}")


def _rows(pool: Pool, query: Query) -> list[dict[str, Any]]:
    """The sessions that a query finds, as JSON."""
    return [
        {
            "session": row.session, "source": row.about.source, "task": row.about.task_id,
            "versions": "" if row.oldest is None else f"{row.oldest} to {row.newest}", "steps": row.steps,
            "success": "open" if row.ended is None else "error" if row.ending.error else "yes" if row.success else "no",
            "score": row.score, "reward": row.earned + row.reward, "tags": list(row.tags),
        }
        for row in pool.sessions(query)
    ]  # fmt: skip


def _list(rows: list[dict[str, Any]], out: Console) -> None:
    """Prints a table as wide as its longest names, which other commands take."""
    table = Table("session", "source", "task", "versions", "steps", "success", "score", "reward", "tags")
    for row in rows:
        texts = [" ".join(v) if isinstance(v, list) else f"{v:g}" if isinstance(v, float) else v for v in row.values()]
        table.add_row(*(printable(str(text)) for text in texts))
    out.width = max(out.width, out.measure(table, options=out.options.update(max_width=10**6)).maximum)
    out.print(table)


def _show(pool: Pool, name: str, out: Console) -> None:
    episode = pool.episode(name)
    lines = [f"{episode.env_id} {episode.task_id}: {episode.task}"]
    for step in episode.steps:
        calls = "; ".join(f"{call.name} {json.dumps(call.arguments)}" for call in step.action or ())
        tokens = f"{len(step.prompt_ids)} + {len(step.response_ids)} tokens"
        lines += [f"\nstep {step.t} ({tokens}, reward {step.reward:g})", step.observation]
        lines += [f"> {step.response_text or calls or step.parse_error or ''}"]
    lines += [f"\nsuccess: {episode.success}, score: {episode.score:g}, error: {episode.error}"]
    out.print(printable("\n".join(lines)), soft_wrap=True)


def _export(episodes: Sequence[Episode], out: Path) -> None:
    """Writes a file of episodes, or a folder like that of a run of one iteration."""
    if not episodes:
        raise UsageError("the query finds no session; envsuite pool list shows what there is")
    if out.suffix == ".parquet":
        write_episodes(out, episodes)
        return
    size = max(Counter(episode.group_id for episode in episodes).values())
    settings = {"name": out.name, "iterations": 1, "method": {"estimator": "grpo"}, "rollout": {"group_size": size}}
    write_episodes(out / "episodes" / "iteration-00001.parquet", episodes)
    write_atomically(out / "metrics.jsonl", b'{"iteration": 1, "train/episodes": %d}\n' % len(episodes))
    write_atomically(out / "config.yaml", json.dumps(settings, indent=1).encode())
