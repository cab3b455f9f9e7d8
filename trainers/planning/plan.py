"""The plan of a run: memory of one process by part and phase, and the time of an iteration by phase."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from math import ceil
from typing import Any

from transformers import PreTrainedConfig

from trainers.planning.dry_run import DryRun, DryRunRows, MemoryTrial, count_parameters
from trainers.planning.hardware import GIB, Machines
from trainers.planning.meter import Amounts
from trainers.planning.workload import Workload
from trainers.rollout.vllm.options import SHARE
from trainers.run.config import TrainConfig
from trainers.steps.columns import EMBEDDING, ENTROPY, HINDSIGHT


@dataclass(frozen=True)
class EngineSpeed:
    """Speed of one engine.

    One iteration of the engine gives each of ``n`` running sequences, which hold ``c`` tokens together, one token
    more. It takes max(``start``, ``base`` + ``each`` n + ``context`` c, ``products`` n) seconds.
    """

    start: float
    """Seconds that an iteration takes at least."""
    base: float
    """Seconds for any number of sequences: reading the weights."""
    each: float
    """Seconds for each sequence."""
    context: float
    """Seconds for each token of keys and values."""
    products: float
    """Seconds of matrix products for each sequence, where these take longer than reading."""
    prefill: float
    """Seconds for each token of a prompt that has to be computed; decoding stands still meanwhile."""
    request: float = 0.0
    """Seconds for each request."""

    def iteration(self, running: int, context: float) -> float:
        """Seconds of one iteration."""
        return max(self.start, self.base + self.each * running + self.context * context, self.products * running)


PRODUCTS, MOVED = 0.4, 0.5
"""Shares of a device's peak in matrix products, and of its memory's bandwidth in a pass's other operations: fitted to
updates of a model of 1.5 billion weights on one H100 (docs/gpu.md)."""
STREAM, LINK = 0.7, 0.7
"""Assumed shares of the memory's bandwidth where weights, keys and values are read, and of the links'."""
CONTEXT = 1.5 * GIB
"""Assumed bytes of CUDA's context, libraries and communication in each process."""
FRAGMENTS = 0.05
"""Assumed share of a GPU's memory that is lost to fragmentation."""
HOST = 20e9
"""Assumed bytes a second between devices and main memory, for the weights of vLLM servers."""
NODE_LINK = 25e9
"""Assumed bytes a second of one process to another machine."""
KEYS, STATES = "keys and values", "states of recurrent layers"
"""Parts of a plan's memory that the settings of the hf engine bound."""
_PREFILL = 8192  # prompt tokens of one pass of the hf engine
_LIBRARIES = 0.6 * GIB  # Python, torch and transformers in a process without CUDA

Sizes = dict[str, float]
"""Bytes by part."""


@dataclass(frozen=True)
class RunPlan:
    """Memory and time of a run on its hardware."""

    config: TrainConfig
    where: Machines
    work: Workload
    dry: DryRun
    held: Mapping[str, float]
    """Bytes that one process holds throughout, by part."""
    phases: Mapping[str, Mapping[str, float]]
    """Bytes that come on top in each phase, by part."""
    seconds: Mapping[str, float]
    """Seconds of an iteration, by phase."""
    adds_up_once: bool
    """Whether sharded gradients are added up once an optimiser step, not after each micro-batch."""

    @property
    def peaks(self) -> dict[str, float]:
        """Bytes of one process at the peak of each phase."""
        base = sum(self.held.values())
        return {name: base + sum(parts.values()) for name, parts in self.phases.items()}

    @property
    def peak(self) -> float:
        """Bytes of one process at its peak."""
        return max(self.peaks.values())

    @property
    def room(self) -> float:
        """Bytes that one process may take."""
        return self.where.room * (1.0 if self.where.on_cpu else 1.0 - FRAGMENTS)

    @property
    def fits(self) -> bool:
        """Whether every phase fits."""
        return self.peak <= self.room

    @property
    def iteration(self) -> float:
        """Seconds of an iteration, environments not counted."""
        return sum(self.seconds.values())


