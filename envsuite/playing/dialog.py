"""The dialog of an episode with its engine: prompts of token ids, or chat messages, and the answers to them."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from envsuite.core import Observation, Tool
from envsuite.core.errors import UsageError
from envsuite.core.images import Pixels
from envsuite.playing.engine import ChatCompletion, ChatRequest, Completion, Request, Sampling
from envsuite.playing.step import Tokens, as_tokens
from envsuite.prompting import Chat, Conversation, ParseResult, PromptSpec
from envsuite.prompting.conversation import ChatTokenizer
from envsuite.prompting.images import ImageFormat

if TYPE_CHECKING:
    from envsuite.playing.episode import EpisodePlan


NO_TOKENS: Mapping[str, Any] = dict.fromkeys(("prompt_ids", "response_ids", "response_logprobs", "policy_version"), ())
"""The token columns of a step that was not sampled as tokens."""


class Dialog(ABC):
    """Makes one episode's requests to its engine, and reads the answers."""

    tokens: int = 0
    """Tokens of all answers that were read."""
    prompt_tokens: int = 0
    """Tokens of the prompts that they answer."""
    cached_tokens: int = 0
    """Tokens of the prompts that an endpoint had computed before."""
    counted: bool = True
    """Whether the tokens of every answer were counted."""

    @abstractmethod
    def ask(self, observation: Observation) -> None:
        """Makes the next prompt from ``observation``, which answers the last answer that was read, if there is one.

        Raises:
            PromptTooLong: The prompt is longer than it may be.
            EnvsuiteError: It cannot be rendered.
        """

    @abstractmethod
    def request(self, number: int, sampling: Sampling, session: int, seed: int) -> Any:
        """Returns the prompt as the engine takes it."""

    @abstractmethod
    def read(self, completion: Any) -> ParseResult | None:
        """Takes the engine's answer to the prompt; returns the action in it.

        ``None``: the answer is for the dialog itself, which begins the episode's task anew.
        """

    def tries_again(self, success: bool) -> bool:
        """Takes the end of a trial; returns whether another trial follows, about which the engine is asked next."""
        return False

    @abstractmethod
    def columns(self) -> dict[str, Any]:
        """Returns the fields of the step's record that prompt and answer determine."""

    def snapshot(self) -> tuple[Any, ...]:
        """Returns the dialog up to the prompt that waits for its answer, for :meth:`restore`."""
        raise UsageError(f"{type(self).__name__} cannot be snapshot: only episodes whose prompts are tokens can branch")

    def restore(self, token: tuple[Any, ...]) -> None:
        """Goes on, with the same prompt, where a :meth:`snapshot` of another dialog in this environment was taken."""
        raise UsageError(f"{type(self).__name__} cannot be restored")


class TokenDialog(Dialog):
    """Between a conversation and an engine for tokens.

    Args:
        conversation: Renders the prompts.
        tokenizer: Decodes answers.
    """

    def __init__(self, conversation: Conversation, tokenizer: ChatTokenizer) -> None:
        self.conversation = conversation
        self.tokenizer = tokenizer
        self._prompt: Tokens = as_tokens([])
        self._images: tuple[Pixels, ...] = ()
        self._completion: Completion | None = None
        self._text = ""
        self._parsed: ParseResult | None = None

    def ask(self, observation: Observation) -> None:
        """Makes the next prompt."""
        if self._completion is None:
            self.conversation.start(observation)
        else:
            ids, text = self._completion.token_ids.tolist(), self._text
            if self.conversation.continues_prompts and not self.conversation.codec.special_tokens:
                text = self.tokenizer.decode(ids)
            self.conversation.add(ids, text, observation, self._parsed)
        ids, self._images = self.conversation.prompt()
        self._prompt = as_tokens(ids)

    def request(self, number: int, sampling: Sampling, session: int, seed: int) -> Request:
        """Returns the prompt's tokens and images."""
        return Request(number, self._prompt, sampling, session, seed, self._images)

    def read(self, completion: Completion) -> ParseResult:
        """Parses the answer's text."""
        self._completion = completion
        self.tokens += len(completion.token_ids)
        self.prompt_tokens += len(self._prompt)
        skip = not self.conversation.codec.special_tokens
        self._text = self.tokenizer.decode(completion.token_ids.tolist(), skip_special_tokens=skip)
        self._parsed = self.conversation.parse(self._text)
        return self._parsed

    def columns(self) -> dict[str, Any]:
        """Returns tokens, images, log-probabilities and versions."""
        completion = self._completion
        assert completion is not None
        return {
            "prompt_ids": self._prompt,
            "response_ids": completion.token_ids,
            "response_logprobs": completion.logprobs,
            "policy_version": completion.policy_version,
            "finish_reason": completion.finish_reason,
            "images": self._images,
            "experts": completion.experts,
        }

    def snapshot(self) -> tuple[Any, ...]:
        """Returns conversation, prompt and counts."""
        return self.conversation.snapshot(), self._prompt, self._images, self.tokens, self.prompt_tokens

    def restore(self, token: tuple[Any, ...]) -> None:
        """Goes on with the same prompt; tokens of the steps before it are counted as those of this episode."""
        conversation, self._prompt, self._images, self.tokens, self.prompt_tokens = token
        self.conversation.restore(conversation)


