"""How a model's chat template writes tool calls, found by rendering probes with it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Literal

from envsuite.core.errors import UsageError
from envsuite.core.tools import Tool, ToolCall
from envsuite.prompting.formats import FORMATS, CallMatch, Format
from envsuite.prompting.formats.base import skip
from envsuite.prompting.ordinary import added_tokens, remainder, unbroken
from envsuite.prompting.rendering import Messages, TemplateRenderer

Called = Sequence[tuple[ToolCall, str]]
"""Calls with their ids."""

REMEDY = (
    "give the tokenizer a template with tools (chat_template.jinja in the model's folder), or choose a codec whose "
    "format the prompt explains: tags or tools"
)
_USER = {"role": "user", "content": "Begin."}
_THOUGHT = "PROBETHOUGHT"
_TEXT = "PROBETEXT"
_PROPERTIES = {
    "text": {"type": "string", "description": "A text."},
    "count": {"type": "integer", "description": "A number."},
    "exact": {"type": "boolean", "description": "A truth value."},
    "place": {"type": "object", "description": "An object."},
}
_TOOL = Tool("probe_tool", "Probes a template.", {"type": "object", "properties": _PROPERTIES, "required": ["text"]})
_TOOLS = {_TOOL.name: _TOOL}
_SCHEMAS = [_TOOL.as_openai()]
_ARGUMENTS = {"text": 'the "<b>é</b>"\nend', "count": 2, "exact": True, "place": {"x": [1, "y", {"z": 0.5}]}}
_CALL = ToolCall(_TOOL.name, _ARGUMENTS)
_SHORT = {"text": "x"}
_CACHED = 256
"""Rendered calls that are kept: models may give each call an id of its own."""


@dataclass(frozen=True)
class Shape:
    """The form of assistant messages that a template takes."""

    json_arguments: bool
    """Whether arguments are given as JSON text instead of an object."""
    thought: Literal["field", "chunk", "inline"] | None = None
    """Place of a thought: a field of its own, a chunk of the content, or its begin; ``None`` where none is shown."""

    def message(self, pairs: Called, thought: str, tags: tuple[str, str], text: str = "") -> dict[str, Any]:
        """Returns the assistant message that thinks ``thought``, says ``text`` and makes the calls of ``pairs``."""
        calls = [
            {"type": "function", "id": call_id, "function": {"name": call.name, "arguments": self._arguments(call)}}
            for call, call_id in pairs
        ]
        message = {"role": "assistant", **self._body(thought, tags, text)}
        return {**message, "tool_calls": calls} if calls else message

    def _arguments(self, call: ToolCall) -> dict[str, Any] | str:
        arguments = dict(call.arguments)
        return json.dumps(arguments, ensure_ascii=False) if self.json_arguments else arguments

    def _body(self, thought: str, tags: tuple[str, str], content: str) -> dict[str, Any]:
        if not thought or self.thought is None:
            return {"content": content}
        if self.thought == "field":
            return {"content": content, "reasoning_content": thought, "reasoning": thought, "thinking": thought}
        if self.thought == "chunk":
            text = [{"type": "text", "text": content}] if content else []
            return {"content": [{"type": "thinking", "thinking": thought}, *text]}
        return {"content": f"{tags[0]}\n{thought}\n{tags[1]}\n\n{content}"}


@dataclass(frozen=True)
class Dialect:
    """The form that a template gives to calls, thoughts and results."""

    renderer: TemplateRenderer
    specials: re.Pattern[str]
    """Finds a control token."""
    before: str
    """The text of the probe's user message."""
    header: str
    """The generation prompt after it."""
    lists: bool
    """Whether the template lists the tools."""
    format: Format
    shape: Shape
    several: bool = False
    """Whether a message may have several calls."""
    answers_text: Literal["tool", "user"] = "user"
    """Role of the answer to a message without a call."""
    cache: dict[tuple[tuple[str, str], ...], str] = field(default_factory=dict, repr=False, compare=False)
    """Rendered calls by names and ids."""

    @property
    def thinks(self) -> bool:
        """Whether the model is expected to think before it acts."""
        opening, closing = (tag.strip() for tag in self.format.thought)
        if closing in self.header:
            return False
        return opening in self.header or self.shape.thought in ("field", "chunk")

    def add_ids(self, calls: Sequence[ToolCall], ids: Sequence[str | None] = ()) -> Called:
        """Returns ``calls`` with their ids; those without one get one."""
        all_ids = [*ids, *[None] * (len(calls) - len(ids))]
        return [(call, all_ids[i] or self.format.call_id(i, call)) for i, call in enumerate(calls)]

    def message(self, pairs: Called, thought: str, text: str = "") -> dict[str, Any]:
        """Returns the assistant message that thinks ``thought``, says ``text`` and makes the calls of ``pairs``."""
        return self.shape.message(pairs, thought, self.format.thought, text)

    def reply(self, pairs: Called, text: str, user: bool = False) -> dict[str, Any]:
        """Returns the message that answers the calls with ``text``: one for a step, under its last call's id.

        Without calls it is the environment's; with ``user`` it is the user's.
        """
        if not pairs:
            return {"role": "user" if user else self.answers_text, "content": text}
        call, call_id = pairs[-1]
        return {"role": "tool", "content": text, "tool_call_id": call_id, "name": call.name}

    def completion(self, pairs: Called, thought: str = "", tools: Mapping[str, Tool] = _TOOLS) -> str | None:
        """Returns the calls as the model writes them, up to the end of the last; ``None`` if the template cannot.

        A thought that the template does not show stands between the format's tags before the calls.
        """
        last = self._render([_USER, self.message(pairs, thought)], thought)
        matches = self.find(last, tools) if last is not None else []
        if last is None or not matches:
            return None
        calls = last[matches[0].start : matches[-1].end]
        # As a message of the history, which is what later prompts must start with; the last one may look otherwise.
        text = self._render([_USER, self.message(pairs, thought), self.reply(pairs, _TEXT)], thought)
        if text is None or (at := text.find(calls)) < 0:
            return last[: matches[-1].end]
        return text[: at + len(calls)]

    def text(self, content: str, thought: str = "") -> str:
        """Returns ``content`` as the model writes a message without a call, after the thought, if any."""
        thought = thought or ("Well." if self.thinks and self.shape.thought is not None else "")
        probe = _THOUGHT if thought else ""
        text = self._render([_USER, self.message((), probe, content), self.reply((), _TEXT)], probe)
        return content if text is None else text[: text.find(content) + len(content)].replace(_THOUGHT, thought)

    def _render(self, messages: Messages, thought: str) -> str | None:
        """Returns the text of ``messages`` after the generation prompt that follows the first."""
        whole = self.renderer.attempt(messages, _SCHEMAS, prompt=False)
        if whole is None or not whole.startswith(self.before):
            return None
        return self.extract_output(whole[len(self.before) :], thought)

    def extract_output(self, text: str, thought: str) -> str | None:
        """Returns the part of a rendered message that the model writes; the generation prompt has written the rest."""
        opening, closing = (tag.strip() for tag in self.format.thought)
        if text.startswith(self.header) and (not thought or thought in text):
            return text[len(self.header) :]
        core, open_tag, inner = self.header.partition(opening)
        if not text.startswith(core):
            return None
        body = text[len(core) :]
        if thought and thought in body:
            return None
        # The generation prompt opens a thought, or has an empty one, which a message of the history has otherwise.
        empty = re.match(rf"\s*(?:{re.escape(opening)})?\s*{re.escape(closing)}\s*", body)
        if open_tag or thought:
            body = body[empty.end() :] if empty is not None else body
        if open_tag and closing not in inner:
            return f"{thought}\n{closing}\n\n{body}" if thought else f"{closing}{body}"
        return f"{opening}\n{thought}\n{closing}\n\n{body}" if thought else body

    def find(self, text: str, tools: Mapping[str, Tool]) -> list[CallMatch]:
        """Returns the calls in a completion, at their places in it; the last ends where the model's output ends."""
        offset = len(text) - len(self.format.split(text)[1])
        answer = text[offset:]
        matches: list[CallMatch] = []
        for part in (answer, re.sub(rf"(?:\s*(?:{self.specials.pattern}))+\s*\Z", "", answer)):
            if matches := [match for match in self.format.calls(part, tools) if isinstance(match, CallMatch)]:
                break
        matches = [replace(match, start=match.start + offset, end=match.end + offset) for match in matches]
        if matches and self.format.section_ends:
            end = skip(text, matches[-1].end, *self.format.section_ends)
            matches[-1] = replace(matches[-1], end=max(end, matches[-1].end))
        return matches

    def after(self, pairs: Called, text: str, tools: Sequence[dict[str, Any]], user: bool = False) -> str | None:
        """Returns the template's text from the end of an output to the end of the next generation prompt.

        Args:
            pairs: The calls of the output; none for an output without a call.
            text: The answer, broken (:mod:`envsuite.prompting.ordinary`); so are others that are not the template's.
            tools: The tools, which some templates repeat before each text of a user.
            user: Whether the answer to an output without a call is the user's.
        """
        calls = [(replace(call, arguments=_SHORT), call_id) for call, call_id in pairs]
        output = self._render_calls(calls) if calls else _TEXT
        tokens = added_tokens(self.renderer.tokenizer)
        message, reply = self.message(calls, "", "" if calls else _TEXT), self.reply(pairs, text, user)
        messages = [_USER, tokens.break_message(message), {**tokens.break_message(reply), "content": text}]
        prompt = self.renderer.attempt(messages, _SCHEMAS if calls else tokens.break_fields(tools))
        if prompt is None or not output or (at := unbroken(prompt).find(output)) < 0:
            return None
        return remainder(prompt, at + len(output))

    def _render_calls(self, calls: Called) -> str:
        """Returns ``calls`` as a message of the history has them; ``""`` if the template cannot."""
        key = tuple((call.name, call_id) for call, call_id in calls)
        if key not in self.cache:
            text = self.completion(calls)
            matches = self.find(text, _TOOLS) if text is not None else []
            if len(self.cache) >= _CACHED:
                self.cache.clear()
            self.cache[key] = text[matches[0].start :] if text is not None and matches else ""
        return self.cache[key]


