from __future__ import annotations

import itertools

import pytest

from envsuite.webshop.assortment import ProductKind, kind_of, kinds
from envsuite.webshop.reward import alike, options_matched

QUERIES = [kind.query for kind in kinds()]


@pytest.fixture(params=QUERIES)
def kind(request: pytest.FixtureRequest) -> ProductKind:
    found = kind_of(request.param)
    assert found is not None
    return found


def test_the_shop_sells_kinds_of_all_five_departments_and_no_kind_twice():
    assert {kind.department for kind in kinds()} == {"beauty", "electronics", "fashion", "garden", "grocery"}
    assert len(set(QUERIES)) == len(QUERIES) == 80
    assert kind_of("anvils") is None


def test_no_attribute_counts_as_another_or_stands_in_what_is_said_of_another(kind):
    facts = [fact for facet in kind.facets for fact in facet]
    assert len({fact.attribute for fact in facts}) == len(facts)
    for one, other in itertools.permutations(facts, 2):
        assert not alike(one.attribute, other.attribute)
        words = (word for _, word in kind.words)
        said = " ".join((kind.name, *words, other.label, other.sentence, *other.phrases)).lower()
        assert one.attribute not in said


def test_every_value_of_an_option_counts_as_itself_and_as_no_other(kind):
    offered = [(name, value) for name, values in kind.options for value in values]
    for chosen, wanted in itertools.product(offered, offered):
        for asked in (wanted, wanted[1]):
            assert bool(options_matched([chosen[1]], [asked])) == (chosen == wanted)
