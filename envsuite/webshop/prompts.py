"""Texts of WebShop's tools."""

SEARCH = "Search the shop; shows the first page of results. Words count, not their order; there are no operators."
"""Description of the tool ``search``."""

QUERY = "The words to search for."
"""Description of its argument."""

CLICK = "Click an element of the page: a product's id, an option's value, or a button."
"""Description of the tool ``click``."""

ELEMENT = "The name of the element, e.g. `b07hrfsnl4`, `navy blue` or `buy now`."
"""Description of its argument."""


def refusal_text(element: str, page: str) -> str:
    """Explains why a click changed nothing."""
    if page == "search":
        return f"nothing to click on the search page ({_short(element)!r}): use search"
    return f"{_short(element)!r} is not on the page"


EMPTY_QUERY = "the query is empty"
"""Error of a search that changed nothing."""


def _short(element: str) -> str:
    return element if len(element) <= 80 else f"{element[:79]}…"
