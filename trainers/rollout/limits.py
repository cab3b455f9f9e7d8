"""Settings that contradict the model's own configuration, which is read before its weights are."""

from __future__ import annotations

from transformers import PreTrainedConfig

from trainers.rollout.config import PromptConfig, RolloutConfig
from trainers.rollout.engine import longest_sequence
from trainers.rollout.engines import engine_class
from trainers.settings import ConfigError


def check_limits(
    path: str, settings: PreTrainedConfig, prompt: PromptConfig, rollout: RolloutConfig, budget: int | None = None
) -> None:
    """Checks that prompts and responses fit the model, and what trains on them.

    Args:
        path: ``model.path``, for messages.
        settings: The model's configuration.
        prompt: How long a prompt may be.
        rollout: How long a response may be, and the engine's settings.
        budget: ``optim.tokens_per_microbatch``; ``None`` where nothing is trained.

    Raises:
        ConfigError: They do not; the message names both settings.
    """
    asked, what = rollout.sampling.max_tokens, "rollout.sampling.max_tokens"
    if prompt.max_tokens is not None:
        asked, what = asked + prompt.max_tokens, f"prompt.max_tokens + {what}"
    longest = longest_sequence(settings)
    if longest is not None and asked > longest:
        raise ConfigError(
            f"{what} is {asked}, but model.path {path} computes {longest} tokens at most (max_position_embeddings); "
            "make it smaller, or take a model with a longer context"
        )
    if budget is not None and asked > budget:
        raise ConfigError(
            f"{what} is {asked}, but optim.tokens_per_microbatch is {budget}: an episode of one step would not fit a "
            f"micro-batch; raise optim.tokens_per_microbatch to {asked} at least, or make the other smaller"
        )
    engine_class(rollout.engine, rollout.engine_options).check_model(rollout.engine_options, settings, path)