def find_dialect(renderer: TemplateRenderer, specials: re.Pattern[str]) -> Dialect:
    """Returns the dialect of a chat template.

    Raises:
        UsageError: The template takes no tools, or writes calls in no known format.
    """
    before, start = (renderer.attempt([_USER], _SCHEMAS, prompt=prompt) for prompt in (False, True))
    if before is None or start is None or not start.startswith(before):
        raise UsageError(f"the chat template writes the generation prompt in the middle of a conversation; {REMEDY}")
    lists = _TOOL.name in start
    for json_arguments, form in product((False, True), FORMATS):
        dialect = Dialect(renderer, specials, before, start[len(before) :], lists, form, Shape(json_arguments))
        if _writes(dialect, [_CALL]):
            return _complete(dialect)
    message = Shape(False).message([(_CALL, "call00000")], "", ("", ""))
    calls = (renderer.attempt([_USER, message], _SCHEMAS, prompt=False) or "")[len(before) :]
    if _CALL.name not in calls:
        what = "lists tools, but does not write the calls of earlier turns" if lists else "takes no tools"
        raise UsageError(f"the chat template {what}; {REMEDY}")
    raise UsageError(f"the chat template writes calls in a format that is not known ({calls[-300:]!r}); {REMEDY}")


def _writes(dialect: Dialect, calls: Sequence[ToolCall], thought: str = "") -> bool:
    """Whether ``calls``, once rendered, are parsed as they were."""
    text = dialect.completion(dialect.add_ids(calls), thought)
    if text is None or (thought and dialect.format.split(text)[0] != thought):
        return False
    return [match.call for match in dialect.find(text, _TOOLS)] == list(calls)


