"""What clients are told of the server's files: nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from raw import ask

from envsuite.core.registration import ENVIRONMENTS
from envsuite.serving.server import EnvServer

Start = Callable[..., EnvServer]
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
def test_official_data_that_are_missing_or_damaged_are_told_without_the_servers_path(
    told: Callable[..., list[str]], tmp_path: Path, env_id: str
) -> None:
    place = tmp_path / "private" / CORRUPT[env_id]
    for damaged in (False, True):
        for detail in told(env_id, source=OFFICIAL.get(env_id, "official")):
            assert str(tmp_path) not in detail and "private" not in detail
            assert damaged or f"$ENVSUITE_DATA/{CORRUPT[env_id].partition('/')[0]}" in detail, "the remedy"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("{")


@pytest.mark.parametrize("env_id", IDS)
def test_a_path_that_the_client_has_named_is_told_as_it_named_it(
    told: Callable[..., list[str]], tmp_path: Path, env_id: str
) -> None:
    named = f"{tmp_path}/open/nothing"
    for detail in told(env_id, source=named):
        assert named in detail


@pytest.mark.parametrize("workers", [0, 1])
def test_a_world_that_fails_over_a_file_tells_no_path(start: Start, tmp_path: Path, workers: int) -> None:
    url = start("vector_worlds:Rough-v0", workers=workers).url
    session = ask(url, "POST", "/v1/sessions", {"environment": "vector_worlds:Rough-v0"}).body["session"]
    ask(url, "POST", f"/v1/sessions/{session}/reset", {"number": 1})
    calls = [{"name": "do", "arguments": {"command": f"raise cannot open '{tmp_path}/secret.txt'"}}]
    detail = ask(url, "POST", f"/v1/sessions/{session}/step", {"number": 2, "calls": calls}).body["detail"]
    assert "cannot open '…/secret.txt'" in detail and str(tmp_path) not in detail
