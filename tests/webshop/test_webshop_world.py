from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shop_files import HUGE, MARKUP

from envsuite.webshop import pages
from envsuite.webshop.catalogue import Catalogue, goal_for
from envsuite.webshop.world import ShopVisit

WORDS = st.sampled_from(
    ["kettle", "tea", "", " ", "[SEP]", "shirts \u2605", '"a" AND (b OR', "\u0442\u0447\u0430\u0439", "\x00"]
)


def session(shop: Catalogue, asin: str = "B000000001") -> ShopVisit:
    goal = goal_for(shop.product(asin), "Find me kettles", ("easy clean",), (("color", "red"),), 40.0)
    return ShopVisit(shop, shop.search, goal)


def at(shop: Catalogue, asin: str) -> ShopVisit:
    """A session on the page of a product."""
    shopping = session(shop)
    shopping.search(shop.product(asin).title)
    assert shopping.click(asin), shopping.elements()
    return shopping


def test_a_purchase_from_the_search_to_the_receipt(shop):
    shopping = session(shop)
    assert pages.text(shopping) == "WebShop [SEP] Instruction: [SEP] Find me kettles [SEP] Search"
    assert shopping.elements() == ("search",)
    assert shopping.do("search[Steel Kettle]")
    assert shopping.elements()[:3] == ("back to search", "next >", "b000000001")
    assert "B000000001 [SEP] Steel Kettle for Tea [SEP] $10.0 to $30.0" in pages.text(shopping)
    assert shopping.do("click[B000000001]") and shopping.do("click[Red]")
    assert pages.text(shopping) == (
        "Instruction: [SEP] Find me kettles [SEP] Back to Search [SEP] < Prev [SEP] color [SEP] navy | blue [SEP] red "
        "[SEP] size [SEP] 1 l [SEP] 2 l [SEP] Steel Kettle for Tea [SEP] Price: $10.0 to $30.0 [SEP] Rating: N.A. "
        "[SEP] Description [SEP] Features [SEP] Reviews [SEP] Buy Now"
    )
    assert shopping.do("click[Buy Now]") and shopping.done
    assert shopping.state.score is not None and shopping.state.score.total == 1.0
    assert 'options [SEP] {"color": "red"} [SEP] attrs' in pages.text(shopping)
    assert pages.text(shopping).endswith("[SEP] 1.0 [SEP] Reward Details [SEP] None")
    assert shopping.elements() == () and not shopping.click("back to search") and not shopping.search("tea")


@pytest.mark.parametrize(
    "command",
    (
        "|jump|search[]|search|click[]|click[search]|click[b000000002]|click[2 m]|click[Attributes]|Click[red]"
        "|click red| click[red]|click [red]|click[red|click[next >]|buy[red]"
    ).split("|"),
)
def test_what_is_not_on_the_page_changes_nothing(shop, command):
    shopping = at(shop, "B000000001")
    before = shopping.state
    assert not shopping.do(command)
    assert shopping.state == before


def test_pages_lead_to_each_other(shop):
    shopping = at(shop, "B000000001")
    results = "results"
    for element, page, options in [
        ("red", "item", 1),
        ("features", "Features", 1),
        ("< prev", "item", 1),
        ("1 l", "item", 2),
        ("2 l", "item", 2),
        ("< prev", results, 0),
        ("next >", results, 0),
        ("next >", results, 0),
        ("< prev", results, 0),
        ("back to search", "search", 0),
    ]:
        assert shopping.click(element)
        assert (shopping.state.page, len(shopping.state.options)) == (page, options), element
    assert shopping.state == session(shop).state


def test_a_page_after_the_last_shows_nothing_and_one_can_go_back(shop):
    shopping = session(shop)
    shopping.search("kettle")
    first = pages.text(shopping)
    shopping.click("next >")
    total = len(shopping.state.hits)
    assert pages.text(shopping).endswith(f"Page 2 (Total results: {total}) [SEP] < Prev [SEP] Next >")
    assert pages.structured_text(shopping).startswith("No more results")
    shopping.click("< prev")
    assert pages.text(shopping) == first


def test_blank_pieces_are_shown_as_the_original_shows_them(shop):
    shopping = at(shop, "B000000001")
    shopping.click("features")
    assert pages.text(shopping).endswith("< Prev [SEP] holds water [SEP]  [SEP] keeps it warm")
    shopping = at(shop, "B000000006")
    for sub_page in ("description", "reviews"):
        shopping.click(sub_page)
        assert pages.text(shopping).endswith("Back to Search [SEP] < Prev")
        assert pages.structured_text(shopping).endswith("(none)")
        shopping.click("< prev")


@pytest.mark.parametrize(
    ("piece", "kept"),
    [("", False), (" ", True), ("\n", False), (" \n\t", False), ("a\nb", True), ("\na", True), ("a", True)],
)
def test_a_piece_of_a_page_is_kept_where_it_has_words_or_no_line_break(piece, kept):
    assert pages._visible(piece) is kept


def test_markup_stays_text_a_megabyte_is_shown_whole_and_an_id_in_lower_case_can_be_opened(shop):
    assert at(shop, "b00000000x").product.asin == "b00000000x"
    shopping = at(shop, "B000000003")
    shopping.click("description")
    assert pages.text(shopping).endswith(HUGE.strip()) and len(HUGE) > 1_000_000
    shopping = at(shop, "B000000002")
    assert MARKUP in pages.text(shopping) and MARKUP in pages.structured_text(shopping)
    assert shopping.click('it\'s "blue"') and shopping.click("<I>RED< | I>")
    assert shopping.click("buy now")
    assert 'options [SEP] {"colour": "\\u003ci\\u003ered\\u003c | i\\u003e"} [SEP]' in pages.text(shopping)


def test_a_value_of_two_options_counts_for_the_last_and_one_called_like_a_button_is_named_with_its_option(shop):
    shopping = at(shop, "B000000005")
    assert shopping.elements()[-4:] == ("buy now", "s", "m", "fit: buy now")
    shopping.click("s")
    assert shopping.state.options == (("fit", "s"),)
    shopping.click("fit: buy now")
    assert shopping.state.options == (("fit", "buy now"),) and not shopping.done
    assert shopping.click("buy now") and shopping.done, "not the value of the option fit"


def test_structured_pages_mark_what_was_chosen(shop):
    shopping = at(shop, "B000000001")
    assert pages.structured_text(shopping).endswith("Chosen: nothing.")
    shopping.click("red")
    assert "color: navy | blue, [red]\n" in pages.structured_text(shopping)
    assert pages.structured_text(shopping).endswith("Chosen with color = red.")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(st.lists(st.integers(0, 30) | WORDS | st.text(max_size=8), max_size=12))
def test_whatever_is_done_pages_can_be_shown_and_rewards_lie_in_the_unit_interval(shop, actions):
    shopping = session(shop)
    for action in actions:
        before = shopping.state
        if isinstance(action, int):
            element = next(islice(shopping.elements(), action, None), "nowhere")
            changed = shopping.click(element)
            assert changed or element in ("nowhere", "search")
        else:
            changed = shopping.do(action) or shopping.search(action)
        assert changed or shopping.state == before
        assert pages.text(shopping) is not None and pages.structured_text(shopping)
        if shopping.state.score is not None:
            assert 0.0 <= shopping.state.score.total <= 1.0
