from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import pytest
from browsing import TASK, Browser, Page, client
from hypothesis import example, given, settings
from hypothesis import strategies as st
from shop_files import MARKUP

from envsuite.core.tools import ToolCall
from envsuite.webshop.env import WebShop
from envsuite.webshop.goals import ShoppingGoal
from envsuite.webshop.page.customers import Customers
from envsuite.webshop.page.pictures import picture, remote
from envsuite.webshop.page.receipt import receipt
from envsuite.webshop.world import ShopVisit

WAY = (
    ("search", "kettle"),
    ("click", "next >"),
    ("click", "< prev"),
    ("click", "b000000001"),
    ("click", "navy | blue"),
    ("click", "2 l"),
    ("click", "description"),
    ("click", "< prev"),
    ("click", "features"),
    ("click", "< prev"),
    ("click", "reviews"),
    ("click", "< prev"),
    ("click", "buy now"),
)
"""Through every kind of page to a purchase."""
SHARED_VALUES = (("search", "shirt"), ("click", "b000000005"), ("click", "m"), ("click", "buy now"))
"""Of a product whose options share values, one of them among the names of buttons, and repeat one."""
NOTHING_FOUND = (("search", "zzz"), ("click", "next >"), ("click", "not there"), ("search", ""))


def walk(browser: Browser, actions: Iterable[tuple[str, str]] = WAY) -> Iterable[Page]:
    """The pages that one comes by."""
    yield browser.page
    for tool, argument in actions:
        browser.search(argument) if tool == "search" else browser.click(argument)
        yield browser.page


def call(tool: str, argument: str) -> list[ToolCall]:
    return [ToolCall(tool, {"query" if tool == "search" else "element": argument})]


def said(page: Page, env: WebShop) -> None:
    """Check that a page says what the environment's text says, and has its elements."""
    session = env.session
    if session.done:
        score = session.state.score
        assert score is not None
        assert f"Your score (min 0.0, max 1.0) {round(score.total, 3)}" in page.text
        assert page.elements == set()
        return
    assert page.elements == {element for element in session.elements() if element} - {"search"}
    text = f" {page.text} "
    for piece in env.observation["text"].split(" [SEP] "):
        assert " ".join(piece.split()) in text, piece


ACTIONS = st.one_of(
    st.tuples(st.just("search"), st.sampled_from(["kettle", "shirt", "red kettle", "", "zzz", "<b>", "KETTLE \u0130"])),
    st.tuples(st.just("click"), st.integers(0, 40)),
    st.tuples(st.just("click"), st.sampled_from(["buy now", "not there", "", "Next >", "B000000002"])),
)


@example([*WAY], TASK)
@given(st.lists(ACTIONS, max_size=12), st.sampled_from([TASK, "B000000005/synthetic-2", "B000000003/synthetic-0"]))
@settings(max_examples=30)
def test_whatever_is_done_page_and_environment_go_on_alike(shop_path, actions, task):
    env = WebShop(source=str(shop_path), split="dev")
    env.reset(options={"task_id": task})
    browser = Browser(client(shop_path, task))
    for number, (tool, argument) in enumerate(actions, 1):
        if isinstance(argument, int):
            offered = sorted(browser.page.elements) or ["nothing"]
            argument = offered[argument % len(offered)]
        _, reward, done, _, info = env.step(call(tool, argument))
        browser.search(argument) if tool == "search" else browser.click(argument)
        said(browser.page, env)
        assert ("Nothing happened" in browser.message) == (info["error"] is not None)
        if done:
            assert f" {round(reward, 3)} " in browser.page.text
            break
        assert f"{number} action{'s' * (number > 1)} so far; an agent has 15" in browser.page.text


@pytest.mark.parametrize(
    "way", [WAY, SHARED_VALUES, NOTHING_FOUND], ids=["all pages", "shared values", "nothing found"]
)
def test_every_page_can_be_read_and_used_without_seeing_it(shop_path, way):
    for page in walk(Browser(client(shop_path)), way):
        assert page.one("html").attributes["lang"] == "en"
        assert len(page.all("title")) == len(page.all("main")) == len(page.all("h1")) == 1
        assert page.one("h1").text.strip() and page.one("title").text.strip()
        assert page.one("p", role="status").attributes["aria-live"] == "polite"
        assert page.all("a")[0].attributes["href"] == "#main" and page.one("main").attributes["id"] == "main"
        ids = Counter(tag.attributes["id"] for tag in page.tags if "id" in tag.attributes)
        assert set(ids.values()) == {1}
        labelled = {tag.attributes["for"] for tag in page.all("label")}
        assert all(tag.attributes["id"] in labelled for tag in page.all("input") if tag.attributes["type"] != "hidden")
        assert all(button.text.strip() for button in page.all("button"))
        assert all("alt" in image.attributes for image in page.all("img"))
        for tag in page.tags:
            for name in ("aria-labelledby", "aria-describedby", "form"):
                assert all(ids[target] == 1 for target in tag.attributes.get(name, "").split())
        levels = [int(tag.name[1]) for tag in page.tags if tag.name in ("h1", "h2", "h3")]
        assert max(levels) == 2
        for group in page.all("fieldset"):
            assert group.text.split()
        assert len(page.all("legend")) == len(page.all("fieldset"))


