"""A player that states its decisions and makes human-like mistakes: demonstrations for a small base model."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium

from envsuite.core.errors import UsageError
from envsuite.core.players import unwrap_local_env
from envsuite.core.practice import FallibleTeacher
from envsuite.core.tools import Action, Move
from envsuite.webshop.assortment import facets, kind_of
from envsuite.webshop.catalogue import ENV_ID
from envsuite.webshop.env import WebShop
from envsuite.webshop.expert import click, plan, reachable, search
from envsuite.webshop.goals import NO_LIMIT, ShoppingGoal
from envsuite.webshop.products import Card
from envsuite.webshop.world import BUY, PREVIOUS, ShopVisit

PIECE = 2
"""Number of characters by which the player names a product."""
_PRICE = re.compile(r"\$(\d+)")


@dataclass(frozen=True)
class Shopper(FallibleTeacher):
    """Searches for the whole instruction, opens the first product within the price limit, chooses options, and buys.

    Its query is the words of the instruction and, after a semicolon, the options: ``long sleeve men's t-shirt; brown``.
    For the products found it states the beginning of the name and the whole dollars, ``gh 70 > 40. kd 16 < 40``, until
    one is cheap enough; on that product's page, the options that it will click: ``brown, xl``. So each decision is
    stated where it is made, and each word of it occurs in the instruction or on the page.

    From the goal it takes the shop's words for an attribute, and nothing else that an agent cannot see.
    """

    rash: float = 0.0
    """Probability that the player is in a hurry in an episode: it searches for the kind of product only, buys the first
    product found, and states and chooses nothing."""
    hasty: float = 0.0
    """Probability, at each step, of a random click other than buying."""
    dreamy: float = 0.0
    """Probability, at each step on the page of a product, of a click on a wrong value of an option."""

    def turns(self, env: gymnasium.Env[Any, Action], rng: random.Random) -> Iterator[Move]:
        """Yields each move in the current episode of ``env``; the caller steps ``env`` in between.

        Ends when a search finds nothing.

        Raises:
            UsageError: ``env`` is not a WebShop with a built-in shop.
        """
        shop = unwrap_local_env(env, ENV_ID, WebShop)
        rash = self.rash > 0.0 and rng.random() < self.rash
        last_thought = target = ""
        while not (session := shop.session).done:  # another one after a restored snapshot
            if slip := self._slip(session, rng):
                yield Move("", click(slip), slip=True)
                continue
            if session.state.page == "search":
                yield Move("", search(_kind_name(session.goal) if rash else query(session.goal)))
            elif session.state.page == "results":
                if session.state.number > 1:
                    yield Move("", click(PREVIOUS))
                    continue
                if not session.cards:
                    return
                thought, target = judge_cards(session.cards, NO_LIMIT if rash else session.goal.price_upper)
                last_thought = ""
                yield Move(thought, click(target))
            elif session.state.page != "item" or session.state.asin != target:
                yield Move("", click(PREVIOUS))
            else:
                open_values = [] if rash else _missing_values(session)
                thought = ", ".join(open_values)
                yield Move("" if last_thought else thought, click(open_values[0] if open_values else BUY))
                last_thought = last_thought or thought

    def _slip(self, session: ShopVisit, rng: random.Random) -> str:
        """Returns a click that does not help; empty if the player makes no mistake."""
        if session.state.page == "search":
            return ""
        if self.hasty and rng.random() < self.hasty:
            return rng.choice([element for element in session.elements() if element != BUY.lower()])
        if session.state.page == "item" and self.dreamy and rng.random() < self.dreamy:
            choices = plan(session.product, session.goal)
            values = [
                value for name, values in session.product.options.items() for value in values
                if name in choices and value != choices[name]
            ]  # fmt: skip
            return rng.choice(values) if values else ""
        return ""


def query(goal: ShoppingGoal) -> str:
    """Returns the query, in the instruction's words where the shop knows them, else in the shop's."""
    labels = {fact.attribute: fact.label.lower() for facet in facets().values() for fact in facet}
    text = goal.instruction.lower()
    attributes = [attribute if attribute in text else labels.get(attribute, attribute) for attribute in goal.attributes]
    phrases = [phrase for phrase in (_kind_name(goal), *attributes) if phrase in text]
    start = min(text.index(phrase) for phrase in phrases)
    end = max(text.index(phrase) + len(phrase) for phrase in phrases)
    parts = [", ".join((text[start:end], *(phrase for phrase in attributes if phrase not in phrases)))]
    options = [option if isinstance(option, str) else option[1] for option in goal.options]
    return "; ".join(parts + ([", ".join(options)] if options else []))


def judge_cards(cards: Sequence[Card], limit: float) -> tuple[str, str]:
    """Returns the thought about a page of results, and the product to open: the first below ``limit`` dollars.

    If none is below the limit, it is the first.
    """
    notes = []
    for card in cards:
        price = _PRICE.search(card.price_tag)
        dollars = int(price[1]) if price else 0
        cheap = dollars < limit
        if limit < NO_LIMIT:
            notes.append(f"{card.asin[:PIECE].lower()} {dollars} {'<' if cheap else '>'} {limit:.0f}")
        if cheap:
            return ". ".join(notes), card.asin
    return "", cards[0].asin


def _missing_values(session: ShopVisit) -> list[str]:
    """Returns the values of options yet to be chosen, in the order of the instruction."""
    picks = dict(session.state.options)
    product = session.product
    choices = plan(product, session.goal)
    return [value for name, value in choices.items() if picks.get(name) != value and reachable(product, name, value)]


def _kind_name(goal: ShoppingGoal) -> str:
    """Returns the name of the kind of product in instructions."""
    kind = kind_of(goal.query)
    if kind is None:
        raise UsageError(f"this player supports only the built-in shop, which does not sell {goal.query}")
    name = kind.name.lower()
    return name if name in goal.instruction.lower() else kind.query