class ChatDialog(Dialog):
    """Between messages and an engine for messages.

    Args:
        chat: Writes the messages.
    """

    def __init__(self, chat: Chat) -> None:
        self.chat = chat
        self._messages: list[dict[str, Any]] = []
        self._completion: ChatCompletion | None = None
        self._parsed: ParseResult | None = None

    def ask(self, observation: Observation) -> None:
        """Makes the next messages."""
        if self._completion is None:
            self.chat.start(observation)
        else:
            self.chat.add(self._completion.answer, observation, self._parsed)
        self._messages = self.chat.messages()

    def request(self, number: int, sampling: Sampling, session: int, seed: int) -> ChatRequest:
        """Returns the messages and the tools."""
        return ChatRequest(number, self._messages, self.chat.chat_tools, sampling, session, seed)

    def read(self, completion: ChatCompletion) -> ParseResult | None:
        """Parses the calls of the answer, or its text."""
        self._completion = completion
        self.tokens += completion.tokens
        self.prompt_tokens += completion.prompt_tokens
        self.cached_tokens += completion.cached_tokens
        self.counted = self.counted and completion.counted
        self._parsed = self.chat.parse(completion.answer)
        return self._parsed

    def columns(self) -> dict[str, Any]:
        """Returns the texts; there are no tokens."""
        completion = self._completion
        assert completion is not None
        return {
            **NO_TOKENS,
            "finish_reason": completion.finish_reason,
            "prompt_text": json.dumps(self._messages, ensure_ascii=False),
            "response_text": completion.answer.text,
        }


DialogFactory = Callable[["EpisodePlan", tuple[Tool, ...], int], Dialog]
"""Makes the dialog of an agent in a new episode from the plan, the agent's tools, and the most calls in one step."""


@dataclass(frozen=True)
class TokenDialogs:
    """Makes dialogs with an engine for tokens.

    Args:
        tokenizer: Renders prompts and decodes answers.
        prompt: How prompts are written; its ``examples`` are those of every environment without its own.
        examples: Text of demonstrations for the prompts of each environment; by default those of ``prompt``.
        images: How prompts take images; ``None``: they take none.
    """

    tokenizer: ChatTokenizer
    prompt: PromptSpec
    examples: Sequence[str] = ()
    images: ImageFormat | None = None

    def __call__(self, plan: EpisodePlan, tools: tuple[Tool, ...], max_calls: int) -> TokenDialog:
        """Makes the dialog of a new episode."""
        prompt = with_examples(self.prompt, self.examples, plan.env)
        conversation = Conversation(self.tokenizer, prompt, tools, max_calls, image_format=self.images)
        return TokenDialog(conversation, self.tokenizer)


@dataclass(frozen=True)
class ChatDialogs:
    """Makes dialogs with an engine for messages; as :class:`TokenDialogs`, without a tokenizer."""

    prompt: PromptSpec
    examples: Sequence[str] = ()

    def __call__(self, plan: EpisodePlan, tools: tuple[Tool, ...], max_calls: int) -> ChatDialog:
        """Makes the dialog of a new episode."""
        return ChatDialog(Chat(with_examples(self.prompt, self.examples, plan.env), tools, max_calls))


def with_examples(prompt: PromptSpec, examples: Sequence[str], env: int) -> PromptSpec:
    """Returns the prompt with the demonstrations of environment number ``env``, where it has its own."""
    return replace(prompt, examples=examples[env]) if examples else prompt
