"""A run, assembled from its settings."""

from __future__ import annotations

import logging
from dataclasses import replace

from accelerate import Accelerator
from accelerate.utils import set_seed

from envsuite.playing.activity import ACTIVITY
from trainers.policy.loss import Objective
from trainers.policy.stateful import Stateful
from trainers.policy.update import Updater
from trainers.rollout.engine import EngineSetup
from trainers.rollout.engines import start_engine
from trainers.rollout.sampler import TaskPool, TaskSampler
from trainers.run.boundary import Boundary
from trainers.run.checks import check_environments, check_experts, envs_by_key, load_prompting
from trainers.run.config import TrainConfig
from trainers.run.counters import Counters
from trainers.run.credit import make_crediting
from trainers.run.evaluation import Evaluator, slots_of
from trainers.run.policy import RunPolicy
from trainers.run.progress import RunProgress
from trainers.run.random_state import RandomState
from trainers.run.records import earlier_prompts, open_records
from trainers.run.sources import make_rollouts
from trainers.run.stopping import Stopping

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

    cost_is_told = False
    """Whether the cost of training row by row has been told, once there was one."""
    saved: tuple[int, ...] | None = None
    """What the last checkpoint is of (:func:`~trainers.run.saving.save`)."""

    def __init__(self, config: TrainConfig, accelerator: Accelerator, progress: RunProgress) -> None:
        self.accelerator, self.progress = accelerator, progress
        ranks = accelerator.num_processes
        if config.model.shard != "none" and ranks == 1:
            _LOG.warning("model.shard is %s, but the run has one process, which shards nothing", config.model.shard)
        set_seed(config.seed)
        self.stop, self.counters = Stopping(accelerator, progress), Counters()
        progress.stage("loading tasks")
        self.tasks = check_environments(config, ranks)
        pools = zip(self.tasks, config.envs, strict=True)
        self.sampler = TaskSampler(
            [TaskPool(tasks.ids(env.split), env.weight, tasks.types) for tasks, env in pools],
            config.seed,
            config.rollout.curricula.success,
        )

        progress.stage("loading the model")
        config, self.tokenizer, codec = load_prompting(
            config, envs_by_key("envs", config.envs), earlier_prompts(config)
        )
        self.folder, self.trackers, self.tell, self.alarms = open_records(config, accelerator, self.tokenizer)
        self.policy = RunPolicy(config, accelerator)
        self.model = self.policy.model
        if (reason := self.policy.rows_reason) is not None:
            progress.message(f"{config.model.path} is trained row by row, not in a tree of tokens: {reason}")
        recompute = config.optim.recomputes(config.model.compute_dtype, config.rollout.engine, config.rollout.staleness)
        self.crediting, self.replay = make_crediting(config, accelerator, self.policy, self.tokenizer, codec, recompute)

        ends = self.policy.stop_ids(self.tokenizer, codec)
        self.slots = slots_of(config, ranks)
        """Most episodes that this process plays at a time."""
        setup = EngineSetup(self.model, self.tokenizer, config.model, self.slots, accelerator, self.policy.structure)
        rollout, self.engine = start_engine(config.rollout, setup, progress.message)
        self.config = config = replace(config, rollout=rollout)
        check_experts(config, self.policy.policy, self.engine)
        module, optimizer, state = self.policy.prepare()
        objective, steps = Objective.of(config.method.objective), config.iterations
        self.updater = Updater(
            accelerator, module, optimizer, config.optim, objective, iterations=steps, recompute=recompute
        )
        self.evaluator = Evaluator(config, accelerator, self.engine, self.tokenizer, ends)
        self.rollouts = make_rollouts(self, ends)

        self.parts: dict[str, Stateful] = {
            "optimizer": state,
            "updater": self.updater,
            "sampler": self.sampler,
            "method": self.crediting,
            **self.crediting.parts,
            **({} if self.replay is None else {"replay": self.replay}),
            **self.rollouts.parts,
            "random": RandomState(accelerator),
            "counters": self.counters,
            "alarms": self.alarms,
        }
        """Parts of a checkpoint besides the policy's weights, by name."""
        self.boundary = Boundary(self.parts, lambda: self.updater.begun_steps, ranks == 1)

    def sync(self) -> None:
        """Give the engine the policy's weights; a run that was resumed and one that went on then sample the same."""
        with ACTIVITY.waiting(f"the engine to take the weights of version {self.updater.steps}", "sync"):
            self.engine.sync(self.policy.weights(), self.updater.steps)
