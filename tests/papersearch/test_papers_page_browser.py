"""The page of PaperSearch in a real browser: Debian's packages ``chromium`` and ``chromium-driver``, by keys alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hundred_papers import COUNT, HUB, LONG, MARKUP
from playing import WAY, played
from served_pages import axe, chrome, opened

from envsuite.retrieval.corpus_build import LONGEST_TEXT

webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium: pip install selenium")

from selenium.webdriver.common.actions.action_builder import ActionBuilder  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.wait import WebDriverWait  # noqa: E402

pytestmark = pytest.mark.slow

SMALL, WIDE = (400, 800), (1400, 900)
SIZES = pytest.mark.parametrize("size", [SMALL, WIDE], ids=["small", "wide"])
FOCUS = (
    "const e = document.activeElement, box = e.getBoundingClientRect();"
    "return [e.tagName, e.id, getComputedStyle(e).outlineStyle, e.textContent + e.value, box.width * box.height]"
)
NODES = "[...document.querySelectorAll('#graph .paper')]"
INSIDE = (
    "const g = document.getElementById('graph').getBoundingClientRect();"
    f"return Math.min(...{NODES}.flatMap(n => {{ const b = n.getBoundingClientRect();"
    "return [b.left - g.left, b.top - g.top, g.right - b.right, g.bottom - b.bottom]; }))"
)
"""Pixels from the graph's edge to the nearest node: negative where a node is cut off."""


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    yield from chrome()


@pytest.fixture(scope="module")
def address(hundred: Path) -> Iterator[str]:
    with opened("papersearch", "--source", str(hundred)) as (_, found, _):
        yield found


class Typist:
    """Somebody who has a keyboard and no mouse."""

    def __init__(self, driver: Any, address: str, size: tuple[int, int] = WIDE, scheme: str = "light") -> None:
        self.driver, self.address = driver, address
        screen = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        self.scheme(scheme)
        driver.get(address)
        driver.execute_script("sessionStorage.clear()")
        self.load()

    def scheme(self, scheme: str) -> None:
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    def load(self) -> None:
        self.driver.get(self.address)
        self.wait("document.getElementById('place').textContent && document.activeElement.id === 'words'")

    def run(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    def wait(self, condition: str) -> None:
        WebDriverWait(self.driver, 60, 0.05).until(lambda _: self.run(f"return Boolean({condition})"), condition)

    def keys(self, *keys: str) -> None:
        webdriver.ActionChains(self.driver).send_keys(*keys).perform()

    def run_at_once(self) -> None:
        webdriver.ActionChains(self.driver).key_down(Keys.CONTROL).send_keys(Keys.ENTER).key_up(Keys.CONTROL).perform()

    def text(self, selector: str) -> str:
        return str(self.run("return document.querySelector(arguments[0]).innerText", selector))

    def texts(self, selector: str) -> list[str]:
        return [*self.run("return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)", selector)]

    def tab_to(self, identity: str, *keys: str) -> None:
        """Press Tab, or other keys, until an element has the focus; each on the way can be seen to have it."""
        for _ in range(80):
            self.keys(*(keys or (Keys.TAB,)))
            name, reached, outline, said, area = self.run(FOCUS)
            assert name == "BODY" or (outline == "solid" and area > 1 and said.strip()), (name, reached, outline, said)
            if reached == identity:
                return
        raise AssertionError(f"no way to {identity!r}")

    def taken(self, steps: int) -> None:
        """Wait until steps were taken."""
        self.wait(f"document.querySelectorAll('#turns .turn').length === {steps} && !document.body.ariaBusy")

    def hundred(self) -> None:
        """Bring a hundred papers into the pool."""
        self.keys("the survey", Keys.ENTER, Keys.ENTER)
        self.taken(1)
        self.keys(Keys.ESCAPE, Keys.TAB)
        self.keys("j", "e", "r")
        self.taken(2)

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] != "INFO"]


def fits(typist: Typist) -> None:
    """Check that nothing is wider than the window."""
    wide = typist.run("return document.documentElement.scrollWidth - window.innerWidth")
    assert wide <= 0, f"{wide} pixels too wide"


