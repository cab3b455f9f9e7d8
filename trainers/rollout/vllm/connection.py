"""Calls to one vLLM server, repeated while it may recover."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx2
from httpx2 import Response

from envsuite.core import http
from envsuite.playing.engine import Sampling
from trainers.rollout.vllm.completions import answers_in, body_of, prompt_logprobs_in, scoring_body_of
from trainers.rollout.vllm.host import Sleeping, VLLMAnswer, VLLMHost, VLLMRefused

_LOG = logging.getLogger(__name__)
_CONNECT_SECONDS = 5.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
_PASSING = (408, 429, 500, 502, 503, 504)  # statuses after which the same call may succeed
_RPC = "/collective_rpc"


class VLLMConnection(VLLMHost):
    """One server; may be used from several threads. :attr:`version` tells one that has been restarted.

    Args:
        url: Its address, e.g. ``http://127.0.0.1:8000``.
        patience: Seconds for which a failed call is repeated.
        timeout: Seconds that one attempt may take.
    """

    def __init__(self, url: str, *, patience: float, timeout: float) -> None:
        self.url = url.rstrip("/")
        super().__init__(f"vLLM server {self.url}")
        self.patience = patience
        self.holds = False
        """Whether its requests are being cut off: one that then fails is refused with status 503, and not repeated."""
        self._closed = threading.Event()
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        key = os.environ.get("VLLM_API_KEY")  # where the server reads it, too
        self._client = httpx2.Client(
            timeout=httpx2.Timeout(timeout, connect=_CONNECT_SECONDS),
            limits=limits,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            trust_env=False,
        )

    def end_reason(self) -> str | None:
        """Why a server that this program started has ended; ``None`` while it runs, and for any other."""
        return None

    def get(self, path: str) -> Any:
        """The parsed answer; errors as :meth:`post`."""
        return self._parse_json(path, self._persist("GET", path, None))

    def post(
        self,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        same_weights: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """The parsed answer.

        Args:
            path: Below the server's address.
            body: Sent as JSON.
            same_weights: Before a call is repeated, see that the server has not lost the weights it was given.
            headers: Further ones.

        Raises:
            EngineFailed: The server has no answer for :attr:`patience` seconds, or no longer has its weights.
            VLLMRefused: It refuses the call.
        """
        return self._parse_json(path, self._persist("POST", path, body or {}, same_weights, headers))

    def tell(self, path: str, body: Mapping[str, Any] | None = None) -> None:
        """Posts where nothing but success is answered; errors as :meth:`post`."""
        self._persist("POST", path, body or {})

    def call(self, method: str, *arguments: str) -> list[dict[str, Any]]:
        """Calls a method of the trainer's worker extension, whose arguments are text."""
        body = {"method": method, "args": [*arguments]}
        try:
            answer = self.post(_RPC, body)
        except VLLMRefused as error:
            raise self.failure(
                f"it refuses {_RPC} (HTTP {error.status}); start it as docs/engine.md says, with "
                "VLLM_SERVER_DEV_MODE=1 and --worker-extension-cls envsuite_worker.TakesWeights"
            ) from error
        results = answer.get("results") if isinstance(answer, dict) else None
        if not isinstance(results, list) or not all(isinstance(result, dict) for result in results) or not results:
            raise self.failure(f"{_RPC} answered {str(answer)[:200]!r}, which vLLM's does not")
        return self.successful(method, results)

    def successful(self, method: str, results: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The answers of workers, none of which is an error."""
        for result in results:
            if "error" in result:
                raise self.failure(f"{method}: {result['error']}")
        return results

    def learn_model(self) -> int:
        """Learns the name of its model; returns the most tokens of a sequence that it takes."""
        try:
            (model, *_) = self.get("/v1/models")["data"]
            self.model, longest = str(model["id"]), int(model["max_model_len"])
        except (LookupError, TypeError, ValueError) as error:
            raise self.failure(f"/v1/models is not as vLLM answers it ({error})") from error
        return longest

    def count_replicas(self) -> int:
        """Copies of the weights that it has."""
        return int(self.get("/get_world_size")["world_size"]) // self.workers

    def ask(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seed: int, replica: int | None = None
    ) -> list[VLLMAnswer]:
        """Continues prompts, in any replica or the given one, and waits for all of them."""
        body, headers = body_of(self.model, prompts, sampling, seed), {"X-data-parallel-rank": str(replica)}
        answer = self.post("/v1/completions", body, same_weights=True, headers=None if replica is None else headers)
        try:
            return answers_in(answer, len(prompts))
        except ValueError as error:
            raise self.failure(str(error)) from error

    def score(self, prompt: Sequence[int], response: Sequence[int]) -> list[float]:
        """Log-probability of each token of ``response`` after ``prompt``, at temperature 1."""
        if not response:
            return []
        ids = [*prompt, *response]
        answer = self.post("/v1/completions", scoring_body_of(self.model, ids))
        try:
            return prompt_logprobs_in(answer, ids)[-len(response) :]
        except ValueError as error:
            raise self.failure(str(error)) from error

    def detokenize(self, ids: Sequence[int]) -> str:
        """The text of tokens, as the server's tokenizer decodes them."""
        answer = self.post("/detokenize", {"model": self.model, "tokens": [*ids]})
        return str(answer.get("prompt") if isinstance(answer, dict) else answer)

    def pause(self) -> None:
        """Cuts off all requests, drops what was computed, and samples nothing until :meth:`resume`."""
        self.tell("/pause?mode=abort&clear_cache=true")

    def resume(self) -> None:
        """Samples again."""
        self.tell("/resume")

    def sleep(self, level: int) -> None:
        """Gives back its memory."""
        self.tell(f"/sleep?level={level}")

    def wake_up(self, what: Sleeping) -> None:
        """Takes a part of its memory again."""
        self.tell(f"/wake_up?tags={what}")

    def put_adapter(self, name: str, folder: Path) -> None:
        """Loads the adapter in ``folder``, which the server sees, in place of :attr:`adapter`."""
        self.tell("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})
        if self.adapter:
            self.tell("/v1/unload_lora_adapter", {"lora_name": self.adapter})

    def give_up(self) -> None:
        """Repeats no call any more."""
        self._closed.set()

    def close(self) -> None:
        """Ends waiting calls at their next attempt, and drops idle connections."""
        self._closed.set()
        self._client.close()

    def _persist(
        self,
        verb: str,
        path: str,
        body: Mapping[str, Any] | None,
        same_weights: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        end, pause = 0.0, _FIRST_PAUSE
        while True:
            try:
                return self._once(verb, path, body, headers)
            except _TransientFailure as error:
                why = str(error)
            if same_weights and self.holds:  # from 0.33 a paused server answers requests with 503
                raise VLLMRefused(503, why)
            end = end or time.monotonic() + self.patience
            if (ending := self.end_reason()) is not None:
                raise self.loss(ending)
            if self._closed.is_set() or time.monotonic() + pause > end:
                raise self.loss(f"{verb} {path}: {why}; tried for {self.patience:.0f} s. Is it running?")
            _LOG.warning("%s: %s %s: %s; trying again", self.url, verb, path, why)
            self._closed.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            if same_weights:
                self._check_version()

    def _once(
        self, verb: str, path: str, body: Mapping[str, Any] | None, headers: Mapping[str, str] | None = None
    ) -> Response:
        try:
            response = http.ask(self._client, verb, self.url + path, json=body, headers=headers)
        except (httpx2.TransportError, RuntimeError) as error:  # RuntimeError: closed meanwhile
            raise _TransientFailure(str(error) or type(error).__name__) from error
        if response.status_code in _PASSING:
            raise _TransientFailure(f"HTTP {response.status_code}: {response.text[:200]}")
        if response.status_code != 200:
            raise VLLMRefused(response.status_code, _message(response))
        return response

    def _parse_json(self, path: str, response: Response) -> Any:
        try:
            return response.json()
        except ValueError as error:
            raise self.failure(f"{path} answered {response.text[:100]!r}, which is no JSON") from error

    def _check_version(self) -> None:
        """Raises if the server answers, and has other weights than it was given."""
        try:
            version = self._once("POST", _RPC, {"method": "envsuite_about"}).json()["results"][0]["version"]
        except (_TransientFailure, VLLMRefused, LookupError, TypeError, ValueError):
            return  # it does not answer yet; the call itself tells how long that lasts
        if version != self.version:
            raise self.loss(
                f"it was restarted and has lost the weights of version {self.version}; go on with --resume, which "
                "gives them again"
            )


class _TransientFailure(Exception):
    """A failure that may pass."""


def _message(response: Response) -> str:
    """The text of an error, as the server gives it."""
    try:
        body = response.json()
    except ValueError:
        return response.text[:200]
    error = body.get("error", body) if isinstance(body, dict) else body
    return str(error.get("message", error) if isinstance(error, dict) else error)[:500]
