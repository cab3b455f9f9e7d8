"""The configuration of a run: every setting, its type, its default, and what it means."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from envsuite.core.errors import unknown
from trainers.credit.config import MethodConfig
from trainers.policy.config import ModelConfig, OptimConfig
from trainers.pool.query import Wanted
from trainers.rollout.config import EnvConfig, EvalSamplingConfig, PromptConfig, RolloutConfig, TrainingEnvConfig
from trainers.run.alarm_rules import RULES
from trainers.run.features import check_features
from trainers.settings import AtLeastOne, ConfigError, Count, FolderName, Positive, Seed, Text

AlarmAction = Literal["warn", "pause", "return", "ignore"]


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
class TrackingConfig:
    """Trackers of experiments, which show the run's metrics."""

    trackers: list[Text] = field(default_factory=list)
    """Names: tensorboard, wandb, trackio; packages register others (docs/watching.md)."""
    project: Text = "envsuite"
    """Project that the run belongs to, where the tracker has projects."""


@dataclass(frozen=True)
class AlarmRuleConfig:
    """Changes of an alarm's rule."""

    bound: float | None = None
    """Its bound; by default that of the table."""
    patience: AtLeastOne | None = None
    """Iterations, one after the other, that its sign must last."""
    action: AlarmAction | None = None
    """Answer to the alarm; by default alarms.action."""


@dataclass(frozen=True)
class AlarmConfig:
    """Signs of a collapse that are watched (docs/alarms.md)."""

    action: AlarmAction = "warn"
    """``pause``: the run also ends, with a checkpoint and status 3; ``return``: it also goes back to its best
    checkpoint of before the sign, and goes on from there; ``ignore``: the sign is not watched."""
    returns: AtLeastOne = 1
    """How often a run may go back; later alarms warn."""
    rules: dict[str, AlarmRuleConfig] = field(default_factory=dict)
    """Changes of rules, by their names."""
    webhook: Text | None = None
    """Address that each alarm is sent to as JSON, or the name of an environment variable that holds it: the settings
    are in the report and in trackers, where a secret address should not be."""

    def __post_init__(self) -> None:
        for name in self.rules:
            if name not in RULES:
                raise unknown("alarm", name, RULES)

    def action_of(self, name: str) -> AlarmAction:
        """Returns what is done about an alarm."""
        own = self.rules.get(name)
        return self.action if own is None or own.action is None else own.action

    @property
    def goes_back(self) -> bool:
        """Whether some alarm takes the run back."""
        return any(self.action_of(name) == "return" for name in RULES)


@dataclass(frozen=True)
class PoolConfig:
    """The datapool of a run (docs/datapool.md)."""

    folder: Text = "pool"
    """Its folder, on a disk of this machine."""
    hook: Text | None = None
    """file.py:function, which sees each text before it is stored, and may change or drop it."""
    take: Wanted | None = None
    """Train on what this query finds there, in whole groups of rollout.group_size, and play nothing; null: play, and
    store every episode."""


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
        replay = self.method.replay
        if replay is not None and replay.rules == "paper" and self.rollout.group_size == 1:
            raise ConfigError(
                "method.replay imitates episodes that are better than their group, but rollout.group_size is 1; "
                "make it at least 2"
            )
