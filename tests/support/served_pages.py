"""The pages that ``envsuite play --browser`` serves: the command as a process, and a browser that opens them."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

FOREIGN = (
    {"Origin": "https://elsewhere.example"},
    {"Origin": "null"},
    {"Origin": "http://localhost.elsewhere.example"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
)
"""Headers of requests that another site has a browser send."""
ODD_HEADERS = {
    "Origin": st.sampled_from(["http://localhost", "null", "http://[", "", "\u00ff"]),
    "Host": st.sampled_from(["localhost", "a b", "", "[", "\u00ff", "x:99999999"]),
    "Content-Length": st.sampled_from(["0", "3", "-1", "x"]),
    "If-None-Match": st.sampled_from(['"x"', "W/", "\u00ff"]),
    "Range": st.sampled_from(["bytes=0-1", "bytes=9-1", "x"]),
}
METHODS = st.sampled_from(["GET", "POST", "PUT", "HEAD", "OPTIONS", "DELETE", "TRACE", "NONE"])


@contextlib.contextmanager
def opened(env: str, *arguments: str) -> Iterator[tuple[str, str, subprocess.Popen[str]]]:
    """What the command says when it has opened the page, the address in it, and its process."""
    command = [sys.executable, "-m", "envsuite.cli", "play", env, "--browser", "--port", "0", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        address = re.search(r"http://\S+/", said)
        assert address is not None, said
        yield said, address[0], process
    finally:
        process.kill()
        process.wait()


def axe() -> str:
    """The script of axe-core, which looks for what keeps people from using a page (requirements-models.txt)."""
    try:
        package = metadata.distribution("axe-playwright-python")
    except metadata.PackageNotFoundError:
        pytest.skip("needs axe-core: pip install --no-deps axe-playwright-python")
    return Path(str(package.locate_file("axe_playwright_python/axe.min.js"))).read_text(encoding="utf-8")


def chrome() -> Iterator[Any]:
    """A browser without a screen, of Debian's packages ``chromium`` and ``chromium-driver``."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium: pip install selenium")
    from selenium.webdriver.chrome.service import Service

    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    chromedriver = shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        pytest.skip("needs a browser and its driver: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in (
        *("--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic"),
    ):
        options.add_argument(argument)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(chromedriver))
    driver.set_page_load_timeout(120)
    driver.set_script_timeout(120)
    yield driver
    driver.quit()
