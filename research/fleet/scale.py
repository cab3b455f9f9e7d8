"""The tables and the figure of docs/scale.md: ``python -m research.fleet.scale``.

Simulates fleets of 8, 64 and 1,024 GPUs of one kind for every environment of the constants: environment cores and
servers that feed them, what engines wait for, what staleness buys and costs, and what failures cost. Prints Markdown.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

from envsuite.evaluation.plots import figure
from research.fleet.__main__ import FLEET
from research.fleet.constants import SHIPPED, Constants
from research.fleet.figure import stacked
from research.fleet.model import Failures
from research.fleet.outcome import GENERATING, Outcome
from research.fleet.scenario import Scenario, scenario_of
from trainers.run.cli import parse

FLEETS = {8: "8xH100", 64: "8x8xH100", 1024: "128x8xH100"}
SETTINGS = (
    "--model.compute_dtype bfloat16 --rollout.engine vllm --rollout.group_size 8 --prompt.max_tokens 2048 "
    "--rollout.sampling.max_tokens 512 --prompt.memory window(2) --rollout.slots 128"
).split()
NONE: Mapping[str, str] = {}
STALENESS = (0, 1, 2, 4)
FAILURES = {
    "none": Failures(),
    "each GPU's process every 16 h": Failures(gpu_hours=16),
    "each server every 2 h": Failures(server_hours=2),
    "1 of 100,000 calls hangs": Failures(hung=1e-5),
    "1 of 1,000 calls hangs": Failures(hung=1e-3),
}
OF_FAILURES = 8
"""GPUs of the fleet whose failures are shown; rates are high, so that some happen in hours."""


def main(argv: Sequence[str] | None = None) -> None:
    """Simulate, and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m research.fleet.scale", description=main.__doc__)
    parser.add_argument("--gpus", type=int, nargs="+", choices=list(FLEETS), default=list(FLEETS))
    parser.add_argument("--environments", nargs="+", default=list(Constants.read(SHIPPED).environments))
    parser.add_argument("--model", default="qwen2.5-7b", help="a shape (default: %(default)s)")
    parser.add_argument("--parts", nargs="+", default=["cores", "staleness", "failures"])
    parser.add_argument("--updates", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("docs/images/scale.png"), help="the figure")
    arguments = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    if "cores" in arguments.parts:
        sys.stdout.write(cores(arguments.gpus, arguments.environments, arguments.model, arguments.updates))
    for split in (False, True):
        if "staleness" in arguments.parts:
            sys.stdout.write(staleness(arguments.model, split, arguments.updates, arguments.out))
    if "failures" in arguments.parts:
        sys.stdout.write(failures(arguments.model, arguments.updates))


def scenario(environment: str, gpus: int, model: str, updates: int, options: Mapping[str, str] = NONE) -> Scenario:
    """Two groups of eight for each GPU; ``options`` are those of the command line by name."""
    shard = "full" if gpus <= 8 else "hybrid"
    words = [
        "--gpus", options.get("gpus", FLEETS[gpus]), "--model-shape", model,
        "--envs", f"[{{id: {environment}}}]", "--rollout.tasks", str(2 * gpus),
        "--model.shard", shard, "--updates", str(updates), *SETTINGS,
    ]  # fmt: skip
    command = parse(words, FLEET)
    tokens = {"steps": None, "prompt-tokens": 900, "response-tokens": 128}
    return scenario_of(command.config, {**command.options, **options}, tokens)


def cores(sizes: Sequence[int], environments: Sequence[str], model: str, updates: int) -> str:
    """Environment cores and servers, synchronous."""
    head = "environment | GPUs | sessions | steps/s | cores | busy | servers | iteration, s | generating | waits for"
    lines = [f"| {head} |", "|---|---:|---:|---:|---:|---:|---:|---:|---:|---|"]
    for environment in environments:
        for gpus in sizes:
            found = scenario(environment, gpus, model, updates if gpus < 1024 else 1, {"staleness": "0"})
            sized = found.sized
            outcome = sized.outcome
            waits = {name: share for name, share in outcome.engines.items() if name != GENERATING}
            cause = max(waits, key=lambda name: waits[name])
            lines.append(
                f"| {environment} | {gpus:,} | {found.sessions:,} | {outcome.steps_per_second:,.0f} | "
                f"{sized.cores:,} | {outcome.cores_busy:.0%} | {sized.servers} | {outcome.iteration:,.1f} | "
                f"{outcome.generating:.0%} | "
                f"{cause} {waits[cause]:.0%} |"
            )
            sys.stderr.write(f"{lines[-1]}\n")
    return "\n".join(lines) + "\n\n"


def staleness(model: str, split: bool, updates: int, out: Path) -> str:
    """Returns what staleness buys and costs, 64 GPUs, ALFWorld; the shared fleet's figure is drawn."""
    options = {"gpus": "4x8xH100", "generation": "4x8xH100"} if split else {}
    made = scenario("ALFWorld-v0", 64, model, 4 * updates, options)
    cores_given = 16
    outcomes = {k: made.simulate(cores_given, k) for k in STALENESS}
    if not split:
        with figure(out, 5.6, 3.6) as drawn:
            axes = drawn.subplots()
            stacked(axes, {str(k): outcome for k, outcome in outcomes.items()})
            axes.set_xlabel("staleness k")
            axes.set_title("64 H100 that share, ALFWorld")
    title = "32 GPUs train, 32 generate" if split else "64 GPUs share"
    lines = [f"| {title}: k | iteration, s | faster by | generating | training | off-policy | age | oldest |",
             "|---:|---:|---:|---:|---:|---:|---:|---:|"]  # fmt: skip
    lines += [
        f"| {k} | {o.iteration:,.1f} | {outcomes[0].iteration / o.iteration:.2f} | {o.generating:.0%} | "
        f"{o.training_busy:.0%} | {o.off_policy:.0%} | {o.age:.2f} | {o.oldest} |"
        for k, o in outcomes.items()
    ]
    return "\n".join(lines) + "\n\n"


def failures(model: str, updates: int) -> str:
    """Returns what failures cost."""
    made = scenario("ALFWorld-v0", OF_FAILURES, model, 40 * updates)
    sound: Outcome | None = None
    lines = ["| failures | iteration, s | slower by | dispatched again | failed | repeated training |",
             "|---|---:|---:|---:|---:|---:|"]  # fmt: skip
    for name, rates in FAILURES.items():
        outcome = made.simulate(128, 0, rates)
        sound = sound or outcome
        lines.append(
            f"| {name} | {outcome.iteration:,.1f} | {outcome.iteration / sound.iteration - 1:.1%} | "
            f"{outcome.redispatched:.1f} | {outcome.failed:.2f} | {outcome.outage:.1%} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
