"""Files of a small shop, written as the official ones are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from envsuite.webshop.source import CatalogueFiles

MARKUP = "<script>alert('Tea & \"Kettle\"')</script> <b>Red</b> Kettle"
HUGE = "kettle " * 150_000


def entry(asin: str, name: str, **changes: Any) -> dict[str, Any]:
    """An entry of the product file."""
    return {
        "asin": asin,
        "name": name,
        "full_description": f"About {name}.",
        "pricing": "$18.50",
        "images": ["https://example.org/picture.jpg"],
        "product_category": "Home & Kitchen \u203a Kitchen \u203a Kettles",
        "average_rating": "",
        "small_description": ["holds water", "", "keeps it warm "],
        "customization_options": "",
        "category": "garden",
        "query": " Kettles ",
        "page": 1,
    } | changes


def values(*names: str) -> list[dict[str, Any]]:
    """The values of an option, as the product file has them."""
    return [{"asin": None, "image": None, "value": name} for name in names]


ENTRIES: list[dict[str, Any]] = [
    entry(
        "B000000001",
        "Steel Kettle for Tea",
        pricing="$10.00 - $30.00",
        customization_options={"Color": values(" Navy/Blue ", "Red"), "Size": values("1 L", "2 L"), "Style": None},
    ),
    entry("B000000002", MARKUP, pricing="", customization_options={"Colour": values("<i>red</i>", 'it\'s "blue"')}),
    entry("B000000003", "Huge Kettle", full_description=HUGE, small_description="one bullet", pricing="$1,847.00"),
    entry("nan", "Nothing"),
    entry("B0000000044", "Too Long"),
    entry("B000000001", "Steel Kettle Again"),
    entry(
        "B000000005",
        "Cotton Shirt \u2605 \u00e9l\u00e9gant \U0001f600",
        category="fashion",
        query="shirts",
        product_category="Clothing \u203a Shirts",
        pricing="$5.00 - $6.00 - $7.00",
        customization_options={"size": values("s", "m", "M"), "fit": values("s", "buy now")},
    ),
    entry("B000000006", "Broken \ud83d Pair", full_description=None, small_description=None, images=[]),
    entry("B000000007", "Plain Kettle", customization_options={"size": []}),
    entry("b00000000x", "Lower-Case Kettle", pricing="$0.99"),
]


def wish(instruction: str, *attributes: str, asked: tuple[str, ...] | None = None) -> dict[str, Any]:
    """What is known of a product, and asked for."""
    wanted = list(attributes if asked is None else asked)
    return {"attributes": [*attributes], "instruction": f"Find me {instruction}", "instruction_attributes": wanted}


ATTRIBUTES: dict[str, Any] = {
    "B000000001": wish(
        "easy clean kettles with stainless steel",
        "stainless steel",
        "easy clean",
        asked=("easy clean", "stainless steel"),
    ),
    "B000000002": wish("kettles", "bright red", asked=()),
    "B000000003": wish("huge kettles", "huge"),
    "B000000005": wish("machine wash shirts", "machine wash"),
    "B000000007": wish("plain kettles", "plain"),
    "B000000099": {"attributes": ["of nothing that is sold"]},
}

HUMAN: dict[str, Any] = {
    "B000000001": [
        {
            "asin": "B000000001",
            "instruction": "i want a red steel kettle.",
            "instruction_attributes": ["stainless steel"],
            "instruction_options": ["red"],
        },
        {"instruction": "a kettle", "instruction_attributes": [], "instruction_options": []},
    ],
    "B000000099": [{"instruction": "gone", "instruction_attributes": ["x"], "instruction_options": []}],
}


def write_shop(
    folder: Path, entries: Any = None, attributes: Any = None, human: Any = None
) -> CatalogueFiles:  # fmt: skip
    """Write the files into ``folder``."""
    contents = {
        "products": ENTRIES if entries is None else entries,
        "attributes": ATTRIBUTES if attributes is None else attributes,
        "human": HUMAN if human is None else human,
    }
    for name, content in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return CatalogueFiles(*(folder / f"{name}.json" for name in contents))


def write_official(folder: Path, suffix: str, entries: Any = None) -> CatalogueFiles:
    """Write the files into ``folder`` under the names of an official set."""
    folder.mkdir(exist_ok=True)
    files = write_shop(folder, entries)
    names = (f"items_shuffle{suffix}.json", f"items_ins_v2{suffix}.json")
    return CatalogueFiles(files.products.rename(folder / names[0]), files.attributes.rename(folder / names[1]))
