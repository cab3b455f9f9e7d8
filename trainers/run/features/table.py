"""What a run can switch on besides its loop, and what of it excludes each other: the one table of refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from trainers.settings import ConfigError

if TYPE_CHECKING:
    from trainers.run.config import TrainConfig

_ORACLE = "a method with continuations (oracle_mc)"
_MILESTONES = "a method with milestones (beacon)"
_GREEDY = "a method with greedy episodes (remax)"
FEATURES: dict[str, Callable[[TrainConfig], object]] = {
    "rollout.tree": lambda config: config.rollout.tree,
    "rollout.staleness": lambda config: config.rollout.staleness,
    "rollout.curriculum.success": lambda config: config.rollout.curricula.success,
    "rollout.curriculum.horizon": lambda config: config.rollout.curricula.horizon,
    "rollout.agent": lambda config: config.rollout.agent,
    "pool": lambda config: config.pool,
    "pool.take": lambda config: config.pool and config.pool.take,
    "alarms.action: return": lambda config: config.alarms.goes_back,
    _ORACLE: lambda config: config.method.continuations,
    _MILESTONES: lambda config: config.method.milestones,
    "method.replay": lambda config: config.method.replay,
    "method.filters.zero_variance.refill_rounds": lambda config: config.method.refill_rounds,
    _GREEDY: lambda config: config.method.plays_greedily,
    "model.shard": lambda config: config.model.shard != "none",
    "optim.state: 8bit": lambda config: config.optim.state == "8bit",
    "prompt.examples": lambda config: config.prompt.examples,
}
"""Whether each feature is on, by the setting that switches it on."""

EXCLUSIONS: dict[tuple[str, str], str] = {
    ("rollout.tree", "rollout.staleness"): "a tree branches from whole episodes of one version of the weights",
    ("rollout.tree", "rollout.agent"): "an agent plays whole episodes",
    ("rollout.tree", "pool"): "a pool stores whole episodes",
    ("rollout.tree", _MILESTONES): "an episode that begins at a step of another does not know its milestones",
    ("rollout.agent", _ORACLE): "an agent's episode cannot begin at a step of another",
    ("rollout.agent", "prompt.examples"): "an agent writes its own prompts",
    ("rollout.agent", "rollout.curriculum.horizon"): "an agent plays to the horizon of the environment",
    ("rollout.staleness", "rollout.agent"): "an agent's episode is sampled by the weights that it updates",
    ("rollout.staleness", "pool"): "a pool stores episodes of the weights that they update",
    ("rollout.staleness", _ORACLE): "the oracle continues episodes with the weights that played them",
    (
        "rollout.staleness",
        "alarms.action: return",
    ): "episodes of the later weights wait for updates of the earlier ones",
    ("pool.take", _ORACLE): "stored episodes are trained on, and none is continued",
    ("pool.take", "method.filters.zero_variance.refill_rounds"): "stored episodes are trained on, and none is replaced",
    ("pool.take", "rollout.curriculum.success"): "stored episodes are trained on, and no task is drawn",
    ("pool.take", "rollout.curriculum.horizon"): "stored episodes are trained on, and none is played",
    ("pool.take", _GREEDY): "stored episodes are trained on, and none is played",
    ("model.shard", "optim.state: 8bit"): "this state is not sharded",
}
"""Why two features do not go together. Any other two do: tests/trainers/run/test_features.py tries all pairs."""


def check_features(config: TrainConfig) -> None:
    """Refuses features that do not go together.

    Raises:
        ConfigError: Two of them are on; the message names both settings and why.
    """
    for (first, second), why in EXCLUSIONS.items():
        if FEATURES[first](config) and FEATURES[second](config):
            raise ConfigError(f"{first} and {second} do not go together: {why}; leave one of them out")
