"""Wording of WebShop."""

SEARCH = "Search the shop; shows the first page of results. Words count, not their order; there are no operators."
"""What the tool ``search`` is said to do."""

QUERY = "The words to search for."
"""What its argument is said to be."""

CLICK = "Click an element of the page: a product's id, an option's value, or a button."
"""What the tool ``click`` is said to do."""

ELEMENT = "The name of the element, e.g. `b07hrfsnl4`, `navy blue` or `buy now`."
"""What its argument is said to be."""


def refused(element: str, page: str) -> str:
    """Why a click changed nothing."""
    if page == "search":
        return f"nothing to click on the search page ({_short(element)!r}): use search"
    return f"{_short(element)!r} is not on the page"


EMPTY_QUERY = "the query is empty"
"""Why a search changed nothing."""


def _short(element: str) -> str:
    return element if len(element) <= 80 else f"{element[:79]}…"
