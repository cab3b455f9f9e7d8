"""The teacher to imitate on WebShop, and the words that it takes."""

from __future__ import annotations

from envsuite.core.practice import Practice, Spelling
from envsuite.prompting.phrases import phrases
from envsuite.webshop import prompts
from envsuite.webshop.assortment import facets, kinds, options
from envsuite.webshop.env import WebShop
from envsuite.webshop.generate import ASIN_LETTERS
from envsuite.webshop.player import Shopper
from envsuite.webshop.wording import sentences


def practice() -> Practice:
    """Returns teacher and vocabulary."""
    return Practice(Shopper, texts, spelling=Spelling(codes=True))


def texts() -> list[str]:
    """Returns the texts of the built-in shop without brand names, of which there are too many."""
    pairs = [first + second for first in ASIN_LETTERS for second in ASIN_LETTERS]
    facts = [fact for facet in facets().values() for fact in facet]
    return [
        *(f"{pair}12{pair}" for pair in pairs),
        *(f"1{number:02} .{number:02} x{number:02}" for number in range(100)),
        *(text for k in kinds() for text in (k.query, k.name, k.phrase, k.department, k.path, k.use)),
        *(text for fact in facts for text in (fact.attribute, fact.label, *fact.phrases, fact.sentence)),
        *(text for name, values in options().values() for text in (name, *values)),
        *sentences(),
        *_SHOP.splitlines(),
        prompts.EMPTY_QUERY,
        *(prompts.refusal_text(element, page) for element in ("x", "x…") for page in ("search", "item")),
        *phrases(WebShop.tools),
    ]


_SHOP = """
Search page. Search for a product with the tool `search`.
Results 1-10 of 50 for 'x': gh12gh $1.00 to $2.00: No more results for "x" (page 6, 50 in all).
Description Features Reviews of x: - (none) Price: $1.00. Rating: N.A. color: [red], blue
Chosen with color = red. Chosen: nothing. No options. Bought x. Score: 1.000 of 1. Nothing happened: Invalid action
search[x; y] click[back to search] click[< prev] click[next >] click[buy now] gh 20 > 10. kd 5 < 10
and price lower than 40.00 dollars
"""