def accessible(typist: Typist) -> None:
    """Check the page as it is now by axe-core."""
    typist.run(axe())
    found = typist.driver.execute_async_script(
        "const done = arguments[0]; axe.run(document).then(done, e => done({error: String(e)}))"
    )
    assert "violations" in found, found
    broken = [f"{one['id']}: {[node['html'][:200] for node in one['nodes'][:3]]}" for one in found["violations"]]
    assert not broken, "\n".join(broken)


@SIZES
def test_a_whole_task_is_played_by_keyboard_alone(driver, address, size):
    typist = Typist(driver, address, size)
    typist.keys("the survey", Keys.ENTER, "the survey", Keys.ENTER)
    assert typist.texts("#tray .call") == ["search the survey"] * 2
    typist.keys(Keys.ENTER)
    typist.taken(1)
    assert "1 new paper, 1 in the pool. 1 call refused: search the survey: this query was searched before" in (
        typist.text("#said")
    )
    assert typist.run("return document.activeElement.id") == "words"

    typist.tab_to("title-0")
    typist.keys(Keys.ENTER)
    typist.wait("document.getElementById('abstract-0').classList.contains('open')")
    assert typist.text("#abstract-0") == "It surveys everything."
    typist.keys(Keys.TAB, Keys.SPACE)
    assert typist.texts("#tray .call") == [f"expand The survey that cites all ({HUB})"]
    typist.keys("e")
    assert typist.texts("#tray .call") == []
    typist.keys("e", "r")
    typist.taken(2)
    assert typist.text("#pool-name") == "Pool: 100 papers, best first"
    assert typist.text("#said").startswith("Step 2: 99 new papers, 100 in the pool.")

    typist.keys("u")
    typist.wait("document.querySelectorAll('#papers li').length === 1 && !document.body.ariaBusy")
    typist.keys("e")
    typist.run_at_once()
    typist.taken(2)
    assert "Recall" not in typist.text("#figures") and "★" not in typist.text("#papers")

    typist.keys("/", "apart")
    typist.run_at_once()
    typist.taken(3)
    assert typist.run("return document.activeElement.id") == "score-name"
    assert "All 4 papers that the query asks for are in the pool." in typist.text("#figures")
    assert "Recall\n1.00" in typist.text("#figures")
    assert len(typist.texts(".mark.gold")) >= 2
    typist.keys(Keys.TAB, Keys.ENTER)
    typist.wait("document.getElementById('place').textContent.startsWith('Task 2 of 2')")
    assert typist.run("return document.activeElement.id") == "words"
    assert typist.complaints() == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@SIZES
def test_a_pool_of_a_hundred_papers_fits_the_screen_and_is_accessible(driver, address, size, scheme):
    typist = Typist(driver, address, size, scheme)
    accessible(typist)
    typist.hundred()
    fits(typist)
    assert typist.run(f"return {NODES}.length") == COUNT
    assert typist.run(INSIDE) >= -2, "papers are drawn outside of the graph"
    typist.keys("j", Keys.ENTER, "h")
    typist.wait("!document.getElementById('hinted').hidden && !document.body.ariaBusy")
    typist.keys("s")
    typist.wait("document.querySelector('dl.figures') && !document.body.ariaBusy")
    fits(typist)
    accessible(typist)
    for key in ("?", Keys.ESCAPE):
        typist.keys(key)
        fits(typist)
    typist.wait("!document.getElementById('keys').open")
    typist.tab_to("title-52", "j")
    assert typist.complaints() == []


def test_the_list_shows_all_of_a_hundred_papers_by_keys(driver, address):
    typist = Typist(driver, address)
    typist.hundred()
    typist.keys(Keys.END)
    seen = typist.run("return Number(document.activeElement.id.replace('title-', ''))")
    assert seen == 49
    typist.keys("j")
    assert typist.run("return document.activeElement.id") == "title-50"
    typist.keys(Keys.END, Keys.ARROW_DOWN)
    assert typist.run("return document.activeElement.id") == "title-99"
    typist.keys(Keys.HOME, Keys.ARROW_UP)
    assert typist.run("return document.activeElement.id") == "title-0"
    assert len(typist.texts("#papers > li")) == COUNT


