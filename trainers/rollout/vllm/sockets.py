"""Updates of servers by vLLM's own weight transfer, through sockets."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from torch.distributed import ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]

from envsuite.playing.engine import EngineFailed
from trainers.policy.adapter import is_adapted
from trainers.rollout.engine import EngineSetup
from trainers.rollout.vllm.calls import at_once
from trainers.rollout.vllm.connection import VLLMConnection
from trainers.rollout.vllm.files import FileUpdate
from trainers.rollout.vllm.host import VLLMRefused
from trainers.rollout.vllm.server.envsuite_stream import address_towards, join_group, send
from trainers.rollout.vllm.transfer import round_weights
from trainers.rollout.vllm.weights import Weights, draining
from trainers.settings import ConfigError

BACKEND = "envsuite_gloo"
"""Name of the engine of vLLM's weight transfer."""
_PORTS = {"http": 80, "https": 443}
_LAST_SECONDS = 5.0  # in which a server that broke a transfer off says why


class SocketUpdate(FileUpdate):
    """Sends the weights to the servers' workers, which load them as they come; no file is written.

    The trainer is the first member of a group (gloo) with the workers of each server. They meet before the first update
    of a server, at an address of this machine that the server's machine reaches.

    Args:
        servers, setup, own, folder: As :class:`~trainers.rollout.vllm.files.FileUpdate`.

    Raises:
        ConfigError: An adapter is trained, which vLLM reads from files.
    """

    ARGUMENTS: ClassVar[Mapping[str, str]] = {"weight-transfer-config": json.dumps({"backend": BACKEND})}

    def __init__(self, servers: list[VLLMConnection], setup: EngineSetup, *, own: bool, folder: Path) -> None:
        if is_adapted(setup.model):
            raise ConfigError(
                "rollout.engine_options.transfer is gloo, but vLLM reads an adapter (model.adapter) from files; leave "
                "it out"
            )
        super().__init__(servers, setup, own=own, folder=folder)
        self._groups: dict[VLLMConnection, tuple[TCPStore, ProcessGroupGloo]] = {}

    @staticmethod
    def bytes_written(setup: EngineSetup, has_base: bool = False) -> int:
        """Nothing is written."""
        return 0

    def _prepare(self, weights: Weights, folder: Path) -> None:
        """Nothing: the weights are gathered while they are sent."""

    def _clean(self, folder: Path) -> None:
        """Nothing is left."""

    def _load(self, weights: Weights, folder: Path, version: int) -> None:
        accelerator = self.setup.accelerator
        self._groups = {server: group for server, group in self._groups.items() if server in self.hosts}
        with draining(weights) as stream:
            if self.own or accelerator is None or accelerator.is_main_process:
                at_once(self.hosts, self._meet)
                fingerprints: dict[str, int] = {}
                self._send(round_weights(stream, self.torch_dtype, fingerprints), str(version))
                at_once(self.hosts, lambda server: self._compare_taken(server, version, fingerprints))

    def _meet(self, server: VLLMConnection) -> None:
        """Makes the group with a server's workers, where there is none.

        Raises:
            HostGone: That fails; nobody but the server is concerned.
        """
        if server in self._groups:
            return
        if server.call("envsuite_about")[0].get("transfer") != BACKEND:
            raise server.loss(
                "rollout.engine_options.transfer is gloo, which it was not started for; add to its arguments "
                f"--weight-transfer-config '{self.ARGUMENTS['weight-transfer-config']}'"
            )
        place, seconds = urlsplit(server.url), server.patience
        answer: Future[None] | None = None
        try:
            size = 1 + int(server.get("/get_world_size")["world_size"])
            own = address_towards(place.hostname or "", place.port or _PORTS[place.scheme], seconds)
            store = TCPStore(own, 0, is_master=True, timeout=timedelta(seconds=seconds), wait_for_workers=False)
            info = {"address": own, "port": store.port, "size": size, "seconds": seconds}
            answer = _post(server, "/init_weight_transfer_engine", {"init_info": info})
            group = join_group(store, 0, size, own, seconds)
            answer.result()
        except (OSError, RuntimeError, VLLMRefused) as error:
            own_error = answer.exception() if answer is not None and answer.done() else None
            why = f"its workers did not meet the trainer for the transfer of weights: {own_error or error}"
            raise server.loss(why) from error
        self._groups[server] = (store, group)

    def _send(self, weights: Weights, version: str) -> None:
        """Sends the weights to all servers while they load them."""
        at_once(self.hosts, lambda server: server.once("/start_weight_update", {}))
        answers = [_post(server, "/update_weights", {"update_info": {}}) for server in self.hosts]
        try:
            for _ in send(weights, [self._groups[server][1] for server in self.hosts]):
                if any(answer.done() for answer in answers):
                    raise RuntimeError("a server has left the transfer")
        except RuntimeError as error:
            wait(answers, _LAST_SECONDS, FIRST_COMPLETED)
            leavers = [server for server, answer in zip(self.hosts, answers, strict=True) if answer.done()]
            self._groups.clear()  # which ends the waiting of all others
            for server in leavers:
                server.call("envsuite_taken", version)
            names = ", ".join(server.name for server in leavers or self.hosts)
            raise EngineFailed(f"{names}: the transfer of weights broke off ({str(error).splitlines()[0]})") from error
        for answer in answers:
            answer.result()
        at_once(self.hosts, lambda server: server.once("/finish_weight_update", {}))

    def _compare_taken(self, server: VLLMConnection, version: int, fingerprints: Mapping[str, int]) -> None:
        self._compare(server, version, server.call("envsuite_taken", str(version)), fingerprints)


def _post(server: VLLMConnection, path: str, body: Mapping[str, Any]) -> Future[None]:
    """Posts in a thread that does not keep the program from ending."""
    future: Future[None] = Future()

    def work() -> None:
        try:
            server.once(path, body)
        except EngineFailed as error:
            future.set_exception(error)
        else:
            future.set_result(None)

    threading.Thread(target=work, daemon=True).start()
    return future
