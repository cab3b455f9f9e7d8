"""The shop from a customer's view: a state machine over pages.

Elements have the original's names, in lower case: ASINs, values of options, and the buttons below. Only elements of the
current page can be clicked. Searching is possible on every page, as in the original. The original's hidden search
commands (``<r>``, ``<a>``, ``<c>``, ``<q>`` as the first word), which show products by information that is hidden from
agents, are not supported: they are ordinary words here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from envsuite.webshop.catalogue import Catalogue
from envsuite.webshop.goals import ShoppingGoal
from envsuite.webshop.products import Card, Product
from envsuite.webshop.reward import Score, score

HITS = 50
"""Maximum number of products that a search finds."""
SHOWN = 10
"""Number of products on a page of results."""

SEARCH = "Search"
BACK = "Back to Search"
NEXT = "Next >"
PREVIOUS = "< Prev"
BUY = "Buy Now"

SubPage = Literal["Description", "Features", "Reviews"]
Page = Literal["search", "results", "item", "done"] | SubPage
SUB_PAGES: tuple[SubPage, ...] = ("Description", "Features", "Reviews")

_BUTTONS = {name.lower() for name in (BACK, PREVIOUS, *SUB_PAGES, BUY)}


class Search(Protocol):
    """A search engine for products."""

    def __call__(self, query: str, k: int) -> Sequence[str]:
        """Returns the ASINs of the ``k`` products that match ``query`` best, best first."""


@dataclass(frozen=True, slots=True)
class ShopState:
    """The state of a session. Sessions with equal states and goals behave alike."""

    page: Page = "search"
    query: str = ""
    hits: tuple[str, ...] = ()
    """ASINs found by the last search."""
    number: int = 1
    """Number of the page of results, from 1; there is always a next one, if only an empty one."""
    asin: str = ""
    options: tuple[tuple[str, str], ...] = ()
    """Name and value of the options chosen for the product, in the order of the first choice."""
    score: Score | None = None
    """The score, once something was bought."""


class ShopVisit:
    """The session of one customer with one goal.

    Args:
        catalogue: The shop.
        search: The search engine.
        goal: The goal.
    """

    def __init__(self, catalogue: Catalogue, search: Search, goal: ShoppingGoal) -> None:
        self.catalogue = catalogue
        self.goal = goal
        self.state = ShopState()
        self._search = search

    @property
    def done(self) -> bool:
        """Whether something was bought."""
        return self.state.score is not None

    @property
    def product(self) -> Product:
        """The product that is shown, on its page or a sub-page, or that was bought."""
        return self.catalogue.product(self.state.asin)

    @property
    def cards(self) -> list[Card]:
        """Returns the products on the current page of results."""
        first = (self.state.number - 1) * SHOWN
        return self.catalogue.cards(self.state.hits[first : first + SHOWN])

    def elements(self) -> tuple[str, ...]:
        """Returns the elements that can be clicked, in lower case and the original's order.

        They are buttons, products and values of options. The search page also has ``"search"``, which names the button
        of the search field and cannot be clicked.
        """
        state = self.state
        if state.page == "search":
            names = [SEARCH]
        elif state.page == "results":
            names = [BACK, *([PREVIOUS] if state.number > 1 else []), NEXT]
            names += state.hits[(state.number - 1) * SHOWN : state.number * SHOWN]
        elif state.page == "item":
            names = [BACK, PREVIOUS, *SUB_PAGES, BUY]
        elif state.page == "done":
            names = []
        else:
            names = [BACK, PREVIOUS]
        lower = dict.fromkeys(name.lower() for name in names)
        if state.page == "item":
            lower.update(dict.fromkeys(self.choices()))
        return tuple(lower)

    def choices(self) -> dict[str, tuple[str, str]]:
        """Returns option and value of each element that chooses one; a value called like a button has both in its name.

        Of several options with the same value, the original chooses the last.
        """
        return {
            f"{option}: {value}" if value in _BUTTONS else value: (option, value)
            for option, values in self.product.options.items()
            for value in values
        }

    def search(self, query: str) -> bool:
        """Shows the results for ``query``; returns ``False``, and changes nothing, if the query has no words."""
        if self.done or not query:
            return False
        words = query.lower()
        cards = self.catalogue.cards(self._search(words, HITS))
        self.state = ShopState(page="results", query=words, hits=tuple(card.asin for card in cards))
        return True

    def click(self, element: str) -> bool:
        """Clicks ``element``, in any case; returns ``False``, and changes nothing, if it is not on the page."""
        name, state = element.lower(), self.state
        if not name or state.page in ("search", "done") or name not in self.elements():
            return False
        if name == BUY.lower():
            value = score(self.product, self.goal, [value for _, value in state.options])
            self.state = replace(state, page="done", score=value)
        elif name == BACK.lower():
            self.state = ShopState()
        elif state.page == "results":
            self._from_results(name)
        elif name == PREVIOUS.lower() and state.page == "item":
            self.state = replace(state, page="results", asin="", options=())
        elif name == PREVIOUS.lower():
            self.state = replace(state, page="item")
        else:
            self._on_item(name)
        return True

    def _from_results(self, name: str) -> None:
        state = self.state
        if name in (NEXT.lower(), PREVIOUS.lower()):
            self.state = replace(state, number=state.number + (1 if name == NEXT.lower() else -1))
        else:
            asin = next(asin for asin in state.hits if asin.lower() == name)
            self.state = replace(state, page="item", asin=asin)

    def _on_item(self, name: str) -> None:
        for page in SUB_PAGES:
            if name == page.lower():
                self.state = replace(self.state, page=page)
                return
        option, value = self.choices()[name]
        options = dict(self.state.options) | {option: value}
        self.state = replace(self.state, options=tuple(options.items()))

    def do(self, command: str) -> bool:
        """Executes ``search[words]`` or ``click[element]``, parsed as in the original; ``False`` if nothing changes."""
        match = re.match(r"(.+)\[(.+)\]", command)
        if match is None:
            return False
        name, argument = match.groups()
        if name == "search":
            return self.search(argument)
        return name == "click" and self.click(argument)
