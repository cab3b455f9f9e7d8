"""Demonstrations in the prompt: episodes of the environment's expert as text (``prompt.examples``)."""

from __future__ import annotations

from dataclasses import replace

from envsuite.evaluation.examples import SPLIT, demonstrations, teacher_turns
from trainers.rollout.config import EnvConfig, PromptConfig
from trainers.rollout.environments import PLAIN, codec_of, factory_of
from trainers.settings import config_errors


def examples_of(env: EnvConfig, prompt: PromptConfig) -> str:
    """Returns ``prompt.examples`` episodes that the environment's expert solves, as text; empty for none.

    The tasks are those that :func:`~envsuite.evaluation.examples.demonstrations` chooses.

    Raises:
        ConfigError: The environment has no expert, or no training split, or the expert solves too few tasks.
    """
    if not prompt.examples:
        return ""
    here = replace(env, split=SPLIT, url=None, max_episode_steps=None)
    with config_errors(f"prompt.examples is {prompt.examples}, but {env.id}"):
        thoughts, codec = prompt.think or prompt.codec in PLAIN, codec_of(prompt, None)
        return demonstrations(factory_of(here), teacher_turns(env.id), codec, prompt.examples, thoughts=thoughts)
