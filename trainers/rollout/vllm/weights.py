"""An update of the weights of servers: written, loaded, proven."""

from __future__ import annotations

import logging
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from trainers.distributed import agreed, every
from trainers.policy.adapter import frozen_weights, is_adapted
from trainers.rollout.engine import EngineFailed, EngineSetup
from trainers.rollout.vllm.calls import Calls
from trainers.rollout.vllm.completions import ask
from trainers.rollout.vllm.connection import Connection, Refused
from trainers.rollout.vllm.proof import PROBE, named, probe_gap, probe_prompts, wrong_groups
from trainers.rollout.vllm.transfer import tied_groups, write_adapter, write_weights

T = TypeVar("T")
WHOLE, ADAPTER = "whole", "adapter"
"""Folders of the two kinds of weights."""
Answers = list[tuple[list[int], list[float]]]
_LOG = logging.getLogger(__name__)
_AGAIN_SECONDS = 0.5  # a call that reached a paused server is ended by pausing it again


@dataclass(frozen=True)
class Sent:
    """Fingerprints of the weights on their way, by layer group."""

    whole: Mapping[str, int]
    """All weights of the model; where an adapter is trained, those below it, once; empty afterwards."""
    adapter: Mapping[str, int]
    """Those of the adapter; empty where there is none."""


