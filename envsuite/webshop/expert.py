"""An expert that knows the target product, and a baseline that uses observations only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import gymnasium

from envsuite.core.env import Observation
from envsuite.core.players import unwrap_env, unwrap_episode
from envsuite.core.tools import Action, ToolCall
from envsuite.webshop.catalogue import ENV_ID
from envsuite.webshop.env import WebShop
from envsuite.webshop.goals import ShoppingGoal
from envsuite.webshop.products import Product
from envsuite.webshop.reward import options_matched
from envsuite.webshop.world import BACK, BUY, NEXT, PREVIOUS, SHOWN, SUB_PAGES, ShopVisit

WORDS = 40
"""Maximum number of words in the expert's queries."""


class WebShopExpert:
    """Buys the target product with its options.

    Its reward is 1 wherever the target can earn that: not where a person asked for options that it does not have. Where
    no query shows the target among the first 50, it buys the first product found.
    """

    def act(self, env: gymnasium.Env[Any, Action]) -> Action:
        """Returns the next action in the episode of ``env``, a WebShop in any wrappers.

        Raises:
            UsageError: ``env`` is another environment, or has no running episode.
        """
        session = unwrap_episode(env, ENV_ID, WebShop).session
        target = session.catalogue.product(session.goal.asin)
        state = session.state
        if state.page == "search":
            return search(queries(target)[0])
        if state.page == "results":
            return self._choose(session, target)
        if state.page != "item":
            return click(PREVIOUS)
        if state.asin != target.asin and target.asin in state.hits:
            return click(PREVIOUS)
        picks = dict(state.options)
        elements = {choice: element for element, choice in session.choices().items()}
        for choice in plan(session.product, session.goal).items():
            if picks.get(choice[0]) != choice[1] and choice in elements:
                return click(elements[choice])
        return click(BUY)

    def _choose(self, session: ShopVisit, target: Product) -> Action:
        """Acts on a page of results: goes to the target, to another search, or to the first product."""
        state = session.state
        if target.asin in state.hits:
            page = state.hits.index(target.asin) // SHOWN + 1
            if page != state.number:
                return click(NEXT if page > state.number else PREVIOUS)
            return click(target.asin)
        query_texts = [query.lower() for query in queries(target)]
        position = query_texts.index(state.query) if state.query in query_texts else -1
        if position + 1 < len(query_texts):
            return search(query_texts[position + 1])
        if state.hits and state.number > 1:
            return click(PREVIOUS)
        return click(state.hits[0]) if state.hits else click(BACK)


class WebShopLexical:
    """Searches with the instruction's words and buys the affordable product that shares most words with it.

    It uses the observation only. It clicks the options that the instruction names.
    """

    def __init__(self) -> None:
        self._task = ""
        self._clicked: set[str] = set()

    def act(self, env: gymnasium.Env[Any, Action]) -> Action:
        """Returns the next action in the episode of ``env``, a WebShop in any wrappers, here or on a server.

        Raises:
            UsageError: ``env`` is another environment, or has no running episode.
        """
        return self.answer(unwrap_env(env, ENV_ID).observation)

    def answer(self, observation: Observation) -> Action:
        """Returns the action for an observation."""
        goal_words, limit = _parse_instruction(observation["task"])
        commands = observation["commands"]
        if not commands or self._task != observation["task"]:
            self._task, self._clicked = observation["task"], set()
        if not commands:
            return search(" ".join(sorted(goal_words)))
        if BUY.lower() in commands:
            return self._configure(observation)
        products = _products(observation)
        if not products:
            return click(PREVIOUS if PREVIOUS.lower() in commands else BACK)
        affordable = [asin for asin, (_, price) in products.items() if price <= limit] or list(products)
        return click(max(affordable, key=lambda asin: len(products[asin][0] & goal_words)))

    def _configure(self, observation: Observation) -> Action:
        text = f" {' '.join(_WORD.findall(observation['task'].lower()))} "
        buttons = {name.lower() for name in (BACK, PREVIOUS, BUY, *SUB_PAGES)}
        for value in sorted(observation["commands"], key=len):
            words = " ".join(_WORD.findall(value))
            if words and value not in buttons and value not in self._clicked and f" {words} " in text:
                self._clicked.add(value)
                return click(value)
        return click(BUY)


def plan(product: Product, goal: ShoppingGoal) -> Mapping[str, str]:
    """Returns the values to choose for the product's options: for each option of the goal, one that the reward accepts.

    It is the option's own value where that is accepted. For an option whose values are never accepted (the original
    reduces a chosen ``rectangular`` to the colour ``tan``, and then misses it), it is the instruction's value.
    """
    selection: dict[str, str] = {}
    for option in goal.options:
        if options_matched(selection.values(), [option]):
            continue
        pairs = [(name, value) for name, values in product.options.items() if name not in selection for value in values]
        for name, value in sorted(pairs, key=lambda pair: pair != option):
            if options_matched([value], [option]):
                selection[name] = value
                break
        else:
            if not isinstance(option, str) and option in pairs:
                selection[option[0]] = option[1]
    return selection


def queries(product: Product) -> tuple[str, ...]:
    """Returns the expert's queries, the most promising first."""
    title, bullet = product.title, " ".join(product.bullets[:1])
    texts = (title, f"{title} {product.query}", f"{title} {bullet}", f"{title} {bullet} {product.description}")
    return tuple(dict.fromkeys(" ".join(text.split()[:WORDS]) or product.asin for text in texts))


def search(query: str) -> Action:
    """Returns the action of a search."""
    return (ToolCall("search", {"query": query}),)


def click(element: str) -> Action:
    """Returns the action of a click."""
    return (ToolCall("click", {"element": element.lower()}),)


def reachable(product: Product, name: str, value: str) -> bool:
    """Whether a click on ``value`` chooses it for ``name``; a value of several options belongs to the last."""
    return [option for option, values in product.options.items() if value in values][-1] == name


_WORD = re.compile(r"[\w.'-]*\w")
_LIMIT = re.compile(r",? and price lower than ([\d.]+) dollars")
_ASIN = re.compile(r"[A-Z0-9]{10}")
_PRICE = re.compile(r"\$([\d.]+)")


def _parse_instruction(task: str) -> tuple[set[str], float]:
    """Returns the words of an instruction, and its price limit in dollars."""
    limit = _LIMIT.search(task)
    return set(_WORD.findall(_LIMIT.sub("", task).lower())), float(limit[1]) if limit else float("inf")


def _products(observation: Observation) -> dict[str, tuple[set[str], float]]:
    """Returns ASIN -> words and lowest price of the products on a page of results."""
    asins = {asin.upper() for asin in observation["commands"]} & set(_ASIN.findall(observation["text"]))
    places = sorted((observation["text"].find(asin), asin) for asin in asins)
    ends = [start for start, _ in places[1:]] + [len(observation["text"])]
    products = {}
    for (start, asin), end in zip(places, ends, strict=True):
        piece = observation["text"][start + len(asin) : end]
        price = _PRICE.search(piece)
        products[asin] = set(_WORD.findall(piece.lower())), float(price[1]) if price else 0.0
    return products
