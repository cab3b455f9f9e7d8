"""The page in a real browser: Debian's packages ``chromium`` and ``chromium-driver``, moved by keys alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browsing import TASK
from served_pages import chrome, opened

webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium: pip install selenium")

from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.remote.webelement import WebElement  # noqa: E402
from selenium.webdriver.support.wait import WebDriverWait  # noqa: E402

pytestmark = pytest.mark.slow

ROLES_WITH_NAMES = {"button", "searchbox", "link", "group", "navigation", "region", "meter", "heading", "table"}
SMALL, WIDE = (400, 800), (1400, 900)


@pytest.fixture(scope="module")
def driver() -> Iterator[webdriver.Chrome]:
    yield from chrome()


@pytest.fixture
def address(shop_path: Path) -> Iterator[str]:
    with opened("webshop", "--source", str(shop_path), "--split", "dev", "--task", TASK) as (_, address, _):
        yield address


class Typist:
    """Somebody who has a keyboard and no mouse."""

    def __init__(self, driver: webdriver.Chrome, address: str, size: tuple[int, int]) -> None:
        self.driver = driver
        screen = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        driver.delete_all_cookies()
        driver.get(address)
        self.arrived()

    @property
    def focus(self) -> WebElement:
        return self.driver.switch_to.active_element

    def keys(self, *keys: str) -> None:
        webdriver.ActionChains(self.driver).send_keys(*keys).perform()

    def tab_to(self, value: str) -> None:
        """Press Tab until the button with this value has the focus; each on the way can be seen to have it."""
        for _ in range(60):
            self.keys(Keys.TAB)
            name, reached, outlines = self.driver.execute_script(
                "const e = document.activeElement, after = getComputedStyle(e, '::after');"
                "return [e.tagName, e.value, [getComputedStyle(e).outlineStyle, after.outlineStyle]]"
            )
            assert "solid" in outlines or name == "BODY", self.focus.get_attribute("outerHTML")
            if reached == value:
                return
        raise AssertionError(f"no way to {value!r} with Tab")

    def press(self, value: str, key: str = Keys.ENTER) -> None:
        """Go to a button, press it, and wait for the page that follows."""
        self.tab_to(value)
        self.leave(key)

    def leave(self, key: str) -> None:
        """Press what leads to another page."""
        old = self.driver.find_element(By.TAG_NAME, "html")
        self.keys(key)
        WebDriverWait(self.driver, 30).until(lambda driver: driver.find_element(By.TAG_NAME, "html") != old)
        self.arrived()

    def arrived(self) -> None:
        """Check what holds for every page."""
        wide, scripts = self.driver.execute_script(
            "return [document.documentElement.scrollWidth - window.innerWidth, document.scripts.length]"
        )
        assert wide <= 0, f"{self.driver.title} is {wide} pixels too wide"
        assert scripts == 0
        tree = self.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        named = [(node["role"]["value"], node["name"]["value"].strip()) for node in tree if "name" in node]
        assert {"main", "banner", "contentinfo", "heading", "button"} <= {role for role, _ in named}
        assert [role for role, name in named if role in ROLES_WITH_NAMES and not name] == []
        assert [log for log in self.driver.get_log("browser") if log["level"] != "INFO"] == []

    @property
    def text(self) -> str:
        return self.driver.find_element(By.TAG_NAME, "main").text


@pytest.mark.parametrize("size", [SMALL, WIDE], ids=["small", "wide"])
def test_a_whole_purchase_is_made_by_keyboard_alone(driver, address, size):
    typist = Typist(driver, address, size)
    assert typist.focus.accessible_name == "Search the shop"
    typist.keys("kettle")
    typist.leave(Keys.ENTER)
    assert "Page 1 (Total results: 5)" in typist.text
    assert typist.focus.tag_name == "main"

    typist.press("next >")
    assert "no more products" in typist.text
    typist.press("< prev")
    typist.press("b000000001")
    assert typist.driver.find_element(By.TAG_NAME, "h1").text == "Steel Kettle for Tea"

    typist.press("navy | blue", Keys.SPACE)
    assert (typist.focus.text, typist.focus.get_attribute("aria-pressed")) == ("navy | blue", "true")
    assert driver.title.startswith("Chosen: color = navy | blue.")
    typist.press("2 l")
    assert typist.focus.get_attribute("value") == "2 l"
    on_screen = driver.execute_script("return document.activeElement.getBoundingClientRect().top")
    assert 0 < on_screen < size[1]

    for page in ("description", "features", "reviews"):
        typist.press(page)
        assert typist.driver.find_element(By.TAG_NAME, "h1").text.lower() == page
        typist.press("< prev")
    pressed = driver.find_elements(By.CSS_SELECTOR, "[aria-pressed=true]")
    assert [option.get_attribute("value") for option in pressed] == ["navy | blue", "2 l"]

    typist.press("buy now")
    assert "Your score (min 0.0, max 1.0)\n1.0" in typist.text
    assert "the task is solved" in typist.text
    typist.press("new")
    assert typist.focus.accessible_name == "Search the shop"


def test_the_first_tab_leads_past_what_every_page_repeats(driver, address):
    typist = Typist(driver, address, WIDE)
    typist.keys("kettle")
    typist.leave(Keys.ENTER)
    driver.get(address)  # without the focus that an action leaves
    typist.keys(Keys.TAB)
    assert typist.focus.text == "Skip to the content"
    assert driver.execute_script("return document.activeElement.getBoundingClientRect().top") >= 0
    typist.keys(Keys.ENTER)
    assert typist.focus.tag_name == "main"
    typist.keys(Keys.TAB)
    assert typist.focus.get_attribute("value") == "back to search"
