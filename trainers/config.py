"""The configuration of a run: every setting, its type, its default, and what it means."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from envsuite.core.errors import UsageError
from trainers.objectives import ObjectiveConfig, ReplayConfig

Pooling = Literal["last", "mean"]


class ConfigError(UsageError):
    """A configuration that cannot work; the message names the key."""


@dataclass(frozen=True)
class ModelConfig:
    """The policy."""

    path: str = "models/craft-2m"
    """Folder (or hub name) of a transformers causal language model with its tokenizer."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format of weights and computation."""
    attention: str = "sdpa"
    """Attention implementation of transformers."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time."""


@dataclass(frozen=True)
class EnvConfig:
    """One environment that tasks are drawn from."""

    id: str = "TextCraft-v0"
    """Gymnasium id."""
    split: str = "train"
    """Split that tasks are drawn from."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Further arguments of gymnasium.make: source, tasks, …"""
    url: str | list[str] | None = None
    """Address of an envsuite serve that plays it, or of several, e.g. http://127.0.0.1:8080; null plays it here."""
    weight: float = 1.0
    """Share of the tasks that come from here, relative to the other environments."""
    max_episode_steps: int | None = None
    """Horizon; the environment's own where it is not given."""


@dataclass(frozen=True)
class PromptConfig:
    """How observations become prompts and completions become actions."""

    codec: Literal["tags", "brackets", "tools"] = "tags"
    """Format of actions: <action>…</action>, the same with tool[argument] in it, or <tool_call>…</tool_call>."""
    think: bool = True
    """Ask for a thought before the action (codecs tags and brackets)."""
    instructions: bool = True
    """Begin with a system message that explains format and tools; a model that was trained on the format needs none."""
    commands: bool = True
    """Show the admissible commands with the observation, where the environment lists them."""
    memory: str = "window(2)"
    """Which part of the history is shown: window(k), full, or compact(budget in tokens)."""


@dataclass(frozen=True)
class SamplingConfig:
    """How tokens are drawn."""

    temperature: float = 1.0
    """Temperature; 0 is greedy."""
    top_p: float = 1.0
    """Nucleus mass; 1 keeps every token."""
    top_k: int = 0
    """Keep only the k likeliest tokens; 0 keeps every token."""
    max_tokens: int = 512
    """Most tokens of one response."""


@dataclass(frozen=True)
class RolloutConfig:
    """How episodes are sampled."""

    engine: Literal["hf"] = "hf"
    """What generates tokens."""
    tasks: int = 16
    """Tasks per iteration, over all processes."""
    group_size: int = 8
    """Episodes per task, from one initial state."""
    slots: int = 128
    """Episodes that run at a time, per process."""
    workers: int = 0
    """Environment worker processes per training process; 0 runs environments in the process itself."""
    deadline: float = 60.0
    """Seconds that one environment call may take before its episode fails."""
    episode_tokens: int | None = None
    """Most response tokens of an episode, in training and evaluation: one that has used them up is cut, so that a few
    that ramble do not keep all others waiting. By default only the environment ends an episode."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    """How tokens are drawn in training."""


@dataclass(frozen=True)
class EvalConfig:
    """How success is measured."""

    envs: list[EnvConfig] = field(default_factory=list)
    """Environments and splits; every task of the split is played, up to ``episodes``."""
    episodes: int = 256
    """Episodes per environment; tasks repeat where a split has fewer."""
    every: int = 0
    """Iterations between evaluations; 0 measures only before the first and after the last. No weights are measured
    twice: a run of 0 iterations is measured once."""
    sampling: SamplingConfig = field(default_factory=lambda: SamplingConfig(temperature=0.4))
    """How tokens are drawn in evaluation."""


@dataclass(frozen=True)
class CriticConfig:
    """What supplies the values that the methods ``ppo`` and ``steppo`` read."""

    kind: Literal["head", "model"] = "head"
    """``head``: two layers on the policy's last hidden state, which is read once and not trained through, so that the
    critic costs one forward pass. ``model``: a language model of its own with one output, trained as a whole."""
    path: str | None = None
    """Folder (or hub name) of that model; by default the policy's at the start of the run (kind model)."""
    lr: float = 1e-5
    """Learning rate (StepPO, table 5: ten times the policy's; for kind model)."""
    epochs: int = 1
    """Passes over the steps of an iteration."""
    minibatches: int = 1
    """Optimiser steps per pass."""
    clip: float | None = 0.5
    """How far a value may move from what it was at sampling before moving pays no more (verl: 0.5); null is off."""
    warmup: int = 0
    """Iterations at the start in which the critic alone is trained."""


