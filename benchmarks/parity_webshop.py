"""Compare WebShop with recordings of the original: rewards, rankings, episodes, and logs of people's sessions."""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from benchmarks.parity_report import Report, read
from envsuite.core import DataError, MissingExtra, ToolCall, ToolEnv
from envsuite.webshop import pages
from envsuite.webshop.build import build
from envsuite.webshop.catalogue import KINDS, Catalogue, goal_for
from envsuite.webshop.env import WebShop
from envsuite.webshop.goals import Option, ShoppingGoal
from envsuite.webshop.nouns import BuiltinNouns, SpacyTagger, Tagger
from envsuite.webshop.reward import options_matched, score, total, type_reward
from envsuite.webshop.source import CatalogueFiles, products_of
from envsuite.webshop.world import ShopVisit

REWARD_ERROR = 1e-9
SCORE_ERROR = 1e-3


@dataclass(frozen=True)
class Recordings:
    """The files to compare with; each may be left out."""

    rewards: Sequence[Path] = ()
    searches: Sequence[Path] = ()
    episodes: Sequence[Path] = ()
    sessions: Path | None = None
    nouns: Path | None = None


@dataclass(frozen=True)
class Recorded:
    """The nouns that spaCy found, from a recording."""

    known: Mapping[str, Sequence[str]]
    """Title -> nouns."""
    name: str = "recorded"

    def __call__(self, titles: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """The recorded nouns of each title."""
        for title in titles:
            yield tuple(self.known.get(title, ()))


def tagger(files: CatalogueFiles, given: Path | None, beside: Path | None) -> Tagger:
    """The recorded nouns where they are given, else spaCy, else those beside the rewards, else the built-in tagger."""
    if given is None:
        try:
            return SpacyTagger()
        except MissingExtra:
            if beside is None:
                return BuiltinNouns()
            given = beside
    nouns = read(given)
    return Recorded({raw.title: nouns.get(raw.asin, ()) for raw in products_of(files.products)})


def webshop(
    files: CatalogueFiles, recordings: Recordings, find_nouns: Tagger, make: Callable[..., ToolEnv] = WebShop
) -> Report:
    """Compare a catalogue made of ``files`` with recordings made on the same files.

    Args:
        files: The official files.
        recordings: What to compare with.
        find_nouns: Finds the nouns of titles.
        make: Makes the environment from its arguments; may be one on a server.
    """
    report = Report()
    with tempfile.TemporaryDirectory() as folder:
        path = build(files, Path(folder) / "catalogue", find_nouns)
        catalogue = Catalogue(path)
        if recordings.nouns is not None:
            for asin, nouns in read(recordings.nouns).items():
                report.same("titles with their nouns", asin, list(catalogue.product(asin).nouns), nouns)
        for file in recordings.rewards:
            for number, entry in enumerate(read(file)):
                _reward(report, catalogue, f"{file.name}, purchase {number}", entry)
        for file in recordings.searches:
            for entry in read(file):
                _search(report, catalogue, f"{file.name}, {entry['query']!r}", entry)
        env = make(source=str(path), goals="synthetic") if recordings.episodes else None
        for file in recordings.episodes:
            for number, entry in enumerate(read(file)):
                where = f"{file.name}, episode {number}"
                goal = _goal(report, catalogue, where, entry["goal"])
                _world(report, ShopVisit(catalogue, catalogue.search, goal), where, entry)
                if env is not None:
                    _environment(report, env, catalogue, where, goal, entry)
        if recordings.sessions is not None:
            for file in sorted(recordings.sessions.glob("*.jsonl")):
                for line in file.read_bytes().splitlines():
                    entry = orjson.loads(line)
                    if entry["page"] == "done":
                        _human(report, catalogue, file.name, entry)
    return report


def _goal(report: Report, catalogue: Catalogue, where: str, entry: Mapping[str, Any]) -> ShoppingGoal:
    """The recorded goal, which must be one of ours, with the same price limit."""
    target = catalogue.product(entry["asin"])
    goal = goal_for(target, entry["instruction_text"], entry["attributes"], _options(entry), entry["price_upper"])
    ours = [mine for kind in KINDS for mine in catalogue.goals_of(target.asin, kind) if mine == goal]
    report.same("goals that are among ours", where, bool(ours), True)
    report.same("queries of goals", where, goal.query, entry["query"])
    return goal


def _options(goal: Mapping[str, Any]) -> tuple[Option, ...]:
    options = goal["goal_options"]
    return tuple(options.items()) if isinstance(options, dict) else tuple(options)


def _reward(report: Report, catalogue: Catalogue, where: str, entry: Mapping[str, Any]) -> None:
    goal = _goal(report, catalogue, where, entry["goal"])
    product = catalogue.product(entry["asin"])
    ours, info = asdict(score(product, goal, entry["options"].values())), entry["info"]
    report.same("prices drawn", where, product.price, entry["price"])
    report.near("rewards within 1e-9", where, ours["total"], entry["reward"], REWARD_ERROR)
    for part in ("r_type", "r_att", "title_score", "query_match", "category_match", "r_option", "r_price"):
        mine, recorded = ours[part], info.get(part)
        same = None not in (mine, recorded) and abs(mine - recorded) <= REWARD_ERROR
        report.same("parts of rewards", f"{where}, {part}", recorded if same else mine, recorded)


def _search(report: Report, catalogue: Catalogue, where: str, entry: Mapping[str, Any]) -> None:
    hits = catalogue.index.search(entry["query"], max(50, len(entry["hits"])))
    report.same("rankings", where, [hit.key for hit in hits], [asin for asin, _ in entry["hits"]])
    for hit, (asin, value) in zip(hits, entry["hits"], strict=False):
        report.near("scores within 1e-3", f"{where}, {asin}", hit.score, value, SCORE_ERROR)


def _world(report: Report, session: ShopVisit, where: str, entry: Mapping[str, Any]) -> None:
    report.same("instructions", where, f"Instruction: {session.goal.instruction}", entry["instruction"])
    for number, step in enumerate(entry["steps"]):
        place = f"{where}, step {number} {step.get('action', 'reset')!r}"
        if "action" in step:
            session.do(step["action"])
            reward = session.state.score.total if session.state.score is not None else 0.0
            report.near("rewards of steps", place, reward, step["reward"], REWARD_ERROR)
            report.same("ends", place, session.done, step["done"])
        report.same("observations", place, pages.text(session), step["obs"])
        ours = {"has_search_bar": session.state.page == "search", "clickables": list(session.elements())}
        report.same("available actions", place, None if session.done else ours, step["available"])


def _environment(
    report: Report, env: ToolEnv, catalogue: Catalogue, where: str, goal: ShoppingGoal, entry: Mapping[str, Any]
) -> None:
    """The same through the environment, for the actions that its tools can express."""
    ids = {catalogue.goal(i): i for i in env.tasks.types if i.startswith(goal.asin)}
    if goal not in ids:
        return
    env.reset(options={"task_id": ids[goal]})
    for number, step in enumerate(entry["steps"]):
        match = re.fullmatch(r"(search|click)\[([^\[\]]+)\]", step.get("action", ""))
        if match is None:
            continue
        argument = {"search": "query", "click": "element"}[match[1]]
        observation, reward, done, _, _ = env.step((ToolCall(match[1], {argument: match[2]}),))
        place = f"{where}, step {number} {step['action']!r}"
        recorded = (step["obs"], step["reward"], step["done"])
        report.same("steps of the environment", place, (observation["text"], reward, done), recorded)
        if done:
            break
        shown = tuple(element for element in step["available"]["clickables"] if element and element != "search")
        report.same("commands of the environment", place, observation["commands"], shown)


def _human(report: Report, catalogue: Catalogue, where: str, entry: Mapping[str, Any]) -> None:
    """The purchase of a person; title and attributes only where the catalogue has both products."""
    goal, bought, info = entry["goal"], entry["content"], entry["reward_info"]
    options, wanted = _options(goal), len(goal["attributes"])
    matched = options_matched(bought["options"].values(), options)
    price = bought["price"] <= goal["price_upper"]
    r_type = type_reward(info["query_match"] or info["category_match"], info["title_score"])
    attributes = round(info["r_att"] * wanted)
    if bought["asin"] in catalogue and goal["asin"] in catalogue:
        target = catalogue.product(goal["asin"])
        mine = goal_for(target, goal["instruction_text"], goal["attributes"], options, goal["price_upper"])
        found = asdict(score(catalogue.product(bought["asin"]), mine, bought["options"].values()))
        for part in ("r_att", "title_score", "query_match", "category_match"):
            report.same("people: parts by the catalogue", f"{where}, {part}", found[part], info[part])
    ours = {"r_option": matched / len(options) if options else None, "r_price": price, "r_type": r_type}
    recorded = {part: info.get(part) for part in ours}
    report.same("people: options, price and type", where, ours, recorded)
    value = total(r_type, attributes, matched, price, wanted + len(options))
    report.near("people: rewards of these parts", where, value, entry["reward"], REWARD_ERROR)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--products", type=Path, required=True, help="product file of the recordings")
    parser.add_argument("--attributes", type=Path, required=True, help="attribute file of the recordings")
    parser.add_argument("--human", type=Path, help="instructions of people")
    parser.add_argument("--rewards", type=Path, nargs="+", default=[], help="recorded purchases (JSON)")
    parser.add_argument("--searches", type=Path, nargs="+", default=[], help="recorded rankings (JSON)")
    parser.add_argument("--episodes", type=Path, nargs="+", default=[], help="recorded episodes (JSON)")
    parser.add_argument("--sessions", type=Path, help="folder of people's sessions (JSON lines)")
    parser.add_argument(
        "--nouns", type=Path, help="nouns to use instead of spaCy's; title_nouns.json beside the rewards"
    )


def run(args: argparse.Namespace) -> Report:
    """Compare what the options name."""
    if not any((args.rewards, args.searches, args.episodes, args.sessions)):
        raise DataError("nothing to compare with: give --rewards, --searches, --episodes or --sessions")
    beside = args.rewards[0].parent / "title_nouns.json" if args.rewards else None
    beside = beside if beside is not None and beside.is_file() else None
    files = CatalogueFiles(args.products, args.attributes, args.human)
    find_nouns = tagger(files, args.nouns, beside)
    sys.stdout.write(f"nouns of titles: {find_nouns.name}\n")
    recordings = Recordings(args.rewards, args.searches, args.episodes, args.sessions, args.nouns or beside)
    return webshop(files, recordings, find_nouns)
