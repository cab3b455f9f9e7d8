from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from envsuite.retrieval.builder import IndexBuilder
from envsuite.retrieval.index import Index
from envsuite.webshop.documents import document, documents

PRODUCT: dict[str, Any] = {
    "asin": "B000000001",
    "name": "Red Shirt",
    "full_description": "Soft",
    "small_description": ["Cotton", "Machine wash"],
    "customization_options": {"Color": [{"value": " Red/Blue "}, {"value": "Green"}], "Size": [{"value": "XL"}]},
}


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("asin", "B000000001", "red shirt soft cotton color: red | blue, green, and size: xl"),
        ("customization_options", "", "red shirt soft cotton "),
        ("customization_options", None, "red shirt soft cotton "),
        ("customization_options", {"Color": None, "Size": [{"value": "S"}]}, "red shirt soft cotton size: s"),
        ("small_description", "One text", "red shirt soft one text color: red | blue, green, and size: xl"),
        ("small_description", [], "red shirt soft  color: red | blue, green, and size: xl"),
        ("full_description", None, "red shirt  cotton color: red | blue, green, and size: xl"),
    ],
)
def test_a_document_is_name_description_bullet_and_options_where_they_are(field: str, value: object, text: str) -> None:
    assert document({**PRODUCT, field: value}) == text


def test_a_product_with_no_asin_of_its_own_is_left_out() -> None:
    asins = ["B000000001", "nan", "B0000000012", "B000000002", "B000000001"]
    assert [asin for asin, _ in documents({**PRODUCT, "asin": a} for a in asins)] == ["B000000001", "B000000002"]


def test_rankings_and_scores_are_those_recorded_from_the_original(shared: Path, tmp_path: Path) -> None:
    products = orjson.loads((shared / "data/webshop/items_shuffle_1000.json").read_bytes())
    recorded = orjson.loads((shared / "golden/webshop/searches_a.json").read_bytes())
    with IndexBuilder() as builder, open(tmp_path / "index", "wb") as file:
        for asin, text in documents(products):
            builder.add(asin, text)
        builder.write(file)
    index = Index(tmp_path / "index")
    assert len(recorded) == 200
    for search in recorded:
        hits = index.search(search["query"], 50)
        assert [hit.key for hit in hits] == [key for key, _ in search["hits"]], search["query"]
        assert [hit.score for hit in hits] == pytest.approx([score for _, score in search["hits"]], abs=1e-3)
