"""What a run writes: the metrics of each iteration, its evaluations, and ``summary.json``."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import yaml
from accelerate import Accelerator
from transformers import PreTrainedTokenizerBase

from envsuite.core import TaskSet
from trainers.report.events import read_events
from trainers.report.stats import EvalResult, interval
from trainers.rollout.config import EnvConfig
from trainers.run.config import TrainConfig
from trainers.run.event_log import EventLog
from trainers.run.features.alarms.watch import Alarms
from trainers.run.features.tracking.trackers import Trackers
from trainers.run.folder import RunFolder
from trainers.run.rollouts import check_episodes

if TYPE_CHECKING:
    from trainers.run.assembly import Run


def open_records(
    config: TrainConfig, accelerator: Accelerator, tokenizer: PreTrainedTokenizerBase
) -> tuple[RunFolder, Trackers, EventLog, Alarms]:
    """Where a run writes, and the alarms that watch what is written.

    Raises:
        ConfigError: A tracker or the webhook cannot be used.
    """
    folder = RunFolder(Path(config.output) / config.name, accelerator, tokenizer)
    events = EventLog(folder.path, config.name, config.alarms.webhook, accelerator.is_main_process)
    return folder, Trackers(config, accelerator, folder), events, Alarms(config.alarms)


def earlier_prompts(config: TrainConfig) -> dict[str, Any]:
    """Returns the settings of prompts of the run that is in the folder already, if any."""
    file = Path(config.output) / config.name / "config.yaml"
    settings = yaml.safe_load(file.read_text(encoding="utf-8")) if file.is_file() else None
    return (settings or {}).get("prompt") or {}


def record(run: Run, metrics: Mapping[str, float]) -> None:
    """Tells the alarms that this iteration's metrics raise, writes a line of them, and gives it to the trackers.

    Raises:
        DataError: It cannot be written (disk full).
    """
    iteration = run.counters.iteration
    if "train/row_cost" in metrics and not run.cost_is_told:
        run.cost_is_told = True
        tokens, times = f"{metrics['train/computed_tokens']:,.0f}", f"{metrics['train/row_cost']:.2f}"
        run.progress.message(f"row by row, the update computed {tokens} tokens, {times} times those of a tree")
    for event in run.alarms(iteration, metrics):
        run.tell(event)
    metrics = {**metrics, "alarms/standing": float(len(run.alarms.standing))}
    run.folder.write_metrics(iteration, metrics)
    run.trackers.log(iteration, metrics)


def evaluation_is_due(run: Run) -> bool:
    """Whether it is time for an evaluation between the first and the last."""
    iteration, every = run.counters.iteration, run.config.evaluation.every
    return 0 < every and iteration < run.config.iterations and not iteration % every


def evaluate(run: Run, name: str) -> None:
    """Measures on every environment of the evaluation, unless the run has measured these weights already."""
    counters = run.counters
    if any(result.policy_version == run.updater.steps for result in counters.evaluations):
        return
    results: list[EvalResult] = []
    run.rollouts.settle()
    for number, env in enumerate(run.config.evaluation.envs):
        began, what = time.perf_counter(), f"evaluation on {env.split}"
        run.sync()
        episodes = run.stop.phase(what, len(run.evaluator.plans[number]), partial(run.evaluator.play, number))
        check_episodes(run.accelerator, episodes, what)
        results.append(run.evaluator.result(name, number, episodes, time.perf_counter() - began))
        run.progress.message(f"{name}: success {interval(results[-1].all)} % on {env.id}, {env.split}")
        suffix = "" if number == 0 else f"-{number}"
        run.folder.write_episodes(f"eval-{counters.iteration:05d}{suffix}", episodes)
    counters.evaluations += results
    if results:
        record(run, results[0].metrics())
    write_summary(run)


def write_summary(run: Run) -> None:
    """Writes ``summary.json``: what was run, and the results so far."""
    config = run.config
    envs: list[tuple[str, Sequence[TaskSet], Sequence[EnvConfig]]] = [
        ("training", run.tasks, config.envs), ("evaluation", run.evaluator.tasks, config.evaluation.envs)
    ]  # fmt: skip
    run.folder.write_summary({
        "name": config.name,
        "seed": config.seed,
        "processes": run.accelerator.num_processes,
        "device": str(run.accelerator.device),
        "threads": torch.get_num_threads(),
        "model": {
            "path": config.model.path,
            "parameters": sum(p.numel() for p in run.model.parameters()),
            "trained": sum(p.numel() for p in run.model.parameters() if p.requires_grad),
        },
        "tasks": [
            {**tasks.summary(), "use": use, "split": env.split}
            for use, sets, configs in envs
            for tasks, env in zip(sets, configs, strict=True)
        ],
        "evaluations": [result.to_json() for result in run.counters.evaluations],
        "optimizer_steps": run.updater.steps,
        "tokens": run.counters.tokens,
        "wall_s": run.counters.seconds,
        "events": [asdict(event) for event in read_events(run.folder.path)],
    })  # fmt: skip
