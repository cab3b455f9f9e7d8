"""Proof that a vLLM computes with the weights of the trainer: fingerprints of what it holds, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from envsuite.playing.engine import Sampling
from trainers.policy.adapter import adapter_config, is_adapted
from trainers.policy.attention import evaluating
from trainers.policy.config import ComputeDtype
from trainers.policy.precision import computing, float32_weights
from trainers.policy.sharding import gathered_outside_layers
from trainers.rollout.vllm.host import VLLMHost
from trainers.settings import ConfigError

PROBE = Sampling(temperature=0.7, max_tokens=16, ignore_eos=True)
"""Its temperature is not 1, so that log-probabilities of another distribution than the sampled one differ, too."""
VLLM_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks of adapters that vLLM can be started for."""
PROTOCOL = "2"
"""Version of the trainer's worker extension."""
LOGPROBS_MODE = "processed_logprobs"
"""vLLM's log-probabilities of the distribution that is sampled from, temperature included."""
_PROMPTS, _LENGTH = 4, 24
_UNCOMPARED = {
    "_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version", "use_cache", "output_attentions",
    "output_hidden_states", "return_dict", "chunk_size_feed_forward", "is_encoder_decoder", "problem_type",
    "attn_implementation", "_attn_implementation", "pad_token_id", "bos_token_id", "eos_token_id", "initializer_range",
    "pretraining_tp",
}  # fmt: skip


@dataclass(frozen=True)
class Gap:
    """Difference of log-probabilities, in nats."""

    mean: float
    most: float

    @classmethod
    def between(cls, first: NDArray[np.float32], second: NDArray[np.float32]) -> Gap:
        """Compares two arrays, shape (tokens,)."""
        apart = np.abs(first - second)
        return cls(float(apart.mean()), float(apart.max()))

    def __str__(self) -> str:
        """Both, for messages."""
        return f"{self.mean:.3g} nats on average and {self.most:.3g} at most"

    def union(self, other: Gap) -> Gap:
        """The greater of each."""
        return Gap(max(self.mean, other.mean), max(self.most, other.most))

    def times(self, factor: float) -> Gap:
        """Both, ``factor`` times as great."""
        return Gap(factor * self.mean, factor * self.most)

    def within(self, other: Gap) -> bool:
        """Whether neither exceeds the other's; a value that is not a number does."""
        return self.mean <= other.mean and self.most <= other.most


FLOOR: Mapping[ComputeDtype, Gap] = {"float32": Gap(2e-4, 1e-3), "bfloat16": Gap(0.01, 0.1)}
"""Gap of the probe that is allowed whatever the rounding of the trainer."""
ROUNDINGS = 6.0
"""Further gap that is allowed, in units of that rounding; vLLM in bfloat16 was off by 1.3 to 3, since it rounds more
than autocast does."""
CALIBRATION = 3
"""Updates in bfloat16 whose probes show what rounding makes of this model; until then a greater gap only warns."""
SPREAD = 3.0
"""Gap that is allowed afterwards in any case, in units of the greatest of those updates."""


class ProbeLimit:
    """The gap of the probe of one vLLM that stops the run.

    It is what :func:`probe_gap` allows. How much more vLLM rounds in bfloat16 depends on the model; it is learnt from
    the first :data:`CALIBRATION` updates, where their weights are proven otherwise.

    Args:
        dtype: Number format of vLLM and trainer.
        proven: Whether fingerprints prove the weights that the probe is computed with.
    """

    def __init__(self, dtype: ComputeDtype, proven: bool) -> None:
        self._left = CALIBRATION if proven and dtype == "bfloat16" else 0
        self._seen = Gap(0.0, 0.0)

    def judge(self, gap: Gap, allowed: Gap) -> Literal["fits", "warns", "stops"]:
        """Judges the ``gap`` of an update, where rounding in the trainer explains ``allowed``."""
        if self._left and np.isfinite([gap.mean, gap.most]).all():
            self._left -= 1
            self._seen = self._seen.union(gap)
            return "fits" if gap.within(allowed) else "warns"
        return "fits" if gap.within(allowed.union(self._seen.times(SPREAD))) else "stops"


def other_model(model: PreTrainedModel, served: Mapping[str, Any]) -> str:
    """The first setting in which the configurations of ``model`` and of the served one differ; empty if none does.

    Args:
        model: The policy.
        served: The configuration of the served model, as a dictionary.
    """
    own = model.config.to_dict()
    plain = (bool, int, float, str)
    for name in sorted(own.keys() & served.keys() - _UNCOMPARED):
        ours, theirs = own[name], served[name]
        if isinstance(ours, plain) and isinstance(theirs, plain) and ours != theirs:
            return f"{name} is {theirs!r} there and {ours!r} in model.path"
    return ""


