"""Measuring success on tasks that are not trained on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from accelerate import Accelerator
from accelerate.utils import gather_object

from envsuite.core import TaskSet
from envsuite.prompting import Codec, Memory
from envsuite.prompting.template import ChatTokenizer
from envsuite.vector import EnvFactory, make_vector
from trainers.config import EnvConfig, EvalConfig, RolloutConfig, SamplingConfig
from trainers.report.stats import EvalResult, evaluate_summary
from trainers.rollout.engine import Engine, Sampling
from trainers.rollout.manager import EpisodePlan, RolloutManager, Watcher
from trainers.steps import Episode


def factory_of(env: EnvConfig) -> EnvFactory:
    """How a vector makes the environment."""
    horizon = {} if env.max_episode_steps is None else {"max_episode_steps": env.max_episode_steps}
    return EnvFactory(env.id, {"split": env.split, **env.kwargs, **horizon})


def tasks_of(env: EnvConfig) -> TaskSet:
    """The tasks of the environment, filtered as its arguments say."""
    made = factory_of(env).make()
    tasks: TaskSet = made.unwrapped.tasks  # type: ignore[attr-defined]
    made.close()
    return tasks


def sampling_of(config: SamplingConfig, stop_ids: Sequence[int]) -> Sampling:
    """What the engine needs to know."""
    return Sampling(config.temperature, config.top_p, config.top_k, config.max_tokens, tuple(stop_ids))


@dataclass(frozen=True)
class Evaluation:
    """A result, and the episodes behind it."""

    result: EvalResult
    episodes: tuple[Episode, ...]


class Evaluator:
    """Plays the evaluation episodes of a run, spread over its processes.

    Task ``i`` of an environment is task ``i`` of its split, from the start again after the last one; so all
    evaluations of a run play the same tasks, with the same seeds.
    """

    def __init__(
        self,
        config: EvalConfig,
        rollout: RolloutConfig,
        accelerator: Accelerator,
        engine: Engine,
        tokenizer: ChatTokenizer,
        codec: Codec,
        memory: Memory,
        stop_ids: Sequence[int],
        seed: int,
        *,
        instructions: bool,
    ) -> None:
        self.config = config
        self.rollout = rollout
        self.accelerator = accelerator
        self.engine = engine
        self.tokenizer = tokenizer
        self.codec = codec
        self.memory = memory
        self.stop_ids = tuple(stop_ids)
        self.seed = seed
        self.instructions = instructions
        self.tasks = [tasks_of(env) for env in config.envs]

    def run(self, name: str, env: int, watch: Watcher | None = None) -> Evaluation:
        """Play the episodes of environment number ``env`` of the configuration."""
        chosen, tasks = self.config.envs[env], self.tasks[env]
        ids = tasks.ids(chosen.split)
        count, rank = self.accelerator.num_processes, self.accelerator.process_index
        plans = [EpisodePlan(i, i, 0, ids[i % len(ids)]) for i in range(self.config.episodes)][rank::count]
        began = time.perf_counter()
        slots = max(1, min(self.rollout.slots, len(plans)))
        with make_vector([factory_of(chosen)], slots, self.rollout.workers, self.rollout.deadline) as vector:
            manager = RolloutManager(
                self.engine,
                vector,
                [chosen.id],
                self.tokenizer,
                self.codec,
                self.memory,
                instructions=self.instructions,
            )
            sampling = sampling_of(self.config.sampling, self.stop_ids)
            episodes = manager.run(plans, sampling, self.seed, watch)
        if count > 1:
            episodes = sorted(gather_object(episodes), key=lambda episode: episode.episode_id)
        result = evaluate_summary(
            episodes,
            name=name,
            env_id=chosen.id,
            split=chosen.split,
            manifest_hash=tasks.hash,
            policy_version=self.engine.policy_version,
            temperature=self.config.sampling.temperature,
            wall_s=time.perf_counter() - began,
        )
        return Evaluation(result, tuple(episodes))
