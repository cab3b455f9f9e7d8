from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from envsuite.webshop.nouns import BuiltinNouns
from envsuite.webshop.source import CatalogueFiles, products_of

FIND = BuiltinNouns()


def nouns(title: str) -> tuple[str, ...]:
    return next(FIND([title]))


def test_names_and_things_are_nouns_and_what_is_written_small_and_describes_is_not() -> None:
    assert nouns("Women's Casual Shirt with a soft collar, 40mm, 2 pieces (black)") == (
        *("women", "casual", "shirt", "collar", "mm", "pieces"),
    )
    assert nouns("") == nouns("12 30") == nouns("of the") == ()


@given(st.text())
def test_every_title_has_nouns_in_lower_case_that_stand_in_it(title: str) -> None:
    for noun in nouns(title):
        assert noun == noun.lower() and noun in title.lower()


def test_the_builtin_tagger_agrees_with_spacy_as_the_documentation_says(
    shared: Path, official_files: CatalogueFiles
) -> None:
    recorded = json.loads((shared / "golden" / "webshop" / "title_nouns.json").read_text())
    both = found = wanted = 0
    for raw in products_of(official_files.products):
        ours, theirs = Counter(nouns(raw.title)), Counter(recorded[raw.asin])
        both += (ours & theirs).total()
        found += ours.total()
        wanted += theirs.total()
    assert both / found > 0.93 and both / wanted > 0.96
