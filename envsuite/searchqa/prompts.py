"""Texts of SearchQA: of the tools, the task, and what an agent sees."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

SEARCH = (
    "Search the encyclopaedia for passages that help to answer the question. Any words will do, or a sentence; there "
    "are no operators."
)
"""Description of the tool ``search``."""
QUERY = "A single search query. It should differ from earlier queries."
OPEN = "Read a page from beginning to end, with the titles of pages that it links to."
"""Description of the tool ``open``."""
PAGE = "The title of a page, as a passage or a list of links has it."
ANSWER = "Give the answer to the question; this ends the episode. Write the answer alone, as short as possible."
"""Description of the tool ``answer``."""
TEXT = "The short answer: a name, a date, a number, yes or no."
NOTHING = "No passages have been found."
EMPTY_QUERY = "the query is empty"
EMPTY_ANSWER = "the answer is empty"
NO_PAGE = "there is no page of this title"
RIGHT = "The answer is right."
WRONG = "The answer is wrong."
LONGEST_SHOWN = 200
"""Characters of a query or a title in the lines that say what calls did."""


def task(question: str, may_have_none: bool) -> str:
    """Returns the instruction of an episode."""
    none = ' If the pages do not say it, answer "unanswerable".' if may_have_none else ""
    return f"Answer the question by searching an encyclopaedia.{none}\n\nQuestion: {question}"


def shorten_text(text: str, most: int) -> str:
    """Returns a text, or its beginning with an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def too_long(name: str, length: int, most: int) -> str:
    """Returns why a query or an answer was refused."""
    return f"the {name} has {length:,} characters, more than {most:,}"


def search_line(query: str, found: int, new: int, again: bool) -> str:
    """Returns what a search did."""
    note = " (searched before)" if again else ""
    return f'search "{shorten_text(query, LONGEST_SHOWN)}": {found} passages, {new} new{note}'


def refusal_line(tool: str, argument: str, why: str) -> str:
    """Returns that a call was refused."""
    return f'{tool} "{shorten_text(argument, LONGEST_SHOWN)}": refused, {why}'


def passage(key: str, text: str, most: int) -> str:
    """Returns a passage as an agent sees it, in one line or more."""
    return f"[{key}] {shorten_text(text, most)}"


def documents(contents: Iterable[tuple[str, str]], most: int) -> str:
    """Returns passages, keys and texts, in Search-R1's words."""
    return "\n".join(
        f'Doc {number}(Title: "{key}") {shorten_text(text, most)}' for number, (key, text) in enumerate(contents, 1)
    )


def page(key: str, text: str, links: Sequence[str], most_links: int) -> str:
    """Returns a page that was opened."""
    more = f", and {len(links) - most_links} more" if len(links) > most_links else ""
    link_line = f"\nLinks: {', '.join(links[:most_links])}{more}" if links else ""
    return f'open "{shorten_text(key, LONGEST_SHOWN)}":\n{text}{link_line}'


def view(passages: Sequence[str], total: int, queries: Iterable[str]) -> str:
    """Returns the passages found so far, and the earlier queries.

    Args:
        passages: Those that are shown.
        total: Number of all.
        queries: The queries of earlier steps.
    """
    before = f"… {total - len(passages)} earlier ones are not shown\n" if total > len(passages) else ""
    listing = f"Passages found ({total}):\n{before}" + "\n".join(passages) if total else NOTHING
    query_lines = "\n".join(shorten_text(query, LONGEST_SHOWN) for query in queries)
    return f"{listing}\n\nEarlier queries:\n{query_lines}" if query_lines else listing
