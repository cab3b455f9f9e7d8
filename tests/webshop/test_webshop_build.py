from __future__ import annotations

import errno
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest
from shop_files import ENTRIES, write_official, write_shop

import envsuite.webshop.build as building
from envsuite.cli import main
from envsuite.core import DataError
from envsuite.retrieval.builder import IndexBuilder
from envsuite.webshop import filling
from envsuite.webshop.build import build, cached_catalogue
from envsuite.webshop.catalogue import Catalogue
from envsuite.webshop.generate import Shop
from envsuite.webshop.nouns import BuiltinNouns
from envsuite.webshop.pages import structured_text, text
from envsuite.webshop.source import RawProduct
from envsuite.webshop.tasks import load
from envsuite.webshop.world import ShopVisit

# A build in a process of its own, in short steps; it says when it begins, and can be killed before a step of so many
# products is committed.
BUILDING = """
import os, sys
from pathlib import Path
from envsuite.retrieval import builder
from envsuite.webshop import filling
from envsuite.webshop.build import build
from envsuite.webshop.generate import Shop
from envsuite.webshop.nouns import BuiltinNouns

filling.BATCH, filling.STEP, builder.RUN = 20, 5, 5000

def commit(tables, commit=filling.CatalogueFilling._end, **entries):
    if "step" in entries and str(entries["step"][0]) == sys.argv[2]:
        os.kill(os.getpid(), 9)
    commit(tables, **entries)

filling.CatalogueFilling._end = commit
print("begun", flush=True)
build(Shop(products=600), Path(sys.argv[1]), BuiltinNouns())
"""
STOCK = Shop(products=600)


def begun(out: Path, last: str = "") -> subprocess.Popen[str]:
    """A process that has just begun to build the catalogue ``out`` of ``STOCK``; the step ``last`` kills it."""
    command = [sys.executable, "-c", BUILDING, str(out), last]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    return process


