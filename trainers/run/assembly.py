"""A run, assembled from its settings: folder, counters, and the parts that a checkpoint holds."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from transformers import PreTrainedModel

from envsuite.core.errors import DataError
from envsuite.playing.activity import ACTIVITY
from envsuite.playing.step import Episode
from envsuite.prompting import TemplateRenderer
from envsuite.remote.places import News
from trainers.credit.crediting import Crediting, make_providers
from trainers.credit.hindsight import HindsightPrompts
from trainers.credit.method import Method
from trainers.credit.spear.self_imitation import SelfImitation
from trainers.gateway.managers import check_agent, manager_of
from trainers.policy.adapter import is_adapted, keep_reference, merged_weights
from trainers.policy.loading import load_model, load_outline, load_tokenizer, model_settings
from trainers.policy.loss import Objective
from trainers.policy.model import Policy, stop_ids
from trainers.policy.optimizer import ShardedOptimizerState, make_optimizer
from trainers.policy.rows import rows_reason
from trainers.policy.sharding import each_whole, is_sharded, shard, spreads
from trainers.policy.stateful import OptimizerState, Stateful
from trainers.policy.tree import one_token
from trainers.policy.update import Updater
from trainers.pool import Pool
from trainers.processes.cpu import keep_freed_memory
from trainers.processes.distributed import data_parallel, first_value, on_main, sharing_failures
from trainers.report.events import RunEvent, read_events, write_event
from trainers.report.stats import EvalResult
from trainers.rollout.engine import EngineSetup, longest_sequence
from trainers.rollout.engines import start_engine
from trainers.rollout.environments import (
    check_milestones,
    check_prompts,
    check_snapshots,
    check_vocabulary,
    ends_of,
    make_manager,
    prompt_file_of,
    sampling_of,
    tasks_of,
    with_day,
)
from trainers.rollout.limits import check_images, check_limits
from trainers.rollout.sampler import TaskPool, TaskSampler
from trainers.run import checkpoint
from trainers.run.alarms import Alarms
from trainers.run.asynchronous.pool import GroupPool
from trainers.run.asynchronous.rollouts import AsynchronousRollouts
from trainers.run.boundary import Boundary
from trainers.run.cli import dump
from trainers.run.config import TrainConfig
from trainers.run.counters import Counters
from trainers.run.evaluation import Evaluator, evaluation_slots
from trainers.run.event_log import EventLog
from trainers.run.examples import examples_of
from trainers.run.folder import RunFolder
from trainers.run.origin import prompt_settings
from trainers.run.pooled import EpisodeStore, PooledRollouts
from trainers.run.progress import RunProgress
from trainers.run.random_state import RandomState
from trainers.run.rollouts import (
    RolloutSource,
    SynchronousRollouts,
    branching,
    check_episodes,
    training_factory,
    training_slots,
)
from trainers.run.stopping import Stopping
from trainers.run.tracking import Trackers
from trainers.settings import ConfigError
from trainers.steps.columns import HINDSIGHT, PLANNED, REFERENCE

_LOG = logging.getLogger(__name__)


class Run:
    """The parts of a run that the loop works with.

    Args:
        config: All settings.
        accelerator: The run's accelerator.
        progress: Display.

    Raises:
        ConfigError: A setting cannot work, with these environments or this number of processes.
        DataError: The model cannot be loaded.
    """

    def __init__(self, config: TrainConfig, accelerator: Accelerator, progress: RunProgress) -> None:
        self.config, self.accelerator, self.progress = config, accelerator, progress
        rollout, method, ranks = config.rollout, config.method, accelerator.num_processes
        if rollout.tasks % ranks:
            raise ConfigError(
                f"rollout.tasks is {rollout.tasks}, which {ranks} processes cannot share evenly; "
                f"make it a multiple of {ranks}"
            )
        if config.model.shard != "none" and ranks == 1:
            _LOG.warning("model.shard is %s, but the run has one process, which shards nothing", config.model.shard)
        set_seed(config.seed)
        self.stop, self.counters = Stopping(accelerator, progress), Counters()
        progress.stage("loading tasks")
        self.tasks = [tasks_of(env, f"envs[{i}]") for i, env in enumerate(config.envs)]
        envs = {f"envs[{i}]": env for i, env in enumerate(config.envs)}
        if method.milestones is not None:
            for key, env in envs.items():
                check_milestones(env, key, method.milestones.of)
        check_images(envs, config.model, config.prompt, rollout, method.replay is not None)
        for setting in branching(config):
            for key, env in envs.items():
                check_snapshots(env, key, setting)
        self.sampler = TaskSampler(
            [TaskPool(tasks.ids(env.split), env.weight) for tasks, env in zip(self.tasks, config.envs, strict=True)],
            config.seed,
        )

        progress.stage("loading the model")
        if config.rollout.agent is not None:
            check_agent(config.rollout.agent)
        self.tokenizer = load_tokenizer(config.model)
        file = Path(config.output) / config.name / "config.yaml"
        earlier = (yaml.safe_load(file.read_text(encoding="utf-8")) or {}) if file.is_file() else {}
        config = replace(config, prompt=with_day(config.prompt, self.tokenizer, earlier.get("prompt") or {}))
        self.config = config
        codec = check_prompts(config.prompt, self.tokenizer)
        for i, env in enumerate(config.envs):
            check_vocabulary(env, f"envs[{i}]", self.tokenizer)
        budget, shape = config.optim.tokens_per_microbatch, model_settings(config.model)
        credit_method, hindsight = Method.of(method), None
        needs = set(credit_method.estimator.needs)
        if HINDSIGHT in needs:
            render = TemplateRenderer(self.tokenizer, config.prompt.template_arguments)
            hindsight = HindsightPrompts.of(render, codec, longest_sequence(shape))
        more = 0 if hindsight is None else hindsight.most_tokens
        check_limits(config.model.path, shape, config.prompt, rollout, budget, more)
        self.folder = RunFolder(Path(config.output) / config.name, accelerator, self.tokenizer)
        self.trackers = Trackers(config, accelerator, self.folder, self.tokenizer)
        self.tell = EventLog(self.folder.path, config.name, config.alarms.webhook, accelerator.is_main_process)
        self.alarms = Alarms(config.alarms)
        policy, structure = self._load_policy(config.model.routing == "replay")
        self.model = policy.model
        if (reason := rows_reason(self.model)) is not None:
            progress.message(f"{config.model.path} is trained row by row, not in a tree of tokens: {reason}")

        recompute = config.optim.recomputes(config.model.compute_dtype, rollout.engine, rollout.staleness)
        providers = make_providers(
            method, credit_method.estimator, accelerator=accelerator, policy=policy, model=config.model,
            optim=config.optim, reference=self._reference(policy), hindsight=hindsight, seed=config.seed,
            tokenizer=self.tokenizer, lowercase=config.prompt.lowercase, recompute=recompute,
        )  # fmt: skip
        if needs.intersection(PLANNED) and not config.prompt.plan:
            _LOG.warning("%s reads plans, but prompt.plan is false: each episode is one segment", method.estimator)
        first_only = recompute and config.optim.is_one_step  # ratios of 1
        if config.model.compute_dtype == "bfloat16" and method.objective.clips_within_rounding and not first_only:
            _LOG.warning(
                "method.objective: clip_low %s and clip_high %s bound ratios of whole steps more closely than "
                "bfloat16 rounds, which alone may clip them; watch train/clip_fraction, or set compute_dtype: float32",
                method.objective.clip_low, method.objective.clip_high,
            )  # fmt: skip
        self.crediting = Crediting(credit_method, accelerator, providers, [env.id for env in config.envs])
        self.replay: SelfImitation | None = None
        if method.replay is not None:
            compares = method.objective.kl != "none"
            scorer = next((part for part in providers if compares and REFERENCE in part.supplies), None)
            self.replay = SelfImitation(method.replay, accelerator, config.seed, scorer)

        ends = stop_ids(self.model, self.tokenizer, ends_of(config.prompt, self.tokenizer, codec))
        self.slots = min(rollout.slots, max(training_slots(config, ranks), evaluation_slots(config, ranks)))
        """Most episodes that this process plays at a time."""
        setup = EngineSetup(self.model, self.tokenizer, config.model, self.slots, accelerator, structure)
        rollout, self.engine = start_engine(rollout, setup, progress.message)
        self.config = config = replace(config, rollout=rollout)
        from_pool = config.pool is not None and config.pool.take is not None
        if policy.balance_coef and (from_pool or not self.engine.records_experts):
            reason = "pool.take is set, and a pool" if from_pool else f"the engine {rollout.engine}"
            raise ConfigError(
                f"model.balance_coef is {policy.balance_coef} (null takes the model's own), but {reason} does not tell "
                f"the experts of {config.model.path}; set model.balance_coef: 0"
            )
        if policy.replay and not self.engine.records_experts:
            raise ConfigError(
                f"model.routing is replay, but the engine hf samples {config.model.path} with transformers' cache, and "
                "does not tell its experts there; set model.routing: own"
            )
        module, optimizer = self._prepare_policy(policy)
        self.updater = Updater(
            accelerator, module, optimizer, config.optim, Objective.of(method.objective), iterations=config.iterations,
            recompute=recompute,
        )  # fmt: skip
        self.evaluator = Evaluator(config, accelerator, self.engine, self.tokenizer, ends)
        self.pool = None if not rollout.staleness else GroupPool(accelerator, rollout.tasks, rollout.staleness)
        self.rollouts = self._rollouts(ends)

        self.parts: dict[str, Stateful] = {
            "optimizer": (ShardedOptimizerState if is_sharded(policy) else OptimizerState)(module, optimizer),
            "updater": self.updater,
            "sampler": self.sampler,
            "method": self.crediting,
            **{part.name: part for provider in providers for part in provider.parts},
            **({} if self.replay is None else {"replay": self.replay}),
            **({} if self.pool is None else {"pool": self.pool}),
            **({"taken": self.rollouts} if isinstance(self.rollouts, PooledRollouts) else {}),
            "random": RandomState(accelerator),
            "counters": self.counters,
            "alarms": self.alarms,
        }
        """Parts of a checkpoint besides the policy's weights, by name."""
        self._saved: tuple[int, ...] | None = None
        self._tells_cost = True
        self._servers: dict[tuple[str, str], bool] = {}
        """Whether each server that there was news of is here, by its address and what it serves."""
        self.boundary = Boundary(self.parts, lambda: self.updater.begun_steps, accelerator.num_processes == 1)

    def _rollouts(self, ends: Sequence[int]) -> RolloutSource:
        """The episodes of the iterations, played as ``rollout.staleness`` says."""
        config, rollout = self.config, self.config.rollout
        common = (config, self.accelerator, self.sampler, self.crediting.informative, self.counters, self.stop)
        if config.pool is not None and config.pool.take is not None:
            return PooledRollouts(*common, Pool(config.pool.folder), config.pool.take)
        sampling = sampling_of(rollout.sampling, ends)
        slots = training_slots(config, self.accelerator.num_processes)
        examples = [examples_of(env, config.prompt) for env in config.envs]
        parts = (rollout, config.prompt, config.envs, slots, self.engine, self.tokenizer, examples)
        factory = training_factory(config.method)
        if self.pool is None:
            rank, ranks = self.accelerator.process_index, self.accelerator.num_processes
            store = None if config.pool is None else EpisodeStore(config.pool, config.name, ranks)
            player = manager_of(*parts, factory, bool(branching(config)), rank)
            return SynchronousRollouts(*common, player, sampling, self.sync, store=store)
        pool, seed = self.pool, config.seed + 1
        turns = make_manager(*parts, factory).open(sampling, seed, lambda _, episode, __: pool.enter(episode))
        return AsynchronousRollouts(*common, pool, turns, self.sync, lambda: self.updater.steps)

    def _policy(self, model: PreTrainedModel, replay: bool = False) -> Policy:
        """The model as a policy whose log-probabilities are those of the distribution that is sampled from."""
        temperature, dtype = self.config.rollout.sampling.temperature, self.config.model.compute_dtype
        coefficient = self.config.model.balance_coef
        return Policy(model, temperature=temperature, compute_dtype=dtype, replay=replay, balance_coef=coefficient)

    def _load_policy(self, replay: bool) -> tuple[Policy, PreTrainedModel | None]:
        """The policy on its device, and where it is sharded its model without weights, as it was before."""
        config, accelerator = self.config, self.accelerator
        keeps = config.method.needs_reference
        if not spreads(config.model, accelerator):
            model = load_model(config.model)
            policy = self._policy(model.to(accelerator.device), replay)
            if accelerator.device.type == "cpu":
                keep_freed_memory()
            if keeps and is_adapted(model):
                keep_reference(model)
            return policy, None
        outline = load_outline(config.model)
        policy = self._policy(outline.model, replay)
        if keeps and is_adapted(outline.model):
            keep_reference(outline.model)
        structure = deepcopy(outline.model)
        shard(policy, config.model, accelerator, outline.weights)
        return policy, structure

    def _reference(self, policy: Policy) -> Policy | None:
        """The model that the run starts from, where the method compares with it; ``policy`` itself under an adapter."""
        if not self.config.method.needs_reference:
            return None
        if is_adapted(self.model):
            return policy
        if not spreads(self.config.model, self.accelerator) or self.config.method.reference != "device":
            return self._policy(load_model(self.config.model).requires_grad_(False))
        outline = load_outline(self.config.model)
        reference = self._policy(outline.model.requires_grad_(False))
        shard(reference, self.config.model, self.accelerator, outline.weights)
        return reference

    def _prepare_policy(self, policy: Policy) -> tuple[nn.Module, torch.optim.Optimizer]:
        """The policy as it is trained, sharded or a copy in each process, and its optimiser."""
        config, accelerator = self.config, self.accelerator
        optimizer = make_optimizer(policy.parameters(), config.optim)
        if is_sharded(policy):
            return policy, accelerator.prepare(optimizer)
        return data_parallel(accelerator, policy, optimizer, lambda: policy(one_token()).logprob)

    def sync(self) -> None:
        """Give the engine the policy's weights; a run that was resumed and one that went on then sample the same."""
        with ACTIVITY.waiting(f"the engine to take the weights of version {self.updater.steps}", "sync"):
            self.engine.sync(each_whole(merged_weights(self.model)), self.updater.steps)

    def critic_warmup(self, iteration: int) -> bool:
        """Whether the critic alone is trained in this iteration (from 1)."""
        critic = self.config.method.critic
        return critic is not None and iteration <= critic.warmup

    def out_of_time(self) -> bool:
        """Whether the run has lasted longer than it may; the same in all processes."""
        limit = self.config.time_limit
        return first_value(self.accelerator, limit is not None and self.counters.seconds > 60.0 * limit)

    def evaluation_is_due(self) -> bool:
        """Whether it is time for an evaluation between the first and the last."""
        iteration, every = self.counters.iteration, self.config.evaluation.every
        return 0 < every and iteration < self.config.iterations and not iteration % every

    def record(self, metrics: Mapping[str, float], episodes: Sequence[Episode] = ()) -> None:
        """Tells the alarms that this iteration's metrics raise, writes a line of them, and gives it to the trackers.

        Args:
            metrics: Values by their names.
            episodes: Episodes of which trackers may show the first.

        Raises:
            DataError: It cannot be written (disk full).
        """
        if self._tells_cost and "train/row_cost" in metrics:
            self._tells_cost = False
            tokens, times = f"{metrics['train/computed_tokens']:,.0f}", f"{metrics['train/row_cost']:.2f}"
            self.progress.message(f"row by row, the update computed {tokens} tokens, {times} times those of a tree")
        for event in self.alarms(self.counters.iteration, metrics):
            self.tell(event)
        metrics = {**metrics, "alarms/standing": float(len(self.alarms.standing))}
        self.folder.write_metrics(self.counters.iteration, metrics)
        self.trackers.log(self.counters.iteration, metrics, episodes)

    def note(self, news: News) -> None:
        """Writes into the file of events that a server has joined or left; once, however many parts say so."""
        if not self.accelerator.is_main_process or self._servers.get((news.url, news.serves)) == news.joined:
            return
        self._servers[news.url, news.serves] = news.joined
        try:
            write_event(self.folder.path, RunEvent("server", self.counters.iteration, str(news), asdict(news)))
        except DataError as error:
            _LOG.warning("%s", error)

    def evaluate(self, name: str) -> None:
        """Measure on every environment of the evaluation, unless the run has measured these weights already."""
        if any(result.policy_version == self.updater.steps for result in self.counters.evaluations):
            return
        results: list[EvalResult] = []
        self.rollouts.settle()
        for number, env in enumerate(self.config.evaluation.envs):
            began, what = time.perf_counter(), f"evaluation on {env.split}"
            self.sync()
            episodes = self.stop.phase(what, len(self.evaluator.plans[number]), partial(self.evaluator.play, number))
            check_episodes(self.accelerator, episodes, what)
            results.append(self.evaluator.result(name, number, episodes, time.perf_counter() - began))
            suffix = "" if number == 0 else f"-{number}"
            self.folder.write_episodes(f"eval-{self.counters.iteration:05d}{suffix}", episodes)
        self.counters.evaluations += results
        if results:
            self.record(results[0].metrics())
        self.write_summary()

    def write_summary(self) -> None:
        """Writes ``summary.json``: what was run, and the results so far."""
        config = self.config
        envs = [("training", self.tasks, config.envs), ("evaluation", self.evaluator.tasks, config.evaluation.envs)]
        self.folder.write_summary({
            "name": config.name,
            "seed": config.seed,
            "processes": self.accelerator.num_processes,
            "device": str(self.accelerator.device),
            "threads": torch.get_num_threads(),
            "model": {
                "path": config.model.path,
                "parameters": sum(p.numel() for p in self.model.parameters()),
                "trained": sum(p.numel() for p in self.model.parameters() if p.requires_grad),
            },
            "tasks": [
                {**tasks.summary(), "use": use, "split": env.split}
                for use, sets, configs in envs
                for tasks, env in zip(sets, configs, strict=True)
            ],
            "evaluations": [result.to_json() for result in self.counters.evaluations],
            "optimizer_steps": self.updater.steps,
            "tokens": self.counters.tokens,
            "wall_s": self.counters.seconds,
            "events": [asdict(event) for event in read_events(self.folder.path)],
        })  # fmt: skip

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def open(self, resume: str | None) -> None:
        """Prepare the run folder, and restore a checkpoint where ``resume`` asks for it."""
        self.folder.check_shared()
        settings = dump(self.config)
        if resume is None:
            self.folder.begin(settings)
            self._keep_prompt_file()
            self.trackers.begin(yaml.safe_load(settings), [], 0)
            return
        with sharing_failures(self.accelerator):
            main = self.accelerator.is_main_process
            choice = str(checkpoint.choose_checkpoint(self.folder.checkpoints, resume)) if main else ""
        folder = Path(first_value(self.accelerator, choice))
        changes = checkpoint.load(folder, self.accelerator, self.model, self.parts, self.common_settings())
        iteration = self.counters.iteration
        self.counters.metrics_lines = self.folder.mend_metrics(self.counters.metrics_lines, iteration)
        lines = self.folder.read_metrics()
        self.folder.go_on(iteration, settings, self.counters.metrics_lines)
        self._keep_prompt_file()
        self.trackers.begin(yaml.safe_load(settings), lines, self.counters.metrics_lines)
        self.progress.resume_at(iteration)
        self.progress.message(f"resuming after iteration {iteration} from {folder}")
        if changes:
            self.progress.message(f"changed since that checkpoint, which changes results by rounding: {changes}")

    def _keep_prompt_file(self) -> None:
        """Writes the text of the prompt file, which the settings only name, into the run's folder."""
        if (file := prompt_file_of(self.config.prompt)) is not None:
            self.folder.write("prompt.jinja", file.source.encode())

    def common_settings(self) -> dict[str, Any]:
        """The settings that a checkpoint and a run that goes on from it have in common; a prompt file by its text."""
        settings: dict[str, Any] = yaml.safe_load(dump(self.config))
        return {**settings, "prompt": prompt_settings(self.config.prompt)}

    def save(self, anew: bool = False) -> Path:
        """Write a checkpoint of the present state, unless the last one is of the same; returns its folder.

        Args:
            anew: Write it in any case.
        """
        counters, root = self.counters, self.folder.checkpoints
        folder = checkpoint.folder_of(root, counters.iteration)
        present = (counters.iteration, len(counters.evaluations), self.rollouts.progress())
        if self._saved == present and not anew:
            return folder
        began = time.perf_counter()
        self.progress.stage("checkpoint")
        counters.metrics_lines = self.folder.metrics_lines
        facts = {"iteration": counters.iteration, "config": self.common_settings()}
        checkpoint.save(folder, self.accelerator, self.model, self.tokenizer, self.parts, facts)
        best, keep, before = self.config.alarms.goes_back, self.config.keep_checkpoints, self.alarms.since
        find_best = self.folder.best_checkpoint
        on_main(self.accelerator, lambda: checkpoint.prune(root, keep, find_best(before) if best else None))
        self.write_summary()
        self._saved = present
        _LOG.info("checkpoint of iteration %d written in %.1f s", counters.iteration, time.perf_counter() - began)
        return folder