def test_a_page_loads_nothing_from_elsewhere_runs_no_script_and_does_not_name_the_task_whose_id_is_the_answer(
    shop_path,
):
    shop = client(shop_path)
    for page in walk(Browser(shop)):
        assert (TASK in page.html) == ("Your score" in page.text), "not before it is over"
        for tag in page.tags:
            assert tag.name not in ("script", "style", "iframe", "object", "embed", "base")
            assert not [name for name in tag.attributes if name.startswith("on") or name == "style"]
            for name in ("src", "href", "action", "formaction"):
                assert tag.attributes.get(name, "/").startswith(("/", "#"))
                assert not tag.attributes.get(name, "/").startswith("//")
        for tag in (*page.all("img"), *page.all("link")):
            response = shop.get(tag.attributes.get("src") or tag.attributes["href"])
            assert response.status_code == 200 and response.mimetype in ("image/svg+xml", "text/css")
            assert (
                shop.get(response.request.path, headers={"If-None-Match": response.headers["ETag"]}).status_code == 304
            )


def test_what_the_headers_say_keeps_others_out(shop_path):
    shop = client(shop_path)
    for path in ("/", "/style.css", "/image/B000000001.svg", "/nowhere"):
        headers = shop.get(path).headers
        policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
        assert policy.pop("style-src") == policy.pop("img-src") == policy.pop("form-action") == "'self'"
        assert set(policy) == {"default-src", "base-uri", "frame-ancestors"} and set(policy.values()) == {"'none'"}
        assert headers["X-Content-Type-Options"] == "nosniff"
    cookie = client(shop_path).get("/").headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=Lax" in cookie and len(cookie.split(";")[0]) > 40
    assert "no-store" in shop.get("/").headers["Cache-Control"]


def test_markup_in_titles_and_options_stays_text(shop_path):
    browser = Browser(client(shop_path))
    browser.search("<i>red</i> <script>alert(1)</script> kettle")
    assert "b000000002" in browser.page.elements and MARKUP in browser.page.text
    assert "<i>red</i> <script>alert(1)</script> kettle" in browser.page.one("q").text
    browser.click("b000000002")
    assert browser.page.one("h1").text == MARKUP
    browser.click('it\'s "blue"')
    assert browser.message == 'Chosen: colour = it\'s "blue".'
    assert not [tag for tag in browser.page.tags if tag.name in ("script", "b", "i")]


def test_a_chosen_option_is_shown_as_pressed_and_the_focus_stays_at_it(shop_path):
    browser = Browser(client(shop_path))

    def pressed(state: str) -> list[tuple[str, str]]:
        return [(one.text, one.attributes["id"]) for one in browser.page.all("button", **{"aria-pressed": state})]

    browser.search("kettle")
    assert browser.click("b000000001") == "main"
    assert len(pressed("false")) == 4 and not pressed("true")
    for value, place in (("2 l", "option-1-1"), ("1 l", "option-1-0")):
        assert browser.click(value) == place
        assert pressed("true") == [(value, place)] and browser.message == f"Chosen: size = {value}."
    browser.click("back to search")
    browser.search("cotton shirt")
    browser.click("b000000005")
    assert browser.click("s") == "option-1-0" and browser.message == "Chosen: fit = s.", (
        "of two, which the session takes"
    )


@pytest.mark.parametrize(
    ("task", "clicked", "lines"),
    [
        (
            TASK,
            ("b000000001", "navy | blue", "2 l"),
            (
                "Attribute easy clean",
                "1 matched",
                "Option color: navy | blue",
                "Price at most $",
                "= 1.0",
                "very product",
            ),
        ),
        (
            TASK,
            ("b000000002",),
            ("0 missing", "nothing was chosen", "not among its attributes", "You bought", "was written for"),
        ),
        (
            "B000000005/synthetic-0",
            ("b000000007",),
            ("Type: is it the right kind of product? 0.0", "No noun of the title is shared", "None is shared", "= 0.0"),
        ),
        ("B000000003/synthetic-0", ("b000000003",), ("none asked for", "no limit", "$1,847.00")),
    ],
)
def test_the_last_page_explains_each_part_of_the_reward(shop_path, task, clicked, lines):
    actions = [("search", "kettle"), *(("click", element) for element in (*clicked, "buy now"))]
    *_, page = walk(Browser(client(shop_path, task)), actions)
    assert not [line for line in lines if line not in page.text], page.text


