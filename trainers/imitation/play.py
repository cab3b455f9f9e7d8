"""Demonstrations as token sequences, in the format in which the trainer's policy would sample them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from envsuite.core import ToolEnv, UsageError
from envsuite.core.images import Pixels
from envsuite.core.practice import Teacher
from envsuite.prompting import Codec, Conversation, PromptTooLong
from envsuite.prompting.images import images_of

PROMPT, ANSWER, RESPONSE, SLIP, IMAGE = 0, 1, 2, 3, 4
"""Origin of a token: a sequence's first prompt, a later observation, the player's output, its mistake, or an image."""


@dataclass(frozen=True)
class Transcript:
    """One sequence: the prompts of an episode that continue each other, and the answers to them."""

    tokens: NDArray[np.int64]
    parts: NDArray[np.int8]
    """:data:`PROMPT`, :data:`ANSWER`, :data:`RESPONSE`, :data:`SLIP` or :data:`IMAGE` of each token."""
    images: tuple[Pixels, ...] = ()
    """The images that tokens below -1 are parts of."""


@dataclass(frozen=True)
class ImitationGame:
    """One episode."""

    transcripts: list[Transcript]
    """One under a memory whose prompts continue each other, one for each step where they are rendered anew."""
    success: bool


class TranscriptBuilder:
    """Joins prompts and answers to sequences: a prompt that does not continue the last one begins another."""

    def __init__(self) -> None:
        self.transcripts: list[Transcript] = []
        self._tokens: list[int] = []
        self._parts: list[int] = []
        self._images: tuple[Pixels, ...] = ()

    def prompt(self, ids: Sequence[int], images: tuple[Pixels, ...]) -> None:
        """Adds a prompt."""
        same = all(image is earlier for image, earlier in zip(images, self._images, strict=False))
        if not same or list(ids[: len(self._tokens)]) != self._tokens:
            self.end()
        self._images = images
        self._add(ids[len(self._tokens) :], ANSWER if self._tokens else PROMPT)

    def answer(self, ids: Sequence[int], slip: bool) -> None:
        """Adds the answer to it; a slip is a mistake, which is not imitated."""
        self._add(ids, SLIP if slip else RESPONSE)

    def end(self) -> None:
        """Ends the sequence, which is kept if there is something to learn in it."""
        if RESPONSE in self._parts:
            tokens = np.array(self._tokens, np.int64)
            parts = np.where(images_of(tokens) < 0, self._parts, IMAGE).astype(np.int8)
            self.transcripts.append(Transcript(tokens, parts, self._images))
        self._tokens, self._parts = [], []

    def _add(self, ids: Sequence[int], kind: int) -> None:
        self._tokens += ids
        self._parts += [kind] * len(ids)


def transcribe(
    env: ToolEnv,
    task_id: str,
    player: Teacher,
    conversation: Conversation,
    max_steps: int,
    rng: random.Random,
    *,
    thoughts: bool = True,
) -> ImitationGame:
    """Plays ``task_id`` and writes down each prompt that a rollout would build, with the player's answer.

    An episode without room for its next prompt ends there, as in a rollout.

    Args:
        env: The environment.
        task_id: The task.
        player: The player to imitate.
        conversation: Builds the prompts, in the format of its codec.
        max_steps: Steps after which the episode is truncated.
        rng: The player's source of randomness.
        thoughts: Write the player's thoughts.

    Raises:
        UsageError: An answer of the player would be invalid in a rollout.
    """
    codec, tokenizer, builder, success = conversation.codec, conversation.tokenizer, TranscriptBuilder(), False
    observation, _ = env.reset(options={"task_id": task_id})
    try:
        conversation.start(observation)
        builder.prompt(*conversation.prompt())
        for thought, action, slip in itertools.islice(player.turns(env, rng), max_steps):
            text = codec.write(action, thought if thoughts else "", tools=env.tools)
            answer = tokenizer.encode(text, add_special_tokens=False)
            if not slip:
                _check_answer(text, str(tokenizer.decode(answer)), conversation.codec, env)
            response = [*answer, *conversation.end]
            builder.answer(response, slip)
            observation, _, terminated, truncated, info = env.step(action)
            if terminated or truncated:
                success = bool(info["success"])
                break
            conversation.add(response, str(tokenizer.decode(response)), observation)
            builder.prompt(*conversation.prompt())
    except PromptTooLong:
        pass
    builder.end()
    return ImitationGame(builder.transcripts, success)


def _check_answer(text: str, tokens_text: str, codec: Codec, env: ToolEnv) -> None:
    """Raises an error where an answer is no action, or its tokens, as text again, are another.

    Tools and names of arguments are compared: of blanks and case in values a vocabulary of words keeps nothing.
    """
    intent, outcome = (codec.parse(answer, env.tools, env.max_calls) for answer in (text, tokens_text))
    if intent.error is not None:
        raise UsageError(f"prompt: the player's answer {text!r} would be invalid in a rollout: {intent.error}")
    forms = [[(call.name, sorted(call.arguments)) for call in result.action or ()] for result in (intent, outcome)]
    if forms[0] != forms[1]:
        raise UsageError(f"prompt: the tokenizer turns the player's answer {text!r} into another, {tokens_text!r}")


def repeated_words(vocabulary: range, rows: int, rng: random.Random) -> list[Transcript]:
    """Returns repeated strings of random tokens; the repetition is the target of the loss.

    A model that can copy needs far fewer games to learn to play. Half of the strings have few different tokens, so that
    the last token alone does not determine the next.
    """
    length = rng.randrange(20, 60)
    parts = np.array([PROMPT] * (length + 1) + [RESPONSE] * (length - 1), np.int8)
    transcripts = []
    for row in range(rows):
        alphabet = rng.sample(vocabulary, rng.randrange(6, 30)) if row % 2 else vocabulary
        words = [rng.choice(alphabet) for _ in range(length)]
        transcripts.append(Transcript(np.array(words * 2, np.int64), parts))
    return transcripts


def by_length(transcripts: Sequence[Transcript], rows: int, rng: random.Random) -> Iterator[list[Transcript]]:
    """Yields batches of ``rows`` transcripts of similar length, in random order."""
    ranking = sorted(transcripts, key=lambda transcript: len(transcript.tokens))
    batches = [ranking[start : start + rows] for start in range(0, len(ranking), rows)]
    rng.shuffle(batches)
    yield from batches
