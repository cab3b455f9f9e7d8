"""An update of the weights of servers: written, loaded, proven."""

from __future__ import annotations

import logging
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from trainers.distributed import agreed, every
from trainers.rollout.engine import EngineFailed, EngineSetup
from trainers.rollout.vllm.calls import Calls
from trainers.rollout.vllm.completions import ask
from trainers.rollout.vllm.connection import Connection, Refused
from trainers.rollout.vllm.proof import PROBE, named, probe_gap, probe_prompts, wrong_groups
from trainers.rollout.vllm.transfer import tied_groups, write_weights

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
_AGAIN_SECONDS = 0.5  # a call that reached a paused server is ended by pausing it again


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
        folder = self.folder / f"envsuite-weights-{self._agreed(secrets.token_hex(4))}"
        sent: dict[str, int] = {}
        began = time.monotonic()
        try:
            self._together(lambda: sent.update(self._write(weights, folder)))  # while servers sample on
            calls.gate.shut()
            if wake:
                self._together(lambda: at_once(self._told(), lambda server: server.post("/wake_up")))
            self._together(lambda: self._pause(calls))
            known = self._agreed(sent)
            self._together(lambda: at_once(self._told(), lambda server: self._load(server, folder, version, known)))
            calls.version = version
            for server in self.servers:
                server.version = str(version)
            self._together(lambda: at_once(self._told(), lambda server: server.post("/resume")))
            self._together(lambda: self._probe(version))
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

    def _write(self, weights: Iterable[tuple[str, Tensor]], folder: Path) -> dict[str, int]:
        if not self._writes():
            for _ in weights:  # gathering a sharded weight is a matter of all processes
                pass
            return {}
        try:
            folder.mkdir()
            return write_weights(weights, folder, getattr(torch, self.dtype))
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise EngineFailed(
                f"the weights cannot be written to rollout.engine_options.weights_folder: {error}; name a folder with "
                "room for them that the servers see, too"
            ) from error

    def _pause(self, calls: Calls) -> None:
        """Ends what is on its way, and drops what the servers computed."""
        until = time.monotonic() + self.servers[0].patience
        while True:
            at_once(self.servers, lambda server: server.post("/pause?mode=abort&clear_cache=true"))
            if calls.gate.empty(_AGAIN_SECONDS):
                return
            if time.monotonic() > until:
                raise self.servers[0].failed("/pause does not end the requests that are on their way")

    def _load(self, server: Connection, folder: Path, version: int, sent: Mapping[str, int]) -> None:
        answers = server.call("envsuite_load", str(folder), str(version))
        if len(answers) > 1:
            return  # each has a part of the weights; the probe alone compares
        held = {group: int(value) for group, value in answers[0]["fingerprints"].items()}
        if wrong := wrong_groups(sent, tied_groups(self.setup.model), held):
            raise server.failed(
                f"after the update to version {version} its weights are not the trainer's in {named(wrong)}: they are "
                "stale, loaded in part, or tied to others. Nothing was sampled with them"
            )

    def _probe(self, version: int) -> None:
        """Compares the log-probabilities of a probe in trainer and servers."""
        for server in self.servers:
            answers = ask(server, [prompt.tolist() for prompt in self.probes], PROBE, version)
            pairs = [(answer.ids, answer.logprobs) for answer in answers]
            gap, allowed = probe_gap(self.setup.model, self.dtype, self.probes, pairs)
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
