"""The site: built with warnings as errors, without content of other hosts, and looked at in a real browser."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from chromium import CUT_OFF
from served_pages import axe, chrome

pytest.importorskip("sphinx", reason="needs Sphinx: pip install -e '.[docs]'")

from docs.build import ROOT
from docs.site import commands, mathml, pages, reference
from envsuite.cli import available
from envsuite.core.registration import builtin

LOADED = {**dict.fromkeys(("script", "img", "iframe", "source", "video", "audio"), "src"), "link": "href"}
"""Elements that make a browser load something, and the attribute that says what."""
KINDS = {
    "front": "index.html",
    "section": "section-methods.html",
    "environment": "environments/textcraft.html",
    "method": "methods/gigpo.html",
    "guide": "prompting.html",
    "benchmarks": "benchmarks.html",
    "long tables": "papers.html",
    "drawings": "play.html",
    "command": "commands/envsuite-serve-http.html",
    "settings": "configuration-train.html",
    "api": "api/envsuite.core.html",
    "file": "files/trainers/credit/estimators/gigpo.py.html",
    "search": "search.html?q=advantage",
}
"""A page of each kind."""


class Loads(HTMLParser):
    """Collects what a page loads, and what it links to."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in LOADED and given.get("rel") not in ("canonical", "author", "search", "index", "next", "prev"):
            self.loads.append(given.get(LOADED[tag]) or "")
        if tag == "a":
            self.links.append(given.get("href") or "")


def parsed(page: Path) -> Loads:
    found = Loads()
    found.feed(page.read_text(encoding="utf-8"))
    return found


def build(out: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "docs.site", "--out", str(out)], cwd=ROOT, capture_output=True, text=True, timeout=900
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    out = tmp_path_factory.mktemp("built") / "site"
    run = build(out)
    assert run.returncode == 0, run.stderr[-5000:]
    assert "WARNING" not in run.stderr
    return out


@pytest.mark.slow
def test_the_site_has_a_page_for_every_environment_method_command_and_setting(site):
    for name in pages.files().values():
        assert (site / f"{name}.html").is_file(), name
    for environment in builtin():
        found = [page for page in (site / "environments").glob("*.html") if environment.id in page.read_text("utf-8")]
        assert found, environment.id
    for name in available():
        assert (site / f"commands/envsuite-{name.replace(' ', '-')}.html").is_file(), name
    for module in commands.programs():
        assert (site / f"commands/{module}.html").is_file(), module
    settings = (site / "configuration-train.html").read_text(encoding="utf-8")
    assert all(f">{setting.path}<" in settings for setting in reference.describe_settings(reference.TrainConfig))


@pytest.mark.slow
def test_nothing_is_loaded_from_other_hosts(site):
    for page in site.rglob("*.html"):
        assert [load for load in parsed(page).loads if re.match(r"(?i)(\w+:)?//", load)] == [], page
    for sheet in site.rglob("*.css"):
        assert re.findall(r"(?:url\(|@import)\s*['\"]?(?:\w+:)?//[^)]*", sheet.read_text("utf-8")) == [], sheet
    for script in site.rglob("*.js"):
        calls = r"(?:import|importScripts|fetch)\(\s*['\"`]https?:[^)]*"
        assert re.findall(calls, script.read_text("utf-8")) == [], script


@pytest.mark.slow
def test_every_link_of_the_site_leads_to_a_file_of_it(site):
    broken = [
        f"{page.relative_to(site)}: {link}"
        for page in site.rglob("*.html")
        for link in parsed(page).links
        if link and "://" not in link and not link.startswith(("#", "mailto:"))
        if not (page.parent / link.partition("#")[0].partition("?")[0]).resolve().exists()
    ]
    assert broken == []


@pytest.mark.slow
def test_language_models_find_every_written_page(site):
    listed = re.findall(r"\]\(([^)#]+)", (site / "llms.txt").read_text(encoding="utf-8"))
    assert all((site / link).is_file() for link in listed if "://" not in link)
    whole = (site / "llms-full.txt").read_text(encoding="utf-8")
    contents = (ROOT / pages.CONTENTS).read_text(encoding="utf-8")
    for part in pages.sections(contents):
        for file in part.pages:
            assert f"{pages.files()[file]}.md" in listed
            assert f"<!-- {pages.files()[file]}.md -->" in whole


