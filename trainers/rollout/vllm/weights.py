"""An update of the weights of vLLM: loaded, proven."""

from __future__ import annotations

import logging
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic

import torch
from torch import Tensor

from envsuite.playing.engine import EngineFailed
from trainers.policy.adapter import adapter_tensors, frozen_weights, is_adapted
from trainers.policy.sharding import each_whole, kept_whole
from trainers.processes.distributed import all_gather_object, first_value
from trainers.rollout.engine import EngineSetup
from trainers.rollout.vllm import proof
from trainers.rollout.vllm.fleet import Fleet
from trainers.rollout.vllm.host import VLLMHost, VLLMRefused
from trainers.rollout.vllm.rows import H, VLLMRows
from trainers.rollout.vllm.transfer import tied_groups

Weights = Iterable[tuple[str, Tensor]]
Answers = list[tuple[list[int], list[float]]]
_LOG = logging.getLogger(__name__)


@contextmanager
def draining(weights: Weights) -> Iterator[Iterator[tuple[str, Tensor]]]:
    """Reads ``weights`` to their end after the block: gathering a sharded weight is a matter of all processes."""
    stream = iter(weights)
    try:
        yield stream
    finally:
        for _ in stream:
            pass


class WeightUpdate(ABC, Generic[H]):
    """Gives vLLM the weights of the trainer, and has it prove that it computes with them.

    Where an adapter is trained, what is below it goes once, and the adapter alone with each update.

    Args:
        hosts: Those that this process samples with, as they come and go.
        setup: The parts of the run.
        folder: Folder that this machine and the hosts see.
    """

    def __init__(self, hosts: list[H], setup: EngineSetup, folder: Path) -> None:
        self.hosts, self.setup, self.folder = hosts, setup, folder
        self.dtype = setup.config.compute_dtype
        self.torch_dtype: torch.dtype = getattr(torch, self.dtype)
        self.has_base = False
        """Whether the hosts have the weights below the adapter."""
        self.fleet: Fleet | None = None
        """Lets hosts join and leave."""
        vocabulary = setup.model.config.get_text_config(decoder=True).vocab_size
        self._probes = proof.probe_prompts(setup.tokenizer, vocabulary)
        self._limits: dict[VLLMHost, proof.ProbeLimit] = {}

    @property
    def adapter_alone(self) -> bool:
        """Whether an adapter is sent, as it is in the policy, and what is below it once."""
        return is_adapted(self.setup.model)

    def __call__(self, weights: Weights, version: int, rows: VLLMRows[H], *, wake: bool) -> None:
        """Holds rows up, loads the weights and has it proven; every process of the run must call this.

        Args:
            weights: Name and tensor of every parameter.
            version: Theirs.
            rows: Go on afterwards; after a failure nothing more is sampled.
            wake: Whether the hosts sleep.

        Raises:
            EngineFailed: A host does not answer, or computes with other weights; the message names the layer groups.
        """
        name = f"envsuite-weights-{first_value(self.setup.accelerator, secrets.token_hex(4))}"
        began = time.monotonic()
        leaving = [] if self.fleet is None else self.fleet.renew()
        self.has_base = self.has_base and all(host.version is not None for host in self.hosts)
        try:
            self._together(lambda: self._prepare(weights, self.folder / name))
            if wake:  # keys and values last: while weights are loaded their memory is not taken
                torch.cuda.empty_cache()  # what the update leaves in PyTorch's cache, vLLM cannot have
                self._together(lambda: self._tell(lambda host: host.wake_up("weights")))
            self._together(rows.hold)
            if self.fleet is not None:
                self.fleet.dismiss(leaving)
            self._together(lambda: self._load(weights, self.folder / name, version))
            if wake:
                self._together(lambda: self._tell(lambda host: host.wake_up("kv_cache")))
            self._agree()
            rows.version = version
            for host in self.hosts:
                host.version = str(version)
                if self.adapter_alone:
                    host.model = host.adapter = name
            self.has_base = True
            self._together(lambda: self._tell(lambda host: host.resume()))
            answers: dict[VLLMHost, Answers] = {}
            self._together(lambda: answers.update(self._ask(version)))
            self._agree()
            self._together(lambda: self._compare_probe(answers, version))
            rows.go_on()
            _LOG.info("vLLM has the weights of version %d after %.2f s", version, time.monotonic() - began)
        finally:
            self._clean(self.folder / name)

    def sleep(self) -> None:
        """Has the hosts give back their memory; weights that no update brings again are kept outside the device."""
        level = 1 if self.adapter_alone else 2
        self._tell(lambda host: host.sleep(level))

    def _base(self) -> Weights:
        """The weights below the adapter, whole, one at a time; every process must read all of them."""
        return each_whole(frozen_weights(self.setup.model))

    def _adapter(self, keeps: bool) -> dict[str, Tensor]:
        """The whole adapter, where this process ``keeps`` it; every process must call this."""
        return kept_whole(adapter_tensors(self.setup.model).items(), keeps)

    @staticmethod
    @abstractmethod
    def bytes_written(setup: EngineSetup, has_base: bool = False) -> int:
        """Bytes that an update writes to the folder, where the hosts have the weights below the adapter or not."""

    @abstractmethod
    def _prepare(self, weights: Weights, folder: Path) -> None:
        """Does what can be done while the hosts sample on."""

    @abstractmethod
    def _load(self, weights: Weights, folder: Path, version: int) -> None:
        """Has the hosts load the weights, and compares what they hold with what they were given."""

    @abstractmethod
    def _clean(self, folder: Path) -> None:
        """Removes what is left of weights on their way."""

    @abstractmethod
    def _tell(self, work: Callable[[VLLMHost], object]) -> None:
        """Has this process's part of the hosts do something."""

    def _compare(
        self, host: VLLMHost, version: int, answers: Sequence[Mapping[str, Any]], fingerprints: Mapping[str, int]
    ) -> None:
        """Compares the fingerprints that the workers of a host answered with those of what was sent.

        Raises:
            EngineFailed: They differ; the message names the layer groups.
        """
        if host.workers > 1:
            return  # each has a part of the weights; the probe alone compares
        for replica, answer in enumerate(answers):
            group_prints = {group: int(value) for group, value in answer["fingerprints"].items()}
            if wrong := proof.wrong_groups(fingerprints, tied_groups(self.setup.model), group_prints):
                whose = f"those of replica {replica}" if host.replicas > 1 else "its weights"
                raise host.failure(
                    f"after the update to version {version} {whose} are not the trainer's in "
                    f"{proof.name_groups(wrong)}: they are stale, loaded in part, or tied to others. Nothing was "
                    "sampled with them"
                )

    def _agree(self) -> None:
        """Goes on with the hosts that all processes have; every process must call this."""
        if self.fleet is not None:
            self.fleet.agree()

    def _ask(self, version: int) -> dict[VLLMHost, Answers]:
        """The answers of each host to the probe."""
        return {host: self._probe_host(host, version) for host in self.hosts}

    def _probe_host(self, host: VLLMHost, version: int) -> Answers:
        """The answers of each replica of a host to the probe: token ids and log-probabilities."""
        replicas = range(host.replicas) if host.replicas > 1 else (None,)
        answers = [host.ask(self._probes, proof.PROBE, version, replica) for replica in replicas]
        return [(answer.ids, answer.logprobs) for replies in answers for answer in replies]

    def _compare_probe(self, answers: Mapping[VLLMHost, Answers], version: int) -> None:
        """Compares the log-probabilities of the probe in hosts and trainer, which may be sharded."""
        self._limits = {host: limit for host, limit in self._limits.items() if host in answers}  # not those that left
        model, probes = self.setup.model, self._probes
        gaps = [proof.probe_gap(model, self.dtype, probes * host.replicas, answers[host]) for host in self.hosts]
        for host, (gap, allowance) in zip(self.hosts, gaps, strict=True):
            _LOG.info("%s: log-probabilities of the probe differ by %s", host.name, gap)
            finding = (
                f"its log-probabilities of a probe differ from the trainer's by {gap}, where rounding explains "
                f"{allowance} ({self.dtype})"
            )
            proven = host.workers == 1
            verdict = self._limits.setdefault(host, proof.ProbeLimit(self.dtype, proven)).judge(gap, allowance)
            if verdict == "warns":
                count = proof.CALIBRATION
                _LOG.warning("%s: %s; in the first %d updates this is only a warning", host.name, finding, count)
            if verdict == "stops":
                note = f", though it holds the weights of version {version} in all layer groups" if proven else ""
                raise host.failure(f"{finding}{note}: it computes something else from them")

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
        except VLLMRefused as error:
            failure = f"vLLM refused a part of the update (HTTP {error.status}: {error})"
        failures = all_gather_object(self.setup.accelerator, failure)
        if reason := next((failure for failure in failures if failure is not None), None):
            raise EngineFailed(reason)
