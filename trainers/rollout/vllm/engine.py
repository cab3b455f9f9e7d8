"""The engine that samples with vLLM, in servers or in this process."""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Generic

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from envsuite.core.errors import UsageError
from envsuite.installation.vllm import vllm_python
from envsuite.playing.engine import Completion, EngineFailed, Request
from trainers.processes.distributed import all_gather_object
from trainers.rollout.engine import (
    Engine,
    EngineSetup,
    check_length,
    longest_sequence,
    refusal,
    refusal_completion,
)
from trainers.rollout.sampling import mix
from trainers.rollout.vllm.calls import ServerRows
from trainers.rollout.vllm.child import ChildServer
from trainers.rollout.vllm.connection import VLLMConnection
from trainers.rollout.vllm.files import FileUpdate
from trainers.rollout.vllm.fleet import Fleet
from trainers.rollout.vllm.host import VLLMHost, VLLMRefused
from trainers.rollout.vllm.inside import InProcessHost, InProcessRows
from trainers.rollout.vllm.options import VLLMOptions
from trainers.rollout.vllm.proof import check_host
from trainers.rollout.vllm.room import adapter_bytes, check_room, finding_room
from trainers.rollout.vllm.rows import H, VLLMRow, VLLMRows
from trainers.rollout.vllm.starting import normalize_names
from trainers.rollout.vllm.transfer import round_weights, write_adapter
from trainers.rollout.vllm.weights import Weights, WeightUpdate, draining
from trainers.settings import ConfigError

_LOG = logging.getLogger(__name__)