def check_host(host: VLLMHost, model: PreTrainedModel, dtype: ComputeDtype) -> int:
    """Asks a vLLM about itself; returns the most tokens of a sequence that it takes.

    Args:
        host: Learns the name of its model.
        model: The policy.
        dtype: Number format of the trainer.

    Raises:
        ConfigError: It would not compute as the trainer does.
        EngineFailed: It does not answer as vLLM with the trainer's worker extension.
    """
    about, where = host.call("envsuite_about")[0], host.name
    host.workers = int(about["workers"])
    if about.get("protocol") != PROTOCOL:
        raise ConfigError(f"{where} has another version of envsuite_worker.py; start it with that of this package")
    if difference := other_model(model, about["config"]):
        raise ConfigError(
            f"{where} serves another model: {difference}; start it with --model and the folder of model.path"
        )
    if about["dtype"] != dtype:
        raise ConfigError(
            f"{where} computes in {about['dtype']}, and model.compute_dtype is {dtype}: start it with --dtype {dtype}, "
            "or change the setting"
        )
    if about["logprobs_mode"] != LOGPROBS_MODE:
        raise ConfigError(
            f"{where} gives log-probabilities of another distribution than it samples from (--logprobs-mode "
            f"{about['logprobs_mode']}); start it with --logprobs-mode {LOGPROBS_MODE}"
        )
    rank = adapter_config(model).r if is_adapted(model) else 0
    if about["adapter_rank"] < rank:
        raise ConfigError(
            f"{where} takes no adapter of rank {rank}; start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, --enable-lora "
            f"and --max-lora-rank {server_rank(rank)}"
        )
    if about["cuts_prompts"]:
        raise ConfigError(
            f"{where} runs on a CPU, where vLLM cannot cut prompts whose samples have seeds; start it with "
            "--no-enable-chunked-prefill"
        )
    if about["balances_elsewhere"]:
        raise ConfigError(
            f"{where} is one of several replicas behind a balancer of their own; start each without "
            "--data-parallel-rank, -external-lb and -hybrid-lb, and name all in rollout.engine_options.urls"
        )
    if about["quantization"] is not None:
        raise ConfigError(f"{where} has quantised weights ({about['quantization']}), the trainer has not")
    host.replicas = host.count_replicas()
    return host.learn_model()


def server_rank(rank: int) -> int:
    """The least rank that vLLM makes room for, and that takes an adapter of ``rank``.

    Raises:
        ConfigError: There is none.
    """
    if rank > VLLM_RANKS[-1]:
        raise ConfigError(f"model.adapter.rank is {rank}, and vLLM takes at most {VLLM_RANKS[-1]}")
    return next(vllm_rank for vllm_rank in VLLM_RANKS if vllm_rank >= rank)


def wrong_groups(
    trainer_prints: Mapping[str, int], twins: Mapping[str, str], server_prints: Mapping[str, int]
) -> list[str]:
    """The layer groups whose weights are not those of the trainer, in the order of the trainer's.

    Args:
        trainer_prints: Fingerprints of the weights that were sent.
        twins: Groups that are not sent because they have the weights of another, and that other.
        server_prints: Fingerprints of the weights that the server computes with.
    """
    targets = dict(trainer_prints)
    for group, twin in twins.items():
        if group in server_prints and group not in targets:
            targets[group] = trainer_prints[twin]
    groups = [*targets, *(server_prints.keys() - targets.keys())]
    return [group for group in groups if targets.get(group) != server_prints.get(group)]


def name_groups(groups: Sequence[str]) -> str:
    """The groups in a message; of many the first."""
    return ", ".join(groups[:6]) + (f" and {len(groups) - 6} more" if len(groups) > 6 else "")


def probe_prompts(tokenizer: PreTrainedTokenizerBase, vocabulary: int) -> list[list[int]]:
    """Prompts of random ordinary tokens, the same in every process."""
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    ordinary = np.array([i for i in range(min(vocabulary, len(tokenizer))) if i not in special] or [0], np.int32)
    rng = np.random.default_rng(0)
    return [rng.choice(ordinary, _LENGTH).tolist() for _ in range(_PROMPTS)]


def probe_gap(
    model: PreTrainedModel,
    dtype: ComputeDtype,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[tuple[Sequence[int], Sequence[float]]],
) -> tuple[Gap, Gap]:
    """Compares the log-probabilities that a server gave with those of a plain forward pass of ``model``.

    Args:
        model: The policy.
        dtype: Number format of the forward pass.
        prompts: Token ids.
        answers: Token ids and log-probabilities of each response.

    Returns:
        The gap, and the one that is allowed: :data:`FLOOR`, and :data:`ROUNDINGS` times what rounding to ``dtype``
        changes for this model and these tokens, measured by a pass in float32.
    """
    server_logprobs = np.concatenate([np.array(logprobs, np.float32) for _, logprobs in answers])
    own = _logprobs(model, dtype, prompts, answers)
    exact = own if dtype == "float32" else _logprobs(model, "float32", prompts, answers)
    rounding, floor = Gap.between(own, exact), FLOOR[dtype]
    limit = Gap(floor.mean + ROUNDINGS * rounding.mean, floor.most + ROUNDINGS * rounding.most)
    return Gap.between(server_logprobs, own), limit


def _logprobs(
    model: PreTrainedModel,
    dtype: ComputeDtype,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[tuple[Sequence[int], Sequence[float]]],
) -> NDArray[np.float32]:
    """The model's log-probabilities of all response tokens at the temperature of the probe, shape (tokens,)."""
    parts = []
    wide = float32_weights(model) if dtype == "float32" else nullcontext()
    with evaluating(model), gathered_outside_layers(model), wide, computing(dtype, model.device):
        for prompt, (ids, _) in zip(prompts, answers, strict=True):
            tokens = torch.tensor([[*prompt, *ids]], device=model.device)
            logits = model(tokens, use_cache=False, logits_to_keep=len(ids) + 1).logits[0, :-1].float()
            response_ids = tokens[0, len(prompt) :, None]
            parts.append((logits / PROBE.temperature).log_softmax(-1).gather(1, response_ids)[:, 0].cpu().numpy())
    return np.concatenate(parts)
