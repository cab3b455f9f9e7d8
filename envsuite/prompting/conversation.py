"""The conversation of one episode, as token ids for the policy to continue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from envsuite.core.env import Observation
from envsuite.core.errors import UsageError
from envsuite.core.images import Pixels
from envsuite.core.tools import Tool
from envsuite.prompting.codecs.base import CodecTurn, ParseResult
from envsuite.prompting.history import History
from envsuite.prompting.images import ImageFormat, ImageTokenizer, in_order
from envsuite.prompting.memory import CompactMemory, FullMemory, RenderedMemory, Window
from envsuite.prompting.ordinary import unbroken
from envsuite.prompting.rendering import ChatTokenizer, Messages, TemplateRenderer
from envsuite.prompting.spec import PromptSpec
from envsuite.prompting.template import ChatTemplate, chat_template, conversation_ids

__all__ = ["ChatTokenizer", "Conversation", "PromptTooLong"]


class PromptTooLong(UsageError):
    """A prompt takes more tokens than the memory's budget, or the longest prompt, allows."""


@dataclass(frozen=True)
class _TokenTurn:
    """A response and the environment's answer."""

    response_ids: tuple[int, ...]
    follow_ids: tuple[int, ...]
    """Tokens from the end of the response to the next generation prompt; ``()`` where prompts are rendered anew."""
    answer: str
    """The environment's answer."""
    turn: CodecTurn
    """The response as a message."""


