"""Splits a model's chat template once, so that a step tokenises only its new text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from envsuite.core.errors import UsageError
from envsuite.prompting.rendering import ChatTokenizer, Messages, Renderer, ids_of, specials_of

_TEXT = "OBSERVATIONTEXT"
_RESPONSE = "ASSISTANTRESPONSE"
_NEXT = MARK = "NEXTOBSERVATIONTEXT"


@dataclass(frozen=True)
class ChatTemplate:
    """The texts and tokens that a template adds around a conversation's own texts.

    A first prompt is ``first`` with the user text between its parts; a later one appends the policy's response, then
    ``turn`` with the next user text. The parts contain everything that the template adds, with the generation prompt.
    """

    system: str
    """Content of the system message; ``""`` for none."""
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
    end_length: int
    """Number of the turn's first tokens that such a response contains already."""
    specials: re.Pattern[str] = field(repr=False)
    """Finds a control token in a text."""

    def begin(self, tokenizer: ChatTokenizer, text: str) -> list[int]:
        """Returns the token ids of a conversation's first prompt; ``text`` is the first user text."""
        if self.trims:
            text = text.rstrip() if self.system_in_user else text.strip()
        return [*self.head_ids, *self._encode(tokenizer, *self.first, text)]

    def stem(self, tokenizer: ChatTokenizer, start: str, rest: str) -> tuple[list[int], str] | None:
        """Returns the token ids of a first prompt that do not depend on ``rest``, the end of its user text.

        Tokenizers differ in how they merge line ends with adjacent text; this method tries where the text can be split.

        Args:
            tokenizer: The tokenizer.
            start: The user text up to and including its last two line ends.
            rest: The following text in this prompt; in other prompts, it must start with the same word.

        Returns:
            The ids, and the line ends to put before the following text; ``None`` if the text cannot be split.
        """
        if self.trims or self.specials.search(start) is not None:
            return None
        whole = self.begin(tokenizer, start + rest)
        for cut in (0, 1, 2):
            ids = [*self.head_ids, *ids_of(tokenizer, self.first[0] + start[: len(start) - cut])]
            if [*ids, *self.branch(tokenizer, "\n" * cut + rest)] == whole:
                return ids, "\n" * cut
        return None

    def branch(self, tokenizer: ChatTokenizer, rest: str) -> list[int]:
        """Returns the token ids of a first prompt after its :meth:`stem`."""
        return self._encode(tokenizer, "", self.first[1], rest)

    def follow(self, tokenizer: ChatTokenizer, text: str, ended: bool) -> list[int]:
        """Returns the token ids of the next user turn; ``ended`` says whether the response has ended its own turn."""
        ids = self._encode(tokenizer, *self.turn, text.strip() if self.trims else text)
        return ids[self.end_length :] if ended else ids

    def messages(self, text: str) -> Messages:
        """Returns the messages of a first prompt."""
        return _messages(self.system, self.system_in_user, text)

    def answer(self, tokenizer: ChatTokenizer, after: str, marked: str | None, last: str | None) -> list[int]:
        """Returns the token ids from a response to the next generation prompt, as a codec has them rendered.

        Args:
            tokenizer: The tokenizer.
            after: The text.
            marked: The same with :data:`MARK` for the environment's text, if that has a control token.
            last: The last token of the response if that is a control token, and none that the format has inside a call.
        """
        ids = ids_of(tokenizer, after) if marked is None else self._encode(tokenizer, *_around(after, marked))
        end = re.match(rf"\s*(?:{self.specials.pattern})", after)
        if end is None or last is None:
            return ids
        end_ids = ids_of(tokenizer, end.group())
        # A response that has ended with another token (of the sequence, say) has ended its turn as well.
        ended = end.group().endswith(last) or end_ids[-1] == self.turn_end
        return ids[len(end_ids) :] if ended and ids[: len(end_ids)] == end_ids else ids

    def _encode(self, tokenizer: ChatTokenizer, before: str, after: str, text: str) -> list[int]:
        if self.specials.search(text) is None:
            return ids_of(tokenizer, before + text + after)
        # Text of the world or the user must not end a turn or impersonate another role.
        inner = tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        return [*ids_of(tokenizer, before), *inner, *ids_of(tokenizer, after)]


_CACHE: WeakKeyDictionary[ChatTokenizer, dict[tuple[str, ...], ChatTemplate]] = WeakKeyDictionary()


def chat_template(render: Renderer, system: str, chat_tools: list[dict[str, Any]] | None) -> ChatTemplate:
    """Returns the split template; cached per tokenizer.

    Args:
        render: The tokenizer's template with its arguments.
        system: The instructions; ``""`` for none.
        chat_tools: The tools that the template gets, as OpenAI's function schemas.

    Raises:
        UnknownName: The template does not read one of the ``arguments``.
        UsageError: The tokenizer has no chat template, or one that changes or repeats the content of a message.
    """
    arguments = repr(sorted(render.arguments.items()))
    key = (str(render.tokenizer.chat_template), system, json.dumps(chat_tools), arguments)
    kept = _CACHE.setdefault(render.tokenizer, {})
    if key not in kept:
        render.check()
        kept[key] = _take_apart(render, system, chat_tools)
    return kept[key]


