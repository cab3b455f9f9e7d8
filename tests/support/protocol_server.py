"""Speaks the part of vLLM's protocol that the engine uses, over HTTP, with a transformers model behind it.

It stands in for vLLM where faults are wanted that vLLM does not have; ``test_vllm_server.py`` has vLLM itself.
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel

from trainers.rollout.vllm.server.envsuite_weights import fingerprints

Answer = tuple[int, Any]


class ProtocolServer:
    """Use as a context manager.

    Args:
        model: Copied; the server's own weights.
        dtype: Number format that it names.
        port: 0 for any.
    """

    def __init__(self, model: PreTrainedModel, dtype: str = "float32", port: int = 0) -> None:
        self.model = copy.deepcopy(model)
        self.about = {
            "protocol": "2", "version": None, "config": self.model.config.to_dict(), "dtype": dtype,
            "logprobs_mode": "processed_logprobs", "quantization": None, "cuts_prompts": False, "adapter_rank": 0,
            "workers": 1, "balances_elsewhere": False,
        }  # fmt: skip
        self.replicas = 1
        """Copies of the weights, of which the model is the first; as in vLLM only its answers are passed on."""
        self.stale: int | None = None
        """A replica that takes no weights."""
        self.asked_replicas: list[str | None] = []
        """By request for completions, the replica that it names."""
        self.asked: list[dict[str, Any]] = []
        """Bodies of the requests for completions, without those of probes."""
        self.faults: dict[str, list[Callable[[], Answer]]] = {}
        """By path: what is answered instead, one call each."""
        self.loads = True
        """Whether an update changes anything."""
        self.corrupted: str | None = None
        """A parameter that an update leaves out."""
        self.completions_left = 1 << 60
        """After so many the server is gone."""
        self.halt_at: int | None = None
        """Tokens after which a request waits until it is cut off."""
        self.halted = 0
        """Requests that have waited so."""
        self.temperature: float | None = None
        """Temperature of the log-probabilities; by default that of sampling."""
        self.asleep: set[str] = set()
        """Parts of the memory that are given back."""
        self.asleep_while_loading: list[set[str]] = []
        """The same at each update."""
        self.tokenizer: Any = None
        """That of the model, where texts of tokens are asked for."""
        self._state = threading.Condition()
        self._paused, self._aborted = False, 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._answer({})

            def do_POST(self) -> None:
                self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def _answer(self, body: dict[str, Any]) -> None:
                path, _, query = self.path.partition("?")
                waiting = outer.faults.get(path)
                outer.completions_left -= path == "/v1/completions"
                if path == "/v1/completions":
                    outer.asked_replicas.append(self.headers.get("X-data-parallel-rank"))
                status, said = waiting.pop(0)() if waiting else outer.answer(path, body, query)
                if status == 0 or outer.completions_left < 0:  # the connection ends without an answer
                    self.close_connection = True
                    return
                sent = said if isinstance(said, bytes) else json.dumps(said).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(sent)))
                self.end_headers()
                self.wfile.write(sent)

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        self._http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._http.daemon_threads = True
        self.port = self._http.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> ProtocolServer:
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.completions_left = -1
        self._http.shutdown()
        self._http.server_close()

    def answer(self, path: str, body: dict[str, Any], query: str = "") -> Answer:
        """Status and body."""
        if path == "/v1/models":
            return 200, {"data": [{"id": "served", "max_model_len": self.model.config.max_position_embeddings}]}
        if path == "/collective_rpc":
            return 200, {"results": [getattr(self, f"_{body['method']}")(*body.get("args", ()))]}
        if path in ("/pause", "/resume"):
            with self._state:
                self._paused = path == "/pause"
                self._aborted += self._paused
                self._state.notify_all()
            return 200, {}
        if path == "/sleep":
            self.asleep = {"weights", "kv_cache"}
            return 200, {}
        if path == "/wake_up":
            self.asleep -= {*parse_qs(query).get("tags", self.asleep)}
            return 200, {}
        if path == "/get_world_size":
            return 200, {"world_size": self.replicas}
        if path == "/detokenize":
            return 200, {"prompt": self.tokenizer.decode(body["tokens"])}
        if "prompt_logprobs" in body:
            return 200, {"choices": [{"index": 0, "prompt_logprobs": self._score(body["prompt"])}]}
        return self._completions(body) if path == "/v1/completions" else (200, {})

    def _envsuite_about(self) -> dict[str, Any]:
        return self.about

    def _envsuite_write(self, folder: str, method: str, *arguments: str) -> dict[str, Any]:
        before = self._held("0")["fingerprints"]
        answer = getattr(self, f"_{method}")(*arguments)
        for replica in range(self.replicas):
            own = {**answer, "fingerprints": before} if replica == self.stale else answer
            Path(folder, f"{replica}-0.json").write_text(json.dumps(own))
        return answer

    def _envsuite_load(self, folder: str, version: str) -> dict[str, Any]:
        self._take(pair for file in Path(folder).glob("*.safetensors") for pair in load_file(file).items())
        return self._held(version)

    def _take(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        assert self._paused and "weights" not in self.asleep, "weights change only while nothing is sampled"
        self.asleep_while_loading.append({*self.asleep})
        own = dict(self.model.named_parameters())
        for name, tensor in weights:
            if self.loads and name != self.corrupted:
                own[name].detach().copy_(tensor)

    def _held(self, version: str) -> dict[str, Any]:
        self.about["version"] = version
        held = {group: str(value) for group, value in fingerprints(self.model.named_parameters()).items()}
        return {"version": version, "fingerprints": held}

    def _completions(self, body: dict[str, Any]) -> Answer:
        assert not self.asleep
        prompts = body["prompt"] if isinstance(body["prompt"][0], list) else [body["prompt"]]
        if len(prompts) == 1:
            self.asked.append(body)
        with self._state:
            turn = self._aborted
            self._state.wait_for(lambda: not self._paused or self._aborted != turn)
        return 200, {"choices": [{"index": i, **self._sample(p, body, turn)} for i, p in enumerate(prompts)]}

    def _score(self, ids: list[int]) -> list[dict[str, Any] | None]:
        with torch.no_grad():
            logprobs = self.model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
        scores = logprobs.gather(1, torch.tensor(ids)[1:, None])[:, 0].tolist()
        return [None, *({str(i): {"logprob": score, "rank": 1}} for i, score in zip(ids[1:], scores, strict=True))]

    def _sample(self, prompt: list[int], body: dict[str, Any], turn: int) -> dict[str, Any]:
        ids: list[int] = []
        logprobs: list[float] = []
        generator = torch.Generator().manual_seed(body["seed"])
        reason = "length"
        while len(ids) < body["max_tokens"]:
            if len(ids) == self.halt_at:
                with self._state:
                    self.halted += 1
                    self._state.wait_for(lambda: self._aborted != turn)
            if self._aborted != turn:
                reason = "abort"
                break
            with torch.no_grad():
                logits = self.model(torch.tensor([[*prompt, *ids]]), logits_to_keep=1).logits[0, -1]
            spread = (logits / body["temperature"]).softmax(-1)
            ids.append(int(torch.multinomial(spread, 1, generator=generator)))
            logprobs.append(float((logits / (self.temperature or body["temperature"])).log_softmax(-1)[ids[-1]]))
            if ids[-1] in body["stop_token_ids"]:
                reason = "stop"
                break
        return {"token_ids": ids, "logprobs": {"token_logprobs": logprobs}, "finish_reason": reason}
