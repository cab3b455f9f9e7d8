"""The training loop: roll out, credit, update, measure, save."""

from __future__ import annotations

import logging
import os
import platform
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import orjson
import torch
import yaml
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object, set_seed

from envsuite.prompting import make_codec, make_memory
from envsuite.vector import make_vector
from trainers import checkpoint
from trainers.cli import dump, make
from trainers.config import ConfigError, TrainConfig
from trainers.estimators import ESTIMATORS, Advantage
from trainers.evaluate import Evaluation, Evaluator, factory_of, sampling_of, tasks_of
from trainers.metrics import MetricsWriter
from trainers.objectives import FILTERS, SHAPERS
from trainers.policy.model import Policy, load_policy, stop_ids
from trainers.progress import Progress
from trainers.report.stats import EvalResult
from trainers.rollout.hf_engine import HFEngine
from trainers.rollout.manager import EpisodePlan, RolloutManager
from trainers.rollout.sampler import TaskPool, TaskSampler
from trainers.steps import Episode, StepTable
from trainers.steps.parquet import write_episodes
from trainers.update import Updater

_LOG = logging.getLogger(__name__)


class Interrupted(Exception):
    """A signal asked the run to stop; a checkpoint has been written."""

    def __init__(self, signal_number: int, folder: Path) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name}; go on with --resume (checkpoint {folder})")
        self.exit_code = 128 + signal_number


class StopRequest:
    """Remembers SIGINT and SIGTERM until the next safe point; a second SIGINT interrupts at once."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __enter__(self) -> StopRequest:
        self._old = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal == number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number
        _LOG.warning("%s: stopping at the next safe point", signal.Signals(number).name)


@dataclass(frozen=True)
class Credit:
    """What an iteration's steps are trained with."""

    table: StepTable
    """Every step of this rank, rewards shaped."""
    advantage: Advantage
    keep: np.ndarray[Any, np.dtype[np.bool_]]
    """Rows that no filter left out."""


