"""Explains the score of a purchase: every part of the reward, with the wanted and the bought."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from envsuite.webshop.goals import NO_LIMIT, Option, ShoppingGoal
from envsuite.webshop.products import Product
from envsuite.webshop.reward import Score, alike, categories, has_attribute, options_matched
from envsuite.webshop.world import ShopVisit


@dataclass(frozen=True, slots=True)
class ReceiptLine:
    """One requirement of the goal."""

    kind: str
    """``"Attribute"``, ``"Option"`` or ``"Price"``."""
    asked: str
    bought: str
    met: bool
    """Whether it is met: it counts 1, else 0."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """The explanation of a purchase."""

    score: Score
    bought: Product
    chosen: tuple[tuple[str, str], ...]
    """Name and value of the options that were chosen."""
    target: Product
    """The target product."""
    wanted: tuple[str, ...]
    """The options that the goal asks for, as text."""
    lines: tuple[ReceiptLine, ...]
    queries: tuple[str, str]
    """The queries that found the purchase, and the target, when the data were collected."""
    shared_categories: tuple[str, ...]
    shared_nouns: tuple[str, ...]
    missing_nouns: tuple[str, ...]
    """Nouns of the target's title that the purchase's title has, and has not."""
    nouns: int
    """Number of nouns in the target's title, with repetitions: the divisor of the share."""
    reason: str
    """Explanation of the type's reward."""

    def count_lines(self, kind: str) -> tuple[int, int]:
        """Returns how many lines of a kind are met, and how many there are."""
        of_kind = [line.met for line in self.lines if line.kind == kind]
        return sum(of_kind), len(of_kind)


def receipt(session: ShopVisit) -> Receipt:
    """Explains the purchase of ``session``.

    Raises:
        ValueError: The session has not bought anything.
    """
    score, goal = session.state.score, session.goal
    if score is None:
        raise ValueError("nothing was bought")
    bought = session.product
    values = [value for _, value in session.state.options]
    lines = [
        *(_attribute(bought, attribute) for attribute in goal.attributes),
        *(_option(values, option) for option in goal.options),
        _price(bought, goal, score),
    ]
    nouns = dict.fromkeys(goal.nouns)
    return Receipt(
        score=score,
        bought=bought,
        chosen=session.state.options,
        target=session.catalogue.product(goal.asin),
        wanted=tuple(option_text(option) for option in goal.options),
        lines=tuple(lines),
        queries=(bought.query, goal.query),
        shared_categories=tuple(sorted(categories(bought.product_category) & categories(goal.product_category))),
        shared_nouns=tuple(noun for noun in nouns if noun in bought.nouns),
        missing_nouns=tuple(noun for noun in nouns if noun not in bought.nouns),
        nouns=len(goal.nouns),
        reason=_reason(score),
    )


def _attribute(product: Product, attribute: str) -> ReceiptLine:
    is_met = has_attribute(product, attribute)
    match = next((own for own in product.attributes if alike(own, attribute)), None)
    if match is not None:
        reason = "one of its attributes" if match == attribute else f"its attribute “{match}” is alike"
    else:
        reason = "said in its title, features or description" if is_met else "not among its attributes, nor in its text"
    return ReceiptLine("Attribute", attribute, reason, is_met)


def _option(values: Sequence[str], option: Option) -> ReceiptLine:
    match = next((value for value in values if options_matched([value], [option])), None)
    if match is not None:
        return ReceiptLine("Option", option_text(option), f"“{match}” was chosen", True)
    reason = f"chosen was {', '.join(f'“{value}”' for value in values)}" if values else "nothing was chosen"
    return ReceiptLine("Option", option_text(option), reason, False)


def _price(product: Product, goal: ShoppingGoal, score: Score) -> ReceiptLine:
    limit = "no limit" if goal.price_upper == NO_LIMIT else f"at most ${goal.price_upper:,.2f}"
    price = f"${product.price:,.2f}"
    if " to " in product.price_tag:
        price += f", drawn from {product.price_tag}"
    return ReceiptLine("Price", limit, price, score.r_price)


def option_text(option: Option) -> str:
    """Returns an option as the receipt shows it: its value, after its name where it has one."""
    return option if isinstance(option, str) else f"{option[0]}: {option[1]}"


def _reason(score: Score) -> str:
    """Explains the rule that gave the type its reward."""
    share = f"{score.title_score:.2f} of the title's nouns are shared"
    if score.r_type == 0.0:
        return "No noun of the title is shared, so this is taken for something else entirely."
    if score.r_type == 0.1:
        return f"Only {share}, less than 0.1: most likely another kind of product."
    if score.r_type == 0.5:
        return f"{share}, not more than 0.2, and neither search nor categories agree: half."
    by = [
        *(["it was found by the same search"] if score.query_match else []),
        *(["it shares two categories or more"] if score.category_match else []),
        *([f"{share}, more than 0.2"] if score.title_score > 0.2 else []),
    ]
    return f"The right kind of product: {', and '.join(by)}."
