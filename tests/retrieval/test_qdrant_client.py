"""Requests to a Qdrant server beside those of Qdrant's own client, and executed by its own search in memory.

Needs ``pip install qdrant-client``. It is no server: what a server makes of the requests is not tested.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vector_files import Drawn, stored

from envsuite.retrieval.servers import JsonServer, QdrantSearch
from envsuite.retrieval.vectors import Vectors

qdrant_client = pytest.importorskip("qdrant_client", reason="needs Qdrant's client: pip install qdrant-client")
httpx = pytest.importorskip("httpx", reason="comes with qdrant-client")
models = qdrant_client.models

TEXTS = [str(i) for i in range(40)]
DATES = [20200101 + i // 10 for i in range(40)]
PATH = "/collections/a%20b"
Request = tuple[str, str, Any]


class InMemory(JsonServer):
    """Reads requests by Qdrant's models of its interface, and executes them by its search in memory."""

    def __init__(self) -> None:
        super().__init__("http://memory")
        self.requests: list[Request] = []
        self.client = qdrant_client.QdrantClient(":memory:")

    def _exchange(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        content = json.loads(body or b"null")
        self.requests.append((method, path, content))
        result = self._executed(method, path.removeprefix(PATH), content)
        return 200, json.dumps({"result": result, "status": "ok", "time": 0.0}).encode()

    def _executed(self, method: str, rest: str, content: Any) -> Any:
        if (method, rest) == ("DELETE", ""):
            return self.client.delete_collection("a b")
        if (method, rest) == ("PUT", ""):
            return self.client.create_collection("a b", models.CreateCollection.model_validate(content).vectors)
        if (method, rest) == ("PUT", "/index?wait=true"):
            models.CreateFieldIndex.model_validate(content)
            return {"operation_id": 1, "status": "completed"}
        if (method, rest) == ("PUT", "/points?wait=true"):
            self.client.upsert("a b", models.PointsList.model_validate(content).points)
            return {"operation_id": 1, "status": "completed"}
        assert (method, rest) == ("POST", "/points/query")
        asked = models.QueryRequest.model_validate(content)
        found = self.client.query_points(
            "a b", asked.query, query_filter=asked.filter, search_params=asked.params, limit=asked.limit
        )
        return json.loads(found.model_dump_json())


@pytest.fixture
def vectors(tmp_path: Path) -> Vectors:
    return stored(tmp_path / "file", TEXTS, Drawn())


@pytest.fixture
def official() -> Iterator[tuple[Any, list[Request]]]:
    """Qdrant's own client, and what it sends."""
    sent: list[Request] = []

    def answer(request: Any) -> Any:
        content = json.loads(request.content or b"null")
        sent.append((request.method, request.url.raw_path.decode(), content))
        done: Any = {"operation_id": 1, "status": "completed"} if "wait" in str(request.url) else True
        result = {"points": []} if request.url.path.endswith("/query") else done
        return httpx.Response(200, json={"result": result, "status": "ok", "time": 0.0})

    client = qdrant_client.QdrantClient(
        "http://official", check_compatibility=False, transport=httpx.MockTransport(answer)
    )
    yield client, sent
    client.close()


@pytest.mark.filterwarnings("ignore:Local mode")
def test_requests_are_those_that_qdrants_own_client_sends(
    vectors: Vectors, official: tuple[Any, list[Request]]
) -> None:
    server, (client, theirs) = InMemory(), official
    search = QdrantSearch(server, "a b", vectors, exact=True)
    search.upload(DATES, batch=30)
    search.search("q", 3, 17)
    client.delete_collection("a b")
    client.create_collection("a b", models.VectorParams(size=16, distance=models.Distance.COSINE))
    for name in ("number", "date"):
        client.create_payload_index("a b", name, "integer", wait=True)
    for low in (0, 30):
        rows = enumerate(vectors.rows(low, min(low + 30, 40)).tolist(), low)
        points = [models.PointStruct(id=n, vector=row, payload={"number": n, "date": DATES[n]}) for n, row in rows]
        client.upsert("a b", points, wait=True)
    before = models.Filter(must=[models.FieldCondition(key="number", range=models.Range(lt=17))])
    exact = models.SearchParams(exact=True)
    client.query_points("a b", vectors.encode("q").tolist(), query_filter=before, limit=3, search_params=exact)
    assert server.requests[:-1] == theirs[:-1]
    (*where, body), (*expected, other) = server.requests[-1], theirs[-1]
    assert where == expected
    assert body["query"] == other["query"]["nearest"]
    assert {name: body[name] for name in ("filter", "params", "limit")} == {
        name: other[name] for name in ("filter", "params", "limit")
    }


@pytest.mark.filterwarnings("ignore:Local mode")
def test_qdrants_search_in_memory_finds_what_the_exact_search_finds_before_a_cut_off(vectors: Vectors) -> None:
    search = QdrantSearch(InMemory(), "a b", vectors)
    search.upload(DATES, batch=7)
    for k, stop in ((5, None), (40, 25), (3, 1), (40, 40)):
        (numbers, scores), expected = search.search("q", k, stop), vectors.search("q", k, stop)
        assert numbers.tolist() == expected[0].tolist() and np.allclose(scores, expected[1], atol=1e-5)
