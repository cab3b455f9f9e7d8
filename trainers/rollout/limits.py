"""Settings that contradict the model's own configuration, which is read before its weights are."""

from __future__ import annotations

from collections.abc import Mapping

from transformers import PreTrainedConfig

from trainers.policy.config import ModelConfig
from trainers.policy.loading import model_settings
from trainers.policy.vision import takes_images
from trainers.rollout.config import EnvConfig, PromptConfig, RolloutConfig
from trainers.rollout.engine import longest_sequence
from trainers.rollout.engines import answers_in_text, engine_class
from trainers.rollout.environments import facts_of
from trainers.settings import ConfigError


def check_limits(
    path: str,
    settings: PreTrainedConfig,
    prompt: PromptConfig,
    rollout: RolloutConfig,
    budget: int | None = None,
    hint_tokens: int = 0,
) -> None:
    """Checks that prompts and responses fit the model, and what trains on them.

    Args:
        path: ``model.path``, for messages.
        settings: The model's configuration.
        prompt: How long a prompt may be.
        rollout: How long a response may be, and the engine's settings.
        budget: ``optim.tokens_per_microbatch``; ``None`` where nothing is trained.
        hint_tokens: Most tokens that are added to a prompt when its response is scored again.

    Raises:
        ConfigError: They do not; the message names both settings.
    """
    tokens, what = rollout.sampling.max_tokens, "rollout.sampling.max_tokens"
    if prompt.max_tokens is not None:
        tokens, what = tokens + prompt.max_tokens, f"prompt.max_tokens + {what}"
    longest = longest_sequence(settings)
    if longest is not None and tokens + hint_tokens > longest:
        hints = f" + {hint_tokens} of the method's text" if hint_tokens else ""
        raise ConfigError(
            f"{what}{hints} is {tokens + hint_tokens}, but model.path {path} computes {longest} tokens at most "
            "(max_position_embeddings); make it smaller, or take a model with a longer context"
        )
    if budget is not None and tokens > budget:
        raise ConfigError(
            f"{what} is {tokens}, but optim.tokens_per_microbatch is {budget}: an episode of one step would not fit a "
            f"micro-batch; raise optim.tokens_per_microbatch to {tokens} at least, or make the other smaller"
        )
    engine_class(rollout.engine, rollout.engine_options).check_model(rollout.engine_options, settings, path)


def check_images(
    envs: Mapping[str, EnvConfig], model: ModelConfig, prompt: PromptConfig, rollout: RolloutConfig, replays: bool
) -> None:
    """Checks that images of observations reach a model that takes them.

    Args:
        envs: The environments, by their places in the configuration.
        model: Where the model lies; not read where the engine takes messages.
        prompt: How prompts are written.
        rollout: Has the engine.
        replays: Whether ``method.replay`` is set.

    Raises:
        ConfigError: They do not; the message names both settings.
    """
    seeing = [f"{key} ({env.id})" for key, env in envs.items() if facts_of(env, key).images]
    if not seeing:
        return
    engine = engine_class(rollout.engine, rollout.engine_options)
    blind = not answers_in_text(rollout.engine) and not takes_images(model_settings(model))
    wrong = {
        f"rollout.engine is {rollout.engine!r}, which takes none; set it to hf": not engine.takes_images,
        f"model.path {model.path} takes none; take a model such as SmolVLM, or set model.images": blind,
        "prompt.truncate is left, which could cut one in two; set it to episode": prompt.truncate == "left",
        "method.replay keeps steps without them; leave it out": replays,
    }
    for text, applies in wrong.items():
        if applies:
            raise ConfigError(f"{seeing[0]} shows images, but {text}, or have the environment show text alone")
