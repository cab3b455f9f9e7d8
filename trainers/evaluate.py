"""Measuring success on tasks that are not trained on.

``python -m trainers.evaluate --config FILE --model.path CHECKPOINT`` measures a checkpoint, or any other model.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import gymnasium
import orjson
from accelerate import Accelerator

from envsuite.core import TaskSet, ToolEnv
from envsuite.core.errors import EnvsuiteError
from envsuite.prompting import ChatTokenizer, make_codec, make_memory
from envsuite.vector import EnvFactory, make_vector
from trainers.cli import EVALUATE, parse
from trainers.config import ConfigError, EnvConfig, SamplingConfig, TrainConfig
from trainers.policy.model import load_policy, stop_ids
from trainers.processes import every, guarded, make_accelerator
from trainers.report.stats import EvalResult, evaluate_summary
from trainers.rollout.engine import Engine, Sampling
from trainers.rollout.hf_engine import HFEngine
from trainers.rollout.manager import EpisodePlan, RolloutManager, Watcher
from trainers.steps import Episode


def factory_of(env: EnvConfig) -> EnvFactory:
    """How a vector makes the environment."""
    horizon = {} if env.max_episode_steps is None else {"max_episode_steps": env.max_episode_steps}
    where = {} if env.url is None else {"url": env.url}
    return EnvFactory(env.id, {"split": env.split, **env.kwargs, **horizon, **where})


def tasks_of(env: EnvConfig, key: str) -> TaskSet:
    """The tasks of the environment, filtered as its arguments say.

    Args:
        env: The environment.
        key: Its place in the configuration, for the message.

    Raises:
        ConfigError: It cannot be made, or has no tasks; the message names the key.
    """
    try:
        made = factory_of(env).make()
    except (EnvsuiteError, gymnasium.error.Error, TypeError, ValueError, ImportError) as error:
        raise ConfigError(f"{key} ({env.id}): {error}") from error
    world = made.unwrapped
    if not isinstance(world, ToolEnv):
        raise ConfigError(f"{key}.id: {env.id} is no environment of tool calls ({type(world).__name__})")
    tasks = world.tasks
    made.close()
    if not tasks.ids(env.split):
        raise ConfigError(f"{key}: split {env.split!r} of {env.id} has no task left after {key}.kwargs.tasks")
    return tasks


def sampling_of(config: SamplingConfig, stop_ids: Sequence[int]) -> Sampling:
    """What the engine needs to know."""
    return Sampling(config.temperature, config.top_p, config.top_k, config.max_tokens, tuple(stop_ids))


def make_manager(
    config: TrainConfig, envs: Sequence[EnvConfig], slots: int, engine: Engine, tokenizer: ChatTokenizer
) -> RolloutManager:
    """A manager that plays ``envs``, at most ``slots`` episodes at a time; close its vector after use."""
    options = {"think": config.prompt.think} if config.prompt.codec != "tools" else {}
    vector = make_vector([factory_of(env) for env in envs], slots, config.rollout.workers, config.rollout.deadline)
    return RolloutManager(
        engine,
        vector,
        [env.id for env in envs],
        tokenizer,
        make_codec(config.prompt.codec, **options),
        make_memory(config.prompt.memory),
        instructions=config.prompt.instructions,
        commands=config.prompt.commands,
        episode_tokens=config.rollout.episode_tokens,
    )


@dataclass(frozen=True)
class Evaluation:
    """A result, and the episodes behind it that this process played."""

    result: EvalResult
    episodes: tuple[Episode, ...]


class Evaluator:
    """Plays the evaluation episodes of a run, spread over its processes.

    Task ``i`` of an environment is task ``i`` of its split, from the start again after the last one; so all
    evaluations of a run play the same tasks, with the same seeds.

    Args:
        config: Of the run.
        accelerator: Of the run.
        engine: Speaks for the policy.
        tokenizer: Of the policy.
        stop_ids: Tokens that end a response.
    """

    def __init__(
        self,
        config: TrainConfig,
        accelerator: Accelerator,
        engine: Engine,
        tokenizer: ChatTokenizer,
        stop_ids: Sequence[int],
    ) -> None:
        self.config = config
        self.accelerator = accelerator
        self.engine = engine
        self.tokenizer = tokenizer
        self.stop_ids = tuple(stop_ids)
        self.tasks = [tasks_of(env, f"evaluation.envs[{i}]") for i, env in enumerate(config.evaluation.envs)]

    def play(self, env: int, watch: Watcher | None = None) -> list[Episode]:
        """This process's share of the episodes of environment number ``env``."""
        chosen, settings = self.config.evaluation.envs[env], self.config.evaluation
        ids = self.tasks[env].ids(chosen.split)
        count, rank = self.accelerator.num_processes, self.accelerator.process_index
        plans = [EpisodePlan(i, i, 0, ids[i % len(ids)]) for i in range(settings.episodes)][rank::count]
        slots = max(1, min(self.config.rollout.slots, len(plans)))
        manager = make_manager(self.config, [chosen], slots, self.engine, self.tokenizer)
        with manager.vector:
            return manager.run(plans, sampling_of(settings.sampling, self.stop_ids), self.config.seed, watch)

    def result(self, name: str, env: int, episodes: Sequence[Episode], seconds: float) -> EvalResult:
        """The result over what all processes played; each must call this.

        Args:
            name: Of the evaluation, e.g. ``"before"``.
            env: Index of the environment.
            episodes: What this process played.
            seconds: How long it took.
        """
        together = [episode for part in every(self.accelerator, tuple(episodes)) for episode in part]
        return evaluate_summary(
            sorted(together, key=lambda episode: episode.episode_id),
            name=name,
            env_id=self.config.evaluation.envs[env].id,
            split=self.config.evaluation.envs[env].split,
            manifest_hash=self.tasks[env].hash,
            policy_version=self.engine.policy_version,
            temperature=self.config.evaluation.sampling.temperature,
            wall_s=seconds,
        )


def evaluate(config: TrainConfig, accelerator: Accelerator) -> list[EvalResult]:
    """Measure ``config.model.path`` on every environment of ``config.evaluation``.

    Raises:
        ConfigError: There is none, or one cannot be made.
        DataError: The model cannot be loaded.
    """
    if not config.evaluation.envs:
        raise ConfigError("evaluation.envs is empty; name what to measure success on")
    model, tokenizer = load_policy(config.model)
    model.to(accelerator.device)
    engine = HFEngine(model.train(False), max_batch=config.rollout.slots)
    evaluator = Evaluator(config, accelerator, engine, tokenizer, stop_ids(model, tokenizer))
    results = []
    for env in range(len(config.evaluation.envs)):
        began = time.perf_counter()
        episodes = evaluator.play(env)
        results.append(evaluator.result(config.model.path, env, episodes, time.perf_counter() - began))
    return results


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line: the results as JSON on standard output; returns the exit status."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    return guarded(lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    config = parse(arguments, EVALUATE).config
    accelerator = make_accelerator()
    results = evaluate(config, accelerator)
    if accelerator.is_main_process:
        body = [result.to_json() for result in results]
        sys.stdout.write(orjson.dumps(body, option=orjson.OPT_INDENT_2).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
