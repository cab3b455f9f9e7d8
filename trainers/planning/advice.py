"""The settings that would help: each is tried, and its plan compared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from trainers.planning.plan import KEYS, RunPlan, RunPlanner, sleeps
from trainers.policy.config import AdapterConfig
from trainers.run.config import TrainConfig


@dataclass(frozen=True)
class Advice:
    """A changed setting, and the plan with it."""

    setting: str
    """How it is typed."""
    plan: RunPlan


def alternatives(planner: RunPlanner, plan: RunPlan, largest: int | None) -> list[Advice]:
    """Returns plans with one setting changed, in the order of what helps most.

    Where the plan does not fit, those that do come first, the fastest first, then those that need least memory. Where
    it fits, only those that fit and are faster.

    Args:
        planner: Makes plans.
        plan: The plan to improve.
        largest: The largest micro-batch that fits.
    """
    proposals = [Advice(setting, planner.plan(config)) for setting, config in _changes(plan, largest)]
    proposals.sort(key=lambda a: (not a.plan.fits, a.plan.iteration if a.plan.fits else a.plan.peak))
    if plan.fits:
        return [advice for advice in proposals if advice.plan.fits and advice.plan.iteration < 0.98 * plan.iteration]
    return [advice for advice in proposals if advice.plan.fits or advice.plan.peak < 0.98 * plan.peak]


def _changes(plan: RunPlan, largest: int | None) -> Iterator[tuple[str, TrainConfig]]:
    config, ranks = plan.config, plan.where.ranks
    model, optim, method = config.model, config.optim, config.method
    lora = AdapterConfig(base=model.compute_dtype)
    if model.compute_dtype == "float32":
        yield "--model.compute_dtype bfloat16", replace(config, model=replace(model, compute_dtype="bfloat16"))
    on = not model.gradient_checkpointing
    variant = replace(model, gradient_checkpointing=on)
    yield f"--model.gradient_checkpointing {str(on).lower()}", replace(config, model=variant)
    if ranks > 1 and model.shard == "none" and optim.state == "float32":
        yield "--model.shard full", replace(config, model=replace(model, shard="full"))
        if on:
            variant = replace(model, shard="full", gradient_checkpointing=True)
            yield "--model.shard full --model.gradient_checkpointing true", replace(config, model=variant)
    if ranks > 1 and model.shard != "none":
        yield "--model.shard none", replace(config, model=replace(model, shard="none"))
    if model.adapter is None:
        flag = f'--model.adapter "{{rank: {lora.rank}, alpha: {lora.alpha}, base: {lora.base}}}"'
        yield flag, replace(config, model=replace(model, adapter=lora))
        if on:
            variant = replace(model, adapter=lora, gradient_checkpointing=True)
            yield f"{flag} --model.gradient_checkpointing true", replace(config, model=variant)
    if optim.state == "float32" and model.shard == "none":
        yield "--optim.state 8bit", replace(config, optim=replace(optim, state="8bit"))
    if method.reference == "device" and method.holds_frozen(model.adapter is not None):
        yield "--method.reference offload", replace(config, method=replace(method, reference="offload"))
    options = config.rollout.engine_options
    on_cpu = plan.where.on_cpu
    if config.rollout.engine == "vllm" and not options.get("urls") and not on_cpu and not sleeps(options, on_cpu):
        sleeping = replace(config.rollout, engine_options={**options, "sleep": True})
        yield "--rollout.engine_options.sleep true", replace(config, rollout=sleeping)
    yield from _smaller_pools(plan)
    if largest is not None and largest != optim.tokens_per_microbatch:
        tokens = replace(optim, tokens_per_microbatch=largest)
        yield f"--optim.tokens_per_microbatch {largest}", replace(config, optim=tokens)


def _smaller_pools(plan: RunPlan) -> Iterator[tuple[str, TrainConfig]]:
    """Fewer episodes at a time, and fewer tokens kept, where keys and values do not fit."""
    rollout, over = plan.config.rollout, plan.peaks["rollout"] - plan.room
    if (size := plan.phases["rollout"].get(KEYS)) is None or over <= 0:
        return
    slots = max(1, int(plan.work.slots * (1 - over / size)))
    yield f"--rollout.slots {slots}", replace(plan.config, rollout=replace(rollout, slots=slots))
    tokens = plan.work.running
    fewer = replace(rollout, engine_options={**rollout.engine_options, "cache_tokens": tokens})
    yield f"--rollout.engine_options.cache_tokens {tokens}", replace(plan.config, rollout=fewer)