def _take_apart(render: Renderer, system: str, chat_tools: list[dict[str, Any]] | None) -> ChatTemplate:
    tokenizer, specials = render.tokenizer, specials_of(render.tokenizer)
    in_user = bool(system) and not _has_system_role(render, system, chat_tools)
    start = _messages(system, in_user, _TEXT)
    before, after = _split(render(start, chat_tools), _TEXT)
    turn = _split(_split(render(_later(start), chat_tools), _RESPONSE)[1], _NEXT)
    padded = render(_messages("", False, f" \n{_TEXT}\n "), chat_tools)

    # Control tokens split a text before all else: the text before the last one need not be tokenised again.
    *_, cut = [0, *(match.start() for match in specials.finditer(before))]
    head = ids_of(tokenizer, before[:cut]) if cut else []
    if head + ids_of(tokenizer, before[cut:] + _TEXT + after) != ids_of(tokenizer, before + _TEXT + after):
        head, cut = [], 0

    ends: set[int] = set()
    end_ids: list[int] = []
    if (end := re.match(rf"\s*(?:{specials.pattern})", turn[0])) is not None:
        end_ids = ids_of(tokenizer, end.group())
        if ids_of(tokenizer, turn[0] + _NEXT + turn[1])[: len(end_ids)] == end_ids:
            ends = {end_ids[-1]} | ({tokenizer.eos_token_id} if tokenizer.eos_token_id is not None else set())
    return ChatTemplate(
        system=system,
        system_in_user=in_user,
        trims=f" \n{_TEXT}\n " not in padded,
        head_ids=tuple(head),
        first=(before[cut:], after),
        turn=turn,
        turn_ends=frozenset(ends),
        turn_end=end_ids[-1] if ends else None,
        end_length=len(end_ids),
        specials=specials,
    )


def conversation_ids(
    render: Renderer,
    messages: Messages,
    chat_tools: list[dict[str, Any]] | None,
    specials: re.Pattern[str],
    after: tuple[int, int] = (0, 0),
) -> list[int]:
    """Returns the token ids of a conversation that the template renders as a whole.

    Control tokens in texts of the world are ordinary text, as they are in :meth:`ChatTemplate.follow`.

    Args:
        render: The tokenizer's template with its arguments.
        messages: The conversation.
        chat_tools: The tools that the template gets.
        specials: Finds a control token in a text.
        after: Leaves out so many messages, and so many characters of the rendered text, which are theirs.

    Raises:
        Refused: The template cannot render the conversation.
    """
    text = render(messages, chat_tools)
    ids: list[int] = []
    first, at = after
    some = [
        i
        for i, message in enumerate(messages)
        if i >= first and message["role"] in ("user", "tool") and specials.search(message["content"]) is not None
    ]
    for start, end in _places(render, messages, chat_tools, text, some):
        ids += ids_of(render.tokenizer, text[at:start])
        ids += render.tokenizer.encode(text[start:end], add_special_tokens=False, split_special_tokens=True)
        at = end
    return ids + ids_of(render.tokenizer, text[at:])


def _places(
    render: Renderer, messages: Messages, chat_tools: list[dict[str, Any]] | None, text: str, some: list[int]
) -> Iterator[tuple[int, int]]:
    """Yields where the contents of some messages begin and end in the conversation's ``text``.

    Nearly all templates show them as they are or stripped: then one rendering tells all places.
    """
    marked = list(messages)
    for i in some:
        marked[i] = {**messages[i], "content": f"{MARK}{i:09}"}
    before, *parts = re.split(rf"{MARK}\d{{9}}", (render.attempt(marked, chat_tools) if some else text) or "")
    places, at = list[tuple[int, int]](), len(before)
    for i, follows in zip(some, parts, strict=False):
        given = messages[i]["content"]
        shown = next((one for one in (given, given.strip()) if text.startswith(one + follows, at)), None)
        if shown is None:
            break
        places.append((at, at + len(shown)))
        at += len(shown) + len(follows)
    if at == len(text) and text.startswith(before) and len(places) == len(parts) == len(some):
        yield from places
        return
    for i in some:
        one = [*messages[:i], {**messages[i], "content": MARK}, *messages[i + 1 :]]
        start, _, inner = _around(text, render(one, chat_tools))
        yield len(start), len(start) + len(inner)


def _later(start: Messages) -> Messages:
    return [*start, {"role": "assistant", "content": _RESPONSE}, {"role": "user", "content": _NEXT}]


def _has_system_role(render: Renderer, system: str, chat_tools: list[dict[str, Any]] | None) -> bool:
    """Whether the template shows a system message, and shows it at the same place when the conversation goes on."""
    start = _messages(system, False, _TEXT)
    shown, later = render.attempt(start, chat_tools), render.attempt(_later(start), chat_tools)
    if shown is None or system.strip() not in shown:
        return False
    return later is None or system.strip() in later.partition(_RESPONSE)[0]


def _around(text: str, marked: str) -> tuple[str, str, str]:
    """Returns the text before and after the part of ``text`` that ``marked`` has :data:`MARK` for, and that part."""
    before, _, after = marked.partition(MARK)
    if not (marked.count(MARK) == 1 and text.startswith(before) and text.endswith(after)):
        raise UsageError(
            f"the chat template shows an answer {marked.count(MARK)} times instead of once, or changes text around it"
        )
    return before, after, text[len(before) : len(text) - len(after)]


def _messages(system: str, in_user: bool, text: str) -> Messages:
    if system and not in_user:
        return [{"role": "system", "content": system}, {"role": "user", "content": text}]
    return [{"role": "user", "content": f"{system}\n\n{text}" if system else text}]


def _split(rendered: str, marker: str) -> tuple[str, str]:
    if rendered.count(marker) != 1:
        raise UsageError(
            f"the chat template shows a message {rendered.count(marker)} times instead of once, or changes its text "
            f"(probe {marker!r}); rendered: {rendered[:400]!r}"
        )
    before, _, after = rendered.partition(marker)
    return before, after
