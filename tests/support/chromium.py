"""A Chromium without a screen, driven over its debugging protocol: no driver is needed besides the browser itself."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


def chromium() -> str:
    """A Chromium on this machine; the tests that need one are skipped where there is none."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no Chromium on this machine (looked for {', '.join(names)}): the page is not opened")
    return found


CUT_OFF = """[...document.querySelectorAll('*')].filter((e) => e.clientWidth && e.scrollWidth > e.clientWidth + 1
  && (e === document.documentElement || getComputedStyle(e).overflowX !== 'visible')
  && !e.matches('.bd-article pre:not(.wraps), div.math, a.skip, .group, .row span, .pst-expand-sidebar-label')
  && !e.querySelector('table.advantages'))
  .map((e) => e.outerHTML.slice(0, 100))"""
"""Elements that show a part of their width only, but those that may: drawings, equations, rows of lists, one table."""


class Tab:
    """One page of a browser."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._numbers = itertools.count(1)
        self.complaints: list[str] = []
        """Exceptions and console errors of the pages."""
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._connection.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._connection.recv(timeout=60))
            if message.get("id") == number:
                assert "error" not in message, f"{method}: {message['error']}"
                result: dict[str, Any] = message["result"]
                return result
            if message.get("method") == "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(message["params"]["exceptionDetails"])[:500])
            if message.get("method") == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
                self.complaints.append(message["params"]["entry"]["text"])

    def size(self, width: int, height: int = 900, dark: bool = False) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setScrollbarsHidden", hidden=True)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, address: str) -> None:
        self.call("Page.navigate", url="about:blank")  # an address that differs in its hash alone would not load
        self.call("Page.navigate", url=address)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def run(self, script: str) -> Any:
        """The value of an expression, which may be a promise."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, condition: str, seconds: float = 20.0) -> None:
        end = time.monotonic() + seconds
        while not self.run(f"!!({condition})"):
            assert time.monotonic() < end, f"never true: {condition}"
            time.sleep(0.02)

    def text(self, selector: str) -> str:
        return str(self.run(f"document.querySelector({json.dumps(selector)}).innerText"))

    def key(self, key: str, text: str = "") -> None:
        for kind in ("keyDown", "keyUp"):
            extra = {"text": text} if text and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, **extra)

    def type(self, text: str) -> None:
        for character in text:
            self.key(character, character)

    def choose(self, identity: str, value: str) -> None:
        """Choose an option of a list, or fill a field, as a person does."""
        self.run(
            f"(() => {{ const e = document.getElementById({json.dumps(identity)}); e.value = {json.dumps(value)};"
            "for (const kind of ['input', 'change']) e.dispatchEvent(new Event(kind, {bubbles: true})); })()"
        )

    def picture(self, path: Path, whole: bool = True) -> None:
        data = self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))


@contextlib.contextmanager
def browsing(profile: Path) -> Iterator[Tab]:
    """A browser with one tab, for the duration of the block."""
    client = pytest.importorskip("websockets.sync.client", reason="needs websockets: pip install 'envsuite[bridges]'")
    command = [
        chromium(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
        "--no-first-run", "--disable-dev-shm-usage", "--remote-debugging-port=0", f"--user-data-dir={profile}",
        "about:blank",
    ]  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    try:
        port_file, end = profile / "DevToolsActivePort", time.monotonic() + 60
        while not (port_file.exists() and "\n" in port_file.read_text()):
            assert process.poll() is None and time.monotonic() < end, "the browser has not started"
            time.sleep(0.05)
        port, path = port_file.read_text().split("\n")[:2]
        with client.connect(f"ws://127.0.0.1:{port}{path}", max_size=None, proxy=None) as browser:
            browser.send(json.dumps({"id": 1, "method": "Target.getTargets"}))
            targets = json.loads(browser.recv(timeout=60))["result"]["targetInfos"]
            target = next(one["targetId"] for one in targets if one["type"] == "page")
            address = f"ws://127.0.0.1:{port}/devtools/page/{target}"
            with client.connect(address, max_size=None, proxy=None) as connection:
                yield Tab(connection)
    finally:
        process.terminate()
        process.wait(20)