@SIZES
def test_the_selected_paper_and_its_neighbours_are_marked_in_the_graph_and_listed_as_text(
    driver, address, hundred, size
):
    typist = Typist(driver, address, size)
    typist.hundred()
    session = played(hundred, *WAY[:2]).session
    corpus, ranked = session.library.corpus, session.papers[session.rank_papers()].tolist()
    for place in (1, 7):
        typist.keys(Keys.HOME, *["j"] * place)
        number = ranked[place]
        cites = {ranked.index(cited) for cited in corpus.links(number).tolist() if cited in session.pool}
        cited = {ranked.index(citing) for citing in corpus.linked_by(number).tolist() if citing in session.pool}
        marked = {int(rank) - 1 for rank in typist.texts("#graph .paper.near text")}
        assert marked == cites | cited and cited
        chosen = typist.run(f"return {NODES}.filter(n => n.matches('.selected')).map(n => n.dataset.paper)")
        assert chosen == [corpus.key(number)]
        lines = typist.run("return document.querySelectorAll('#graph line.near').length")
        assert lines == len(cites) + len(cited)
        assert typist.texts("#selected h4") == [f"Cites ({len(cites)})", f"Cited by ({len(cited)})"]
        listed = [int(text.partition(".")[0]) - 1 for text in typist.texts("#selected .link")]
        assert {*listed} == cites | cited
    typist.keys("c")
    assert typist.run("return document.activeElement.id") == "selected-name"
    typist.keys(Keys.TAB, Keys.TAB, Keys.ENTER)
    assert typist.text("#selected-name").startswith(f"{listed[0] + 1}. ")
    assert typist.run("return document.activeElement.id") == "selected-name"
    typist.keys("c")
    assert typist.run("return document.activeElement.id") == f"title-{listed[0]}"


def test_a_click_on_a_node_selects_its_paper(driver, address):
    typist = Typist(driver, address)
    typist.hundred()
    x, y = typist.run(
        f"document.getElementById('graph').scrollIntoView(); const b = {NODES}[20].getBoundingClientRect();"
        "return [(b.left + b.right) / 2, (b.top + b.bottom) / 2]"
    )
    actions = ActionBuilder(driver)
    actions.pointer_action.move_to_location(round(x), round(y)).click()
    actions.perform()
    typist.wait("document.querySelector('#selected-name')?.textContent.startsWith('21. ')")


def test_texts_of_papers_stay_texts_whatever_is_in_them(driver, address):
    typist = Typist(driver, address)
    assert MARKUP in typist.text("#query")
    typist.keys(MARKUP, Keys.ENTER)
    assert MARKUP in typist.text("#tray")
    typist.keys("the survey", Keys.ENTER, Keys.ENTER)
    typist.taken(1)
    typist.keys(Keys.TAB)
    typist.run("document.getElementById('title-0').focus()")
    while HUB not in typist.run("return document.activeElement.closest('li').innerText"):
        typist.keys("j")
    typist.keys("e", "r")
    typist.taken(2)
    at = next(place for place, title in enumerate(typist.texts(".title")) if title == MARKUP)
    typist.run(f"document.getElementById('title-{at}').focus()")
    typist.keys(Keys.ENTER)
    typist.wait(f"document.getElementById('abstract-{at}').classList.contains('open')")
    assert MARKUP in typist.text(f"#abstract-{at}") and MARKUP in typist.text("#selected-name")
    assert not driver.find_elements(By.CSS_SELECTOR, "main img, main b b, main script")
    assert driver.title.startswith("Which papers survey")
    typist.keys("/")
    typist.run("document.getElementById('more').click()")
    long = typist.run("return [...document.querySelectorAll('.papers li')].findIndex(li => / p9 /.test(li.innerText))")
    typist.run(f"document.getElementById('title-{long}').click()")
    typist.wait(f"document.getElementById('abstract-{long}').classList.contains('open')")
    assert (
        typist.run(f"return document.querySelector('#abstract-{long} > p:last-child').textContent")
        == LONG[:LONGEST_TEXT]
    )
    assert typist.run(f"return document.getElementById('abstract-{long}').tabIndex") == 0
    fits(typist)
    assert typist.complaints() == []


def test_a_reload_keeps_the_episode_and_another_tab_has_its_own(driver, address):
    typist = Typist(driver, address)
    typist.hundred()
    typist.load()
    assert typist.text("#pool-name").startswith("Pool: 100 papers")
    first = driver.current_window_handle
    driver.switch_to.new_window("tab")
    try:
        typist.load()
        assert typist.text("#pool-name") == "Pool"
    finally:
        driver.close()
        driver.switch_to.window(first)


