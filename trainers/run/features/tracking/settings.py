"""Settings of trackers."""

from __future__ import annotations

from dataclasses import dataclass, field

from trainers.settings import Text


@dataclass(frozen=True)
class TrackingConfig:
    """Trackers of experiments, which show the run's metrics."""

    trackers: list[Text] = field(default_factory=list)
    """Names: tensorboard, wandb, trackio; packages register others (docs/watching.md). Where the tracker has
    projects, a run belongs to the one that the environment variable WANDB_PROJECT names, or to envsuite."""
