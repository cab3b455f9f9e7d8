"""The engine that samples with vLLM servers."""

from __future__ import annotations

import logging
import queue
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedConfig

from envsuite.core.errors import UsageError
from trainers.rollout.engine import (
    ENGINES,
    Completion,
    Engine,
    EngineFailed,
    EngineSetup,
    Request,
    check_length,
    refusal,
)
from trainers.rollout.sampling import mix
from trainers.rollout.vllm.calls import Calls, Row, unserved
from trainers.rollout.vllm.child import ChildServer, check_interpreter
from trainers.rollout.vllm.connection import Connection, Refused
from trainers.rollout.vllm.options import Options
from trainers.rollout.vllm.proof import check_server
from trainers.rollout.vllm.weights import WeightUpdate, at_once
from trainers.settings import ConfigError

_LOG = logging.getLogger(__name__)


@ENGINES.register("vllm")
class VLLMEngine(Engine):
    """Samples with vLLM servers, which have a copy of the weights, in other processes or on other machines.

    The requests of a session go to one server, which keeps what it computed for them. :meth:`sync` cuts off what is on
    its way; requests continue under the new weights, from the tokens they have, with the version that sampled each.
    After it every server has proven that it computes with the weights of the trainer.

    Args:
        servers: Running servers.
        setup: The parts of the run.
        own: Whether the servers are this process's alone; otherwise all processes of the run share them.
        sleeps: Whether the servers give back their memory in :meth:`rest`.
        weights_folder: Folder that this machine and the servers see, for weights on their way.

    Raises:
        ConfigError: A server has another model, number format or kind of log-probability.
        EngineFailed: A server does not answer.
    """

    def __init__(
        self, servers: Sequence[Connection], setup: EngineSetup, *, own: bool, sleeps: bool, weights_folder: str
    ) -> None:
        self.policy_version = 0
        self._servers = tuple(servers)
        self._vocabulary: int = setup.model.config.get_text_config(decoder=True).vocab_size
        self.max_length = min(check_server(server, setup.model, setup.config.compute_dtype) for server in self._servers)
        """Most tokens of prompt and response."""
        self._calls = Calls(setup.slots)
        self._update = WeightUpdate(self._servers, setup, own=own, folder=Path(weights_folder))
        self._sleeps, self._asleep = sleeps, False
        self._pending = self._unseeded = 0
        self._server_of: dict[int, Connection] = {}
        self._turn = 0 if setup.accelerator is None else setup.accelerator.process_index

    @classmethod
    def check(cls, options: Mapping[str, Any]) -> None:
        """Refuses settings before anything is loaded."""
        Options(**options)

    @classmethod
    def check_model(cls, options: Mapping[str, Any], settings: PreTrainedConfig, path: str) -> None:
        """Refuses sequences that are longer than the model's, and a split of its heads that leaves a rest."""
        given = {name.replace("_", "-"): value for name, value in (options.get("arguments") or {}).items()}
        check_length("arguments max-model-len", given.get("max-model-len"), settings, path)
        parts, heads = given.get("tensor-parallel-size", 1), settings.get_text_config(decoder=True).num_attention_heads
        if isinstance(parts, int) and parts > 0 and heads % parts:
            raise ConfigError(
                f"rollout.engine_options: arguments tensor-parallel-size is {parts}, which does not divide the {heads} "
                f"attention heads (num_attention_heads) of model.path {path}; take a divisor of {heads}"
            )

    @classmethod
    def from_setup(
        cls,
        setup: EngineSetup,
        *,
        urls: str | Sequence[str] | None = None,
        python: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        sleep: bool = False,
        weights_folder: str = "/dev/shm",
        patience: float = 60.0,
        timeout: float = 600.0,
    ) -> VLLMEngine:
        """The engine of a run: with running servers, or one that it starts.

        Args:
            setup: The parts of the run that it is made from.
            urls: Addresses of running servers, shared by all processes of the run; by default it starts one.
            python: Interpreter that the server is started with; by default this one.
            arguments: Further arguments of the started server.
            sleep: The started server gives back its memory while the model trains.
            weights_folder: Folder that the servers see, too, for weights on their way.
            patience: Seconds for which a server that fails is tried again, before the run stops.
            timeout: Seconds that a server may take for one completion.
        """
        options = Options(urls, python, arguments, sleep, weights_folder, patience, timeout)
        servers = [Connection(url, patience=patience, timeout=timeout) for url in options.addresses]
        if not servers:
            servers = [
                ChildServer(
                    check_interpreter(python), setup.model, setup.device, setup.tokenizer, setup.config.compute_dtype,
                    {"enable-sleep-mode": sleep, **(arguments or {})}, patience=patience, timeout=timeout,
                )
            ]  # fmt: skip
        try:
            return cls(servers, setup, own=urls is None, sleeps=sleep, weights_folder=weights_folder)
        except BaseException:
            for server in servers:
                server.close()
            raise

    # -- the contract ----------------------------------------------------------------------------------------------

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests; one that cannot be served is answered with an error by the next :meth:`poll`.

        Raises:
            UsageError: :meth:`sync` has not been called yet.
        """
        if self._servers[0].version is None:
            raise UsageError("the vLLM servers have no weights of the policy yet; call sync first")
        for request in requests:
            self._pending += 1
            if refused := refusal(request.prompt_ids, self.max_length, self._vocabulary):
                self._calls.done.put(unserved(request, *refused))
                continue
            seed = request.seed
            if seed is None:
                seed, self._unseeded = mix(0, self._unseeded), self._unseeded + 1
            limit = min(request.sampling.max_tokens, self.max_length - len(request.prompt_ids))
            self._calls.submit(Row(request, limit, seed, self._server(request.session)))

    def poll(self, timeout: float | None = None) -> list[Completion]:
        """Wait until a request is finished, or ``timeout`` seconds have passed.

        Raises:
            EngineFailed: A server has failed for good.
        """
        found: list[Completion] = []
        while self._pending:
            try:
                item = self._calls.done.get(timeout=0.0 if found else timeout)
            except queue.Empty:
                break
            if isinstance(item, Exception):
                raise item
            found.append(item)
            self._pending -= 1
        return found

    @property
    def pending(self) -> int:
        """Requests not yet returned."""
        return self._pending

    def release(self, session: int) -> None:
        """Forget which server has ``session``; the server itself drops what nobody asks for again."""
        self._server_of.pop(session, None)

    def where(self, session: int | None) -> str:
        """The server of a session."""
        server = self._server_of.get(-1 if session is None else session)
        return "a vLLM server" if server is None else f"the vLLM server {server.url}"

    def sync(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Give all servers other weights, and have them prove it; every process of the run must call this.

        Where an adapter is trained, it goes alone, as it is in the policy: merged into weights in bfloat16 most of it
        would be rounded away.

        Raises:
            EngineFailed: A server does not answer, or computes with other weights; the message names the layer groups.
        """
        self._update(weights, version, self._calls, wake=self._asleep)
        self.policy_version, self._asleep = version, False

    def rest(self) -> None:
        """Put the servers to sleep, where that is wanted; the next :meth:`sync` wakes them."""
        if not self._sleeps:
            return
        self._asleep = True
        try:
            at_once(self._servers, lambda server: server.tell("/sleep?level=2"))  # sync brings all weights
        except (EngineFailed, Refused) as error:  # a server that is lost fails in sync, in all processes together
            _LOG.warning("%s; it keeps its memory while the model trains", error)

    def close(self) -> None:
        """End the threads, and the server that this process started."""
        self._calls.close()
        for server in self._servers:
            server.close()

    # -- requests --------------------------------------------------------------------------------------------------

    def _server(self, session: int | None) -> Connection:
        """The server of a session; a new one gets the server with the fewest."""
        if session in self._server_of:
            return self._server_of[session]
        held = [*self._server_of.values()]
        self._turn += 1
        order = [self._servers[(self._turn + i) % len(self._servers)] for i in range(len(self._servers))]
        chosen = min(order, key=held.count)
        if session is not None:
            self._server_of[session] = chosen
        return chosen
