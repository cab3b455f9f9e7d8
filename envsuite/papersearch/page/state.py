"""The state of an episode as the page shows it, as plain JSON; what depends on the gold papers only at the end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from envsuite.papersearch import prompts
from envsuite.papersearch.page.visits import Visit
from envsuite.papersearch.world import LONGEST_TITLE, LiteratureSearch, PaperLibrary
from envsuite.retrieval.documents import Document

LISTED = 1_000
"""Papers of the pool that the page lists, the best ones."""
SNIPPET = 280
"""Characters of an abstract in the list."""


def state(visit: Visit) -> dict[str, Any]:
    """Returns everything that the page shows, besides whole abstracts."""
    env = visit.enter()
    session, task, ids = env.session, env.collection.task(visit.task_id), visit.tasks.ids
    shows_score = visit.over or visit.revealed
    gold = session.question.gold if visit.over else frozenset()
    numbers = best(session)[:LISTED]
    return {
        "change": visit.changes,
        "task": {
            "id": visit.task_id,
            "number": ids.index(visit.task_id) + 1 if visit.task_id in ids else None,
            "of": len(ids),
            "split": visit.tasks.split,
            "query": task["text"],
            "until": prompts.day(task["date"]) if task["date"] else None,
        },
        "steps": len(visit.turns),
        "horizon": visit.tasks.horizon,
        "max_calls": env.max_calls,
        "over": visit.over,
        "can_undo": visit.can_undo,
        "revealed": visit.revealed,
        "turns": [
            {"results": [vars(result) for result in turn.results], "reward": turn.reward if shows_score else None}
            for turn in visit.turns
        ],
        "total": len(session.papers),
        "papers": list(_cards(session, numbers, visit.fresh, gold)),
        "citations": _citations(session.library, numbers),
        "figures": _figures(visit, session) if shows_score else None,
        "missed": [
            _paper(session.library, number) for number in sorted(gold - session.pool)
        ] if visit.over else None,
    }  # fmt: skip


def best(session: LiteratureSearch) -> list[int]:
    """Returns the papers of the pool, best first."""
    numbers: list[int] = session.papers[session.rank_papers()].tolist()
    return numbers


def paper_details(session: LiteratureSearch, key: str) -> dict[str, Any] | None:
    """Returns title, abstract, authors and venue of a paper; ``None`` if it is not in the pool."""
    number = session.library.number(key)
    if number is None or number not in session.pool:
        return None
    paper = session.library.corpus.document(number)
    return {
        "title": prompts.shorten(paper.title, 2_000),
        "abstract": paper.text,
        "authors": prompts.shorten(", ".join(authors_of(paper)), 2_000),
        "venue": prompts.shorten(str(paper.facts.get("venue", "")), 500),
    }


def _paper(library: PaperLibrary, number: int) -> dict[str, Any]:
    date = library.corpus.date(number)
    title = prompts.shorten(library.corpus.title(number), LONGEST_TITLE)
    return {"id": library.key(number), "title": title, "year": date // 10000 if date else None}


def _cards(
    session: LiteratureSearch, numbers: Iterable[int], fresh: set[int], gold: frozenset[int]
) -> Iterable[dict[str, Any]]:
    library = session.library
    for number in numbers:
        yield {
            **_paper(library, number),
            "snippet": prompts.shorten(library.corpus.content(number)[1], SNIPPET),
            "expanded": number in session.expanded,
            "new": number in fresh,
            "gold": number in gold,
        }


def _citations(library: PaperLibrary, numbers: list[int]) -> list[tuple[int, int]]:
    """Returns pairs of places in ``numbers``: the first cites the second."""
    place = {number: at for at, number in enumerate(numbers)}
    links = library.corpus.links
    return [(at, place[link]) for at, number in enumerate(numbers) for link in links(number).tolist() if link in place]


def _figures(visit: Visit, session: LiteratureSearch) -> dict[str, Any]:
    metrics = session.metrics()
    return {
        "reward": sum(turn.reward for turn in visit.turns),
        "recall": metrics["recall_all"],
        "precision": metrics["precision_all"],
        "f1": metrics["f1_all"],
        **{name: metrics[name] for name in ("recall_20", "recall_50", "recall_100")},
        "gold": len(session.question.gold) if visit.over else None,
        "found": len(session.question.gold & session.pool) if visit.over else None,
    }


def authors_of(paper: Document) -> list[str]:
    """Returns the names of a paper's authors."""
    authors = paper.facts.get("authors", [])
    return [str(name) for name in authors] if isinstance(authors, list | tuple) else [str(authors)]
