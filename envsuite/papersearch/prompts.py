"""Texts of PaperSearch: of the tools, the task, and what an agent sees."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

SEARCH = (
    "Search the literature. Returns the ten papers that match the query best, of those up to the date of the task. Any "
    "words will do; there are no operators."
)
"""Description of the tool ``search``."""
QUERY = "The search query: a few words or a sentence. It must differ from earlier queries."
EXPAND = (
    "Follow the citations of a paper that is in the list: adds papers that cite it and papers that it cites, of those "
    "up to the date of the task."
)
"""Description of the tool ``expand``."""
PAPER_ID = "The id of a paper in the list that has not been expanded yet."
EMPTY_QUERY = "the query is empty"
REPEATED_SEARCH = "this query was searched before"
REPEATED_EXPANSION = "this paper was expanded before"
NOT_THERE = "no paper with this id is in the list"
NO_PAPERS = "The list of papers is empty."
LONGEST_SHOWN = 200
"""Characters of a query in the history."""


def task(text: str, date: int) -> str:
    """Returns the instruction of an episode."""
    until = f" Papers after {day(date)} do not count, and are not shown." if date else ""
    return f"Find all papers that this query asks for.{until}\n\nQuery: {text}"


def day(date: int) -> str:
    """Returns a date as YYYY-MM-DD."""
    return f"{date // 10000:04d}-{date // 100 % 100:02d}-{date % 100:02d}"


def too_long(length: int, most: int) -> str:
    """Returns why a query was refused."""
    return f"the query has {length:,} characters, more than {most:,}"


def shorten(text: str, most: int) -> str:
    """Returns a text, or its beginning with an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def paper(key: str, date: int, title: str, text: str, snippet: int, title_length: int) -> str:
    """Returns the line of a paper: id, year, title and the beginning of the abstract."""
    year = f" ({date // 10000})" if date else ""
    beginning = f" | {shorten(text, snippet)}" if text and snippet else ""
    return f"{key}{year} {shorten(title, title_length)}{beginning}"


def describe_search(query: str, count: int, new: int) -> str:
    """Returns what a search did."""
    return f'search "{shorten(query, LONGEST_SHOWN)}": {count} papers, {new} new'


def describe_expansion(key: str, count: int, new: int) -> str:
    """Returns what an expansion did."""
    return f"expand {key}: {count} papers, {new} new"


def describe_refusal(tool: str, argument: str, why: str) -> str:
    """Returns that a call was refused."""
    return f'{tool} "{shorten(argument, LONGEST_SHOWN)}": refused, {why}'


def view(lines: Sequence[str], total: int, history: Iterable[str]) -> str:
    """Returns the list of papers, and the calls of earlier steps.

    Args:
        lines: The best papers.
        total: Number of all papers.
        history: The calls.
    """
    more = f"\n… and {total - len(lines)} more" if total > len(lines) else ""
    listing = f"Papers ({total}), best first:\n" + "\n".join(lines) + more if total else NO_PAPERS
    calls = "\n".join(history)
    return f"{listing}\n\nEarlier calls:\n{calls}" if calls else listing


def judgement(query: str, title: str, text: str) -> str:
    """Returns the prompt that asks a model whether a paper answers a query; the answer is True or False."""
    return (
        "Decide whether a paper answers a research query in every point that the query asks for.\n\n"
        f"Query: {query}\n\nTitle: {title}\nAbstract: {text}\n\n"
        "Answer with True or False.\nDecision:"
    )


KEEP = (
    "Decide which of the candidates stay in the list of papers: those that answer the query. All others are discarded, "
    "and are not found again."
)
"""Description of the tool ``keep``."""
PAPER_IDS = "The ids of the candidates that stay; an empty list discards all."
TEAM = (
    "You are a team. The searcher searches, and follows the citations of papers in the list; of the new papers, the "
    "selector keeps those that answer the query."
)
YOUR_TURN = {
    "searcher_0": "It is the searcher's turn: call search or expand.",
    "selector_0": "It is the selector's turn: call keep, once.",
}


def candidates(lines: Sequence[str]) -> str:
    """Returns the papers among which the selector chooses."""
    return f"Candidates ({len(lines)}):\n" + "\n".join(lines)


def describe_selection(number: int, of: int) -> str:
    """Returns what the selector did."""
    return f"keep: {number} of {of} candidates"


def no_candidate(key: str) -> str:
    """Returns why nothing was kept."""
    return f"{shorten(key, LONGEST_SHOWN)!r} is not among the candidates"
