"""Updates of servers: weights in files that both sides see."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainers.policy.adapter import frozen_weights
from trainers.rollout.engine import EngineFailed, EngineSetup
from trainers.rollout.vllm.calls import at_once
from trainers.rollout.vllm.connection import Connection
from trainers.rollout.vllm.host import Host
from trainers.rollout.vllm.transfer import write_adapter, write_weights
from trainers.rollout.vllm.weights import Weights, WeightUpdate

WHOLE, ADAPTER = "whole", "adapter"
"""Folders of the two kinds of weights."""


@dataclass(frozen=True)
class Sent:
    """Fingerprints of the weights on their way, by layer group."""

    whole: Mapping[str, int]
    """All weights of the model; where an adapter is trained, those below it, once; empty afterwards."""
    adapter: Mapping[str, int]
    """Those of the adapter; empty where there is none."""


class FileUpdate(WeightUpdate[Connection]):
    """Writes the weights while the servers sample on; then the servers read them.

    Args:
        servers: Those that this process samples with.
        setup: The parts of the run.
        own: Whether the servers are this process's alone; otherwise all processes share them.
        folder: Folder that this machine and the servers see.
    """

    def __init__(self, servers: Sequence[Connection], setup: EngineSetup, *, own: bool, folder: Path) -> None:
        super().__init__(servers, setup, folder)
        self.own = own
        self._sent = Sent({}, {})

    def _writes(self) -> bool:
        """Whether this process writes weights: the first of the run, or of each machine that has servers of its own."""
        accelerator = self.setup.accelerator
        return accelerator is None or (accelerator.is_local_main_process if self.own else accelerator.is_main_process)

    def _tell(self, work: Callable[[Host], object]) -> None:
        accelerator = self.setup.accelerator
        if self.own or accelerator is None or accelerator.is_main_process:
            at_once(self.hosts, work)

    def _prepare(self, weights: Weights, folder: Path) -> None:
        self._sent = Sent({}, {})
        try:
            if self._writes():
                self._sent = self._written(weights, folder)
        except OSError as error:
            raise EngineFailed(
                f"the weights cannot be written to rollout.engine_options.weights_folder: {error}; name a folder with "
                "room for them that the servers see, too"
            ) from error
        finally:
            for _ in () if self.adapter_alone else weights:  # gathering a sharded weight is a matter of all processes
                pass

    def _written(self, weights: Weights, folder: Path) -> Sent:
        whole, adapter = folder / WHOLE, folder / ADAPTER
        folder.mkdir()
        whole.mkdir()
        if not self.adapter_alone:
            return Sent(write_weights(weights, whole, self.torch_dtype), {})
        adapter.mkdir()
        model = self.setup.model
        base = {} if self.has_base else write_weights(frozen_weights(model), whole, self.torch_dtype)
        return Sent(base, write_adapter(model, adapter, self.torch_dtype))

    def _load(self, weights: Weights, folder: Path, version: int) -> None:
        known = self._agreed(self._sent)
        self._tell(lambda server: self._loaded(server, folder, version, known))

    def _loaded(self, server: Host, folder: Path, version: int, sent: Sent) -> None:
        if sent.whole:
            answers = server.call("envsuite_load", str(folder / WHOLE), str(version))
            self._compare(server, version, answers, sent.whole)
        if sent.adapter:
            server.put_adapter(folder.name, folder / ADAPTER)
            self._compare(server, version, server.call("envsuite_adapter", str(version)), sent.adapter)

    def _clean(self, folder: Path) -> None:
        if self._writes():
            shutil.rmtree(folder, ignore_errors=True)
