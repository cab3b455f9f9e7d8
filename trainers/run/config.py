"""The configuration of a run: every setting, its type, its default, and what it means."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from trainers.credit.config import MethodConfig
from trainers.policy.config import ModelConfig, OptimConfig
from trainers.rollout.config import EnvConfig, EvalSamplingConfig, PromptConfig, RolloutConfig, TrainingEnvConfig
from trainers.run.features.alarms.settings import AlarmConfig
from trainers.run.features.pool.settings import PoolConfig
from trainers.run.features.table import check_features
from trainers.run.features.tracking.settings import TrackingConfig
from trainers.settings import AtLeastOne, ConfigError, Count, FolderName, Positive, Seed, Text


@dataclass(frozen=True)
class EvalConfig:
    """Measurement of success."""

    envs: list[EnvConfig] = field(default_factory=list)
    """Environments and splits."""
    episodes: AtLeastOne | None = None
    """Episodes per environment; by default every task of its split is played. For fewer, tasks are drawn without
    repetition: those whose ids have the smallest SHA-256, so that all runs measure the same ones."""
    repeats: AtLeastOne = 1
    """Episodes of each task; ``episodes`` is a multiple of it. Intervals are then clustered by task."""
    every: Count = 0
    """Iterations between evaluations; 0 measures only before the first and after the last. No weights are measured
    twice: a run of 0 iterations is measured once."""
    sampling: EvalSamplingConfig = field(default_factory=EvalSamplingConfig)
    """How tokens are drawn in evaluation."""


@dataclass(frozen=True)
class TrainConfig:
    """One training run."""

    name: FolderName = "run"
    """Name of the run; its folder is <output>/<name>."""
    output: Text = "runs"
    """Folder of all runs."""
    seed: Seed = 0
    """Seed of everything random."""
    iterations: Count = 100
    """Cycles of rollout and update."""
    recipe: Text = "grpo"
    """Named composition of method settings (--list-recipes)."""
    model: ModelConfig = field(default_factory=ModelConfig)
    """The policy."""
    envs: Annotated[list[TrainingEnvConfig], Field(min_length=1)] = field(default_factory=lambda: [TrainingEnvConfig()])
    """Environments to train on."""
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
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    """Trackers of experiments."""
    alarms: AlarmConfig = field(default_factory=AlarmConfig)
    """Signs of a collapse."""
    pool: PoolConfig | None = None
    """Datapool that the episodes of training are stored in, or taken from."""
    checkpoint_every: AtLeastOne = 20
    """Iterations between checkpoints; one is always written at the end and on Ctrl-C."""
    keep_checkpoints: AtLeastOne = 2
    """Checkpoints kept, the newest ones."""
    episodes_every: Count = 1
    """Iterations between saved episode files."""
    report: bool = True
    """Whether plots and report.html are written at the end; envsuite report RUN writes them at any time."""
    process_timeout: Positive = 30.0
    """Minutes that a process waits for another; longer than one may take for its episodes when the others have
    finished theirs."""

    def __post_init__(self) -> None:
        check_features(self)
        if self.model.routing == "replay" and self.rollout.engine != "hf":
            raise ConfigError(
                f"model.routing is replay, which follows the experts that the engine hf tells, but rollout.engine is "
                f"{self.rollout.engine}; set rollout.engine: hf, or model.routing: own"
            )
        if self.method.imitates and "accepted" not in self.method.filter_settings:
            raise ConfigError("rft would imitate every episode; add method.filters: {accepted: {}}")
        replay = self.method.replay
        if replay is not None and replay.rules == "paper" and self.rollout.group_size == 1:
            raise ConfigError(
                "method.replay imitates episodes that are better than their group, but rollout.group_size is 1; "
                "make it at least 2"
            )
