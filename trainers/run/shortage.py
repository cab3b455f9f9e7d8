"""Memory that runs out: what is said of it, and which settings take less."""

from __future__ import annotations

from envsuite.core.errors import EnvsuiteError
from trainers.run.config import TrainConfig


class OutOfMemory(EnvsuiteError, RuntimeError):
    """Memory ran out; the message says in what, which settings take less, and from where the run can go on."""


def describe_shortage(what: str, error: BaseException) -> str:
    """In what memory ran out, and the first line of what was raised."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"memory ran out in the {what} ({lines[0].rstrip('.')})"


def remedies(config: TrainConfig, playing: bool, slots: int) -> str:
    """The settings that take less memory, with their present values; the run may be resumed with other ones.

    Args:
        config: All settings.
        playing: Whether it ran out while episodes were played, not in the trainer's passes.
        slots: Episodes that are played at a time.
    """
    rollout, optim, model, method = config.rollout, config.optim, config.model, config.method
    settings = []
    if playing:
        if slots > 1:
            settings.append(f"rollout.slots below {slots}")
        if rollout.engine == "hf" and rollout.engine_options.get("cache_tokens") != 0:
            now = rollout.engine_options.get("cache_tokens", "not set")
            settings.append(f"rollout.engine_options.cache_tokens: 0 (now {now})")
    elif model.gradient_checkpointing is not True:
        settings.append(f"model.gradient_checkpointing: true (now {model.gradient_checkpointing or 'false'})")
    least = 0 if config.prompt.max_tokens is None else config.prompt.max_tokens + rollout.sampling.max_tokens
    if not playing and optim.tokens_per_microbatch > least:
        at_least = f", {least} at least" if least else ""
        settings.append(f"optim.tokens_per_microbatch below {optim.tokens_per_microbatch}{at_least}")
    if method.reference == "device" and method.holds_frozen(model.adapter is not None):
        settings.append("method.reference: offload (now device)")
    return f"Set {' or '.join(settings)}" if settings else "Take a larger device (envsuite plan says what fits)"
