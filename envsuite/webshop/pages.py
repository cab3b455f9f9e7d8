"""Renders a page as text: in the original's format, and in a more readable one."""

from __future__ import annotations

import json

from envsuite.webshop.world import BACK, BUY, NEXT, PREVIOUS, SEARCH, SHOWN, SUB_PAGES, ShopVisit

_SPACES = " \n\t\f\r"


def text(session: ShopVisit) -> str:
    """Renders the page as the original's text mode does: its visible texts, joined by ``[SEP]``.

    Keeps and drops blank pieces exactly as the original's HTML parser does.
    """
    state = session.state
    top = ["Instruction:", session.goal.instruction, BACK]
    if state.page == "search":
        pieces = ["WebShop", "Instruction:", session.goal.instruction, SEARCH]
    elif state.page == "results":
        previous = [PREVIOUS] if state.number > 1 else []
        pieces = [*top, f"Page {state.number} (Total results: {len(state.hits)})", *previous, NEXT]
        for card in session.cards:
            pieces += [card.asin, card.title, card.price_tag]
    elif state.page == "item":
        product = session.product
        pieces = [*top, PREVIOUS]
        for name, values in product.options.items():
            pieces += [name, *values]
        pieces += [product.title, f"Price: {product.price_tag}", f"Rating: {product.rating}", *SUB_PAGES, BUY]
    elif state.page == "done":
        pieces = _receipt(session)
    else:
        pieces = [*top, PREVIOUS, *_about(session)]
    return " [SEP] ".join(piece.strip() for piece in pieces if _visible(piece))


def _about(session: ShopVisit) -> list[str]:
    product = session.product
    if session.state.page == "Description":
        return [product.description]
    if session.state.page == "Features":
        return [f" {bullet}" for bullet in product.bullets]
    return [text for review in product.reviews for text in (f'"{review.title}"', review.score, review.body)]


def _receipt(session: ShopVisit) -> list[str]:
    """Renders the last page; the fields that the original's text mode never fills in are constant."""
    state = session.state
    options_json = json.dumps(dict(state.options), sort_keys=True)
    for character in "<>&'":
        options_json = options_json.replace(character, f"\\u{ord(character):04x}")
    bought = ["asin", state.asin, "options", options_json, "attrs", "None", "category", "None", "query", "None"]
    target = ["asin", "options", "attrs", "price upper", "instuction text", "category", "product category", "query"]
    assert state.score is not None
    return [
        *("Thank you for shopping with us!", "Your code:", "None", "(Paste it in your MTurk interface.)"),
        *("Purchased", *bought, "product category", "None", "Target", *target, "Goal", "None"),
        *("Reward", "Your score (min 0.0, max 1.0)", str(state.score.total), "Reward Details", "None"),
    ]


def _visible(piece: str) -> bool:
    """Whether the original's parser keeps a piece: it drops empty ones, and blanks with a line break."""
    return bool(piece) and ("\n" not in piece or piece.strip(_SPACES) != "")


def structured_text(session: ShopVisit) -> str:
    """Renders the page in plain lines, with the chosen options marked; the instruction is part of the task only."""
    state = session.state
    if state.page == "search":
        return "Search page. Search for a product with the tool `search`."
    if state.page == "results":
        return _results(session)
    if state.page == "done":
        assert state.score is not None
        return f"Bought {state.asin}{_with(session)}. Score: {state.score.total:.3f} of 1."
    product = session.product
    head = f"{product.asin}: {product.title}"
    if state.page == "item":
        lines = [head, f"Price: {product.price_tag}. Rating: {product.rating}"]
        picks = dict(state.options)
        for name, values in product.options.items():
            lines.append(f"{name}: {', '.join(f'[{v}]' if picks.get(name) == v else v for v in values)}")
        lines.append(f"Chosen{_with(session) or ': nothing'}." if product.options else "No options.")
        return "\n".join(lines)
    lines = [piece.strip() for piece in _about(session) if piece.strip()]
    if state.page == "Features":
        lines = [f"- {line}" for line in lines]
    return "\n".join([f"{state.page} of {head}", *(lines or ["(none)"])])


def _results(session: ShopVisit) -> str:
    state, total = session.state, len(session.state.hits)
    first = (state.number - 1) * SHOWN
    last = min(first + SHOWN, total)
    if first >= total:
        return f"No {'more ' if total else ''}results for {state.query!r} (page {state.number}, {total} in all)."
    head = f"Results {first + 1}-{last} of {total} for {state.query!r}:"
    lines = [f"{card.asin} {card.price_tag}: {card.title}" for card in session.cards]
    return "\n".join([head, *lines])


def _with(session: ShopVisit) -> str:
    choices = ", ".join(f"{name} = {value}" for name, value in session.state.options)
    return f" with {choices}" if choices else ""