class Trainer:
    """One run, from its configuration.

    Args:
        config: All settings.
        accelerator: Knows the processes and devices.
        progress: Display.
    """

    def __init__(self, config: TrainConfig, accelerator: Accelerator, progress: Progress) -> None:
        self.config = config
        self.accelerator = accelerator
        self.progress = progress
        self.folder = Path(config.output) / config.name
        self.rank, self.ranks = accelerator.process_index, accelerator.num_processes
        if config.rollout.tasks % self.ranks:
            raise ConfigError(
                f"rollout.tasks is {config.rollout.tasks}, which {self.ranks} processes cannot share evenly; "
                f"make it a multiple of {self.ranks}"
            )
        set_seed(config.seed)
        progress.stage("loading the model")
        self.model, self.tokenizer = load_policy(config.model)
        method = config.method
        self.estimator = make(ESTIMATORS[method.estimator], method.options, "option")
        self.shapers = [make(SHAPERS[name], options, "option") for name, options in method.shapers.items()]
        self.filters = [FILTERS[name]() for name in method.filters]
        self.policy = Policy(self.model)
        reference = self._reference()
        optimizer = torch.optim.AdamW(
            self.policy.parameters(),
            lr=config.optim.lr,
            betas=config.optim.betas,
            weight_decay=config.optim.weight_decay,
        )
        wrapped, self.optimizer = accelerator.prepare(self.policy, optimizer)
        self.wrapped: torch.nn.Module = wrapped
        per_iteration = config.optim.epochs * config.optim.minibatches
        self.updater = Updater(
            accelerator, wrapped, self.optimizer, config.optim, method.objective, reference,
            total_steps=config.iterations * per_iteration,
        )  # fmt: skip
        options = {"think": config.prompt.think} if config.prompt.codec == "tags" else {}
        self.codec = make_codec(config.prompt.codec, **options)
        self.memory = make_memory(config.prompt.memory)
        self.stop_ids = stop_ids(self.model, self.tokenizer)
        if config.rollout.engine != "hf":
            raise ConfigError(f"rollout.engine {config.rollout.engine!r} cannot be trained with; use 'hf'")
        self.engine = HFEngine(self.model, max_batch=config.rollout.slots)
        progress.stage("loading tasks")
        self.tasks = [tasks_of(env) for env in config.envs]
        self.sampler = TaskSampler(
            [TaskPool(tasks.ids(env.split), env.weight) for tasks, env in zip(self.tasks, config.envs, strict=True)],
            config.seed,
        )
        self.evaluator = Evaluator(
            config.evaluation, config.rollout, accelerator, self.engine, self.tokenizer, self.codec, self.memory,
            self.stop_ids, config.seed, instructions=config.prompt.instructions,
        )  # fmt: skip
        self.vector = make_vector(
            [factory_of(env) for env in config.envs],
            config.rollout.slots,
            config.rollout.workers,
            config.rollout.deadline,
        )
        self.manager = RolloutManager(
            self.engine, self.vector, [env.id for env in config.envs], self.tokenizer, self.codec, self.memory,
            instructions=config.prompt.instructions,
        )  # fmt: skip
        self.evaluations: list[EvalResult] = []
        self.tokens_total = 0
        self.seconds = 0.0
        self.start = 0

    # -- the run -----------------------------------------------------------------------------------------------------

    def run(self, resume: str | None = None) -> list[EvalResult]:
        """Train; returns all evaluations.

        Args:
            resume: ``"auto"`` or the folder of a checkpoint to go on from; ``None`` starts anew.

        Raises:
            Interrupted: A signal stopped the run.
            CheckpointError: There is nothing to resume from, or it does not fit.
        """
        self._open(resume)
        began = time.perf_counter()
        iteration = self.start
        with StopRequest() as stop, self.vector:
            writer = MetricsWriter(self.folder / "metrics.jsonl") if self._main else None
            if writer is not None:
                writer.truncate_after(self.start)
            try:
                if not self.evaluations:
                    self._evaluate("before", 0, writer)
                while iteration < self.config.iterations and not self._out_of_time(began):
                    iteration += 1
                    self._iterate(iteration, writer)
                    every = self.config.evaluation.every
                    if every and iteration % every == 0 and iteration < self.config.iterations:
                        self._evaluate(f"iteration {iteration}", iteration, writer)
                    self.seconds += time.perf_counter() - began
                    began = time.perf_counter()
                    wanted = self._stop_wanted(stop)
                    if iteration % self.config.checkpoint_every == 0 or wanted is not None:
                        self._save(iteration)
                    if wanted is not None:
                        raise Interrupted(wanted, checkpoint.folder_of(self.folder / "checkpoints", iteration))
                if iteration > self.start or not any(result.name == "after" for result in self.evaluations):
                    self._evaluate("after", iteration, writer)
                self.seconds += time.perf_counter() - began
                self._save(iteration)
            finally:
                if writer is not None:
                    writer.close()
        return self.evaluations

    def _out_of_time(self, began: float) -> bool:
        limit = self.config.time_limit
        over: bool = limit is not None and self.seconds + time.perf_counter() - began > 60.0 * limit
        return bool(self._agree(over))

    def _agree(self, value: Any) -> Any:
        """The first process's value, in every process."""
        if self.ranks == 1:
            return value
        box = [value]
        broadcast_object_list(box)
        return box[0]

    def _stop_wanted(self, stop: StopRequest) -> int | None:
        if self.ranks == 1:
            return stop.signal
        return next((number for number in gather_object([stop.signal]) if number is not None), None)

    @property
    def _main(self) -> bool:
        return self.accelerator.is_main_process

    # -- one iteration -----------------------------------------------------------------------------------------------

    def _iterate(self, iteration: int, writer: MetricsWriter | None) -> None:
        began = time.perf_counter()
        size = self.config.rollout.group_size
        drawn = self.sampler.draw(self.config.rollout.tasks)
        first = (iteration - 1) * len(drawn)
        plans = [
            EpisodePlan((first + group) * size + member, first + group, env, task)
            for group, (env, task) in enumerate(drawn)
            if group % self.ranks == self.rank
            for member in range(size)
        ]
        self.progress.stage("rollout", len(plans))
        episodes = self.manager.run(
            plans, sampling_of(self.config.rollout.sampling, self.stop_ids), self.config.seed + 1, self._watcher()
        )
        rolled = time.perf_counter()
        credit = self._credit(episodes)
        rows = np.flatnonzero(credit.keep)
        credited = time.perf_counter()
        self.progress.stage("update")
        rng = np.random.default_rng([self.config.seed, iteration])
        kept = np.isin(credit.table.response.row_of, rows)
        update = self.updater.update(credit.table.take(rows), credit.advantage.tokens(credit.table)[kept], rng)
        self.engine.weights_changed(self.updater.steps)
        updated = time.perf_counter()
        metrics = self._metrics(episodes, credit, update)
        timing = self.manager.timing
        self.progress.stage("writing")
        if self.config.episodes_every and iteration % self.config.episodes_every == 0:
            self._write_episodes(f"iteration-{iteration:05d}", episodes, credit)
        metrics |= {
            "time/rollout": rolled - began,
            "time/engine": timing.engine,
            "time/env": timing.env,
            "time/codec": timing.codec,
            "time/estimator": credited - rolled,
            "time/update": updated - credited,
            "time/log": time.perf_counter() - updated,
            "time/total": time.perf_counter() - began,
            "rate/tokens": metrics["train/sampled"] / max(rolled - began, 1e-9),
            "rate/steps": metrics["train/all_steps"] / max(rolled - began, 1e-9),
        }
        for name in ("train/sampled", "train/all_steps"):
            metrics.pop(name)
        if writer is not None:
            writer.write(iteration, metrics)
        self.progress.iteration(iteration, metrics)

    def _credit(self, episodes: Sequence[Episode]) -> Credit:
        table = StepTable.from_episodes(episodes)
        for shaper in self.shapers:
            table = shaper(table)
        advantage = self.estimator(table)
        keep = np.ones(len(table), np.bool_)
        for filter_ in self.filters:
            keep &= filter_(table)
        return Credit(table, advantage, keep)

    def _metrics(self, episodes: Sequence[Episode], credit: Credit, update: dict[str, float]) -> dict[str, float]:
        sound = [episode for episode in episodes if episode.error is None]
        steps = [step for episode in sound for step in episode.steps]
        shaped = np.zeros(0) if not sound else np.bincount(
            np.unique(credit.table.episode_id, return_inverse=True)[1], credit.table.reward
        )  # fmt: skip
        returns: dict[int, set[float]] = {}
        for episode in sound:
            returns.setdefault(episode.group_id, set()).add(episode.total_reward)
        per_step = credit.advantage.per_step if credit.advantage.per_step is not None else np.zeros(0)
        sums = {
            "episodes": len(episodes), "failed": len(episodes) - len(sound), "sound": len(sound),
            "success": sum(episode.success for episode in sound), "score": sum(episode.score for episode in sound),
            "return": sum(episode.total_reward for episode in sound), "shaped": float(shaped.sum()),
            "steps": len(steps), "valid": sum(step.valid for step in steps),
            "parsed": sum(step.parse_error is None for step in steps),
            "prompt": sum(len(step.prompt_ids) for step in steps),
            "response": sum(len(step.response_ids) for step in steps),
            "cut": sum(step.finish_reason == "length" for step in steps),
            "horizon": sum(episode.truncated for episode in sound),
            "groups": len(returns), "flat": sum(len(values) == 1 for values in returns.values()),
            "kept": int(credit.keep.sum()), "update_tokens": update.pop("tokens"),
        }  # fmt: skip
        diagnostics = {f"diag/{name}": value for name, value in credit.advantage.diagnostics.items()}
        update = {f"train/{name}": value for name, value in update.items()}
        if self.ranks > 1:
            every = gather_object([sums])
            sums = {name: sum(part[name] for part in every) for name in sums}
            means = gather_object([{**diagnostics, **update}])
            diagnostics, update = (
                {k: float(np.mean([part[k] for part in means])) for k in d} for d in (diagnostics, update)
            )
        self.tokens_total += int(sums["response"])
        sound_n, steps_n = max(sums["sound"], 1), max(sums["steps"], 1)
        return {
            "train/success": sums["success"] / sound_n,
            "train/score": sums["score"] / sound_n,
            "train/return": sums["return"] / sound_n,
            "train/shaped_return": sums["shaped"] / sound_n,
            "train/valid_actions": sums["valid"] / steps_n,
            "train/parsed": sums["parsed"] / steps_n,
            "train/episode_length": sums["steps"] / sound_n,
            "train/prompt_length": sums["prompt"] / steps_n,
            "train/response_length": sums["response"] / steps_n,
            "train/response_cut": sums["cut"] / steps_n,
            "train/horizon": sums["horizon"] / sound_n,
            "train/episodes": sums["episodes"],
            "train/failed": sums["failed"],
            "train/groups": sums["groups"],
            "train/flat_groups": sums["flat"] / max(sums["groups"], 1),
            "train/steps": sums["kept"],
            "train/filtered": 1.0 - sums["kept"] / steps_n,
            "train/tokens": sums["update_tokens"],
            "train/tokens_total": float(self.tokens_total),
            "train/advantage_mean": float(per_step.mean()) if len(per_step) else 0.0,
            "train/advantage_std": float(per_step.std()) if len(per_step) else 0.0,
            "train/sampled": sums["response"],
            "train/all_steps": sums["steps"],
            **update,
            **diagnostics,
        }

    # -- what is left behind -----------------------------------------------------------------------------------------

    def _write_episodes(self, name: str, episodes: Sequence[Episode], credit: Credit | None = None) -> None:
        advantages: dict[tuple[int, int], float] = {}
        if credit is not None and credit.advantage.per_step is not None:
            keys = zip(credit.table.episode_id.tolist(), credit.table.t.tolist(), strict=True)
            advantages = dict(zip(keys, credit.advantage.per_step.tolist(), strict=True))
        if self.ranks > 1:
            pairs = gather_object([(list(episodes), advantages)])
            episodes = [episode for part, _ in pairs for episode in part]
            advantages = {key: value for _, part in pairs for key, value in part.items()}
        if not self._main:
            return
        text = self._text(episodes)
        write_episodes(self.folder / "episodes" / f"{name}.parquet", episodes, advantages or None, text)

    def _text(self, episodes: Sequence[Episode]) -> dict[tuple[int, int], tuple[str, str]]:
        """Prompt and response of every step, for reading."""
        steps = [(episode.episode_id, step) for episode in episodes for step in episode.steps]
        prompts = self.tokenizer.batch_decode([list(step.prompt_ids) for _, step in steps])
        responses = self.tokenizer.batch_decode([list(step.response_ids) for _, step in steps])
        return {
            (episode_id, step.t): (prompt, response)
            for (episode_id, step), prompt, response in zip(steps, prompts, responses, strict=True)
        }

    def _evaluate(self, name: str, iteration: int, writer: MetricsWriter | None) -> None:
        if not self.config.evaluation.envs:
            return
        metrics: dict[str, float] = {}
        for number, env in enumerate(self.config.evaluation.envs):
            self.progress.stage(f"evaluation on {env.split}", self.config.evaluation.episodes // self.ranks)
            found: Evaluation = self.evaluator.run(name, number, self._watcher())
            self.evaluations.append(found.result)
            metrics = metrics or found.result.metrics()
            suffix = "" if number == 0 else f"-{number}"
            if self._main:
                self._write_episodes_of_evaluation(f"eval-{iteration:05d}{suffix}", found)
        if writer is not None:
            writer.write(iteration, metrics)
        self._write_summary()

    def _write_episodes_of_evaluation(self, name: str, found: Evaluation) -> None:
        text = self._text(found.episodes)
        write_episodes(self.folder / "episodes" / f"{name}.parquet", found.episodes, None, text)

    def _write_summary(self) -> None:
        if not self._main:
            return
        body = {
            "name": self.config.name,
            "seed": self.config.seed,
            "versions": versions(),
            "processes": self.ranks,
            "device": str(self.accelerator.device),
            "threads": torch.get_num_threads(),
            "model": {"path": self.config.model.path, "parameters": sum(p.numel() for p in self.model.parameters())},
            "tasks": [
                {**tasks.summary(), "use": use, "split": env.split}
                for use, sets, envs in (
                    ("training", self.tasks, self.config.envs),
                    ("evaluation", self.evaluator.tasks, self.config.evaluation.envs),
                )
                for tasks, env in zip(sets, envs, strict=True)
            ],
            "evaluations": [result.to_json() for result in self.evaluations],
            "optimizer_steps": self.updater.steps,
            "tokens": self.tokens_total,
            "wall_s": self.seconds,
        }
        _replace(self.folder / "summary.json", orjson.dumps(body, option=orjson.OPT_INDENT_2))

    def _watcher(self) -> Any:
        seen = 0

        def watch(done: int, waiting: str) -> None:
            nonlocal seen
            self.progress.advance(done - seen, waiting)
            seen = done

        return watch

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def _open(self, resume: str | None) -> None:
        """Prepare the run folder; restore a checkpoint where ``resume`` asks for it."""
        root = self.folder / "checkpoints"
        if resume is None:
            if any(root.glob("iteration-*")):
                raise ConfigError(f"{self.folder} holds a run already; go on with --resume, or choose another --name")
            if self._main:
                for part in ("checkpoints", "episodes", "plots"):
                    (self.folder / part).mkdir(parents=True, exist_ok=True)
                _replace(self.folder / "config.yaml", dump(self.config).encode())
            self.accelerator.wait_for_everyone()
            return
        folder = checkpoint.newest(root) if resume == "auto" else Path(resume)
        if folder is None:
            raise checkpoint.CheckpointError(f"{root}: no checkpoint to resume from; start without --resume")
        saved = checkpoint.load(folder, self.model, self.wrapped, self.optimizer, yaml.safe_load(dump(self.config)))
        self.start = saved.iteration
        self.sampler.load_state_dict(saved.sampler)
        self.updater.steps = saved.optimizer_steps
        self.engine.weights_changed(saved.optimizer_steps)
        self.tokens_total = int(saved.counters["tokens"])
        self.seconds = float(saved.counters["seconds"])
        self.evaluations = [EvalResult.from_json(body) for body in saved.counters["evaluations"]]
        self.progress.message(f"resuming after iteration {self.start} from {folder}")

    def _save(self, iteration: int) -> None:
        began = time.perf_counter()
        self.progress.stage("checkpoint")
        root = self.folder / "checkpoints"
        if self._main:
            saved = checkpoint.Saved(
                iteration=iteration,
                optimizer_steps=self.updater.steps,
                config=yaml.safe_load(dump(self.config)),
                sampler=self.sampler.state_dict(),
                counters={
                    "tokens": self.tokens_total,
                    "seconds": self.seconds,
                    "evaluations": [result.to_json() for result in self.evaluations],
                },
            )
            checkpoint.save(
                checkpoint.folder_of(root, iteration), self.model, self.wrapped, self.tokenizer, self.optimizer, saved
            )
            checkpoint.prune(root, self.config.keep_checkpoints)
            self._write_summary()
        self.accelerator.wait_for_everyone()
        _LOG.info("checkpoint of iteration %d written in %.1f s", iteration, time.perf_counter() - began)

    def _reference(self) -> Policy | None:
        if self.config.method.objective.kl == "none":
            return None
        model, _ = load_policy(self.config.model)
        model.requires_grad_(False)
        model.to(self.accelerator.device)  # type: ignore[arg-type]
        return Policy(model)


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that results depend on."""
    names = ("envsuite", "torch", "transformers", "accelerate", "gymnasium", "numpy", "minecraft-data")
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _replace(path: Path, content: bytes) -> None:
    """Write a file so that either the old or the whole new one is there."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(content)
    os.replace(partial, path)
