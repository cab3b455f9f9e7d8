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


def shortened(text: str, most: int) -> str:
    """Returns a text, or its beginning with an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def paper(key: str, date: int, title: str, text: str, snippet: int, title_length: int) -> str:
    """Returns the line of a paper: id, year, title and the beginning of the abstract."""
    year = f" ({date // 10000})" if date else ""
    beginning = f" | {shortened(text, snippet)}" if text and snippet else ""
    return f"{key}{year} {shortened(title, title_length)}{beginning}"


def searched(query: str, found: int, new: int) -> str:
    """Returns what a search did."""
    return f'search "{shortened(query, LONGEST_SHOWN)}": {found} papers, {new} new'


def expanded(key: str, found: int, new: int) -> str:
    """Returns what an expansion did."""
    return f"expand {key}: {found} papers, {new} new"


def refused(tool: str, argument: str, why: str) -> str:
    """Returns that a call was refused."""
    return f'{tool} "{shortened(argument, LONGEST_SHOWN)}": refused, {why}'


def view(lines: Sequence[str], total: int, history: Iterable[str]) -> str:
    """Returns the list of papers, and the calls of earlier steps.

    Args:
        lines: The best papers.
        total: Number of all papers.
        history: The calls.
    """
    more = f"\n… and {total - len(lines)} more" if total > len(lines) else ""
    shown = f"Papers ({total}), best first:\n" + "\n".join(lines) + more if total else NO_PAPERS
    said = "\n".join(history)
    return f"{shown}\n\nEarlier calls:\n{said}" if said else shown


def judgement(query: str, title: str, text: str) -> str:
    """Returns the prompt that asks a model for its judgement of a paper (StepPO's appendix, selector prompt)."""
    return (
        f"You are an elite researcher in the field of AI, conducting research on {query}.\n"
        "Evaluate whether the following paper fully satisfies the detailed requirements of the user query and provide "
        "your reasoning. Ensure that your decision and reasoning are consistent.\n\n"
        f"Searched Paper:\nTitle: {title}\nAbstract: {text}\n\nUser Query: {query}\n\n"
        "Output format: Decision: True/False\nReason:...\nDecision:"
    )
