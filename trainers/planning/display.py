"""A plan as text for a terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.table import Table

from trainers.planning import plan as assumed
from trainers.planning.advice import Advice
from trainers.planning.hardware import GIB, SOURCE
from trainers.planning.plan import RunPlan

LEAST = 0.005 * GIB
"""Parts smaller than this are left out of the table."""


def as_json(plan: RunPlan, largest: int | None, advice: Sequence[Advice]) -> dict[str, Any]:
    """Everything of the plan; bytes and seconds of one process."""
    sizes, work = plan.dry.sizes, plan.work
    return {
        "hardware": str(plan.where),
        "parameters": sizes.parameters,
        "trained": sizes.trained,
        "fits": plan.fits,
        "needed": round(plan.peak),
        "room": round(plan.room),
        "held": {name: round(size) for name, size in plan.held.items()},
        "phases": {name: {k: round(v) for k, v in parts.items()} for name, parts in plan.phases.items()},
        "largest_microbatch": largest,
        "seconds": plan.seconds,
        "sampled_tokens": work.response_tokens * plan.where.ranks,
        "trained_tokens": work.training_tokens * plan.where.ranks,
        "advice": [
            {"setting": a.setting, "fits": a.plan.fits, "needed": round(a.plan.peak), "seconds": a.plan.iteration}
            for a in advice
        ],
        "assumed": [*work.notes, *assumptions(plan)],
    }


def parts(plan: RunPlan, largest: int | None, advice: Sequence[Advice]) -> Iterator[str | Table]:
    """The plan's tables and lines, in order."""
    sizes, config = plan.dry.sizes, plan.config
    kind = "all weights trained" if config.model.adapter is None else f"LoRA, {sizes.trained:,} weights trained"
    how = f"{config.model.compute_dtype}, shard {config.model.shard}"
    how += f", layers {'' if config.model.gradient_checkpointing else 'not '}recomputed"
    if config.model.shard != "none":
        how += f", gradients added up {'once a step' if plan.adds_up_once else 'each micro-batch'}"
    yield f"{plan.where}: {sizes.parameters:,} weights, {kind}, {how}\n"
    yield _memory(plan)
    least = plan.work.longest_prompt + plan.work.longest_response
    tokens = config.optim.tokens_per_microbatch
    verdict = f"needs {plan.peak / GIB:.1f} of {plan.room / GIB:.1f} GiB in each process"
    most = f"not even one row of {least:,} fits" if largest is None else f"at most {largest:,} fit"
    yield f"\n{'It fits' if plan.fits else 'IT DOES NOT FIT'}: {verdict}. Micro-batch of {tokens:,} tokens: {most}.\n"
    yield _times(plan)
    work, ranks = plan.work, plan.where.ranks
    rate, training_rate = work.response_tokens * ranks / plan.iteration, work.training_tokens * ranks / plan.iteration
    yield f"\n{rate:,.0f} sampled and {training_rate:,.0f} trained tokens/s, time in environments not counted.\n"
    if advice:
        yield _advice(plan, advice)
    elif not plan.fits:
        yield "No single setting that was tried makes it fit: take more devices, a smaller model, or shorter prompts."
    yield "\nAssumed: " + "; ".join([*work.notes, *assumptions(plan)]) + "."


def assumptions(plan: RunPlan) -> list[str]:
    """The figures that were not computed."""
    if plan.where.on_cpu:
        return [
            "speed of products and memory as measured here for a second",
            "memory in use: the C library keeps freed blocks of less than 32 MiB on top (docs/plan.md)",
        ]
    own, is_flash = plan.config.model.attention, plan.config.model.compute_dtype == "bfloat16"
    is_new_by_name = {
        f"any GPU like {plan.where.device.name}": plan.where.device.name != "H100",
        "several GPUs": plan.where.ranks > 1,
        "FlashAttention in the trainer": is_flash,
        "float32": not is_flash,
        "layers that keep their activations": not plan.config.model.gradient_checkpointing,
        "vLLM": plan.config.rollout.engine == "vllm",
    }
    return [
        *([] if own == "sdpa" else [f"attention counted as sdpa's, of which {own} takes less"]),
        f"ESTIMATES; never measured: {', '.join(name for name, is_new in is_new_by_name.items() if is_new)}",
        f"{assumed.PRODUCTS:.0%} of the peak in products, {assumed.MOVED:.0%} of the memory's bandwidth in other "
        "operations, as updates of a 1.5B model took on one H100",
        f"{assumed.STREAM:.0%} of the bandwidth in reading weights, keys and values, {assumed.LINK:.0%} of the links'",
        f"{plan.where.device.overhead * 1e6:.0f} µs to start an operation",
        f"{assumed.CONTEXT / GIB:.1f} GiB for CUDA and libraries, {assumed.FRAGMENTS:.0%} lost to fragmentation",
        f"hardware: {SOURCE}",
    ]


def _table(title: str, column: str) -> Table:
    return Table(column, title=title, title_justify="left", box=None, header_style="bold")


def _memory(plan: RunPlan) -> Table:
    table = _table("Memory of one process, GiB", "part")
    for name in plan.phases:
        table.add_column(name, justify="right")
    for part, size in plan.held.items():
        if size >= LEAST:
            table.add_row(part, *[f"{size / GIB:.2f}"] * len(plan.phases))
    for part in dict.fromkeys(part for phase in plan.phases.values() for part in phase):
        sizes = [phase.get(part, 0.0) for phase in plan.phases.values()]
        if max(sizes) >= LEAST:
            table.add_row(part, *(f"{size / GIB:.2f}" if size >= LEAST else "" for size in sizes))
    table.add_row("all", *(f"{size / GIB:.2f}" for size in plan.peaks.values()), style="bold")
    return table


def _times(plan: RunPlan) -> Table:
    table = _table("Time of an iteration, seconds (estimated)", "phase")
    table.add_column("seconds", justify="right")
    for name, seconds in plan.seconds.items():
        table.add_row(name, f"{seconds:,.1f}")
    table.add_row("all", f"{plan.iteration:,.1f}", style="bold")
    return table


def _advice(plan: RunPlan, advice: Sequence[Advice]) -> Table:
    title = "What would help most, the best first" if plan.fits else "What to change, the best first"
    table = _table(title, "setting")
    for column in ("GiB", "fits", "seconds"):
        table.add_column(column, justify="right")
    for a in advice:
        table.add_row(a.setting, f"{a.plan.peak / GIB:.1f}", "yes" if a.plan.fits else "no", f"{a.plan.iteration:,.1f}")
    return table