@given(st.data())
@settings(max_examples=60)
def test_the_parts_that_are_explained_make_up_the_score(shop, data):
    ids = [task for tasks in shop.tasks("synthetic", "x").splits.values() for task in tasks] + ["B000000001/human-0"]
    goal: ShoppingGoal = shop.goal(data.draw(st.sampled_from(ids)))
    session = ShopVisit(shop, shop.search, goal)
    with pytest.raises(ValueError, match="nothing was bought"):
        receipt(session)
    session.search("kettle shirt")
    session.click(data.draw(st.sampled_from(session.state.hits)))
    for value in data.draw(st.lists(st.sampled_from(session.elements()), max_size=4)):
        if any(value in values for values in session.product.options.values()):
            session.click(value)
    session.click("buy now")
    found, score = receipt(session), session.state.score
    assert score is not None
    assert sum(line.met for line in found.lines) / len(found.lines) * score.r_type == pytest.approx(
        score.total, abs=1e-12
    )
    matched, asked = found.count_lines("Attribute")
    assert matched / asked == score.r_att
    matched, asked = found.count_lines("Option")
    assert (matched / asked if asked else None) == score.r_option
    assert found.count_lines("Price") == (int(score.r_price), 1)
    assert len(found.shared_categories) >= 2 or not score.category_match
    assert len(found.shared_nouns) / found.nouns == score.title_score
    assert (found.queries[0] == found.queries[1]) is score.query_match


def test_a_new_task_is_another_and_the_same_can_be_tried_again(shop_path):
    browser = Browser(client(shop_path))
    *_, last = walk(browser)
    first = last.one("p", id="instruction").text
    browser.send("/new", task="same")
    assert browser.page.one("p", id="instruction").text == first and "0 actions" in browser.page.text
    assert browser.send("/new", task="new") == "query"
    assert browser.page.one("p", id="instruction").text != first


def test_pictures_are_drawn_unless_those_of_others_are_asked_for(shop_path, shop):
    drawn = Browser(client(shop_path))
    drawn.search("kettle")
    assert {tag.attributes["src"][:7] for tag in drawn.page.all("img", width="112")} == {"/image/"}
    there = Browser(client(shop_path, remote_images=True))
    there.search("kettle broken pair")
    sources = {tag.attributes["src"] for tag in there.page.all("img", width="112")}
    assert "https://example.org/picture.jpg" in sources
    assert "/image/B000000006.svg" in sources  # has none of its own
    assert "img-src 'self' https:;" in there.client.get("/").headers["Content-Security-Policy"]
    product = shop.product("B000000002")
    assert "<script" not in picture(product) and picture(product) == picture(product)
    assert remote(product, []) == "https://example.org/picture.jpg"


def test_threads_may_shop_at_once_with_one_cookie_and_with_many(shop_path):
    first = client(shop_path, capacity=4)
    browser = Browser(first)
    cookie = first.get_cookie("webshop")
    assert cookie is not None

    def shopping(with_cookie: bool) -> set[int]:
        mine, found = first.application.test_client(), set()
        if with_cookie:
            mine.set_cookie("webshop", cookie.value)
        for _ in range(8):
            form = browser.page.proof | {"query": "kettle", "element": "b000000001"}
            found |= {mine.get("/").status_code}
            found |= {mine.post(path, data=form).status_code for path in ("/search", "/click")}
        return found

    with ThreadPoolExecutor(8) as threads:
        assert set().union(*threads.map(shopping, [True, False] * 4)) <= {200, 303, 403, 410}


def test_the_longest_idle_customer_is_forgotten_first(shop_path):
    customers = Customers(lambda: WebShop(source=str(shop_path), split="dev"), [TASK], capacity=2)
    one, two = customers.admit(), customers.admit()
    assert customers.find(one.key) is one
    three = customers.admit()
    assert len(customers) == 2
    assert customers.find(two.key) is None
    assert customers.find(one.key) is one and customers.find(three.key) is three
    assert len({one.key, two.key, three.key}) == len({one.token, two.token, three.token}) == 3