@pytest.mark.slow
def test_a_page_without_a_table_of_contents_and_a_broken_link_end_the_build(tmp_path):
    """With the settings of the site, on a site of three pages."""
    source = tmp_path / "pages"
    source.mkdir()
    (source / "index.md").write_text("# Site\n\n[gone](gone.md) and $\\nothing$\n\n```{toctree}\n/there\n```\n")
    (source / "there.md").write_text("# There\n")
    (source / "lost.md").write_text("# Lost\n")
    options = ["-W", "--keep-going", "-q", "-c", str(Path(mathml.__file__).parent)]
    run = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, source, tmp_path / "out"], cwd=ROOT, capture_output=True, text=True
    )
    assert run.returncode != 0
    assert "lost.md: WARNING: document isn't included in any toctree" in run.stderr
    assert "gone.md" in run.stderr and "nothing" in run.stderr


def test_a_folder_that_is_no_site_is_not_replaced(tmp_path):
    (tmp_path / "letter.txt").write_text("mine")
    from docs.site.build import build as build_here

    assert build_here(tmp_path) == 2
    assert (tmp_path / "letter.txt").read_text() == "mine"


def test_links_lead_to_pages_and_to_files_and_code_is_left_alone():
    linker = pages.Linker(pages.files())
    text = "[a](../data.md#x) `[a](../a.md)` [f](../../trainers/train.py) [w](https://x.org/a.md) [n](no.md)\n"
    assert linker.rewritten(text, "docs/methods/ppo.md", "methods/ppo") == (
        "[a](../data.md#x) `[a](../a.md)` [f](../files/trainers/train.py.md) [w](https://x.org/a.md) [n](no.md)\n"
    )
    text = "![i](docs/images/recipes.png) [d](docs/data.md) [r](docs/README.md)\n```md\n[a](docs/data.md)\n```\n"
    assert linker.rewritten(text, "README.md", "index") == (
        "![i](docs/images/recipes.png) [d](data.md) [r](contents.md)\n```md\n[a](docs/data.md)\n```\n"
    )
    assert linker.shown == {"trainers/train.py"} and linker.images == {"docs/images/recipes.png"}


def test_every_section_of_the_index_becomes_one_of_the_site():
    text = (ROOT / pages.CONTENTS).read_text(encoding="utf-8")
    parts = pages.sections(text)
    assert [part.title for part in parts] == re.findall(r"^\*\*(.+)\*\*$", text, re.M)
    listed = [file for part in parts for file in part.pages]
    assert len(listed) == len(set(listed)), "a page in two sections"
    written = {file for file in pages.files() if file.startswith("docs/")} - {pages.CONTENTS}
    assert set(listed) == written


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    yield from chrome()


def opened(driver: Any, site: Path, page: str, width: int, scheme: str) -> None:
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    feature = {"name": "prefers-color-scheme", "value": scheme}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    driver.get(f"{site.as_uri()}/{page}")
    driver.execute_async_script(  # colours as they are in the end: those in a change have another contrast
        "document.head.append(Object.assign(document.createElement('style'), "
        "{textContent: '* { transition: none !important; animation: none !important }'}));"
        "requestAnimationFrame(() => requestAnimationFrame(arguments[0]))"
    )


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("kind", KINDS)
def test_a_page_of_each_kind_is_accessible_and_fits_the_screen(driver, site, kind, width, scheme):
    opened(driver, site, KINDS[kind], width, scheme)
    assert driver.execute_script("return document.documentElement.dataset.theme") == scheme
    wide = CUT_OFF if width == 390 else "document.documentElement.scrollWidth > innerWidth"
    assert not driver.execute_script(f"return {wide}")
    driver.execute_script(axe())
    found = driver.execute_async_script(
        # No preload: axe would read style sheets by requests, which a page from the disk may not make.
        "const done = arguments[0];axe.run(document, {preload: false}).then(done, e => done({error: String(e)}))"
    )
    assert "violations" in found, found
    serious = [
        f"{broken['id']}: {broken['help']}: {[node['html'][:200] for node in broken['nodes'][:3]]}"
        for broken in found["violations"]
        if broken["impact"] in ("serious", "critical")
    ]
    assert not serious, "\n".join(serious)
    assert [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"] == []


@pytest.mark.slow
def test_the_search_finds_pages_without_a_network(driver, site):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.wait import WebDriverWait

    opened(driver, site, "search.html?q=failure+table+Knuth", 1400, "light")
    WebDriverWait(driver, 30).until(lambda page: page.find_elements(By.CSS_SELECTOR, "#search-results li"))
    found = [link.get_attribute("href") for link in driver.find_elements(By.CSS_SELECTOR, "#search-results li a")]
    assert any(link.partition("?")[0].endswith("methods/scpo.html") for link in found), found
