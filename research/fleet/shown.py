"""Results of a simulation, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from rich.table import Table

from research.fleet.model import Failures
from research.fleet.outcome import GENERATING, ROLLOUT_PROCESS, Outcome
from research.fleet.scenario import Scenario
from trainers.planning import plan as assumed
from trainers.planning.hardware import SOURCE


def as_json(scenario: Scenario, outcomes: Mapping[int, Outcome], sound: Mapping[int, Outcome]) -> dict[str, Any]:
    """Everything that was found, and what it was computed with; seconds, bytes and shares.

    Args:
        scenario: The fleet.
        outcomes: Outcomes by staleness.
        sound: The same without failures.
    """
    found = scenario.sized if scenario.cores is None else None
    return {
        "hardware": scenario.name,
        "environment": scenario.config.envs[0].id,
        "staleness": {str(k): _plain(outcome) for k, outcome in outcomes.items()},
        "without_failures": {str(k): _plain(outcome) for k, outcome in sound.items()},
        "cores": scenario.used_cores,
        "servers": None if found is None else found.servers,
        "servers_for_cores": None if found is None else found.servers_for_cores,
        "servers_for_memory": None if found is None else found.servers_for_memory,
        "iteration_by_cores": None if found is None else {str(n): s for n, s in found.tried.items()},
        "sessions": scenario.sessions,
        "engine": asdict(scenario.speeds.engine),
        "update": asdict(scenario.speeds.update),
        "workload": asdict(scenario.work),
        "failures": asdict(scenario.fleet.failures),
        "assumed": [*scenario.notes, *sources(scenario)],
    }


def _plain(outcome: Outcome) -> dict[str, Any]:
    return {**asdict(outcome), "bottleneck": outcome.bottleneck}


def parts(scenario: Scenario, outcomes: Mapping[int, Outcome], sound: Mapping[int, Outcome]) -> Iterator[str | Table]:
    """Tables and lines, in order."""
    rollout = scenario.config.rollout
    yield (
        f"{scenario.name}; {scenario.config.envs[0].id}, {rollout.tasks} tasks x {rollout.group_size} episodes, "
        f"{rollout.slots} slots an engine\n"
    )
    yield _by_staleness(outcomes)
    first = outcomes[min(outcomes)]
    waits = {name: share for name, share in first.engines.items() if name != GENERATING}
    cause = max(waits, key=lambda name: waits[name])
    yield (
        f"\nAt staleness {min(outcomes)} engines generate {first.generating:.0%} of the time; what they wait for "
        f"longest: {cause} ({waits[cause]:.0%}).\n"
    )
    if scenario.cores is None:
        yield _cores(scenario)
        yield _servers(scenario)
    else:
        most = outcomes[max(outcomes)]
        yield f"{scenario.cores} environment cores work {most.cores_busy:.1%} of the time.\n"
    if scenario.fleet.failures != Failures(
        deadline=scenario.fleet.failures.deadline, checkpoint=scenario.fleet.failures.checkpoint
    ):
        yield _failing(outcomes, sound)
    yield "\nAssumed: " + "; ".join([*scenario.notes, *sources(scenario)]) + "."


def sources(scenario: Scenario) -> list[str]:
    """Where the constants come from."""
    constants = scenario.constants
    measured = f"environments and HTTP: measured on {constants.machine}, {constants.date}, by {constants.command}"
    if scenario.training.on_cpu:
        return [measured, "engine and update: speed of products and memory as measured here for a second"]
    return [
        measured,
        "engine, update and sync: ROOFLINE ESTIMATES, nobody has measured them on these GPUs: "
        f"{assumed.PRODUCTS:.0%} of the peak in products, {assumed.MOVED:.0%} of the memory's bandwidth in a "
        f"pass, {assumed.STREAM:.0%} in reading, {assumed.LINK:.0%} of the links'; {SOURCE}",
    ]


def _by_staleness(outcomes: Mapping[int, Outcome]) -> Table:
    table = Table(title="By staleness", title_justify="left", box=None, header_style="bold")
    for column in ("k", "iteration, s", "faster by"):
        table.add_column(column, justify="right")
    columns = [GENERATING, *(c for c in outcomes[min(outcomes)].engines if c != GENERATING)]
    columns = [
        c for c in columns if c not in ("failure", ROLLOUT_PROCESS) or any(o.engines[c] for o in outcomes.values())
    ]
    for column in (*columns, "training", "off-policy", "age", "oldest"):
        table.add_column(column, justify="right")
    base = outcomes[min(outcomes)].iteration
    for k, outcome in outcomes.items():
        table.add_row(
            str(k), f"{outcome.iteration:,.1f}", f"{base / outcome.iteration:.2f}",
            *(f"{outcome.engines[column]:.1%}" for column in columns), f"{outcome.training_busy:.0%}",
            f"{outcome.off_policy:.0%}", f"{outcome.age:.2f}", str(outcome.oldest),
        )  # fmt: skip
    table.caption = (
        "shares of the engines' time; training: share of its time in which the update runs; off-policy: trained tokens "
        "of older weights; age: of a token, in updates"
    )
    table.caption_justify = "left"
    return table


def _cores(scenario: Scenario) -> Table:
    found = scenario.sized
    title = f"By environment cores, staleness {min(scenario.staleness)}"
    table = Table(title=title, title_justify="left", box=None, header_style="bold")
    for column in ("cores", "iteration, s", "slower by"):
        table.add_column(column, justify="right")
    for cores, seconds in found.tried.items():
        mark = " (enough)" if cores == found.cores else ""
        table.add_row(f"{cores:,}{mark}", f"{seconds:,.1f}", f"{seconds / found.unlimited.iteration - 1:.1%}")
    return table


def _servers(scenario: Scenario) -> str:
    found = scenario.sized
    rate, busy = found.outcome.steps_per_second, found.outcome.cores_busy
    one = "core feeds" if found.cores == 1 else "cores feed"
    return (
        f"\n{found.cores:,} environment {one} {scenario.fleet.engines:,} engines ({rate:,.0f} steps/s, {busy:.1%} "
        f"busy); servers: {found.servers} ({found.servers_for_cores} by cores, {found.servers_for_memory} by the "
        f"memory of {scenario.sessions:,} sessions).\n"
    )


def _failing(outcomes: Mapping[int, Outcome], sound: Mapping[int, Outcome]) -> Table:
    table = Table(title="What failures cost", title_justify="left", box=None, header_style="bold")
    for column in ("k", "iteration, s", "without", "slower by", "again", "failed", "repeated training"):
        table.add_column(column, justify="right")
    for k, outcome in outcomes.items():
        without = sound[k].iteration
        table.add_row(
            str(k), f"{outcome.iteration:,.1f}", f"{without:,.1f}", f"{outcome.iteration / without - 1:.1%}",
            f"{outcome.redispatched:.1f}", f"{outcome.failed:.2f}", f"{outcome.outage:.1%}",
        )  # fmt: skip
    table.caption = "again, failed: episodes of an update that were dispatched again, that failed twice"
    table.caption_justify = "left"
    return table
