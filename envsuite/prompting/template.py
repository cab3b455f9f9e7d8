"""Splits a model's chat template once, so that a step tokenises only its new text."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from envsuite.core.errors import UsageError
from envsuite.prompting.ordinary import AddedTokens, added_tokens
from envsuite.prompting.rendering import ChatTokenizer, Messages, TemplateRenderer, ids_of, specials_of

_TEXT = "OBSERVATIONTEXT"
_RESPONSE = "ASSISTANTRESPONSE"
MARK = "NEXTOBSERVATIONTEXT"


@dataclass(frozen=True)
class ChatTemplate:
    """The texts and tokens that a template adds around a conversation's own texts.

    A first prompt is ``first`` with the user text between its parts; a later one appends the policy's response, then
    ``turn`` with the next user text. The parts contain everything that the template adds, with the generation prompt.
    """

    system: str
    """Content of the system message, broken; ``""`` for none."""
    system_in_user: bool
    """Whether the template has no system role: then the first user message starts with the system text."""
    trims: bool
    """Whether the template strips the content of user messages."""
    head_ids: tuple[int, ...]
    """Tokens before ``first``: the same in every episode."""
    first: tuple[str, str]
    """Text before and after the first user text."""
    turn: tuple[str, str]
    """Text between a response and the next user text (the end of the assistant's turn first), and after it."""
    turn_ends: frozenset[int]
    """Tokens that end the assistant's turn when the policy produces them."""
    turn_end: int | None
    """The token with which the template ends the assistant's turn; ``None`` if it does so by text."""
    stops: tuple[int, ...]
    """The same where it ends an answer: not one that is also inside an answer, after a thought, as gpt-oss has it."""
    end_length: int
    """Number of the turn's first tokens that such a response contains already."""
    specials: re.Pattern[str] = field(repr=False)
    """Finds a control token in a text."""
    added: AddedTokens = field(repr=False)
    """Tokens that no text of the environment may become."""

    def begin(self, tokenizer: ChatTokenizer, text: str) -> list[int]:
        """Returns the token ids of a conversation's first prompt; ``text`` is the first user text."""
        if self.trims:
            text = text.rstrip() if self.system_in_user else text.strip()
        return [*self.head_ids, *self._encode(tokenizer, *self.first, text)]

    def stem(self, tokenizer: ChatTokenizer, start: str, tail: str) -> tuple[list[int], str] | None:
        """Returns the token ids of a first prompt that do not depend on ``tail``, the end of its user text.

        Tokenizers differ in how they merge line ends with adjacent text; this method tries where the text can be split.

        Args:
            tokenizer: The tokenizer.
            start: The user text up to and including its last two line ends.
            tail: The following text in this prompt; in other prompts, it must start with the same word.

        Returns:
            The ids, and the line ends to put before the following text; ``None`` if the text cannot be split.
        """
        if self.trims:
            return None
        whole = self.begin(tokenizer, start + tail)
        for cut in (0, 1, 2):
            opening = self.first[0] + self.added.break_tokens(start[: len(start) - cut])
            ids = [*self.head_ids, *self.added.encode(tokenizer, opening)]
            if [*ids, *self.branch(tokenizer, "\n" * cut + tail)] == whole:
                return ids, "\n" * cut
        return None

    def branch(self, tokenizer: ChatTokenizer, tail: str) -> list[int]:
        """Returns the token ids of a first prompt after its :meth:`stem`."""
        return self._encode(tokenizer, "", self.first[1], tail)

    def follow(self, tokenizer: ChatTokenizer, text: str, has_end: bool) -> list[int]:
        """Returns the token ids of the next user turn; ``has_end`` says whether the response has ended its own turn."""
        ids = self._encode(tokenizer, *self.turn, text.strip() if self.trims else text)
        return ids[self.end_length :] if has_end else ids

    def messages(self, text: str) -> Messages:
        """Returns the messages of a first prompt, broken."""
        return _messages(self.system, self.system_in_user, self.added.break_tokens(text))

    def answer(self, tokenizer: ChatTokenizer, after: str, last: str | None) -> list[int]:
        """Returns the token ids from a response to the next generation prompt, as a codec has them rendered.

        Args:
            tokenizer: The tokenizer.
            after: The text, in which the environment's is broken.
            last: The last token of the response if that is a control token, and none that the format has inside a call.
        """
        ids = self.added.encode(tokenizer, after)
        end = re.match(rf"\s*(?:{self.specials.pattern})", after)
        if end is None or last is None:
            return ids
        end_ids = ids_of(tokenizer, end.group())
        # A response that has ended with another token (of the sequence, say) has ended its turn as well.
        ends_turn = end.group().endswith(last) or end_ids[-1] == self.turn_end
        return ids[len(end_ids) :] if ends_turn and ids[: len(end_ids)] == end_ids else ids

    def _encode(self, tokenizer: ChatTokenizer, before: str, after: str, text: str) -> list[int]:
        return self.added.encode(tokenizer, before + self.added.break_tokens(text) + after)


_CACHED = 256
"""Split templates that are kept of a tokenizer: tools may be others in each task."""
_CACHE: WeakKeyDictionary[ChatTokenizer, dict[tuple[str, ...], ChatTemplate]] = WeakKeyDictionary()


def chat_template(
    render: TemplateRenderer, system: str, chat_tools: list[dict[str, Any]] | None, own: tuple[int, int] = (0, 0)
) -> ChatTemplate:
    """Returns the split template; cached per tokenizer.

    Args:
        render: The tokenizer's template with its arguments.
        system: The instructions; ``""`` for none.
        chat_tools: The tools that the template gets, as OpenAI's function schemas.
        own: Beginning and end of what the template itself has written of ``system``.

    Raises:
        UnknownName: The template does not read one of the ``arguments``.
        UsageError: The tokenizer has no chat template, or one that changes or repeats the content of a message.
    """
    arguments = repr(sorted(render.arguments.items()))
    key = (str(render.tokenizer.chat_template), system, json.dumps(chat_tools), arguments, str(own))
    templates = _CACHE.setdefault(render.tokenizer, {})
    if key not in templates:
        render.check()
        if len(templates) >= _CACHED:
            templates.clear()
        templates[key] = _split_template(render, system, chat_tools, own)
    return templates[key]


def _split_template(
    render: TemplateRenderer, system: str, chat_tools: list[dict[str, Any]] | None, own: tuple[int, int]
) -> ChatTemplate:
    tokenizer, specials, tokens = render.tokenizer, specials_of(render.tokenizer), added_tokens(render.tokenizer)
    system = tokens.break_tokens(system[: own[0]]) + system[own[0] : own[1]] + tokens.break_tokens(system[own[1] :])
    chat_tools = tokens.break_fields(chat_tools)
    in_user = bool(system) and not _has_system_role(render, system, chat_tools)
    start = _messages(system, in_user, _TEXT)
    before, after = _split(render(start, chat_tools), _TEXT)
    turn = _split(_split(render(_later(start), chat_tools), _RESPONSE)[1], MARK)
    probe = render(_messages("", False, f" \n{_TEXT}\n "), chat_tools)

    # Control tokens split a text before all else: the text before the last one need not be tokenised again.
    *_, cut = [0, *(match.start() for match in specials.finditer(before))]
    head = tokens.encode(tokenizer, before[:cut]) if cut else []
    whole = tokens.encode(tokenizer, before + _TEXT + after)
    if head + tokens.encode(tokenizer, before[cut:] + _TEXT + after) != whole:
        head, cut = [], 0

    ends: set[int] = set()
    end_ids: list[int] = []
    if (end := re.match(rf"\s*(?:{specials.pattern})", turn[0])) is not None:
        end_ids = ids_of(tokenizer, end.group())
        if ids_of(tokenizer, turn[0] + MARK + turn[1])[: len(end_ids)] == end_ids:
            ends = {end_ids[-1]} | ({tokenizer.eos_token_id} if tokenizer.eos_token_id is not None else set())
    turn_end = end_ids[-1] if ends else None
    return ChatTemplate(
        system=system,
        system_in_user=in_user,
        trims=f" \n{_TEXT}\n " not in probe,
        head_ids=tuple(head),
        first=(before[cut:], after),
        turn=turn,
        turn_ends=frozenset(ends),
        turn_end=turn_end,
        stops=_stops(render, turn_end),
        end_length=len(end_ids),
        specials=specials,
        added=tokens,
    )


def turn_stops(render: TemplateRenderer) -> tuple[int, ...]:
    """Returns the :attr:`~ChatTemplate.stops` of a template; none where it cannot be split."""
    try:
        return chat_template(render, "", None).stops
    except UsageError:  # said where a conversation is made
        return ()


def _stops(render: TemplateRenderer, end: int | None) -> tuple[int, ...]:
    thought = dict.fromkeys(("reasoning_content", "reasoning", "thinking"), _TEXT)
    answer = {"role": "assistant", "content": _RESPONSE, **thought}
    text = render.attempt([{"role": "user", "content": "Hello."}, answer], None, prompt=False) or ""
    inside = ids_of(render.tokenizer, text.partition(_TEXT)[2].partition(_RESPONSE)[0])
    return () if end is None or end in inside else (end,)


def conversation_ids(
    render: TemplateRenderer, messages: Messages, chat_tools: list[dict[str, Any]] | None, tokens: AddedTokens
) -> list[int]:
    """Returns the token ids of a conversation that the template renders as a whole.

    Args:
        render: The tokenizer's template with its arguments.
        messages: The conversation; what was not sampled is broken (:mod:`envsuite.prompting.ordinary`).
        chat_tools: The tools that the template gets.
        tokens: Tokens that no text of the environment may become.

    Raises:
        TemplateRefused: The template cannot render the conversation.
    """
    return tokens.encode(render.tokenizer, render(messages, tokens.break_fields(chat_tools)))


def _later(start: Messages) -> Messages:
    return [*start, {"role": "assistant", "content": _RESPONSE}, {"role": "user", "content": MARK}]


def _has_system_role(render: TemplateRenderer, system: str, chat_tools: list[dict[str, Any]] | None) -> bool:
    """Whether the template shows a system message, and shows it at the same place when the conversation goes on."""
    start = _messages(system, False, _TEXT)
    text, later = render.attempt(start, chat_tools), render.attempt(_later(start), chat_tools)
    if text is None or system.strip() not in text:
        return False
    return later is None or system.strip() in later.partition(_RESPONSE)[0]


def _messages(system: str, in_user: bool, text: str) -> Messages:
    if system and not in_user:
        return [{"role": "system", "content": system}, {"role": "user", "content": text}]
    return [{"role": "user", "content": f"{system}\n\n{text}" if system else text}]


def _split(text: str, marker: str) -> tuple[str, str]:
    if text.count(marker) != 1:
        raise UsageError(
            f"the chat template shows a message {text.count(marker)} times instead of once, or changes its text "
            f"(probe {marker!r}); rendered: {text[:400]!r}"
        )
    before, _, after = text.partition(marker)
    return before, after
