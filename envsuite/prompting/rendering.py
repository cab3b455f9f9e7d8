"""Rendering a model's chat template."""

from __future__ import annotations

import datetime
import hashlib
import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

from envsuite.core.errors import UnknownName, UsageError, unknown

Messages = list[dict[str, Any]]
_GIVEN = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "raise_exception"}
    | {"strftime_now", "bos_token", "eos_token", "unk_token", "pad_token"}
)
"""Names in a chat template that are set here or by transformers, not by a user."""
DAY = "strftime_now"
"""Argument with the day that a chat template takes for today, as 2026-01-31; by default it is today."""
_TODAY = re.compile(rf"{DAY}\(\s*(['\"])(.*?)\1\s*\)")
_LOG = logging.getLogger(__name__)
_GENERATION = re.compile(r"\{%-?\s*(?:end)?generation\s*-?%\}")
"""A tag that only transformers knows; it has no effect on the text."""


class TemplateRefused(UsageError):
    """A conversation that a chat template cannot render."""


class ChatTokenizer(Protocol):
    """The part of a transformers tokenizer that is used here."""

    chat_template: Any

    @property
    def eos_token_id(self) -> Any:
        """Id of the end-of-sequence token, or ``None``."""

    @property
    def added_tokens_decoder(self) -> Mapping[int, Any]:
        """Added tokens by id, each with ``content`` and ``special``."""

    def encode(self, text: Any, *, add_special_tokens: bool = ..., split_special_tokens: bool = ...) -> Any:
        """Returns the token ids of ``text``; with ``split_special_tokens``, control tokens in it are ordinary text."""

    def decode(self, token_ids: Any, *, skip_special_tokens: bool = ...) -> Any:
        """Returns the text of token ids."""

    def apply_chat_template(
        self,
        conversation: Any,
        tools: Any = ...,
        *,
        add_generation_prompt: bool = ...,
        tokenize: bool = ...,
        **kwargs: Any,
    ) -> Any:
        """Renders the conversation as text."""


@dataclass(frozen=True)
class TemplateRenderer:
    """A tokenizer's chat template with its arguments set."""

    tokenizer: ChatTokenizer
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the template, such as ``enable_thinking`` or ``date_string``."""

    def __call__(self, messages: Messages, tools: Sequence[dict[str, Any]] | None, *, prompt: bool = True) -> str:
        """Returns the conversation as text.

        Args:
            messages: The conversation.
            tools: The tools, as OpenAI's function schemas.
            prompt: Whether the text ends with the generation prompt.

        Raises:
            UsageError: The tokenizer has no chat template.
            TemplateRefused: The template cannot render the conversation.
        """
        if self.tokenizer.chat_template is None:
            raise UsageError(
                f"{type(self.tokenizer).__name__} has no chat template; take an instruction-tuned model, "
                "or set tokenizer.chat_template"
            )
        if _takes_parts(self.tokenizer):
            messages = [_in_parts(message) for message in messages]
        return self._render(messages, tools, prompt)

    def _render(self, messages: Messages, tools: Sequence[dict[str, Any]] | None, prompt: bool) -> str:
        from jinja2 import TemplateError  # only needed with chat templates

        arguments = {name: value for name, value in self.arguments.items() if name != DAY}
        if DAY in self.arguments:
            arguments["chat_template"] = _with_day(str(self.tokenizer.chat_template), str(self.arguments[DAY]))
        render = self.tokenizer.apply_chat_template
        try:
            return str(render(messages, tools=tools, add_generation_prompt=prompt, tokenize=False, **arguments))
        except (TemplateError, TypeError, KeyError, AttributeError, ValueError, IndexError) as error:
            # A template is a program: it may refuse messages, or assume what they do not have.
            raise TemplateRefused(f"the chat template cannot render the conversation: {error}") from error

    def attempt(self, messages: Messages, tools: Sequence[dict[str, Any]] | None, *, prompt: bool = True) -> str | None:
        """As :meth:`__call__`, but returns ``None`` if the template cannot render the conversation."""
        try:
            return self(messages, tools, prompt=prompt)
        except TemplateRefused:
            return None

    def check(self) -> None:
        """Refuses an argument that the template does not read.

        Raises:
            UnknownName: The template does not have an argument; the message lists those it has.
        """
        if DAY not in self.arguments and writes_day(self.tokenizer):
            _warn_of_day(str(self.tokenizer.chat_template))
        if not self.arguments:
            return
        from jinja2 import Environment, meta

        template = self.tokenizer.chat_template
        source = "\n".join(map(str, template.values())) if isinstance(template, dict) else str(template)
        environment = Environment(extensions=["jinja2.ext.loopcontrols"])
        variables = meta.find_undeclared_variables(environment.parse(_GENERATION.sub("", source)))
        # A variable that the template sets is an argument only if the template asks whether it is there already.
        optional = set(re.findall(r"(\w+)\s*(?:is\s+(?:not\s+)?defined|\|\s*default)", source))
        assignments = set(re.findall(r"\bset\s+(\w+)", source))
        names = variables - _GIVEN - environment.globals.keys() - (assignments - optional)
        for name in [name for name in self.arguments if name != DAY]:
            if not names:
                raise UnknownName(f"unknown argument of the chat template {name!r}: it takes none; leave it out")
            if name not in names:
                raise unknown("argument of the chat template", name, names)


def writes_day(tokenizer: ChatTokenizer) -> bool:
    """Whether the chat template may write today's date."""
    return isinstance(tokenizer.chat_template, str) and _TODAY.search(tokenizer.chat_template) is not None