def _complete(dialect: Dialect) -> Dialect:
    """Returns ``dialect`` with the place of a thought, the number of calls and the answer to a text, as probed."""
    places: tuple[Literal["field", "chunk", "inline"], ...] = ("field", "chunk", "inline")
    for place in places:
        candidate = replace(dialect, shape=replace(dialect.shape, thought=place))
        message = candidate.message(candidate.add_ids([_CALL]), _THOUGHT)
        text = dialect.renderer.attempt([_USER, message], _SCHEMAS, prompt=False)
        if text is not None and text.count(_THOUGHT) == 1 and _writes(candidate, [_CALL], _THOUGHT):
            dialect = candidate
            break
    dialect = replace(dialect, several=_writes(dialect, [_CALL, _CALL]), answers_text="tool")
    return dialect if _answers_text(dialect) else replace(dialect, answers_text="user")


def _answers_text(dialect: Dialect) -> bool:
    """Whether a message without a call can be answered in the role ``tool``, as a call is."""
    pairs = dialect.add_ids([_CALL])
    texts: Messages = [dialect.message((), "", "No."), dialect.reply((), _TEXT)]
    messages = [_USER, dialect.message(pairs, ""), dialect.reply(pairs, _TEXT), *texts, *texts]
    whole = dialect.renderer.attempt(messages, _SCHEMAS)
    after = [dialect.after(calls, _TEXT, _SCHEMAS) for calls in (pairs, ())]
    if whole is None or whole.count(_TEXT) != 3 or None in after:
        return False
    ends = {str(text).partition(_TEXT)[2] for text in after}
    return len(ends) == 1 and "" not in ends