class DirectUpdate(WeightUpdate[InProcessHost]):
    """Hands the weights over one by one, without a copy of all of them; an adapter goes through a file."""

    def _prepare(self, weights: Weights, folder: Path) -> None:
        """Nothing: vLLM samples only while it is polled."""

    def _load(self, weights: Weights, folder: Path, version: int) -> None:
        (inside,) = self.hosts
        alone = self.adapter_alone
        adapter = self._adapter(keeps=True) if alone else {}
        if not (alone and self.has_base):
            prints: dict[str, int] = {}
            with draining(self._base() if alone else weights) as stream:
                answers = inside.call("envsuite_take", round_weights(stream, self.torch_dtype, prints), str(version))
            self._compare(inside, version, answers, prints)
        if alone:
            own = folder.with_name(f"{folder.name}-{inside.process}")
            self._load_adapter(inside, adapter, own, folder.name, version)

    @staticmethod
    def bytes_written(setup: EngineSetup, has_base: bool = False) -> int:
        """Each process writes the adapter."""
        return adapter_bytes(setup.model) * (1 if setup.accelerator is None else setup.accelerator.num_processes)

    def _load_adapter(
        self, inside: InProcessHost, adapter: Mapping[str, Tensor], folder: Path, name: str, version: int
    ) -> None:
        """Hands the adapter over through ``folder``, this process's own."""
        try:
            with finding_room(self.folder, self.bytes_written(self.setup)):
                folder.mkdir()
                fingerprints = write_adapter(self.setup.model, adapter, folder, self.torch_dtype)
            inside.put_adapter(name, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self._compare(inside, version, inside.call("envsuite_adapter", str(version)), fingerprints)

    def _tell(self, work: Callable[[VLLMHost], object]) -> None:
        for inside in self.hosts:
            work(inside)

    def _clean(self, folder: Path) -> None:
        """Nothing is left."""


class VLLMEngine(Engine, Generic[H]):
    """Samples with vLLM, which has a copy of the weights: in servers, or in this process.

    The requests of a session go to one server, which keeps what it computed for them. :meth:`sync` cuts off what is on
    its way; requests continue under the new weights, from the tokens they have, with the version that sampled each.
    After it every vLLM has proven that it computes with the weights of the trainer.

    Args:
        setup: The parts of the run.
        rows: Has running servers, or the vLLM in this process, complete requests.
        update: Gives them weights.
        sleeps: Whether they give back their memory in :meth:`rest`.

    Raises:
        ConfigError: One of them has another model, number format or kind of log-probability.
        EngineFailed: One of them does not answer.
    """

    def __init__(self, setup: EngineSetup, rows: VLLMRows[H], update: WeightUpdate[H], *, sleeps: bool) -> None:
        self.policy_version = 0
        self._rows, self._update = rows, update
        self._hosts = update.hosts
        self._vocabulary: int = setup.model.config.get_text_config(decoder=True).vocab_size
        self.max_length: int = min(check_host(host, setup.model, setup.config.compute_dtype) for host in self._hosts)
        """Most tokens of prompt and response."""
        if self.max_length < (longest_sequence(setup.model.config) or 0):
            _LOG.info("vLLM takes sequences of at most %d tokens, which is less than the model's", self.max_length)
        if update.fleet is not None:
            update.fleet.longest = self.max_length
        self.background = isinstance(rows, ServerRows)
        self._sleeps, self._asleep = sleeps, False
        self._pending = self._unseeded = 0
        self._host_of: dict[int, H] = {}
        self._late: Counter[H] = Counter()
        self._turn = 0 if setup.accelerator is None else setup.accelerator.process_index

    @classmethod
    def check(cls, options: Mapping[str, Any]) -> None:
        """Refuses settings before anything is loaded."""
        VLLMOptions.of(options)

    @classmethod
    def check_machine(cls, options: Mapping[str, Any]) -> None:
        """Refuses to run without vLLM, or without the folder for weights."""
        VLLMOptions.of(options).check_machine()

    @classmethod
    def check_model(cls, options: Mapping[str, Any], settings: PreTrainedConfig, path: str) -> None:
        """Refuses sequences that are longer than the model's, and a split of its heads that leaves a rest."""
        arguments = normalize_names(options.get("arguments"))
        check_length("arguments max-model-len", arguments.get("max-model-len"), settings, path)
        parts = arguments.get("tensor-parallel-size", 1)
        heads = settings.get_text_config(decoder=True).num_attention_heads
        if isinstance(parts, int) and parts > 0 and heads % parts:
            raise ConfigError(
                f"rollout.engine_options: arguments tensor-parallel-size is {parts}, which does not divide the {heads} "
                f"attention heads (num_attention_heads) of model.path {path}; take a divisor of {heads}"
            )

    @classmethod
    def from_setup(cls, setup: EngineSetup, **settings: Any) -> VLLMEngine[Any]:
        """The engine of a run: with running servers, one that it starts, or vLLM in this process.

        The settings are those of :class:`VLLMOptions`.
        """
        options = VLLMOptions.of(settings)
        options.check_machine()
        sleeps, folder = options.sleeps(setup.device), Path(options.weights_folder)
        kind: type[FileUpdate | DirectUpdate] = DirectUpdate if options.place == "process" else FileUpdate
        check_room(folder, kind.bytes_written(setup))
        share = options.share(setup.model, setup.device, getattr(torch, setup.config.compute_dtype))
        vllm_arguments = {"enable-sleep-mode": sleeps, **(options.arguments or {})}
        if options.place == "process":
            all_gather_object(setup.accelerator, None)  # vLLM makes groups as it starts: all processes, or none
            inside = InProcessHost(setup, share, vllm_arguments)
            return _make_engine(setup, InProcessRows(inside), DirectUpdate([inside], setup, folder), sleeps)
        servers: list[VLLMConnection] = []
        if options.urls is None:
            servers.append(ChildServer(
                vllm_python(options.python), setup.model, setup.device, setup.tokenizer,
                setup.config.compute_dtype, share, vllm_arguments, patience=options.patience, timeout=options.timeout,
            ))  # fmt: skip
        update = FileUpdate(servers, setup, own=options.urls is None, folder=folder)
        if options.urls is not None:
            connect = partial(VLLMConnection, patience=options.patience, timeout=options.timeout)
            update.fleet = Fleet(servers, options.places(), setup, connect)
            update.fleet.begin()
        return _make_engine(setup, ServerRows(servers, setup.slots), update, sleeps)

    # -- the contract ----------------------------------------------------------------------------------------------

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests; one that cannot be served is answered with an error by the next :meth:`poll`.

        Raises:
            UsageError: :meth:`sync` has not been called yet.
        """
        if self._hosts[0].version is None:
            raise UsageError("vLLM has no weights of the policy yet; call sync first")
        for request in requests:
            self._pending += 1
            if rejection := refusal(request.prompt_ids, self.max_length, self._vocabulary):
                self._rows.finish(refusal_completion(request, *rejection))
                continue
            seed = request.seed
            if seed is None:
                seed, self._unseeded = mix(0, self._unseeded), self._unseeded + 1
            limit = min(request.sampling.max_tokens, self.max_length - len(request.prompt_ids))
            self._rows.submit(VLLMRow(request, limit, seed, self._host(request.session)))

    def poll(self, timeout: float | None = None) -> list[Completion]:
        """Wait until a request is finished, or ``timeout`` seconds have passed.

        Raises:
            EngineFailed: A vLLM has failed for good.
        """
        completions = self._rows.poll(timeout) if self._pending else []
        self._pending -= len(completions)
        return completions

    @property
    def pending(self) -> int:
        """Requests not yet returned."""
        return self._pending

    def release(self, session: int) -> None:
        """Forget which server has ``session``; vLLM itself drops what nobody asks for again."""
        self._host_of.pop(session, None)

    def abandon(self, request_id: int, session: int | None) -> None:
        """Give up a request; its server gets new sessions after those that have kept fewer waiting."""
        if session is not None and (host := self._host_of.get(session)) is not None:
            self._late[host] += 1

    def where(self, session: int | None) -> str:
        """The vLLM of a session."""
        host = self._host_of.get(-1 if session is None else session)
        return "vLLM" if host is None else host.name

    def sync(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Give every vLLM other weights, and have it prove them; every process of the run must call this.

        Where an adapter is trained, it goes alone, as it is in the policy: merged into weights in bfloat16 most of it
        would be rounded away.

        Raises:
            EngineFailed: A vLLM does not answer, or computes with other weights; the message names the layer groups.
        """
        self._update(weights, version, self._rows, wake=self._asleep)
        self.policy_version, self._asleep = version, False

    def rest(self) -> None:
        """Put vLLM to sleep, where that is wanted; the next :meth:`sync` wakes it."""
        if not self._sleeps or self._asleep:
            return
        self._asleep = True
        try:
            if self._pending:
                self._rows.hold()
            self._update.sleep()
        except (EngineFailed, VLLMRefused) as error:  # one that is lost fails in sync, in all processes together
            _LOG.warning("%s; it keeps its memory while the model trains", error)

    def close(self) -> None:
        """End what completes requests, and the vLLM that this process started."""
        self._rows.close()
        for host in self._hosts:
            host.close()

    # -- requests --------------------------------------------------------------------------------------------------

    def _host(self, session: int | None) -> H:
        """The vLLM of a session; a new one gets that with the fewest, of those that have left none unanswered."""
        hosts, session_hosts = [*self._hosts], [*self._host_of.values()]
        if session is not None and (own_host := self._host_of.get(session)) in hosts:
            return own_host
        self._turn += 1
        order = [hosts[(self._turn + i) % len(hosts)] for i in range(len(hosts))]
        new_host = min(order, key=lambda host: (self._late[host], session_hosts.count(host)))
        if session is not None:
            self._host_of[session] = new_host
        return new_host


def _make_engine(setup: EngineSetup, rows: VLLMRows[H], update: WeightUpdate[H], sleeps: bool) -> VLLMEngine[H]:
    """The engine; where that fails the hosts are ended."""
    try:
        return VLLMEngine(setup, rows, update, sleeps=sleeps)
    except BaseException:
        for host in update.hosts:
            host.close()
        raise