@dataclass(frozen=True)
class EmbeddingConfig:
    """What supplies the hidden states that ``bipace`` clusters: a forward pass of the policy before the update."""

    layer: int | None = None
    """Output of which layer, counted from the last one (-1); by default -8 of 28 layers (BiPACE, 7B), scaled to the
    model's depth. ``python -m trainers.calibrate`` measures which is best."""
    pooling: Pooling = "last"
    """Of the last token of the prompt, or the mean over all its tokens."""


@dataclass(frozen=True)
class MethodConfig:
    """The credit-assignment method; a recipe fills this section, and every key of it can be overridden."""

    estimator: str = "grpo"
    """Advantage estimator."""
    options: dict[str, Any] = field(default_factory=dict)
    """Settings of the estimator: the fields of its class."""
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    """The clipped objective."""
    shapers: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Reward shapers by name, with their settings, applied in this order."""
    filters: list[str] | dict[str, dict[str, Any]] = field(default_factory=list)
    """Filters that leave rows out of the update: their names, or each with its settings."""
    refill_rounds: int = 0
    """Most further rounds of rollout in an iteration, each with as many new tasks as groups were left out by the filter
    zero_variance (DAPO's dynamic sampling); 0 lets the batch shrink."""
    replay: ReplayConfig | None = None
    """Self-imitation (SPEAR); null is off."""
    critic: CriticConfig | None = None
    """The critic, where the method needs one (ppo, steppo)."""
    embedding: EmbeddingConfig | None = None
    """Hidden states of the policy, where the method reads them (bipace with the embedder actor_hidden)."""
    greedy_baseline: bool = False
    """Play one more episode per task, greedily, which is not trained on (remax)."""

    def __post_init__(self) -> None:
        if self.refill_rounds < 0:
            raise ConfigError(f"method.refill_rounds is {self.refill_rounds}; it must be at least 0")
        if self.refill_rounds and "zero_variance" not in self.filters:
            raise ConfigError(
                f"method.refill_rounds is {self.refill_rounds}, but no filter leaves out what would be replaced; "
                "add zero_variance to method.filters"
            )
        names = list(self.shapers)
        if "spear" in names and "scpo" in names[names.index("spear") :]:
            raise ConfigError(
                "method.shapers: scpo knows a success by its reward, which spear changes; put scpo before spear "
                "(recipe …+scpo+spear)"
            )

    @property
    def filter_settings(self) -> dict[str, dict[str, Any]]:
        """The filters by name, each with its settings."""
        return {name: {} for name in self.filters} if isinstance(self.filters, list) else self.filters


@dataclass(frozen=True)
class OptimConfig:
    """The optimiser."""

    lr: float = 1e-6
    """Peak learning rate."""
    weight_decay: float = 0.0
    """AdamW's weight decay."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's moments."""
    warmup: int = 0
    """Optimiser steps of linear warm-up."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """What the learning rate does after the warm-up; linear and cosine end at a tenth of the peak."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm."""
    epochs: int = 1
    """Passes over the episodes of an iteration."""
    minibatches: int = 1
    """Optimiser steps per pass."""
    tokens_per_microbatch: int = 16384
    """Most tokens (padding counted) in one forward pass; bounds memory, changes no result."""
    share_prefix: bool = True
    """Compute a prompt that several episodes start with once."""


@dataclass(frozen=True)
class TrainConfig:
    """One training run."""

    name: str = "run"
    """Name of the run; its folder is <output>/<name>."""
    output: str = "runs"
    """Folder of all runs."""
    seed: int = 0
    """Seed of everything random."""
    iterations: int = 100
    """Cycles of rollout and update."""
    time_limit: float | None = None
    """Minutes after which no further iteration starts; the run ends as after its last."""
    recipe: str = "grpo"
    """Named composition of method settings (--list-recipes)."""
    model: ModelConfig = field(default_factory=ModelConfig)
    """The policy."""
    envs: list[EnvConfig] = field(default_factory=lambda: [EnvConfig()])
    """What to train on."""
    prompt: PromptConfig = field(default_factory=PromptConfig)
    """Prompting."""
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    """Sampling of episodes."""
    method: MethodConfig = field(default_factory=MethodConfig)
    """Credit assignment."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    """Optimisation."""
    evaluation: EvalConfig = field(default_factory=EvalConfig)
    """Evaluation."""
    checkpoint_every: int = 20
    """Iterations between checkpoints; one is always written at the end and on Ctrl-C."""
    keep_checkpoints: int = 2
    """Checkpoints kept, the newest ones."""
    episodes_every: int = 1
    """Iterations between saved episode files."""

    def __post_init__(self) -> None:
        for key, value, least in (
            ("iterations", self.iterations, 0),
            ("rollout.tasks", self.rollout.tasks, 1),
            ("rollout.group_size", self.rollout.group_size, 1),
            ("rollout.slots", self.rollout.slots, 1),
            ("rollout.workers", self.rollout.workers, 0),
            ("rollout.sampling.max_tokens", self.rollout.sampling.max_tokens, 1),
            ("rollout.episode_tokens", 1 if self.rollout.episode_tokens is None else self.rollout.episode_tokens, 1),
            ("evaluation.episodes", self.evaluation.episodes, 1),
            ("evaluation.every", self.evaluation.every, 0),
            ("evaluation.sampling.max_tokens", self.evaluation.sampling.max_tokens, 1),
            ("evaluation.sampling.temperature", self.evaluation.sampling.temperature, 0),
            ("optim.epochs", self.optim.epochs, 1),
            ("optim.minibatches", self.optim.minibatches, 1),
            ("optim.warmup", self.optim.warmup, 0),
            ("optim.tokens_per_microbatch", self.optim.tokens_per_microbatch, 1),
            *self._critic_numbers(),
            ("checkpoint_every", self.checkpoint_every, 1),
            ("keep_checkpoints", self.keep_checkpoints, 1),
            ("episodes_every", self.episodes_every, 0),
        ):
            if value < least:
                raise ConfigError(f"{key} is {value}; it must be at least {least}")
        if not self.rollout.sampling.temperature > 0:
            raise ConfigError("rollout.sampling.temperature must be above 0: greedy episodes of a group are equal")
        for key, value in (
            ("optim.lr", self.optim.lr),
            ("optim.max_grad_norm", self.optim.max_grad_norm),
            ("rollout.deadline", self.rollout.deadline),
            *((f"envs[{i}].weight", env.weight) for i, env in enumerate(self.envs)),
        ):
            if not value > 0:
                raise ConfigError(f"{key} is {value}; it must be above 0")
        for key, sampling in (("rollout", self.rollout.sampling), ("evaluation", self.evaluation.sampling)):
            if not 0 < sampling.top_p <= 1 or sampling.top_k < 0:
                raise ConfigError(
                    f"{key}.sampling: top_p is {sampling.top_p}, in (0, 1]; top_k is {sampling.top_k}, 0 or more"
                )
        if (critic := self.method.critic) is not None:
            if not critic.lr > 0 or (critic.clip is not None and not critic.clip > 0):
                raise ConfigError(f"method.critic: lr is {critic.lr}, clip is {critic.clip}; they must be above 0")
            if critic.kind == "head" and critic.path is not None:
                raise ConfigError(
                    "method.critic.path is the folder of a critic of kind model; set kind, or leave it out"
                )
        if (embedding := self.method.embedding) is not None and embedding.layer is not None and embedding.layer >= 0:
            raise ConfigError(f"method.embedding.layer is {embedding.layer}; it counts from the last layer: -1, -2, …")
        if not self.envs:
            raise ConfigError("envs is empty; name at least one environment to train on")
        if not self.name or "/" in self.name or self.name.startswith("."):
            raise ConfigError(f"name is {self.name!r}; it must be the name of a folder below output ({self.output})")
        replay = self.method.replay
        if replay is not None and replay.admit == "episode" and self.rollout.group_size == 1:
            raise ConfigError(
                "method.replay imitates episodes that are better than their group, but rollout.group_size is 1; "
                "make it at least 2"
            )
        for key, envs in (("envs", self.envs), ("evaluation.envs", self.evaluation.envs)):
            for i, env in enumerate(envs):
                for name in ("id", "split", "url", "max_episode_steps"):
                    if name in env.kwargs:
                        raise ConfigError(f"{key}[{i}].kwargs.{name}: write {key}[{i}].{name} instead")

    def _critic_numbers(self) -> list[tuple[str, int, int]]:
        critic = self.method.critic
        if critic is None:
            return []
        return [
            ("method.critic.epochs", critic.epochs, 1),
            ("method.critic.minibatches", critic.minibatches, 1),
            ("method.critic.warmup", critic.warmup, 0),
        ]
