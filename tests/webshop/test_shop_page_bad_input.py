from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest
from browsing import Browser, Page, client
from flask.testing import FlaskClient
from hypothesis import given, settings
from hypothesis import strategies as st
from served_pages import FOREIGN, METHODS, ODD_HEADERS
from werkzeug.test import TestResponse

from envsuite.core.errors import DataError
from envsuite.webshop.catalogue import Catalogue
from envsuite.webshop.page.app import LARGEST_BODY


def friendly(response: TestResponse, status: int) -> Page:
    """Check that a response is a whole page with words for people."""
    text = response.get_data(as_text=True)
    assert response.status_code == status, text
    page = Page(text)
    assert page.one("h1").text and "Traceback" not in text and "werkzeug" not in text
    assert "default-src 'none'" in response.headers["Content-Security-Policy"]
    return page


@pytest.mark.parametrize(
    "query",
    [
        " ".join(f"word{i}" for i in range(10_000)),
        "kettle " * 10_000,
        "水壶 чайник غلاية ∂ 🫖",
        '"steel kettle" AND (tea OR -red) ~2 title:kettle*',
        "\x00\x01 \u202e kettle",
        "   ",
    ],
    ids=["words", "one word", "scripts", "operators", "controls", "blanks"],
)
def test_any_query_is_words(shop_path, query):
    browser = Browser(client(shop_path))
    browser.search(query)
    assert "Page 1 (Total results: " in browser.page.text
    assert len(browser.page.one("h1").text) < 200


def test_a_click_on_what_is_not_there_is_told_in_a_short_line(shop_path):
    browser = Browser(client(shop_path))
    browser.click("search")
    assert "nothing to click" in browser.message
    browser.search("kettle")
    browser.click("x" * 5_000)
    assert browser.message.endswith("is not on the page.") and len(browser.message) < 200


def test_a_form_of_an_older_page_is_not_acted_upon(shop_path):
    browser = Browser(client(shop_path))
    browser.search("kettle")
    old = browser.page
    browser.click("b000000001")
    newest, browser.page = browser.page, old
    browser.click("next >")
    assert "out of date" in browser.message
    assert browser.page.elements == newest.elements and "2 actions" in browser.page.text


def test_after_the_purchase_nothing_more_can_be_done(shop_path):
    browser = Browser(client(shop_path))
    browser.search("kettle")
    browser.click("b000000001")
    browser.click("buy now")
    receipt = browser.page.text
    for path, form in (("/search", {"query": "kettle"}), ("/click", {"element": "buy now"})):
        proof = browser.page.proof
        assert browser.client.post(path, data=proof | form).status_code == 303
        assert Browser(browser.client).page.text == receipt


@pytest.mark.parametrize(("path", "form"), [("/search", "query"), ("/click", "element"), ("/new", "task")])
def test_another_site_cannot_order(shop_path, path, form):
    browser = Browser(client(shop_path))
    body = browser.page.proof | {form: "kettle"}
    for headers in FOREIGN:
        friendly(browser.client.post(path, data=body, headers=headers), 403)
    for token in ("", "wrong", "\u00e9\u4e2d"):
        friendly(browser.client.post(path, data=body | {"token": token}), 403)
    assert browser.client.post(path, data=body, headers={"Origin": "http://localhost"}).status_code == 303


def test_whom_the_shop_does_not_know_it_tells_so_and_offers_a_new_task(shop_path):
    shop = client(shop_path)
    shop.set_cookie("webshop", "of-another-day")
    page = friendly(shop.get("/"), 410)
    assert page.one("form").attributes["action"] == "/new"
    friendly(shop.post("/search", data={"query": "kettle"}), 410)
    response = shop.post("/new")
    assert response.status_code == 303 and response.headers["Location"] == "/#query"
    assert Browser(shop).page.one("p", id="instruction")


def test_a_browser_without_cookies_is_told_and_not_sent_in_circles(shop_path):
    shop = client(shop_path).application.test_client(use_cookies=False)
    assert shop.get("/").status_code == 200
    page = friendly(shop.post("/search", data={"query": "kettle"}), 410)
    assert "does not keep this shop's cookie" in page.text


def test_wrong_addresses_methods_and_sizes_are_answered_with_a_page(shop_path):
    shop = client(shop_path)
    body = Browser(shop).page.proof
    for path in ("nowhere", "image/B0nothing.svg", "image/%00.svg", "image/%ff%fe.svg", "static/style.css", "search/"):
        friendly(shop.get(f"/{path}"), 404)
    for path in ("/search", "/click", "/new"):
        assert friendly(shop.get(path), 405).one("a", href="/")
    assert "GET" in shop.delete("/").headers["Allow"]
    friendly(shop.post("/search", data=body | {"query": "x" * (LARGEST_BODY + 1)}), 413)
    many = "&".join(f"a{i}=b" for i in range(2_000))
    assert shop.post("/search", data=many, content_type="application/x-www-form-urlencoded").status_code == 403


def test_what_breaks_in_the_shop_is_said_without_a_traceback(shop_path, monkeypatch):
    def damaged(self: Catalogue, asin: str) -> None:
        raise DataError("shop.catalogue: damaged. Build it anew")

    def wrong(self: Catalogue, asin: str) -> None:
        raise ZeroDivisionError("secret")

    shop = client(shop_path)
    shop.application.logger.disabled = True
    for broken, said in ((damaged, "Build it anew"), (wrong, "Something broke")):
        monkeypatch.setattr(Catalogue, "product", broken)
        page = friendly(shop.get("/image/B000000001.svg"), 500)
        assert said in page.text and "secret" not in page.text


@pytest.fixture(scope="module")
def shop(shop_path: Path) -> FlaskClient:
    return client(shop_path, capacity=16)


TEXTS = st.one_of(st.binary(max_size=60), st.text(st.characters(exclude_categories=["Cs"])).map(str.encode))
FIELDS = st.sampled_from([b"query", b"element", b"token", b"visit", b"task", b"", b"query[]"])
FORMS = st.lists(st.tuples(FIELDS, TEXTS), max_size=6).map(lambda fields: b"&".join(b"%b=%b" % pair for pair in fields))

TYPES = ["application/x-www-form-urlencoded", "multipart/form-data", "multipart/form-data; boundary=a", ""]
TYPES += ["application/json", "text/plain; charset=utf-16"]
HEADERS = st.fixed_dictionaries(
    {},
    optional={
        **ODD_HEADERS,
        "Content-Type": st.sampled_from(TYPES),
        "Cookie": st.sampled_from(["webshop=x", "webshop", "=;;=", "webshop=\u00ff"]),
    },
)


@given(
    METHODS,
    st.one_of(
        st.sampled_from(["/", "/search", "/click", "/new", "/style.css", "/icon.svg", "/image/B000000001.svg"]),
        st.binary(max_size=20).map(lambda path: "/" + quote(path)),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=20).map(lambda path: f"/image/{quote(path)}.svg"),
    ),
    st.one_of(FORMS, st.binary(max_size=200)),
    HEADERS,
    st.booleans(),
)
@settings(max_examples=200)
def test_no_request_breaks_the_shop(shop, method, path, body, headers, proven):
    if proven and "Cookie" not in headers:
        shop.delete_cookie("webshop")
        proof = Page(shop.get("/").get_data(as_text=True)).proof
        body += "".join(f"&{name}={value}" for name, value in proof.items()).encode()
        headers = {"Content-Type": "application/x-www-form-urlencoded"} | headers
    response = shop.open(path, method=method, data=body, headers=headers)
    assert response.status_code < 500, response.get_data(as_text=True)
