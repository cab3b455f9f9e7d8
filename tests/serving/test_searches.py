"""Searches that clients describe: the same here and on a server, which reads only what its operator opened.

What clients are told of the server's files: nothing.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from raw import ask, is_problem
from vector_files import Drawn

import envsuite  # noqa: F401
from envsuite.core import ToolCall, UsageError
from envsuite.core.errors import DataError, UnknownName
from envsuite.core.registration import ENVIRONMENTS
from envsuite.papersearch.literature import Literature
from envsuite.retrieval.corpus_build import build
from envsuite.retrieval.documents import Source
from envsuite.searchqa.encyclopaedia import Encyclopaedia
from envsuite.serving.server import EnvServer

Start = Callable[..., EnvServer]
SOURCES: dict[str, Callable[[], Source]] = {
    "PaperSearch-v0": lambda: Literature(300, 0),
    "PaperSearchTeam-v0": lambda: Literature(300, 0),
    "SearchQA-v0": lambda: Encyclopaedia(120, 30, 0),
}
REFUSED = {
    "a file": {"faiss": "/etc/passwd", "vectors": "drawn"},
    "a file beside the opened folder": {"faiss": "OPEN/../other/index", "vectors": "drawn"},
    "a server": {"search-r1": "http://169.254.169.254"},
    "a server on another port": {"search-r1": "http://127.0.0.1:10"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("open")
    for env_id in ("PaperSearch-v0", "SearchQA-v0"):
        build(SOURCES[env_id](), made / f"{env_id}.corpus", encoders=[Drawn(16)])
    (made / "PaperSearchTeam-v0.corpus").symlink_to(made / "PaperSearch-v0.corpus")
    return made


def found(env_id: str, **arguments: Any) -> tuple[str, str]:
    """What a search shows, and the name of the search in the info."""
    env = gymnasium.make(env_id, split="train", **arguments)
    _, info = env.reset(seed=1)
    text = env.step([ToolCall("search", {"query": "learning graph methods born city"})])[0]["text"]
    env.close()
    return text, info["versions"]["search"]


@pytest.mark.parametrize("env_id", SOURCES)
def test_a_description_is_the_same_here_and_on_a_server(start, folder, env_id):
    source = str(folder / f"{env_id}.corpus")
    url = start(env_id, source_folders=(folder,)).url
    shown = {
        found(env_id, source=source, retriever=retriever, **where)
        for retriever in ("bm25", " bm25 ")
        for where in ({}, {"url": url})
    }
    assert len(shown) == 1 and shown.pop()[1] == "bm25"
    assert found(env_id, source=source, url=url)[1] == "bm25"


@pytest.mark.parametrize("what", REFUSED)
def test_a_server_reads_no_file_and_asks_no_server_for_a_client_that_its_operator_did_not_open(start, folder, what):
    text = json.dumps(REFUSED[what]).replace("OPEN", str(folder))
    url = start(*SOURCES, source_folders=(folder,), search_servers=("http://127.0.0.1:9",)).url
    for env_id, description in itertools.product(SOURCES, (text, json.loads(text))):
        arguments = {"source": str(folder / f"{env_id}.corpus"), "retriever": description}
        for path, of in (("/v1/sessions", {"environment": env_id}), (f"/v1/environments/{env_id}", {})):
            reply = ask(url, "POST", path, {**of, "arguments": arguments})
            assert is_problem(reply, 422, "invalid", "arguments.retriever")
            assert "this server does not open" in reply.body["detail"] and reply.body["error"] == "DataError"


def test_what_the_operator_opened_is_read(start, folder):
    source = str(folder / "SearchQA-v0.corpus")
    address = "http://127.0.0.1:9"
    url = start("SearchQA-v0", source_folders=(folder,), search_servers=(address,)).url
    env = gymnasium.make("SearchQA-v0", source=source, url=url, retriever={"search-r1": f"{address}/"})
    assert env.reset(seed=1)[1]["versions"]["search"] == "search-r1"
    env.close()
    missing = {"faiss": str(folder / "none.faiss"), "vectors": "drawn"}
    with pytest.raises(DataError, match=r"none\.faiss: cannot be read"):
        gymnasium.make("SearchQA-v0", source=source, url=url, retriever=missing)


def test_a_malformed_description_is_the_same_error_here_and_on_a_server(start, folder):
    source, url = str(folder / "SearchQA-v0.corpus"), start("SearchQA-v0", source_folders=(folder,)).url
    for retriever, error, message in (
        (" ", UsageError, "give a name such as bm25"),
        ('{"faiss": "a", "vector": "drawn"}', UnknownName, "Nearest: 'vectors'"),
        ({"faiss": "a"}, UsageError, "'faiss' needs 'vectors', too"),
        ("minilm", UnknownName, "Known: bm25, drawn"),
    ):
        for where in ({}, {"url": url}):
            with pytest.raises(error, match=message):
                gymnasium.make("SearchQA-v0", source=source, retriever=retriever, **where)


IDS = list(ENVIRONMENTS)
CORRUPT = {
    "TextCraft-v0": "textcraft/recipes/broken.json",
    "ALFWorld-v0": "alfworld/json_2.1.1/train/pick-Mug-1/trial/game.tw-pddl",
    "WebShop-v0": "webshop/items_shuffle.json",
    "PaperSearch-v0": "papersearch/broken.corpus",
    "PaperSearchTeam-v0": "papersearch/broken.corpus",
    "Sokoban-v0": "boxoban/unfiltered/train/000.txt",
    "PythonMath-v0": "mathematics/dapo-math-17k.jsonl",
    "SearchQA-v0": "questions/hotpot_dev.json",
}
"""A file of the official data in the data folder, of environments that have some."""
OFFICIAL = {"WebShop-v0": "official-full"}
"""Sources of official data that are not named ``"official"``."""


@pytest.fixture
def told(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns the answers to a making with these arguments, by each address, of a server with data of its own."""
    monkeypatch.setenv("ENVSUITE_DATA", str(tmp_path / "private"))
    running = start(*IDS, source_folders=(tmp_path / "open",))

    def make(env_id: str, **arguments: Any) -> list[str]:
        described = ask(running.url, "POST", f"/v1/environments/{env_id}", {"arguments": arguments})
        made = ask(running.url, "POST", "/v1/sessions", {"environment": env_id, "arguments": arguments})
        call = {"op": "create", "environment": env_id, "arguments": arguments}
        (batched,) = ask(running.url, "POST", "/v1/batch", {"calls": [call]}).body["results"]
        assert described.status == made.status == batched["status"] == 422
        return [described.body["detail"], made.body["detail"], batched["body"]["detail"]]

    return make