@lru_cache(maxsize=16)
def _with_day(template: str, day: str) -> str:
    try:
        date = datetime.date.fromisoformat(day)
    except ValueError as error:
        raise UsageError(f"template_arguments.{DAY} is {day!r}; write a day as 2026-01-31") from error
    return _TODAY.sub(lambda call: json.dumps(date.strftime(call[2])), template)


@lru_cache(maxsize=64)
def _warn_of_day(template: str) -> None:
    _LOG.warning(
        "the chat template writes today's date, so prompts differ from day to day; fix it with template_arguments: "
        "{%s: %s}", DAY, datetime.date.today().isoformat(),
    )  # fmt: skip


_TAKES_PARTS: dict[str, bool] = {}


def _takes_parts(tokenizer: ChatTokenizer) -> bool:
    """Whether the chat template shows a content only as a list of parts, as some of models with images do."""
    template = str(tokenizer.chat_template)
    if template not in _TAKES_PARTS:
        probe, render = {"role": "user", "content": "PROBE"}, TemplateRenderer(tokenizer)

        def shows_probe(message: dict[str, Any]) -> bool:
            try:
                return "PROBE" in render._render([message], None, True)
            except TemplateRefused:
                return False

        _TAKES_PARTS[template] = not shows_probe(probe) and shows_probe(_in_parts(probe))
    return _TAKES_PARTS[template]


def _in_parts(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    return {**message, "content": [{"type": "text", "text": content}]} if isinstance(content, str) else message


def ids_of(tokenizer: ChatTokenizer, text: str) -> list[int]:
    """Returns the token ids of ``text``, in which control tokens are such."""
    return list(tokenizer.encode(text, add_special_tokens=False))


def vocabulary_of(tokenizer: Any) -> str:
    """Returns 16 letters that are equal for tokenizers whose token ids mean the same."""
    names = sorted((number, name) for name, number in tokenizer.get_vocab().items())
    return hashlib.blake2b(json.dumps(names).encode(), digest_size=8).hexdigest()


def specials_of(tokenizer: ChatTokenizer) -> re.Pattern[str]:
    """Returns a pattern that finds a control token in a text."""
    special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    return re.compile("|".join(re.escape(token) for token in sorted(special, key=len, reverse=True)) or r"(?!)")
