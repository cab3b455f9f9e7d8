"""Counts how many of a model's answers are actions, before anything is trained."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, cast

from accelerate import Accelerator

from envsuite.core.errors import UsageError
from envsuite.core.escaping import raw
from envsuite.playing.episode import EpisodePlan
from envsuite.playing.step import Episode
from envsuite.prompting import CODECS, ChatTokenizer
from trainers.policy.adapter import merged_weights
from trainers.policy.loading import load_model, load_tokenizer
from trainers.policy.model import stop_ids
from trainers.rollout.config import EnvConfig, PromptConfig
from trainers.rollout.engine import EngineSetup
from trainers.rollout.engines import start_engine
from trainers.rollout.environments import codec_of, ends_of, make_manager, prompt_file_of, sampling_of, tasks_of
from trainers.run.config import TrainConfig
from trainers.run.examples import examples_of
from trainers.settings import ConfigError

_LOG = logging.getLogger(__name__)
_LONGEST_EXAMPLE = 300
"""Characters of an example that are shown."""


def prompts_by_codec(prompt: PromptConfig) -> dict[str, PromptConfig]:
    """Returns the settings of prompts with each codec in turn.

    A prompt file that does not show the codec's instructions has its own, which are those of ``prompt.codec``: then
    this is the only one.
    """
    file = prompt_file_of(prompt)
    if file is not None and "instructions" not in file.variables:
        return {prompt.codec: prompt}
    prompts: dict[str, PromptConfig] = {}
    for name in CODECS:
        rules = name in ("tags", "brackets")
        prompts[name] = replace(
            prompt,
            codec=cast(Any, name),
            lowercase=prompt.lowercase and rules,
            require_thought=prompt.require_thought and rules,
            plan=prompt.plan and rules,
            examples=0 if name == "native" else prompt.examples,
        )
    return prompts


def zero_shot(config: TrainConfig, accelerator: Accelerator, env: EnvConfig, answers: int, steps: int) -> Iterator[str]:
    """Yields the lines of a table: of the model's answers, how many each codec reads and the environment carries out.

    Answers are sampled as in training, in the first steps of episodes of the split's first tasks.

    Args:
        config: The run's settings.
        accelerator: Has the device.
        env: The environment.
        answers: Number of answers under each codec, to the next whole episode; fewer where episodes end early.
        steps: Maximum number of steps of an episode.

    Raises:
        DataError: The model cannot be loaded.
        ConfigError: Every episode failed.
    """
    tokenizer = load_tokenizer(config.model)
    model = load_model(config.model).requires_grad_(False)
    model.to(accelerator.device)
    ends = stop_ids(model, tokenizer)
    setup = EngineSetup(model, tokenizer, config.model, config.rollout.slots, accelerator)
    ids = tasks_of(env, env.id).ids(env.split)
    count = -(-answers // steps)
    plans = [EpisodePlan(number, number, 0, ids[number % len(ids)]) for number in range(count)]
    short = replace(env, max_episode_steps=min(steps, env.max_episode_steps or steps))
    sampling = sampling_of(config.rollout.sampling, ends)
    yield (
        f"answers of {config.model.path} in the first {steps} steps of {count} episodes of {env.id} ({env.split}), at "
        f"temperature {sampling.temperature:g}, at most {sampling.max_tokens} tokens each"
    )
    yield f"\n{'codec':<10}{'answers':>9}{'parsed':>9}{'valid':>9}{'ended':>9}{'tokens':>9}"
    examples: list[str] = []
    _, engine = start_engine(config.rollout, setup, _LOG.warning)
    with closing(engine):
        engine.sync(merged_weights(model), 0)  # a running server may have others
        codecs = prompts_by_codec(config.prompt)
        for name, prompt in codecs.items():
            slots = min(config.rollout.slots, count)
            try:
                shots = [examples_of(env, prompt)]
                manager = make_manager(config.rollout, prompt, [short], slots, engine, tokenizer, shots)
                stops = replace(sampling, stop_ids=(*ends, *ends_of(prompt, tokenizer, codec_of(prompt, tokenizer))))
                with manager.vector:
                    episodes = manager.run(plans, stops, config.seed, partial(_progress, name, count))
            except UsageError as error:
                yield f"{name:<10}  cannot be used with this model: {error}"
                continue
            yield _row(name, episodes)
            examples += _examples(name, episodes, tokenizer)
    yield from examples


def _progress(codec: str, count: int, ended: int, waiting: str) -> None:
    if sys.stderr.isatty():
        raw(sys.stderr).write(f"\r{codec}: {ended} of {count} episodes" + (" \r" if ended == count else ""))


def _row(codec: str, episodes: Sequence[Episode]) -> str:
    steps = [step for episode in episodes for step in episode.steps]
    if not steps:
        raise ConfigError(f"codec {codec}: every episode failed; the first one: {episodes[0].error}")
    outcomes = [(step.parse_error is None, step.valid, step.finish_reason == "stop") for step in steps]
    shares = "".join(f"{100 * sum(part) / len(steps):>7.1f} %" for part in zip(*outcomes, strict=True))
    tokens = sum(len(step.response_ids) for step in steps) / len(steps)
    return f"{codec:<10}{len(steps):>9}{shares}{tokens:>9.1f}"


def _examples(codec: str, episodes: Sequence[Episode], tokenizer: ChatTokenizer) -> list[str]:
    """Returns why answers could not be read, each reason with its number and its first answer."""
    refusals = [step for episode in episodes for step in episode.steps if step.parse_error is not None]
    lines = []
    for reason, number in Counter(step.parse_error for step in refusals).most_common(3):
        first = next(step for step in refusals if step.parse_error == reason)
        text = tokenizer.decode(first.response_ids.tolist(), skip_special_tokens=True)
        excerpt = text if len(text) <= _LONGEST_EXAMPLE else f"{text[:_LONGEST_EXAMPLE]} …"
        lines.append(f"\n{codec}, {number} times: {reason}; for example\n{excerpt}")
    return lines
