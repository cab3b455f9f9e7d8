"""Updates of servers: weights in files that both sides see."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from envsuite.playing.engine import EngineFailed
from trainers.policy.adapter import is_adapted
from trainers.processes.distributed import first_value
from trainers.rollout.engine import EngineSetup
from trainers.rollout.vllm.calls import at_once
from trainers.rollout.vllm.connection import VLLMConnection
from trainers.rollout.vllm.host import HostGone, VLLMHost, VLLMRefused
from trainers.rollout.vllm.room import adapter_bytes, finding_room, whole_bytes
from trainers.rollout.vllm.transfer import write_adapter, write_weights
from trainers.rollout.vllm.weights import Answers, Weights, WeightUpdate, draining

WHOLE, ADAPTER = "whole", "adapter"
"""Folders of the two kinds of weights."""


@dataclass(frozen=True)
class SentFingerprints:
    """Fingerprints of the weights on their way, by layer group."""

    whole: Mapping[str, int]
    """All weights of the model; where an adapter is trained, those below it, once; empty afterwards."""
    adapter: Mapping[str, int]
    """Those of the adapter; empty where there is none."""


class FileUpdate(WeightUpdate[VLLMConnection]):
    """Writes the weights while the servers sample on; then the servers read them.

    Args:
        servers: Those that this process samples with.
        setup: The parts of the run.
        own: Whether the servers are this process's alone; otherwise all processes share them.
        folder: Folder that this machine and the servers see.
    """

    def __init__(self, servers: list[VLLMConnection], setup: EngineSetup, *, own: bool, folder: Path) -> None:
        super().__init__(servers, setup, folder)
        self.own = own
        self._sent = SentFingerprints({}, {})

    def _writes(self) -> bool:
        """Whether this process writes weights: the first of the run, or of each machine that has servers of its own."""
        accelerator = self.setup.accelerator
        return accelerator is None or (accelerator.is_local_main_process if self.own else accelerator.is_main_process)

    def _tell(self, work: Callable[[VLLMConnection], object]) -> None:
        accelerator = self.setup.accelerator
        if self.own or accelerator is None or accelerator.is_main_process:
            at_once(self.hosts, work)

    def _ask(self, version: int) -> dict[VLLMHost, Answers]:
        answers: dict[VLLMHost, Answers] = {}
        at_once(self.hosts, lambda server: answers.update({server: self._probe_host(server, version)}))
        return answers

    def _prepare(self, weights: Weights, folder: Path) -> None:
        self._sent, writes, alone = SentFingerprints({}, {}), self._writes(), self.adapter_alone
        if alone:
            weights = () if self.has_base else self._base()
        adapter = self._adapter(keeps=writes) if alone else {}
        with draining(weights) as whole:
            if writes:
                with finding_room(self.folder, self.bytes_written(self.setup, self.has_base)):
                    self._sent = self._write_files(whole, adapter, folder)

    @staticmethod
    def bytes_written(setup: EngineSetup, has_base: bool = False) -> int:
        """The first process writes all weights; where an adapter is trained, what is below it once."""
        model, dtype = setup.model, getattr(torch, setup.config.compute_dtype)
        return adapter_bytes(model) + (0 if is_adapted(model) and has_base else whole_bytes(model, dtype))

    def _write_files(self, whole: Weights, adapter: Mapping[str, Tensor], folder: Path) -> SentFingerprints:
        for path in (folder, folder / WHOLE, folder / ADAPTER):
            path.mkdir()
        whole_prints, adapter_prints = write_weights(whole, folder / WHOLE, self.torch_dtype), {}
        if adapter:
            adapter_prints = write_adapter(self.setup.model, adapter, folder / ADAPTER, self.torch_dtype)
        return SentFingerprints(whole_prints, adapter_prints)

    def _load(self, weights: Weights, folder: Path, version: int) -> None:
        fingerprints = first_value(self.setup.accelerator, self._sent)
        self._tell(lambda server: self._let_in(server, folder, version, fingerprints))

    def _let_in(self, server: VLLMConnection, folder: Path, version: int, fingerprints: SentFingerprints) -> None:
        """Has a server load the weights; where it has had none yet, the others go on without it if it cannot."""
        try:
            self._load_files(server, folder, version, fingerprints)
        except (EngineFailed, VLLMRefused) as error:
            if server.version is not None:
                raise
            raise HostGone(str(error) if isinstance(error, EngineFailed) else f"{server.name}: {error}") from error

    @staticmethod
    def _call(server: VLLMConnection, folder: Path, method: str, *arguments: str) -> list[dict[str, Any]]:
        """The answers of all workers; those of several replicas in files, as vLLM passes on the first one's alone."""
        if server.replicas == 1:
            return server.call(method, *arguments)
        own = folder / f"{method}-{secrets.token_hex(4)}"
        own.mkdir()
        server.call("envsuite_write", str(own), method, *arguments)
        places = [(replica, rank) for replica in range(server.replicas) for rank in range(server.workers)]
        try:
            answers = [json.loads((own / f"{replica}-{rank}.json").read_text()) for replica, rank in places]
        except OSError as error:
            what = f"not all of its {server.replicas} replicas say which weights they have ({error.filename})"
            raise server.failure(what) from error
        return server.successful(method, answers)

    def _load_files(self, server: VLLMConnection, folder: Path, version: int, fingerprints: SentFingerprints) -> None:
        if fingerprints.whole and not (fingerprints.adapter and server.version):  # what is below an adapter, once
            answers = self._call(server, folder, "envsuite_load", str(folder / WHOLE), str(version))
            self._compare(server, version, answers, fingerprints.whole)
        if fingerprints.adapter:
            server.put_adapter(folder.name, folder / ADAPTER)
            answers = self._call(server, folder, "envsuite_adapter", str(version))
            self._compare(server, version, answers, fingerprints.adapter)

    def _clean(self, folder: Path) -> None:
        if self._writes():
            shutil.rmtree(folder, ignore_errors=True)