@dataclass
class RunPlanner:
    """Makes plans of one model on one hardware; passes that were run before are not run again.

    Args:
        shape: The model's configuration.
        where: The hardware.
        steps: Steps of an episode, in the mean.
        prompt: Tokens of a prompt, in the mean.
        response: Tokens of a response, in the mean.
        teacher: The teacher's configuration, where the trainer has one.
    """

    shape: PreTrainedConfig
    where: Machines
    steps: int | None = None
    prompt: int | None = None
    response: int | None = None
    teacher: PreTrainedConfig | None = None
    _known: dict[str, DryRun] = field(default_factory=dict)

    def dry(self, config: TrainConfig, rows: DryRunRows) -> DryRun:
        """The passes of one process."""
        trial = MemoryTrial(
            self.shape, config.model, config.optim, self.where.ranks, self.where.per_node, rows,
            config.rollout.sampling.temperature, on_gpu=not self.where.on_cpu,
        )  # fmt: skip
        key = repr((trial.model, trial.optim.state, trial.rows, trial.temperature))
        if key not in self._known:
            self._known[key] = trial.run()
        return self._known[key]

    def plan(self, config: TrainConfig) -> RunPlan:
        """The plan of a run with these settings: the fastest that fits of what they leave open; on a CPU the slowest.

        Raises:
            ConfigError: A mean of the workload is above a limit of the settings.
        """
        model = config.model
        checkpoints: list[bool] = (
            [False, True] if model.gradient_checkpointing == "auto" else [model.gradient_checkpointing]
        )
        once = [True, False] if self._is_sharded(config) else [False]
        for recomputes, adds_up_once in [(checkpoints[0], False)] if self.where.on_cpu else product(checkpoints, once):
            complete = replace(config, model=replace(model, gradient_checkpointing=recomputes))
            plan = self._plan(complete, adds_up_once)
            if plan.peaks["update"] <= plan.room:
                break
        return plan

    def _plan(self, config: TrainConfig, adds_up_once: bool) -> RunPlan:
        work = Workload.of(config, self.shape, self.where, self.steps, self.prompt, self.response)
        rows = work.rows(config.optim.tokens_per_microbatch)
        dry = self.dry(config, rows)
        baseline, phases = self._memory(config, work, dry)
        if adds_up_once:
            phases["update"]["whole gradients"] = 4.0 * dry.sizes.trained
        seconds = self._seconds(config, work, dry, adds_up_once)
        return RunPlan(config, self.where, work, dry, baseline, phases, seconds, adds_up_once)

    def largest(self, plan: RunPlan) -> int | None:
        """The largest ``optim.tokens_per_microbatch`` that fits, to a whole row; ``None`` where not even one row does.

        Memory grows linearly with the number of rows.
        """
        work, config = plan.work, plan.config
        length = work.longest_prompt + work.longest_response
        few, more = (self.with_tokens(config, count * length) for count in (1, 2))
        if not few.fits:
            return None
        counts = [(few.room - few.peaks[name]) / max(more.peaks[name] - few.peaks[name], 1.0) for name in few.peaks]
        return length * min(1 + int(min(counts)), max(1, ceil(work.training_tokens / length)))

    def with_tokens(self, config: TrainConfig, tokens: int) -> RunPlan:
        """The plan with another size of micro-batches."""
        return self.plan(replace(config, optim=replace(config.optim, tokens_per_microbatch=tokens)))

    # -- memory -----------------------------------------------------------------------------------------------------

    def _memory(self, config: TrainConfig, work: Workload, dry: DryRun) -> tuple[Sizes, dict[str, Sizes]]:
        sizes, method, ranks = dry.sizes, config.method, self.where.ranks
        is_sharded = self._is_sharded(config)
        whole = 4.0 * sizes.parameters
        part = self._part(config)
        baseline: Sizes = {
            "libraries": _LIBRARIES if self.where.on_cpu else CONTEXT,
            "weights": float(sizes.weights),
            "optimiser moments": float(sizes.moments),
        }
        if ranks > 1 and not is_sharded:
            baseline["gradient buckets of DDP"] = float(sizes.gradients)
        if weights := self._critic_weights(config, sizes.parameters):
            critic = 16.0 * part if is_sharded else 16.0 + (4.0 if ranks > 1 else 0.0)
            baseline["critic: weights, gradients, moments"] = critic * weights
        frozen = {"reference": whole} if method.needs_reference and config.model.adapter is None else {}
        if self.teacher is not None:
            frozen["teacher"] = 4.0 * count_parameters(self.teacher)
        if is_sharded and method.reference == "device":
            frozen = {name: part * size for name, size in frozen.items()}
        if method.reference == "device" or self.where.on_cpu:
            baseline |= frozen
        if method.reference != "offload" or self.where.on_cpu:
            frozen = {}
        rollout, engine = self._engine(config, work, dry, is_sharded)
        baseline |= engine
        scoring = {**{f"{name}, while it scores": size for name, size in frozen.items()}, **_by_kind(dry.scoring)}
        update = {"gradients": float(sizes.gradients), **_by_kind(dry.update)}
        step = {"gradients": float(sizes.gradients), "optimiser step": dry.step.peak}
        phases = {"rollout": rollout, "scoring": scoring, "update": update, "optimiser step": step}
        return baseline, {name: {k: v for k, v in parts.items() if v} for name, parts in phases.items()}

    def _is_sharded(self, config: TrainConfig) -> bool:
        return config.model.shard != "none" and self.where.ranks > 1

    def _critic_share(self, config: TrainConfig) -> float:
        """Share of the policy's layers that the critic trains; 0 where it trains none."""
        critic, layers = config.method.critic, int(self.shape.get_text_config(decoder=True).num_hidden_layers)
        if critic is None or critic.kind == "head":
            return 0.0
        return min(1.0, (critic.layers or layers) / layers)

    def _critic_weights(self, config: TrainConfig, parameters: int) -> float:
        """Number of the critic's weights: all of the policy's, or its embedding and its first layers."""
        share, text = self._critic_share(config), self.shape.get_text_config(decoder=True)
        if share in (0.0, 1.0):
            return share * parameters
        embedding = float(text.vocab_size * text.hidden_size)
        return embedding + share * (parameters - embedding * (1 if text.tie_word_embeddings else 2))

    def _part(self, config: TrainConfig) -> float:
        return 1.0 / (self.where.per_node if config.model.shard == "hybrid" else self.where.ranks)

    def _engine(self, config: TrainConfig, work: Workload, dry: DryRun, is_sharded: bool) -> tuple[Sizes, Sizes]:
        """Bytes that the engine takes in the rollout, and throughout."""
        options = config.rollout.engine_options
        if config.rollout.engine == "hf":
            text = self.shape.get_text_config(decoder=True)
            scoring = {name: v * min(1.0, _PREFILL / dry.tokens) for name, v in _by_kind(dry.scoring).items()}
            logits = 3 * 4.0 * work.slots * text.vocab_size
            cache = _token_bytes(config, dry) * kept_tokens(work, options)
            rollout = {KEYS: cache, STATES: _kept_states(work, options, dry), "engine: logits": logits, **scoring}
            if is_sharded:
                return rollout, {"engine's copy of the weights": float(dry.sizes.copied)}
            return rollout | {"engine's rounded weights": float(dry.sizes.rounded)}, {}
        if config.rollout.engine == "vllm" and not options.get("urls"):
            arguments = options.get("arguments") or {}
            if self.where.on_cpu:
                size = float(dry.sizes.copied) + GIB + _LIBRARIES
            else:
                share = options.get("memory") or arguments.get("gpu-memory-utilization")
                size = float(share or SHARE) * self.where.device.memory
            return ({"vLLM": size}, {}) if sleeps(options, self.where.on_cpu) else ({}, {"vLLM": size})
        return {}, {}

    # -- time -------------------------------------------------------------------------------------------------------

    def _seconds(self, config: TrainConfig, work: Workload, dry: DryRun, adds_up_once: bool) -> dict[str, float]:
        device, ranks, sizes = self.where.device, self.where.ranks, dry.sizes
        is_sharded = self._is_sharded(config)
        stream = device.bandwidth * (1.0 if device.measured else STREAM)
        forward, update = self._pass(config, dry.scoring), self._pass(config, dry.update)

        rows = min(work.slots, work.episodes)
        depth = ceil(work.episodes / rows) * work.steps * work.response
        context = work.prompt + work.response / 2
        decode = depth * self.engine(config, dry).iteration(rows, rows * context)

        passes = work.training_tokens / dry.tokens
        optim, method = config.optim, config.method
        steps = optim.minibatches * optim.epochs
        if optim.minibatch_rows is not None:
            steps = optim.epochs * max(1, ceil(work.episodes * work.steps * ranks / optim.minibatch_rows))
        signals = {ENTROPY, HINDSIGHT, EMBEDDING}.intersection(method.make_estimator().needs)  # hindsight: at most
        score_passes = float(method.needs_reference + len(signals) + (method.critic is not None))
        if self.teacher is not None:
            score_passes += count_parameters(self.teacher) / sizes.parameters
        rollout = config.rollout
        recomputes = optim.recomputes(config.model.compute_dtype, rollout.engine, rollout.staleness) and steps > 1
        gather, reduce = self._link(config, float(sizes.copied)), self._link(config, 4.0 * sizes.trained)
        per_pass = 2 * gather + (0.0 if adds_up_once else reduce) if is_sharded else 0.0
        per_step = float(adds_up_once) if is_sharded else 2.0
        score_pass = forward + (gather if is_sharded else 0.0)
        times = {
            "prefill": work.prefill_tokens / dry.tokens * forward,
            "decode": decode,
            "old log-probabilities": passes * score_pass if recomputes else 0.0,
            "reference, teacher, critic, hidden states": score_passes * passes * score_pass,
            "update": optim.epochs * passes * (update + per_pass)
            + steps * (self._pass(config, dry.step) + per_step * reduce),
        }
        if method.critic is not None and (share := self._critic_share(config)):
            times["critic"] = method.critic.epochs * passes * update * share
        if config.rollout.engine == "vllm":
            has_adapter = config.model.adapter is not None and not is_sharded
            payload = 4.0 * sizes.trained if has_adapter else float(sizes.read)
            speed = stream if in_process(config.rollout.engine_options) else HOST
            times["sync"] = 2 * payload / speed + (gather if is_sharded else 0.0)
        else:
            times["sync"] = (gather if is_sharded else 0.0) + (sizes.rounded * 3 / stream)
        return {name: seconds for name, seconds in times.items() if seconds}

    def engine(self, config: TrainConfig, dry: DryRun) -> EngineSpeed:
        """Speed of one device's engine: reading weights, keys and values, or products, whatever takes longest."""
        device, sizes = self.where.device, dry.sizes
        stream = device.bandwidth * (1.0 if device.measured else STREAM)
        return EngineSpeed(
            dry.scoring.operations * device.overhead if config.rollout.engine == "hf" else 0.0,
            sizes.read / stream,
            2.0 * _state_bytes(dry) / stream,
            _token_bytes(config, dry) / stream,
            2.0 * sizes.parameters / self._products(config),
            self._pass(config, dry.scoring) / dry.tokens,
        )

    def _products(self, config: TrainConfig) -> float:
        device = self.where.device
        peak = device.bfloat16 if config.model.compute_dtype == "bfloat16" else device.float32
        return peak * (1.0 if device.measured else PRODUCTS)

    def _pass(self, config: TrainConfig, amounts: Amounts) -> float:
        """Seconds of a pass: products and moved bytes after each other, or as fast as operations can be started."""
        device = self.where.device
        stream = device.bandwidth * (1.0 if device.measured else MOVED)
        busy = amounts.products / self._products(config) + amounts.moved / stream
        return max(busy, amounts.operations * device.overhead)

    def _link(self, config: TrainConfig, size: float) -> float:
        """Seconds to gather, or to reduce and spread, ``size`` bytes over the processes."""
        ranks = self.where.ranks
        if ranks == 1:
            return 0.0
        inside = self.where.nodes == 1 or config.model.shard == "hybrid"
        speed = self.where.device.link * LINK if inside else NODE_LINK
        return size * (ranks - 1) / ranks / speed