class Conversation:
    """Renders the prompts of one episode under a codec and a memory.

    With :class:`~envsuite.prompting.FullMemory` and :class:`~envsuite.prompting.CompactMemory` nothing is tokenised or
    rendered twice: a prompt consists of the previous one, the response as the policy sampled it, and the new
    observation. With :class:`~envsuite.prompting.RenderedMemory` the chat template renders the whole conversation at
    each step.

    Args:
        tokenizer: A transformers tokenizer with a chat template.
        spec: How prompts are written.
        tools: The tools of the environment. Where they change, instructions list those of the last observation. Of
            prompts that continue each other they list those of the first one that is shown; the message that brings
            further tools lists these.
        max_calls: Maximum number of calls in one step.
        image_format: How the model takes the images of observations; ``None``: it takes none.

    Raises:
        UnknownName: The chat template does not read an argument.
        UsageError: The chat template is missing or cannot be used.
    """

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        spec: PromptSpec,
        tools: Sequence[Tool],
        max_calls: int = 1,
        *,
        image_format: ImageFormat | None = None,
    ) -> None:
        self.spec = spec
        self.codec = codec = spec.codec
        self.max_calls = max_calls
        self._history = History(spec, tools, max_calls)
        gallery = self._history.gallery
        self.tokenizer = tokenizer if image_format is None else ImageTokenizer(tokenizer, image_format, gallery)
        arguments = codec.template_arguments if spec.template_arguments is None else spec.template_arguments
        self._render = TemplateRenderer(self.tokenizer, arguments)
        self._text_render = TemplateRenderer(tokenizer, arguments)
        self._template = self._split_template()
        eos = () if tokenizer.eos_token_id is None else (int(tokenizer.eos_token_id),)
        self.end = codec.stop_ids or self._template.stops or eos
        """Tokens that end an answer in this format, as a teacher writes it."""
        self._turns: list[_TokenTurn] = []
        self._left_out = 0
        self._stem: tuple[list[int], str] | None = None
        self._ids: tuple[int, ...] | None = None

    @property
    def tools(self) -> Sequence[Tool]:
        """The tools that the instructions list."""
        return self._history.head_tools

    def _split_template(self) -> ChatTemplate:
        history = self._history
        return chat_template(self._text_render, history.system, self.codec.chat_tools(self.tools), history.own)

    def _list_tools(self) -> None:
        """Lists in the instructions the tools that they have to list now; finds the stem of prompts anew."""
        renewal = self._history.list_tools_of(self._left_out if self._lists_first else self._history.steps)
        if renewal:
            self._template = self._split_template()
        if not self.continues_prompts and self.spec.prompt_file is None and (renewal or not self._history.steps):
            self._stem = self._template.stem(self.tokenizer, *self._history.opening())

    def start(self, observation: Observation) -> None:
        """Starts an episode with its first observation.

        Raises:
            PromptTooLong: The memory's budget is too small for the task.
            UsageError: The observation has images, and the model takes none, or prompts are truncated from the left.
        """
        if "images" in observation and not isinstance(self.tokenizer, ImageTokenizer):
            raise UsageError("the observation has images, but the model takes none; take one that does, or show text")
        if "images" in observation and self.spec.truncate == "left":
            raise UsageError("truncate='left' could cut an image in two; truncate='episode' ends the episode instead")
        self._history.start(observation)
        self._turns, self._left_out = [], 0
        self._list_tools()
        self._ids = None
        self._fold()

    def snapshot(self) -> tuple[Any, ...]:
        """Returns the conversation so far, for :meth:`restore` of a conversation made with the same arguments."""
        return self._history.snapshot(), tuple(self._turns), self._left_out, self._stem, self._ids

    def restore(self, token: tuple[Any, ...]) -> None:
        """Goes on where a :meth:`snapshot` was taken: prompts have the same token ids."""
        history, turns, self._left_out, self._stem, self._ids = token
        self._history.restore(history)
        self._turns = list(turns)
        self._list_tools()

    def prompt(self) -> tuple[tuple[int, ...], tuple[Pixels, ...]]:
        """Returns the token ids to continue now, and the images in them, in their order.

        An id below -1 stands for a part of an image (:func:`~envsuite.prompting.images.part_id`).

        Raises:
            UsageError: As :meth:`prompt_ids`.
            PromptTooLong: As :meth:`prompt_ids`.
        """
        return in_order(self.prompt_ids(), self._history.gallery.images)

    def prompt_ids(self) -> tuple[int, ...]:
        """Returns the token ids to continue now; they end with the generation prompt.

        Images are numbered over the episode; :meth:`prompt` numbers them over the prompt.

        Raises:
            UsageError: Before :meth:`start`, or the prompt file cannot be rendered for this step.
            PromptTooLong: The prompt is longer than it may be.
        """
        ids = self._all_ids()
        if self.spec.max_tokens is None or len(ids) <= self.spec.max_tokens:
            return ids
        if self.spec.truncate == "left":
            return ids[len(ids) - self.spec.max_tokens :]
        raise PromptTooLong(f"the prompt takes {len(ids)} tokens, at most {self.spec.max_tokens} are allowed")

    def _all_ids(self) -> tuple[int, ...]:
        if self._ids is None:
            stem, tail = self._history.opening(self._left_out)
            if isinstance(self.spec.memory, RenderedMemory) and self._turns:
                messages, tools = self._messages(), self.codec.chat_tools(self.tools)
                self._ids = tuple(conversation_ids(self._render, messages, tools, self._template.added))
            elif self._stem is None:
                self._ids = tuple(self._template.begin(self.tokenizer, stem + tail))
            else:
                ids, ends = self._stem
                self._ids = (*ids, *self._template.branch(self.tokenizer, ends + tail))
        return self._ids

    @property
    def continues_prompts(self) -> bool:
        """Whether a prompt continues the last one with the sampled tokens or their text, control tokens included."""
        return not isinstance(self.spec.memory, Window)

    @property
    def _lists_first(self) -> bool:
        """Whether instructions list the tools of the first observation that is shown: prompts begin with it."""
        return isinstance(self.spec.memory, FullMemory | CompactMemory)

    def parse(self, response_text: str) -> ParseResult:
        """Parses the action of a response. Never raises."""
        return self.codec.parse(response_text, self._history.offered, self.max_calls)

    def add(
        self,
        response_ids: Sequence[int],
        response_text: str,
        observation: Observation,
        parsed: ParseResult | None = None,
    ) -> None:
        """Records a response of the policy and the environment's answer.

        Args:
            response_ids: The sampled tokens, with the stop token if there is one.
            response_text: The response as text; with its control tokens if :attr:`continues_prompts`.
            observation: The environment's answer.
            parsed: The response as :meth:`parse` returned it, where it was called.

        Raises:
            UsageError: Before :meth:`start`.
            PromptTooLong: The memory's budget is too small for the task and the observation.
        """
        response = tuple(response_ids)
        if not self.continues_prompts:
            parsed = parsed or self.parse(response_text)
            self._history.add(response_text, parsed.action, observation)
            self._list_tools()
            self._ids = None
            return
        prompt = self._all_ids()
        turn = self._turn_of(response, self._history.gallery.plain(response_text))
        self._history.add(response_text, None, observation)
        self._list_tools()
        answer = self._history.changed_tools() if self._lists_first else ""
        answer += self._history.answer_text(self._history.observation(self._history.steps))
        is_rendered = isinstance(self.spec.memory, RenderedMemory)
        follow = () if is_rendered else tuple(self._follow(response, turn, answer))
        self._turns.append(_TokenTurn(response, follow, answer, turn))
        self._ids = None if is_rendered else (*prompt, *response, *follow)
        self._fold()

    def messages(self) -> Messages:
        """Returns the chat messages of the current prompt, for people: images are named.

        Raises:
            UsageError: Before :meth:`start`.
        """
        name_images = self._history.gallery.name_images
        return [
            {**message, "content": name_images(message["content"])} if message.get("content") else message
            for message in unbroken(self._messages())
        ]

    def _messages(self) -> Messages:
        messages = self._template.messages("".join(self._history.opening(self._left_out)))
        if self.continues_prompts:
            for past in self._turns[self._left_out :]:
                pair = (past.turn.message, self.codec.reply(past.turn, past.answer))
                messages += map(self._template.added.break_message, pair)
        return messages

    def _turn_of(self, response: Sequence[int], text: str) -> CodecTurn:
        """Returns a response as a message in which only the added tokens that were sampled are such."""
        tools = self._history.offered
        turn = self.codec.turn(text, tools)
        ordinary = self._template.added.break_unsampled(self.tokenizer, response, text)
        if ordinary == text:
            return turn
        reread = self.codec.turn(ordinary, tools)
        if len(reread.called) == len(turn.called):
            return CodecTurn(reread.message, turn.called, turn.replies)
        fields = self._template.added.break_fields  # the tags of a call are spelled: all of it is ordinary text
        keys = turn.message.keys() - {"role", "tool_calls"}
        return CodecTurn(
            {**turn.message, **{key: fields(turn.message[key]) for key in keys}}, turn.called, turn.replies
        )

    def _follow(self, response: Sequence[int], turn: CodecTurn, text: str) -> list[int]:
        """Returns the token ids from the end of ``response`` to the next generation prompt."""
        after = self.codec.after(turn, self._template.added.break_tokens(text), self._history.offered)
        if after is None:
            has_end = bool(response) and response[-1] in self._template.turn_ends
            return self._template.follow(self.tokenizer, text, has_end)
        last = str(self.tokenizer.decode([response[-1]])) if response else ""
        ends = self._template.specials.fullmatch(last) is not None and last not in self.codec.inner_tokens
        return self._template.answer(self.tokenizer, after, last if ends else None)

    def _fold(self) -> None:
        """Leaves out the oldest half of the steps, until the prompt fits the budget."""
        if not isinstance(self.spec.memory, CompactMemory):
            return
        while len(ids := self._all_ids()) > self.spec.memory.budget:
            count = len(self._turns) - self._left_out
            if not count:
                raise PromptTooLong(
                    f"{self.spec.memory}: the task and the current observation alone take {len(ids)} tokens; "
                    f"raise the budget to {len(ids)} or more"
                )
            self._left_out += (count + 1) // 2
            self._list_tools()
            tail = [i for turn in self._turns[self._left_out :] for i in (*turn.response_ids, *turn.follow_ids)]
            self._ids = (*self._template.begin(self.tokenizer, "".join(self._history.opening(self._left_out))), *tail)