def killed_at(out: Path, products: str) -> None:
    """Begin to build ``out``, as far as the step that ends with so many products."""
    assert begun(out, products).wait() == -signal.SIGKILL
    assert not out.exists() and (out.with_name(f".{out.name}.building") / "catalogue").exists()


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def stopped(products: int, out: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Begins to build a stock and stops where goals are added; returns where its remains are."""
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(filling.CatalogueFilling, "_add_goals", interrupt)
        build(Shop(products=products), out, BuiltinNouns())
    return out.with_name(f".{out.name}.building")


def test_a_killed_build_leaves_no_catalogue_and_goes_on_where_it_stopped(tmp_path, monkeypatch):
    out, whole = tmp_path / "lamps", tmp_path / "whole"
    assert begun(whole).wait() == 0
    killed_at(out, "200")
    skipped = []
    original = Shop.raw_products

    def seen(self: Shop, skip: int = 0) -> Iterator[RawProduct]:
        skipped.append(skip)
        return original(self, skip)

    monkeypatch.setattr(Shop, "raw_products", seen)
    monkeypatch.setattr(filling, "BATCH", 20)
    monkeypatch.setattr(filling, "STEP", 5)
    build(STOCK, out, BuiltinNouns())
    assert max(skipped) == 100 and out.read_bytes() == whole.read_bytes()


def test_what_another_build_left_is_not_gone_on_from(tmp_path):
    out = tmp_path / "lamps"
    killed_at(out, "200")
    assert len(Catalogue(build(write_shop(tmp_path), out, BuiltinNouns()))) == 7


@pytest.mark.parametrize("rest", [100, 4096])
@pytest.mark.parametrize("damage", ["catalogue", "staged"])
def test_what_a_machine_that_went_down_left_damaged_is_begun_anew(damage, rest, tmp_path, monkeypatch):
    monkeypatch.setattr(filling, "BATCH", 30)
    monkeypatch.setattr(filling, "STEP", 2)
    whole = build(Shop(products=120), tmp_path / "whole", BuiltinNouns()).read_bytes()
    out = tmp_path / "lamps"
    left = stopped(120, out, monkeypatch) / damage
    content = left.read_bytes()
    left.write_bytes(content[:100] if rest == 100 else content[:rest] + bytes(len(content) - rest))
    assert build(Shop(products=120), out, BuiltinNouns()).read_bytes() == whole


def test_a_build_that_fails_leaves_the_old_catalogue_and_nothing_else(tmp_path):
    out = build(write_shop(tmp_path), tmp_path / "shop", BuiltinNouns())
    before = out.read_bytes()
    files = write_shop(tmp_path, entries=[*ENTRIES, {"asin": "B000000008"}])
    with pytest.raises(DataError, match="entry 10: not an entry"):
        build(files, out, BuiltinNouns())
    with pytest.raises(DataError, match="has no product"):
        build(write_shop(tmp_path, entries=[]), out, BuiltinNouns())
    assert out.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {
        *("products.json", "attributes.json", "human.json", "shop", ".shop.lock")
    }


def test_a_catalogue_of_files_is_built_once(tmp_path, monkeypatch):
    monkeypatch.setenv("ENVSUITE_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(building, "tagger", lambda name: BuiltinNouns())
    files = write_shop(tmp_path)
    path = cached_catalogue(files)
    made = path.stat().st_ino
    assert path.is_relative_to(tmp_path / "data") and cached_catalogue(files).stat().st_ino == made
    files.products.write_text(files.products.read_text() + " ")
    assert cached_catalogue(files) != path, "other files, another catalogue"


def test_the_command_takes_a_folder_or_the_name_of_an_official_set(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "webshop"
    write_official(folder, "_1000")
    monkeypatch.setenv("ENVSUITE_DATA", str(tmp_path))
    for place in ([str(folder)], [], ["official-1k"]):
        assert main(["data", "build", "webshop", *place, "--tagger", "builtin"]) == 0
        said = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
        assert load("official-1k").path == Path(said["catalogue"]) and said["human goals"] == "0"
    assert main(["data", "build", "webshop", "official-full"]) == 2
    assert "items_shuffle.json and items_ins_v2.json (official-full)" in capsys.readouterr().err


def test_the_command_makes_the_shop_that_the_environment_opens(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ENVSUITE_DATA", str(tmp_path))
    assert main(["data", "build", "webshop", "--builtin", "30", "--seed", "5"]) == 0
    said = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
    made = Path(said["catalogue"]).stat().st_ino
    catalogue = load("builtin", shop_seed=5, products=30)
    assert catalogue.path == Path(said["catalogue"]) and catalogue.path.stat().st_ino == made
    assert len(catalogue) == 30 and catalogue.meta["tagger"] == "builtin-1"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--products", "none", "--attributes", "none"], "none: cannot be read"),
        (["--products", "none"], "--products and --attributes belong together"),
        (["folder", "--products", "none"], "one of the three"),
        (["folder"], "folder: no WebShop data"),
        (["--seed", "3"], "give --builtin N"),
        (["--builtin", "5", "--tagger", "spacey"], "Nearest: 'spacy'"),
    ],
)
def test_what_the_command_cannot_do_is_one_message(arguments, said, tmp_path, capsys):
    command = ["data", "build", "webshop", "--tagger", "builtin", "--out", str(tmp_path / "shop")]
    assert main([*command, *arguments]) == 2
    out, err = capsys.readouterr()
    assert said in err and not out and not (tmp_path / "shop").exists() and "Traceback" not in err


def test_the_command_builds_a_catalogue_says_what_it_is_and_after_ctrl_c_how_to_go_on(tmp_path, monkeypatch, capsys):
    files = write_shop(tmp_path)
    command = ["data", "build", "webshop", "--tagger", "builtin", "--out", str(tmp_path / "shop")]
    command += ["--products", str(files.products), "--attributes", str(files.attributes)]
    with monkeypatch.context() as patched:
        patched.setattr(filling.CatalogueFilling, "_add_goals", interrupt)
        assert main(command) == 130
    err = capsys.readouterr().err
    assert "the same command resumes" in err and not (tmp_path / "shop").exists()
    assert [line.split("  ")[0] for line in err.splitlines()[1:3]] == ["attributes", "products"]
    assert main(command) == 0
    out, err = capsys.readouterr()
    assert [line.split("  ")[0] for line in err.splitlines()[1:-1]] == ["goals", "index"]
    assert "products: 7\n" in out and "synthetic goals: 11\n" in out and "tagger: builtin-1\n" in out


def test_a_full_disk_keeps_what_was_done_says_what_to_do_and_half_an_index_is_written_again(tmp_path, monkeypatch):
    def full(index: IndexBuilder, file: BinaryIO, progress: object) -> None:
        file.write(b"half an index" * 100_000)
        file.flush()
        raise OSError(errno.ENOSPC, "No space left on device")

    files, out = write_shop(tmp_path), tmp_path / "shop"
    whole = build(files, tmp_path / "whole", BuiltinNouns()).read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(IndexBuilder, "write", full)
        with pytest.raises(DataError, match=r"shop: cannot be written .*No space left on device.* Make room there"):
            build(files, out, BuiltinNouns())
    assert (tmp_path / ".shop.building").is_dir() and not out.exists()
    monkeypatch.setattr(filling.CatalogueFilling, "_add_products", full)
    assert build(files, out, BuiltinNouns()).read_bytes() == whole
    assert not (tmp_path / ".shop.building").exists()


def test_reviews_of_a_stock_are_shown(tmp_path):
    catalogue = Catalogue(build(Shop(products=60), tmp_path / "lamps", BuiltinNouns()))
    session = ShopVisit(catalogue, catalogue.search, catalogue.goal(catalogue.tasks("human", "x").ids("train")[0]))
    product = next(raw for raw in Shop(products=60).raw_products() if raw.reviews)
    assert session.search(product.title) and session.click(product.asin.lower())
    assert f"[SEP] Rating: {product.rating} [SEP]" in text(session)
    *_, last = product.reviews
    assert session.click("reviews")
    assert text(session).endswith(f'"{last.title}" [SEP] {last.score} [SEP] {last.body}')
    assert structured_text(session).endswith(f'"{last.title}"\n{last.score}\n{last.body}')
