"""Demonstrations as token sequences, in the format in which the trainer's policy would sample them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import gymnasium
import numpy as np
from numpy.typing import NDArray

from envsuite.core import Action, Move, Observation, ToolEnv
from envsuite.prompting import Codec, Conversation, Full
from envsuite.prompting.rendering import ChatTokenizer

PROMPT, ANSWER, RESPONSE, SLIP = 0, 1, 2, 3
"""Origin of a token: the first prompt, a later observation, the player's output, or a mistake of the player."""


class Player(Protocol):
    """Plays an environment from its state."""

    def turns(self, env: gymnasium.Env[Observation, Action], rng: random.Random) -> Iterator[Move]:
        """Yields each move in the current episode of ``env``.

        The caller steps ``env`` with each action before it asks for the next.
        """
        ...


@dataclass(frozen=True)
class Transcript:
    """One episode as one sequence."""

    tokens: NDArray[np.int64]
    parts: NDArray[np.int8]
    """:data:`PROMPT`, :data:`ANSWER`, :data:`RESPONSE` or :data:`SLIP` of each token."""
    success: bool


def transcript(
    env: ToolEnv,
    task_id: str,
    player: Player,
    tokenizer: ChatTokenizer,
    codec: Codec,
    end: Sequence[int],
    max_steps: int,
    rng: random.Random,
    *,
    instructions: bool,
    commands: bool,
) -> Transcript:
    """Plays ``task_id`` and returns the transcript.

    Args:
        env: The environment.
        task_id: The task.
        player: The player to imitate.
        tokenizer: The tokenizer of the model to train.
        codec: Format of actions.
        end: Tokens that end a response.
        max_steps: Steps after which the episode is truncated.
        rng: The player's source of randomness.
        instructions: Begin with the codec's instructions.
        commands: Show the admissible commands.
    """
    observation, _ = env.reset(options={"task_id": task_id})
    conversation = Conversation(
        tokenizer, codec, Full(), env.tools, env.max_calls, instructions=instructions, commands=commands
    )
    conversation.start(observation)
    tokens = list(conversation.prompt_ids())
    parts = [PROMPT] * len(tokens)
    success = False
    for thought, action, slip in itertools.islice(player.turns(env, rng), max_steps):
        text = codec.write(action, thought, tools=env.tools)
        response = [*tokenizer.encode(text, add_special_tokens=False), *end]
        observation, _, terminated, truncated, info = env.step(action)
        conversation.add(response, text, observation)
        tokens += response
        parts += [SLIP if slip else RESPONSE] * len(response)
        if terminated or truncated:
            success = info["success"]
            break
        answer = conversation.prompt_ids()[len(tokens) :]
        tokens += answer
        parts += [ANSWER] * len(answer)
    return Transcript(np.array(tokens, np.int64), np.array(parts, np.int8), success)


def repeated_words(vocabulary: range, rows: int, rng: random.Random) -> list[Transcript]:
    """Returns repeated strings of random tokens; the repetition is the target of the loss.

    A model that can copy needs far fewer games to learn to play. Half of the strings have few different tokens, so that
    the last token alone does not determine the next.
    """
    length = rng.randrange(20, 60)
    parts = np.array([PROMPT] * (length + 1) + [RESPONSE] * (length - 1), np.int8)
    transcripts = []
    for row in range(rows):
        known = rng.sample(vocabulary, rng.randrange(6, 30)) if row % 2 else vocabulary
        words = [rng.choice(known) for _ in range(length)]
        transcripts.append(Transcript(np.array(words * 2, np.int64), parts, True))
    return transcripts


def by_length(transcripts: Sequence[Transcript], rows: int, rng: random.Random) -> Iterator[list[Transcript]]:
    """Yields batches of ``rows`` transcripts of similar length, in random order."""
    ordered = sorted(transcripts, key=lambda one: len(one.tokens))
    batches = [ordered[start : start + rows] for start in range(0, len(ordered), rows)]
    rng.shuffle(batches)
    yield from batches