class WeightUpdate:
    """Gives servers the weights of the trainer.

    Args:
        servers: Those that this process samples with.
        setup: The parts of the run.
        own: Whether the servers are this process's alone; otherwise all processes share them.
        folder: Folder that this machine and the servers see.
    """

    def __init__(self, servers: Sequence[Connection], setup: EngineSetup, *, own: bool, folder: Path) -> None:
        self.servers, self.setup, self.own, self.folder = servers, setup, own, folder
        self.dtype = setup.config.compute_dtype
        self._has_base = False
        """Whether the servers have the weights below the adapter."""
        self.probes = probe_prompts(setup.tokenizer, setup.model.config.get_text_config(decoder=True).vocab_size)

    def __call__(self, weights: Iterable[tuple[str, Tensor]], version: int, calls: Calls, *, wake: bool) -> None:
        """Ends the calls on their way, loads the weights and proves it; every process of the run must call this.

        Args:
            weights: Name and tensor of every parameter.
            version: Theirs.
            calls: Held up meanwhile.
            wake: Whether the servers sleep.

        Raises:
            EngineFailed: A server does not answer, or computes with other weights; the message names the layer groups.
        """
        name = f"envsuite-weights-{self._agreed(secrets.token_hex(4))}"
        folder = self.folder / name
        sent: list[Sent] = []
        began = time.monotonic()
        try:
            self._together(lambda: sent.append(self._write(weights, folder)))  # while servers sample on
            calls.gate.shut()
            if wake:
                self._together(lambda: at_once(self._told(), lambda server: server.tell("/wake_up")))
            self._together(lambda: self._pause(calls))
            known = self._agreed(sent[0])
            self._together(lambda: at_once(self._told(), lambda server: self._load(server, folder, version, known)))
            calls.version = version
            for server in self.servers:
                server.version = str(version)
                if known.adapter:
                    server.model = server.adapter = name
            self._has_base = True
            self._together(lambda: at_once(self._told(), lambda server: server.tell("/resume")))
            answers: list[Answers] = []
            self._together(lambda: answers.extend(self._ask(version)))
            self._together(lambda: self._compare_probe(answers, version))
            calls.gate.opened()  # after a failure nothing more is sampled
            _LOG.info("the vLLM servers have the weights of version %d after %.2f s", version, time.monotonic() - began)
        finally:
            if self._writes():
                shutil.rmtree(folder, ignore_errors=True)

    def _writes(self) -> bool:
        """Whether this process writes weights: the first of the run, or of each machine that has servers of its own."""
        accelerator = self.setup.accelerator
        return accelerator is None or (accelerator.is_local_main_process if self.own else accelerator.is_main_process)

    def _told(self) -> Sequence[Connection]:
        """The servers that this process tells to load."""
        accelerator = self.setup.accelerator
        return self.servers if self.own or accelerator is None or accelerator.is_main_process else ()

    def _write(self, weights: Iterable[tuple[str, Tensor]], folder: Path) -> Sent:
        model, dtype = self.setup.model, getattr(torch, self.dtype)
        sharded = any(isinstance(parameter, DTensor) for parameter in model.parameters())
        alone = is_adapted(model) and not sharded
        if not self._writes():
            for _ in () if alone else weights:  # gathering a sharded weight is a matter of all processes
                pass
            return Sent({}, {})
        weights, whole, adapter = iter(weights), folder / WHOLE, folder / ADAPTER
        try:
            folder.mkdir()
            whole.mkdir()
            if not alone:
                return Sent(write_weights(weights, whole, dtype), {})
            adapter.mkdir()
            base = {} if self._has_base else write_weights(frozen_weights(model), whole, dtype)
            return Sent(base, write_adapter(model, adapter, dtype))
        except OSError as error:
            for _ in () if alone else weights:  # as the other processes do
                pass
            raise EngineFailed(
                f"the weights cannot be written to rollout.engine_options.weights_folder: {error}; name a folder with "
                "room for them that the servers see, too"
            ) from error

    def _pause(self, calls: Calls) -> None:
        """Ends what is on its way, and drops what the servers computed."""
        until = time.monotonic() + self.servers[0].patience
        while True:
            at_once(self.servers, lambda server: server.tell("/pause?mode=abort&clear_cache=true"))
            if calls.gate.empty(_AGAIN_SECONDS):
                return
            if time.monotonic() > until:
                raise self.servers[0].failed("/pause does not end the requests that are on their way")

    def _load(self, server: Connection, folder: Path, version: int, sent: Sent) -> None:
        if sent.whole:
            answers = server.call("envsuite_load", str(folder / WHOLE), str(version))
            self._compare(server, version, answers, sent.whole)
        if sent.adapter:
            server.tell("/v1/load_lora_adapter", {"lora_name": folder.name, "lora_path": str(folder / ADAPTER)})
            if server.adapter:
                server.tell("/v1/unload_lora_adapter", {"lora_name": server.adapter})
            self._compare(server, version, server.call("envsuite_adapter", str(version)), sent.adapter)

    def _compare(
        self, server: Connection, version: int, answers: Sequence[Mapping[str, Any]], sent: Mapping[str, int]
    ) -> None:
        if len(answers) > 1:
            return  # each has a part of the weights; the probe alone compares
        held = {group: int(value) for group, value in answers[0]["fingerprints"].items()}
        if wrong := wrong_groups(sent, tied_groups(self.setup.model), held):
            raise server.failed(
                f"after the update to version {version} its weights are not the trainer's in {named(wrong)}: they are "
                "stale, loaded in part, or tied to others. Nothing was sampled with them"
            )

    def _ask(self, version: int) -> list[Answers]:
        """The answers of each server to the probe: token ids and log-probabilities."""
        found = []
        for server in self.servers:
            answers = ask(server, [prompt.tolist() for prompt in self.probes], PROBE, version)
            found.append([(answer.ids, answer.logprobs) for answer in answers])
        return found

    def _compare_probe(self, answers: Sequence[Answers], version: int) -> None:
        """Compares the log-probabilities of the probe in servers and trainer, which may be sharded."""
        gaps = [probe_gap(self.setup.model, self.dtype, self.probes, answer) for answer in answers]
        for server, (gap, allowed) in zip(self.servers, gaps, strict=True):
            _LOG.info("%s: log-probabilities of the probe differ by %s", server.url, gap)
            if not gap.within(allowed):
                raise server.failed(
                    f"its log-probabilities of a probe differ from the trainer's by {gap}, where rounding explains "
                    f"{allowed} ({self.dtype}), though it holds the weights of version {version} in all layer groups: "
                    "it computes something else from them"
                )

    def _together(self, work: Callable[[], object]) -> None:
        """Does a part of an update in all processes; if it fails in one, it fails in all.

        Raises:
            EngineFailed: It failed.
        """
        failure = None
        try:
            work()
        except EngineFailed as error:
            failure = str(error)
        except Refused as error:
            failure = f"a vLLM server refused a part of the update (HTTP {error.status}: {error})"
        failures = [failure] if self.setup.accelerator is None else every(self.setup.accelerator, failure)
        if told := next((failure for failure in failures if failure is not None), None):
            raise EngineFailed(told)

    def _agreed(self, value: T) -> T:
        """The first process's value."""
        return value if self.setup.accelerator is None else agreed(self.setup.accelerator, value)


def at_once(servers: Sequence[Connection], work: Callable[[Connection], object]) -> None:
    """Works with all servers at the same time; raises the first failure."""
    failures: list[Exception] = []

    def guarded(server: Connection) -> None:
        try:
            work(server)
        except Exception as error:  # raised below
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(server,), daemon=True) for server in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
