"""``python -m benchmarks.plan_papers``: the plans of the papers' main settings, as docs/plan.md has them.

Models, GPUs, tasks, group sizes and the longest prompts and responses are those that the papers state for ALFWorld.
The means that times depend on are ours: 30 steps an episode (StepPO: 20), prompts of 900 tokens, responses of 128.
Every row has bfloat16, gradient checkpointing, ``model.shard: full``, the engine hf, and micro-batches of 16,384
tokens.

    python -m benchmarks.plan_papers
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass

from trainers.planning.hardware import GIB, machines
from trainers.planning.plan import Planner
from trainers.planning.shape import check, shape_of
from trainers.run.cli import parse


@dataclass(frozen=True)
class Setting:
    """One row."""

    name: str
    recipe: str
    shape: str
    gpus: str
    tasks: int = 16
    group: int = 8
    prompt: int = 2048
    response: int = 512
    steps: int = 30


SETTINGS = (
    Setting("GiGPO (verl-agent)", "gigpo/alfworld", "qwen2.5-1.5b", "2xH100"),
    Setting("GiGPO (verl-agent)", "gigpo/alfworld", "qwen2.5-7b", "4xH100"),
    Setting("HGPO", "hgpo/alfworld", "qwen2.5-1.5b", "2xH100"),
    Setting("HGPO", "hgpo/alfworld", "qwen2.5-7b", "4xH100"),
    Setting("BiPACE", "bipace/7b", "qwen2.5-7b", "4xH100"),
    Setting("StepPO", "steppo", "qwen3-4b", "8xH100", 128, 1, 8192, 4096, 20),
    Setting("SCPO", "gigpo/alfworld+scpo/alfworld", "qwen2.5-1.5b", "4xA800"),
    Setting("SCPO", "gigpo/alfworld+scpo/alfworld", "qwen2.5-7b", "4xA800"),
    Setting("SPEAR", "grpo+spear/alfworld", "qwen2.5-1.5b", "4x8xH100", 32),  # the paper does not name the GPU
    Setting("SPEAR", "grpo+spear/alfworld", "qwen2.5-7b", "4x8xH100", 32),
)


def main() -> int:
    """Print the table; returns 1 where a setting does not fit."""
    print(
        "| paper | model | GPUs | tasks x group | GiB a GPU, of | prefill | decode | scoring | update | iteration, s |"
    )
    print("|---|---|---|---|---:|---:|---:|---:|---:|---:|")
    warnings.simplefilter("ignore")
    planners: dict[tuple[str, int], Planner] = {}
    fits = True
    for row in SETTINGS:
        words = {
            "recipe": row.recipe, "rollout.tasks": row.tasks, "rollout.group_size": row.group,
            "prompt.max_tokens": row.prompt, "rollout.sampling.max_tokens": row.response,
            "model.compute_dtype": "bfloat16", "model.gradient_checkpointing": "true", "model.shard": "full",
        }  # fmt: skip
        config = parse([word for name, value in words.items() for word in (f"--{name}", str(value))]).config
        shape, where = shape_of("", row.shape), machines(row.gpus)
        check(config, shape, where, row.shape)
        planner = planners.setdefault((row.shape, where.ranks), Planner(shape, where, row.steps, 900, 128))
        planner.where = where
        plan = planner.plan(config)
        fits &= plan.fits
        seconds = plan.seconds
        scoring = sum(seconds.get(name, 0.0) for name in ("old log-probabilities", "reference, critic, hidden states"))
        times = (seconds["prefill"], seconds["decode"], scoring, seconds["update"], plan.iteration)
        print(
            f"| {row.name} | {row.shape} | {row.gpus} | {row.tasks} x {row.group} | {plan.needed / GIB:.1f}, "
            f"{plan.room / GIB:.1f} | " + " | ".join(f"{value:,.0f}" for value in times) + " |",
            flush=True,
        )
    return int(not fits)


if __name__ == "__main__":
    sys.exit(main())