def in_process(options: Mapping[str, Any]) -> bool:
    """Whether these options of the engine vllm put it into the trainer's process."""
    return options.get("place") == "process"


def sleeps(options: Mapping[str, Any], on_cpu: bool) -> bool:
    """Whether vLLM gives back its memory while the model trains, with these options of its engine."""
    setting = options.get("sleep")
    return not on_cpu and (not options.get("urls") if setting is None else bool(setting))


def _by_kind(amounts: Amounts) -> Sizes:
    return {name: max(size, 0.0) for name, size in amounts.kinds.items()}


def _token_bytes(config: TrainConfig, dry: DryRun) -> float:
    """Bytes of keys and values of one token."""
    return (2.0 if config.model.compute_dtype == "bfloat16" else 4.0) * dry.sizes.keys


def _state_bytes(dry: DryRun) -> float:
    """Bytes of the states after one token, which are float32."""
    return 4.0 * dry.sizes.states


def _kept_states(work: Workload, options: Mapping[str, Any], dry: DryRun) -> float:
    """Bytes of states that the hf engine keeps with these options, where memory has room for them."""
    limit = options.get("state_bytes")
    return work.slots * _state_bytes(dry) + (4.0 * work.slots * _state_bytes(dry) if limit is None else float(limit))


def kept_tokens(work: Workload, options: Mapping[str, Any]) -> int:
    """Tokens whose keys and values the hf engine keeps with these options, where memory has room for them."""
    tokens = options.get("cache_tokens")
    return 2 * work.running if tokens is None else max(work.running, int(tokens))
