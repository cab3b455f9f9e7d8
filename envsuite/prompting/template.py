"""A model's own chat template, taken apart once so that a step costs only the tokens of its new text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from envsuite.core.errors import UsageError
from envsuite.core.tools import Tool
from envsuite.prompting.codecs import Codec

_TEXT = "OBSERVATIONTEXT"
_RESPONSE = "ASSISTANTRESPONSE"
_NEXT = "NEXTOBSERVATIONTEXT"

Messages = list[dict[str, str]]


class ChatTokenizer(Protocol):
    """What is used of a transformers tokenizer."""

    chat_template: Any

    @property
    def eos_token_id(self) -> Any:
        """Id of the end-of-sequence token, or ``None``."""

    @property
    def added_tokens_decoder(self) -> Mapping[int, Any]:
        """Added tokens by id, each with ``content`` and ``special``."""

    def encode(self, text: Any, *, add_special_tokens: bool = ..., split_special_tokens: bool = ...) -> Any:
        """Token ids of ``text``; with ``split_special_tokens`` control tokens in it are ordinary text."""

    def decode(self, token_ids: Any, *, skip_special_tokens: bool = ...) -> Any:
        """Text of token ids."""

    def apply_chat_template(
        self, conversation: Any, tools: Any = ..., *, add_generation_prompt: bool = ..., tokenize: bool = ...
    ) -> Any:
        """The conversation as text."""


@dataclass(frozen=True)
class ChatTemplate:
    """The pieces of text and tokens between which a conversation's own texts stand.

    A first prompt is ``first`` with the user text between its parts; a later one is the policy's response, then
    ``turn`` with the next user text. The parts hold all that the template adds, the generation prompt included.
    """

    system: str
    """Content of the system message; ``""`` for none."""
    system_in_user: bool
    """The template has no system role: the first user message starts with the system text."""
    trims: bool
    """The template strips the content of user messages."""
    head_ids: tuple[int, ...]
    """Tokens of what precedes ``first``: the same in every episode."""
    first: tuple[str, str]
    """Text before and after the first user text."""
    turn: tuple[str, str]
    """Text between a response and the next user text (the end of the assistant's turn first), and after it."""
    turn_ends: frozenset[int]
    """Tokens that end the assistant's turn when the policy produces them."""
    end_length: int
    """How many tokens of a turn are then there already."""
    specials: re.Pattern[str] = field(repr=False)
    """Finds a control token in a text."""

    def begin(self, tokenizer: ChatTokenizer, text: str) -> list[int]:
        """Token ids of a conversation's first prompt, ``text`` being the first user text."""
        if self.trims:
            text = text.rstrip() if self.system_in_user else text.strip()
        return [*self.head_ids, *self._encode(tokenizer, *self.first, text)]

    def stem(self, tokenizer: ChatTokenizer, start: str, rest: str) -> tuple[list[int], str] | None:
        """Token ids of a first prompt that do not change when ``rest``, the end of its user text, does.

        Tokenisers differ in how they join line ends with what stands beside them; the place where this one can be
        cut is found by trying.

        Args:
            tokenizer: Turns the text into tokens.
            start: The user text up to its last two line ends, these included.
            rest: What follows in this prompt; in others what follows must start with the same word.

        Returns:
            The ids, and the line ends to be put before what follows; ``None`` where no place was found.
        """
        if self.trims or self.specials.search(start) is not None:
            return None
        whole = self.begin(tokenizer, start + rest)
        for cut in (0, 1, 2):
            ids = [*self.head_ids, *_ids(tokenizer, self.first[0] + start[: len(start) - cut])]
            if [*ids, *self.branch(tokenizer, "\n" * cut + rest)] == whole:
                return ids, "\n" * cut
        return None

    def branch(self, tokenizer: ChatTokenizer, rest: str) -> list[int]:
        """Token ids of a first prompt after its :meth:`stem`."""
        return self._encode(tokenizer, "", self.first[1], rest)

    def follow(self, tokenizer: ChatTokenizer, text: str, ended: bool) -> list[int]:
        """Token ids of the next user turn, after a response that has (``ended``) or has not ended its turn itself."""
        ids = self._encode(tokenizer, *self.turn, text.strip() if self.trims else text)
        return ids[self.end_length :] if ended else ids

    def messages(self, text: str) -> Messages:
        """The messages of a first prompt."""
        return _messages(self.system, self.system_in_user, text)

    def _encode(self, tokenizer: ChatTokenizer, before: str, after: str, text: str) -> list[int]:
        if self.specials.search(text) is None:
            return _ids(tokenizer, before + text + after)
        # What the world or the user wrote must not end a turn or speak as somebody else.
        inner = tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        return [*_ids(tokenizer, before), *inner, *_ids(tokenizer, after)]


_CACHE: WeakKeyDictionary[ChatTokenizer, dict[tuple[str, str, str], ChatTemplate]] = WeakKeyDictionary()


def chat_template(
    tokenizer: ChatTokenizer, codec: Codec, tools: Sequence[Tool], max_calls: int, instructions: bool
) -> ChatTemplate:
    """The template of ``tokenizer`` for what ``codec`` says about ``tools``, taken apart; kept per tokenizer.

    Raises:
        UsageError: The tokenizer has no chat template, or one that changes or repeats what is put into it.
    """
    system, chat_tools = codec.system(tools, max_calls) if instructions else "", codec.chat_tools(tools)
    key = (str(tokenizer.chat_template), system, json.dumps(chat_tools))
    kept = _CACHE.setdefault(tokenizer, {})
    if key not in kept:
        if system and chat_tools and tools[0].name in _render(tokenizer, _messages("", False, _TEXT), chat_tools):
            system = codec.system(tools, max_calls, listed=True)
        kept[key] = _take_apart(tokenizer, system, chat_tools)
    return kept[key]


def _take_apart(tokenizer: ChatTokenizer, system: str, chat_tools: list[dict[str, Any]] | None) -> ChatTemplate:
    special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    specials = re.compile("|".join(re.escape(token) for token in sorted(special, key=len, reverse=True)) or r"(?!)")
    in_user = bool(system) and not _has_system_role(tokenizer, system, chat_tools)
    start = _messages(system, in_user, _TEXT)
    before, after = _split(_render(tokenizer, start, chat_tools), _TEXT)
    later = [*start, {"role": "assistant", "content": _RESPONSE}, {"role": "user", "content": _NEXT}]
    turn = _split(_split(_render(tokenizer, later, chat_tools), _RESPONSE)[1], _NEXT)
    padded = _render(tokenizer, _messages("", False, f" \n{_TEXT}\n "), chat_tools)

    # Control tokens divide a text before anything else does: what precedes the last one never needs a second look.
    *_, cut = [0, *(match.start() for match in specials.finditer(before))]
    head = _ids(tokenizer, before[:cut]) if cut else []
    if head + _ids(tokenizer, before[cut:] + _TEXT + after) != _ids(tokenizer, before + _TEXT + after):
        head, cut = [], 0

    ends: set[int] = set()
    end_ids: list[int] = []
    if (end := re.match(rf"\s*(?:{specials.pattern})", turn[0])) is not None:
        end_ids = _ids(tokenizer, end.group())
        if _ids(tokenizer, turn[0] + _NEXT + turn[1])[: len(end_ids)] == end_ids:
            ends = {end_ids[-1]} | ({tokenizer.eos_token_id} if tokenizer.eos_token_id is not None else set())
    return ChatTemplate(
        system=system,
        system_in_user=in_user,
        trims=f" \n{_TEXT}\n " not in padded,
        head_ids=tuple(head),
        first=(before[cut:], after),
        turn=turn,
        turn_ends=frozenset(ends),
        end_length=len(end_ids),
        specials=specials,
    )


def _has_system_role(tokenizer: ChatTokenizer, system: str, chat_tools: list[dict[str, Any]] | None) -> bool:
    from jinja2 import TemplateError  # chat templates need it anyway; nothing else here does

    try:
        return system.strip() in _render(tokenizer, _messages(system, False, _TEXT), chat_tools)
    except TemplateError:
        return False


def _messages(system: str, in_user: bool, text: str) -> Messages:
    if system and not in_user:
        return [{"role": "system", "content": system}, {"role": "user", "content": text}]
    return [{"role": "user", "content": f"{system}\n\n{text}" if system else text}]


def _render(tokenizer: ChatTokenizer, messages: Messages, chat_tools: list[dict[str, Any]] | None) -> str:
    if tokenizer.chat_template is None:
        raise UsageError(
            f"{type(tokenizer).__name__} has no chat template; take an instruction-tuned model, "
            "or set tokenizer.chat_template"
        )
    return str(tokenizer.apply_chat_template(messages, tools=chat_tools, add_generation_prompt=True, tokenize=False))


def _split(rendered: str, marker: str) -> tuple[str, str]:
    if rendered.count(marker) != 1:
        raise UsageError(
            f"the chat template shows a message {rendered.count(marker)} times instead of once, or changes its text "
            f"(probe {marker!r}); rendered: {rendered[:400]!r}"
        )
    before, _, after = rendered.partition(marker)
    return before, after


def _ids(tokenizer: ChatTokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))