@pytest.mark.parametrize("env_id", CORRUPT)
def test_official_data_that_are_missing_or_damaged_are_told_without_the_servers_path(told, tmp_path, env_id):
    place = tmp_path / "private" / CORRUPT[env_id]
    for damaged in (False, True):
        for detail in told(env_id, source=OFFICIAL.get(env_id, "official")):
            assert str(tmp_path) not in detail and "private" not in detail
            assert damaged or f"$ENVSUITE_DATA/{CORRUPT[env_id].partition('/')[0]}" in detail, "the remedy"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("{")


@pytest.mark.parametrize("env_id", IDS)
def test_a_path_that_the_client_has_named_is_told_as_it_named_it(told, tmp_path, env_id):
    named = f"{tmp_path}/open/nothing"
    for detail in told(env_id, source=named):
        assert named in detail


@pytest.mark.parametrize("workers", [0, 1])
def test_a_world_that_fails_over_a_file_tells_no_path(start, tmp_path, workers):
    url = start("vector_worlds:Rough-v0", workers=workers).url
    session = ask(url, "POST", "/v1/sessions", {"environment": "vector_worlds:Rough-v0"}).body["session"]
    ask(url, "POST", f"/v1/sessions/{session}/reset", {"number": 1})
    calls = [{"name": "do", "arguments": {"command": f"raise cannot open '{tmp_path}/secret.txt'"}}]
    detail = ask(url, "POST", f"/v1/sessions/{session}/step", {"number": 2, "calls": calls}).body["detail"]
    assert "cannot open '…/secret.txt'" in detail and str(tmp_path) not in detail
