"""Text that no model sampled: none of it may become one of the vocabulary's added tokens.

Such tokens are control tokens (``<|im_end|>``) and tags of a chat template (``<tool_call>``, ``<think>``). A text is
broken before the chat template gets it: :data:`BREAK` stands before each letter of an added token in it. All added
tokens of a rendered text without that mark are the template's own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from typing import Any, Protocol, TypeVar, runtime_checkable

from envsuite.prompting.rendering import ChatTokenizer, ids_of

BREAK = "\ufdd2"
"""Stands before a letter of an added token that is ordinary text; no character, so texts have no use for it."""
_LOST = "\N{REPLACEMENT CHARACTER}"
_NO_WORD = "\N{SOFT HYPHEN}\N{CUNEIFORM SIGN A}"
"""Text that no vocabulary of words knows."""
_NEVER = r"(?!)"
_FIELDS = frozenset(
    {"type", "function", "name", "description", "parameters", "properties", "required", "items", "enum", "arguments"}
    | {"id", "text"}
)
"""Fields of tools that chat templates ask for."""
T = TypeVar("T")


@runtime_checkable
class _FastTokenizer(Protocol):
    """A tokenizer of transformers whose work the package tokenizers does."""

    @property
    def backend_tokenizer(self) -> Any:
        """Its normalizer, pre-tokenizer and model."""


@dataclass(frozen=True)
class AddedTokens:
    """The control tokens and tags of a tokenizer: its added tokens, but words, single signs and white space."""

    contents: tuple[str, ...]
    """The longest first."""
    ids: frozenset[int]
    pattern: re.Pattern[str] = field(repr=False)
    """Finds one in a text that is not broken."""
    pieces: re.Pattern[str] = field(repr=False)
    """Splits a broken text at those that are not, with the white space that they take in."""

    def break_tokens(self, text: str) -> str:
        """Returns ``text`` such that no added token is found in it."""
        return self.pattern.sub(lambda match: _break_token(match[0]), text.replace(BREAK, _LOST))

    def break_fields(self, value: Any) -> Any:
        """Returns a message or a tool with all its texts broken, names of fields that are no chat template's too.

        A text that is a part of an added token is broken as well, as templates write some names in brackets.
        """
        if isinstance(value, str):
            part = value != "" and any(value in content for content in self.contents)
            return _break_token(value.replace(BREAK, _LOST)) if part else self.break_tokens(value)
        if isinstance(value, Mapping):
            return {
                key if key in _FIELDS else self.break_fields(key): inner
                if key in ("type", "role") and not isinstance(inner, Mapping)
                else self.break_fields(inner)
                for key, inner in value.items()
            }
        return [self.break_fields(inner) for inner in value] if isinstance(value, list | tuple) else value

    def break_message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a message with all of it broken; of an assistant's, the calls, since the rest may be sampled."""
        fields = ("content", "reasoning_content", "reasoning", "thinking") if message["role"] == "assistant" else ()
        return {
            key: value if key in fields else self.break_tokens(value) if key == "content" else self.break_fields(value)
            for key, value in message.items()
        } | {"role": message["role"]}

    def break_unsampled(self, tokenizer: ChatTokenizer, ids: Sequence[int], text: str) -> str:
        """Returns a response's text with those added tokens broken that the model has not sampled as such."""
        count = len(self.pattern.findall(text))
        at = [k for k, token in enumerate(ids) if token in self.ids] if count else []
        if len(at) == count and (not count or str(tokenizer.decode(list(ids))) == text):
            return text.replace(BREAK, _LOST)
        counts = {len(self.pattern.findall(str(tokenizer.decode(list(ids[:k]))))) for k in at}
        places = iter(range(count))
        return self.pattern.sub(
            lambda match: match[0] if next(places) in counts else _break_token(match[0]), text.replace(BREAK, _LOST)
        )

    def encode(self, tokenizer: ChatTokenizer, text: str) -> list[int]:
        """Returns the token ids of a rendered text, in which what is broken is ordinary text."""
        if BREAK not in text:
            return ids_of(tokenizer, text)
        ids: list[int] = []
        for ordinary, pieces in groupby(self.pieces.split(text), lambda piece: BREAK in piece):
            part = "".join(pieces)
            ids += self.split(tokenizer, unbroken(part)) if ordinary else ids_of(tokenizer, part) if part else []
        return ids

    def split(self, tokenizer: ChatTokenizer, text: str) -> list[int]:
        """Returns the token ids of ``text`` after a control token, in which all is ordinary text."""
        if not isinstance(tokenizer, _FastTokenizer):
            return list(tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))
        newline, ids = _model_ids(tokenizer, "\n"), _model_ids(tokenizer, f"\n{text}")
        # After a line end, since many a tokenizer puts a blank before the first word of all.
        ids = ids[len(newline) :] if ids[: len(newline)] == newline else _model_ids(tokenizer, text)
        content = tokenizer.backend_tokenizer.id_to_token
        unknown = {token for token in _model_ids(tokenizer, _NO_WORD) if str(content(token)) not in text}
        if (self.ids - unknown).isdisjoint(ids) or len(text) == 1:
            return ids
        return [token for letter in text for token in self.split(tokenizer, letter)]  # its model has it as a word


def unbroken(value: T) -> T:
    """Returns a value without the marks of broken texts."""
    if isinstance(value, str):
        return value.replace(BREAK, "")  # type: ignore[return-value]
    if isinstance(value, dict):
        return {unbroken(key): unbroken(inner) for key, inner in value.items()}  # type: ignore[return-value]
    return [unbroken(inner) for inner in value] if isinstance(value, list) else value  # type: ignore[return-value]


def remainder(text: str, count: int) -> str:
    """Returns a broken text after its first ``count`` letters, marks not counted."""
    marks = 0
    for match in re.finditer(BREAK, text):
        if match.start() - marks >= count:
            break
        marks += 1
    return text[count + marks :]


def added_tokens(tokenizer: ChatTokenizer) -> AddedTokens:
    """Returns the control tokens and tags of a tokenizer."""
    return _compile(
        tuple(
            (number, str(token.content), bool(token.lstrip), bool(token.rstrip))
            for number, token in tokenizer.added_tokens_decoder.items()
            if token.special or (len(token.content) > 1 and not re.fullmatch(r"\w*|[\s\u2581]*", token.content))
        )
    )


@lru_cache(maxsize=64)
def _compile(tokens: tuple[tuple[int, str, bool, bool], ...]) -> AddedTokens:
    longest_first = sorted(tokens, key=lambda token: -len(token[1]))
    contents = "|".join(re.escape(content) for _, content, _, _ in longest_first) or _NEVER
    blank = r"\s*"
    splits = "|".join(
        f"{blank * before}(?<!{BREAK}){re.escape(content)}{blank * right}"
        for _, content, before, right in longest_first
    )
    return AddedTokens(
        tuple(content for _, content, _, _ in longest_first),
        frozenset(number for number, _, _, _ in longest_first),
        re.compile(contents),
        re.compile(f"({splits or _NEVER})"),
    )


def _break_token(text: str) -> str:
    return "".join(f"{BREAK}{letter}" for letter in text)


def _model_ids(tokenizer: _FastTokenizer, text: str) -> list[int]:
    backend = tokenizer.backend_tokenizer
    if backend.normalizer is not None:
        text = backend.normalizer.normalize_str(text)
    splitter = backend.pre_tokenizer
    words = [text] if splitter is None else [word for word, _ in splitter.pre_tokenize_str(text)]
    return [token.id for word in words for token in backend.model.tokenize(word)]