def test_an_episode_that_the_server_forgot_is_said_and_a_new_one_begun(driver, address):
    typist = Typist(driver, address)
    typist.run("sessionStorage.setItem('papersearch-visit', 'of another day')")
    typist.load()
    assert typist.text("#said") == "This episode is no longer on the server. This is a new one."
    typist.keys("the survey", Keys.ENTER, Keys.ENTER)
    typist.taken(1)
    driver.get_log("browser")  # the browser notes the status 410


def test_leaving_an_episode_is_asked_first(driver, address):
    typist = Typist(driver, address)
    typist.keys("the survey", Keys.ENTER, Keys.ENTER)
    typist.taken(1)
    typist.run("document.querySelector('[data-to=next]').focus()")
    typist.keys(Keys.ENTER)
    typist.wait("document.getElementById('leave').open")
    typist.keys(Keys.ESCAPE)
    typist.wait("!document.getElementById('leave').open")
    assert typist.text("#place").startswith("Task 1 of 2")
    typist.keys(Keys.ENTER)
    typist.wait("document.getElementById('leave').open")
    typist.keys(Keys.TAB, Keys.ENTER)
    typist.wait("document.getElementById('place').textContent.startsWith('Task 2 of 2')")


def test_tasks_are_found_by_words(driver, address):
    typist = Typist(driver, address, SMALL)
    typist.run("document.getElementById('list-tasks').focus()")
    typist.keys(Keys.ENTER)
    typist.wait("document.querySelectorAll('#task-matches li').length === 2")
    typist.keys("the survey")
    typist.wait("document.querySelectorAll('#task-matches li').length === 1")
    fits(typist)
    typist.keys(Keys.TAB, Keys.ENTER)
    typist.wait("document.getElementById('place').textContent.startsWith('Task 2 of 2')")


def test_single_keys_can_be_switched_off(driver, address):
    typist = Typist(driver, address)
    typist.hundred()
    typist.keys("?")
    typist.wait("document.getElementById('keys').open")
    typist.tab_to("single")
    typist.keys(Keys.SPACE, Keys.ESCAPE)
    typist.wait("!document.getElementById('keys').open")
    typist.run("document.getElementById('title-3').focus()")
    typist.keys("j", "e", "?")
    assert typist.run("return document.activeElement.id") == "title-3" and not typist.texts("#tray .call")
    assert not typist.run("return document.getElementById('keys').open")
    typist.run("localStorage.clear()")


def test_the_graph_follows_the_theme(driver, address):
    typist = Typist(driver, address)
    typist.hundred()
    year = "getComputedStyle(document.querySelector('#graph .year')).fill"
    light = typist.run(f"return {year}")
    typist.scheme("dark")
    typist.wait(f"{year} !== '{light}'")
    typist.scheme("light")
    typist.wait(f"{year} === '{light}'")


def test_the_graph_is_enlarged_around_the_selected_paper_moved_by_dragging_and_fitted_again(driver, address):
    typist = Typist(driver, address)
    typist.hundred()
    typist.keys(Keys.HOME, "j", "j")
    typist.run("document.getElementById('graph').scrollIntoView()")
    place = (
        "const g = document.getElementById('graph').getBoundingClientRect(),"
        "b = document.querySelector('#graph .paper.selected').getBoundingClientRect();"
        "return [(b.left + b.right - g.left - g.right) / 2, (b.top + b.bottom - g.top - g.bottom) / 2, b.width]"
    )
    *_, width = typist.run(place)
    typist.run("document.querySelector('[data-zoom=\"1.4\"]').click()")
    x, y, larger = typist.run(place)
    assert abs(x) < 2 and abs(y) < 2 and larger == pytest.approx(1.4 * width, rel=0.02)
    middle = "const g = document.getElementById('graph').getBoundingClientRect();"
    at = typist.run(f"{middle} return [g.left + 3, g.top + 3]")
    drag = ActionBuilder(driver)
    drag.pointer_action.move_to_location(*map(round, at)).pointer_down().move_to_location(
        round(at[0]) + 40, round(at[1]) + 30
    ).pointer_up()
    drag.perform()
    x, y, _ = typist.run(place)
    assert (x, y) == (pytest.approx(40, abs=3), pytest.approx(30, abs=3))
    typist.run("document.querySelector('[data-zoom=\"0\"]').click()")
    assert typist.run(place)[2] == pytest.approx(width, rel=0.02) and typist.run(INSIDE) >= -2
