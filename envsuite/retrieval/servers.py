"""A search on another machine: a server of Search-R1's retrieval protocol.

It finds documents of a corpus that is here, too, so that agents can read them. Requests need nothing but the standard
library.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import cache
from typing import Any

import numpy as np
import orjson

from envsuite.core.addresses import address
from envsuite.core.errors import EnvsuiteError
from envsuite.core.schemas import make_validator
from envsuite.retrieval.documents import Found
from envsuite.retrieval.vectors import best

SECONDS = 30.0
"""Limit of one try."""
TRIES = 4
PAUSE = 0.25
"""Seconds before the second try; doubled before each further one."""
_PASSING = (408, 425, 429, 500, 502, 503, 504)
_LARGEST = 1 << 28
"""Bytes of the longest answer that is read."""
_HIGHEST = float(np.finfo(np.float32).max)
_TEXT = {"type": ["string", "null"]}
_DOCUMENT = {"type": "object", "properties": {"id": {"type": ["string", "integer", "null"]}, "title": _TEXT}}
_HIT = {
    "type": "object",
    "required": ["document", "score"],
    "properties": {"document": _DOCUMENT, "score": {"type": "number", "minimum": -_HIGHEST, "maximum": _HIGHEST}},
}
_RESULT = {"type": "array", "minItems": 1, "maxItems": 1, "items": {"type": "array", "items": _HIT}}


@cache
def _answer_validator() -> Any:
    """The form of an answer to one query."""
    return make_validator({"type": "object", "required": ["result"], "properties": {"result": _RESULT}})


class ServerError(EnvsuiteError, RuntimeError):
    """A search server that does not answer, or not as its protocol has it."""


class JsonServer:
    """Requests in JSON to a server; may be pickled, and used from several threads.

    Args:
        url: Its address, with the path that all requests share.
        headers: Further headers, e.g. ``{"api-key": …}``.
        seconds: Limit of one try.
        tries: Number of tries while the server is silent or busy.

    Raises:
        UsageError: The address is none.
    """

    def __init__(
        self, url: str, headers: Mapping[str, str] | None = None, seconds: float = SECONDS, tries: int = TRIES
    ) -> None:
        parts = address(url, "url", "http://127.0.0.1:8000", "send it as one of the headers")
        self.url = url.rstrip("/")
        self._tls, self._host, self._port = parts.scheme == "https", str(parts.hostname), parts.port
        self._prefix = parts.path
        self._headers = {"Content-Type": "application/json", "Accept": "application/json", **(headers or {})}
        self._seconds, self._tries = seconds, max(1, tries)

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Sends a request that may be repeated; returns the parsed answer.

        Raises:
            ServerError: There is no answer, it says that the request failed, or it is not JSON.
        """
        content = None if body is None else orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
        why = ""
        for attempt in range(self._tries):
            if attempt:
                time.sleep(PAUSE * 2 ** (attempt - 1))
            try:
                status, answer = self._exchange(method, path, content)
            except (OSError, http.client.HTTPException) as error:
                why = str(error) or type(error).__name__
                continue
            if status in _PASSING:
                why = f"HTTP {status}: {_excerpt(answer)}"
                continue
            if not 200 <= status < 300:
                raise ServerError(f"{self.url}{path} answered HTTP {status}: {_excerpt(answer)}")
            try:
                return orjson.loads(answer)
            except orjson.JSONDecodeError as error:
                raise ServerError(f"{self.url}{path} answered no JSON: {_excerpt(answer)}") from error
        raise ServerError(f"{self.url} does not answer ({why}; {self._tries} tries). Does the server run there?")

    def _exchange(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        kind = http.client.HTTPSConnection if self._tls else http.client.HTTPConnection
        with closing(kind(self._host, self._port, timeout=self._seconds)) as connection:
            connection.request(method, self._prefix.rstrip("/") + path, body, self._headers)
            response = connection.getresponse()
            answer = response.read(_LARGEST + 1)
            if len(answer) > _LARGEST:
                raise ServerError(f"{self.url}{path} answered more than {_LARGEST:,} bytes")
            return response.status, answer


def _excerpt(answer: bytes) -> str:
    return " ".join(answer[:300].decode("utf-8", "replace").split()) or "nothing"


class SearchR1:
    """A server of Search-R1's retrieval protocol: ``POST /retrieve`` with queries, topk and return_scores.

    Jin et al., Search-R1, 2025. Its documents have an ``id`` and ``contents`` (the title in the first line, in quotes),
    or ``title`` and ``text``. The protocol has no cut-off: later documents are left out here, after asking for more.

    Args:
        server: The server, e.g. ``JsonServer("http://127.0.0.1:8000")``.
        number: Returns the number of a key in the corpus, as ``Corpus.number`` does. A document is looked up by its
            id, then by its title; one that is in the corpus by neither is left out.
        name: Name in tables.
    """

    most = 1000
    """Documents that are asked for at most."""

    def __init__(self, server: JsonServer, number: Callable[[str], int | None], name: str = "search-r1") -> None:
        self.name = name
        self._server, self._number = server, number

    def search(self, query: str, k: int, stop: int | None = None) -> Found:
        """Returns the best documents as the server finds them; see :class:`~envsuite.retrieval.documents.Retriever`.

        Raises:
            ServerError: The server failed, or answered something else.
        """
        count = k
        while True:
            hits = self._retrieve(query, count) if k > 0 else []
            pairs = [(self._number_of(hit["document"]), hit["score"]) for hit in hits]
            corpus_pairs = [(number, score) for number, score in pairs if number is not None]
            scores: dict[int, float] = {}
            for number, score in corpus_pairs:
                if stop is None or number < stop:
                    scores.setdefault(number, score)
            if len(scores) >= k or len(hits) < count or count >= self.most:
                break
            count = min(4 * count, self.most)
        if hits and not corpus_pairs:
            raise ServerError(
                f"{self._server.url}/retrieve found {len(hits)} documents, none of which is in the corpus. Is the "
                "server one of this corpus?"
            )
        numbers, values = np.array([*scores], dtype=np.int64), np.array([*scores.values()], dtype=np.float32)
        return best(numbers, values, max(0, k))

    def _retrieve(self, query: str, k: int) -> list[dict[str, Any]]:
        """Returns documents and scores, as the server gives them."""
        answer = self._server.ask("POST", "/retrieve", {"queries": [query], "topk": k, "return_scores": True})
        for error in _answer_validator().iter_errors(answer):
            where = ".".join(map(str, error.instance_path)) or "the answer"
            problem = f"{where}: {error.message}"[:300]
            raise ServerError(f"{self._server.url}/retrieve does not answer as Search-R1's server: {problem}")
        hits: list[dict[str, Any]] = answer["result"][0]
        return hits

    def _number_of(self, document: Mapping[str, Any]) -> int | None:
        title = document.get("title")
        if title is None:
            title = str(document.get("contents", "")).partition("\n")[0].strip().removeprefix('"').removesuffix('"')
        keys = [str(document["id"])] if document.get("id") is not None else []
        numbers = (self._number(key) for key in [*keys, str(title)])
        return next((number for number in numbers if number is not None), None)
