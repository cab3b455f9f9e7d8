"""Shows the prompts of a run: the first steps of an episode, as the model reads them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from envsuite.core import Action, ToolEnv
from envsuite.evaluation.examples import teacher_turns
from envsuite.prompting import ChatTokenizer, PromptTooLong
from trainers.policy.loading import load_tokenizer
from trainers.rollout.config import EnvConfig, PromptConfig
from trainers.rollout.environments import check_vocabulary, factory_of, make_conversation, tasks_of
from trainers.run.config import TrainConfig
from trainers.run.examples import examples_of
from trainers.settings import ConfigError

CONTROL = ("«", "»")
"""Marks around a control token, which text of the same letters does not have."""


@dataclass(frozen=True)
class PromptedStep:
    """One step: its prompt, and the answer of the player."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


def mark_tokens(tokenizer: ChatTokenizer, ids: Sequence[int]) -> str:
    """Returns the text of token ids, with marks around control tokens."""
    control = {number: token.content for number, token in tokenizer.added_tokens_decoder.items() if token.special}

    def name(number: int) -> str | None:
        return "image" if number < 0 else control.get(number)

    runs = ((token, list(run)) for token, run in itertools.groupby(ids, name))
    return "".join(
        tokenizer.decode(run) if token is None
        else f"{CONTROL[0]}image of {len(run)} tokens{CONTROL[1]}" if run[0] < 0
        else f"{CONTROL[0]}{token}{CONTROL[1]}" * len(run)
        for token, run in runs
    )  # fmt: skip


def play_steps(
    env: EnvConfig, prompt: PromptConfig, tokenizer: ChatTokenizer, task: str | None, steps: int, expert: bool
) -> Iterator[PromptedStep]:
    """Yields the first steps of an episode.

    Args:
        env: The environment.
        prompt: How prompts are written.
        tokenizer: The model's tokenizer.
        task: Id of the task; the first one of the split by default.
        steps: Maximum number of steps.
        expert: Whether the environment's expert answers; otherwise every answer is empty.

    Raises:
        UnknownName: The environment has no expert, or no such task.
        UsageError: The expert cannot play it, or a prompt cannot be rendered.
    """
    turns = teacher_turns(env.id) if expert else None
    environment = factory_of(env).make()
    with closing(environment):
        world = environment.unwrapped
        assert isinstance(world, ToolEnv)
        observation, _ = environment.reset(options={"task_id": task or world.tasks.ids(env.split)[0]})
        conversation = make_conversation(prompt, tokenizer, world.tools, world.max_calls, examples_of(env, prompt))
        conversation.start(observation)
        moves = itertools.repeat(None) if turns is None else turns(environment)
        for move in itertools.islice(moves, steps):
            action: Action = () if move is None else move.action
            text = "" if move is None else conversation.codec.write(action, move.thought, world.tools)
            answer = (*tokenizer.encode(text, add_special_tokens=False), *conversation.end)
            yield PromptedStep(conversation.prompt_ids(), answer)
            observation, _, terminated, truncated, _ = environment.step(action)
            if terminated or truncated:
                return
            conversation.add(answer, text, observation)


def env_of(config: TrainConfig, number: int) -> EnvConfig:
    """Returns the training environment ``number``, once it is seen to have tasks.

    Raises:
        ConfigError: There is none, or it cannot be made.
    """
    if not 0 <= number < len(config.envs):
        raise ConfigError(f"--env {number}: the settings have {len(config.envs)} environments, numbered from 0")
    tasks_of(config.envs[number], f"envs[{number}]")
    return config.envs[number]


def prompts(config: TrainConfig, env: EnvConfig, task: str | None, steps: int, expert: bool) -> Iterator[str]:
    """Yields the lines that show the first steps of an episode; control tokens have marks around them.

    Args:
        config: The run's settings.
        env: The environment.
        task: Id of the task; the first one of the split by default.
        steps: Maximum number of steps.
        expert: Whether the environment's expert answers; otherwise every answer is empty.

    Raises:
        DataError: The tokenizer cannot be loaded.
        EnvsuiteError: As :func:`play_steps`.
    """
    tokenizer = load_tokenizer(config.model)
    check_vocabulary(env, "envs", tokenizer)
    settings = config.prompt
    how = f"codec {settings.codec}, memory {settings.memory}, template {settings.template or 'none'}"
    yield f"{env.id}, split {env.split}; {how}; tokenizer of {config.model.path}"
    lengths: list[int] = []
    before: tuple[int, ...] = ()
    try:
        for step in play_steps(env, settings, tokenizer, task, steps, expert):
            lengths.append(len(step.prompt))
            yield f"\n=== step {len(lengths)}: prompt of {len(step.prompt)} tokens{_continues(before, step.prompt)} ==="
            yield mark_tokens(tokenizer, step.prompt)
            yield f"=== step {len(lengths)}: answer of {len(step.answer)} tokens ==="
            yield mark_tokens(tokenizer, step.answer)
            before = (*step.prompt, *step.answer)
    except PromptTooLong as error:
        yield f"\n=== the episode is truncated here: {error} ==="
    if lengths:
        yield f"\n{len(lengths)} prompts, the longest of {max(lengths)} tokens"


def _continues(before: Sequence[int], prompt: Sequence[int]) -> str:
    """Returns how a prompt relates to the last one and its answer."""
    if not before:
        return ""
    pairs = zip(before, prompt, strict=False)
    same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    if same == len(before):
        return f", the first {same} are the last prompt and its answer"
    return f", the first {same} as in the last prompt"
