"""Sequences of tokens that an agent's requests make: a request goes on where an answer ended, or begins another one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import numpy as np
import orjson

from envsuite.core.errors import UsageError
from envsuite.core.tools import Tool, ToolCall
from envsuite.playing.step import Tokens, as_tokens
from envsuite.prompting.codecs.native import NativeCodec
from envsuite.prompting.ordinary import added_tokens, remainder, unbroken
from envsuite.prompting.rendering import ChatTokenizer, TemplateRenderer, specials_of, vocabulary_of
from envsuite.prompting.rendering import TemplateRefused as Unrenderable
from envsuite.prompting.template import MARK
from trainers.gateway.messages import Message, Refused, Role, digests

_SHAPES = 256
"""Shapes of conversations of which it is kept what the chat template shows."""
_LOST = "\N{REPLACEMENT CHARACTER}"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # as SentencePiece names a byte
_PRINTED = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTED]
_LETTERS = {chr(byte): byte for byte in _PRINTED} | {chr(256 + n): byte for n, byte in enumerate(_OTHERS)}
"""The letters by which tokenizers of bytes name them."""


class _Vocabulary(Protocol):
    def get_vocab(self) -> dict[str, int]:
        """Returns the ids of tokens by their names."""

    def convert_ids_to_tokens(self, ids: int) -> Any:
        """Returns the name of a token."""


class Writer:
    """Renders conversations with the policy's chat template, and reads its answers.

    Args:
        tokenizer: The policy's.
        arguments: Arguments of its chat template.

    Raises:
        UsageError: It has no chat template.
    """

    def __init__(self, tokenizer: ChatTokenizer, arguments: Mapping[str, Any] | None = None) -> None:
        self.tokenizer = tokenizer
        self.render = TemplateRenderer(tokenizer, arguments or {})
        self.render.check()
        self.specials = specials_of(tokenizer)
        self.added = added_tokens(tokenizer)
        self._shown: dict[tuple[tuple[tuple[Role, bool, bool], ...], bool], int | None] = {}
        self.vocabulary = vocabulary_of(tokenizer)
        """Equal where token ids mean the same."""
        self.longest = max(16, *map(len, cast(_Vocabulary, tokenizer).get_vocab()))
        """Most characters that a token stands for."""
        self.codec: NativeCodec | None = None
        self.lacks = ""
        """Why the chat template has no tools; "" where it has."""
        try:
            self.codec = NativeCodec(tokenizer, arguments)
        except UsageError as error:
            self.lacks = str(error)

    def _message(self, message: Message, text: Callable[[str], str] = str) -> dict[str, Any]:
        if message.role == "assistant":
            shows = self.codec is not None and self.codec.dialect.shape.thought is not None
            thought, answer = map(text, message.apart if shows else (message.thought, message.text))
            if self.codec is not None:
                return self.codec.dialect.message(message.calls, thought, answer)
            return {"role": "assistant", "content": answer}
        plain = {"role": message.role, "content": message.text}
        return {**plain, "tool_call_id": message.call_id} if message.role == "tool" else plain

    def prompt_text(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str:
        """The conversation up to the place of the next answer, all texts broken (:mod:`envsuite.prompting.ordinary`).

        Raises:
            Refused: The chat template has no place for the tools, or for the messages as they are, or leaves one out.
        """
        text = self.conversation(messages, tools, prompt=True)
        shape = tuple((message.role, bool(message.text.strip()), bool(message.calls)) for message in messages)
        if (missing := self._missing_message(shape, bool(tools))) is not None:
            raise Refused(
                400, "invalid_messages", f"the model's chat template shows no {messages[missing].role} message there; "
                "put its text into another message, or give the model another template (model.chat_template)",
                param=f"messages.{missing}",
            )  # fmt: skip
        return text

    def ids(self, conversation: str, after: int = 0) -> list[int]:
        """Token ids of a rendered conversation after so many characters; what the agent has written is ordinary text.

        Several threads may encode at once: it changes nothing of the tokenizer.
        """
        return self.added.encode(self.tokenizer, remainder(conversation, after))

    def _missing_message(self, shape: tuple[tuple[Role, bool, bool], ...], tools: bool) -> int | None:
        """Number of the first message without calls that the chat template omits; ``None`` where it omits none."""
        if (shape, tools) not in self._shown:
            call, functions = ToolCall("probe", {}), [Tool("probe", "", {"type": "object", "properties": {}})]
            probes = []
            for i, (role, text, calls) in enumerate(shape):
                content = f"{MARK}{i:06}" if text else ""
                probes.append(Message(role, content, ((call, "call00000"),) if calls else (), call_id="call00000"))
            conversation = self.conversation(probes, functions if tools else (), prompt=True)
            places = (i for i, (_, text, calls) in enumerate(shape) if text and not calls)
            missing = next((i for i in places if f"{MARK}{i:06}" not in conversation), None)
            if len(self._shown) >= _SHAPES:
                self._shown.clear()
            self._shown[shape, tools] = missing
        return self._shown[shape, tools]

    def conversation(
        self, messages: Sequence[Message], tools: Sequence[Tool], tail: Sequence[Message] = (), *, prompt: bool = False
    ) -> str:
        """The conversation, in which all is broken that neither the chat template has written nor ``tail`` has.

        Raises:
            Refused: The chat template has no place for the tools, or for the messages as they are.
        """
        if tools and self.codec is None:
            raise Refused(400, "tools_unsupported", f"the model takes no tools: {self.lacks}")
        ordinary = [self.added.break_message(self._message(message, self.added.break_tokens)) for message in messages]
        functions = self.added.break_fields([tool.as_openai() for tool in tools]) or None
        try:
            return self.render([*ordinary, *map(self._message, tail)], functions, prompt=prompt)
        except Unrenderable as error:
            raise Refused(400, "invalid_messages", str(error)) from error

    def has_end(self, ids: Sequence[int]) -> bool:
        """Whether an answer ends with a control token that ends it."""
        last = str(self.tokenizer.decode([int(ids[-1])])) if len(ids) else ""
        inner = frozenset() if self.codec is None else self.codec.inner_tokens
        return self.specials.fullmatch(last) is not None and last not in inner

    def read(self, ids: Sequence[int], tools: Sequence[Tool], tail: str = "") -> tuple[Message, str]:
        """Reads an answer.

        Args:
            ids: Its tokens.
            tools: What it may call.
            tail: Its end, from the text that stopped it on: no part of the message.

        Returns:
            The message, and why it has no calls where it tries to: then all of it is text.
        """
        plain = str(self.tokenizer.decode(list(ids), skip_special_tokens=True)).removesuffix(tail)
        if self.codec is None:
            return Message("assistant", plain), ""
        text = str(self.tokenizer.decode(list(ids), skip_special_tokens=False)).removesuffix(tail)
        answer = self.codec.split_completion(text, tools)
        problem = answer.problem or _unwritable(answer.called)
        cut = bool(tail) and not answer.called and not answer.thought  # as it was said, white space included
        if cut or (problem and answer.called):  # one that is malformed was made along with the others
            return Message("assistant", plain), problem
        return Message("assistant", answer.text, answer.called, answer.thought), problem

    def write(self, prompt: RequestPrompt, answer: Message) -> list[int]:
        """Token ids of another's answer, as the model would write it, with the token that ends it.

        A thought that the chat template has no place for is left out.

        Raises:
            Refused: The model could not write it so that it is read back as it is.
        """
        inner = frozenset() if self.codec is None else self.codec.inner_tokens
        for message in (answer, replace(answer, thought="")):
            if (text := self._answer(prompt, message)) is None:
                continue
            ends = (special.end() for special in self.specials.finditer(text) if special.group() not in inner)
            end = next(ends, None)
            ids = self.added.encode(self.tokenizer, text[:end])
            ids += [int(self.tokenizer.eos_token_id)] if end is None else []
            if self.read(ids, prompt.tools)[0].key == message.key:
                return ids
        excerpt = repr(answer.text or [call.name for call, _ in answer.calls])[:80]
        raise Refused(502, "teacher_unwritable", f"the model's chat template or vocabulary cannot write {excerpt}")

    def _answer(self, prompt: RequestPrompt, answer: Message) -> str | None:
        """An answer's text, broken, after the generation prompt, with what the chat template writes after it."""
        whole = self.conversation(prompt.messages, prompt.tools, (answer,))
        if unbroken(whole).startswith(prompt.text):
            return remainder(whole, len(prompt.text))
        before = self.conversation(prompt.messages, prompt.tools)
        if self.codec is None or not whole.startswith(before):
            return None
        return self.codec.dialect.extract_output(whole[len(before) :], answer.thought)

    def token_bytes(self, ids: Sequence[int]) -> list[bytes]:
        """The bytes of each token: together they are those of the text, also where a character has several tokens."""
        pieces: list[bytes] = []
        for i, token in enumerate(ids):
            before = str(self.tokenizer.decode([int(ids[i - 1])])) if i else ""
            text = str(self.tokenizer.decode([int(n) for n in ids[max(0, i - 1) : i + 1]]))
            text = text[len(before) :] if text.startswith(before) else str(self.tokenizer.decode([int(token)]))
            pieces.append(text.encode() if text and _LOST not in text else self._piece(int(token)))
        return pieces

    def _piece(self, token: int) -> bytes:
        """The bytes of a token that is no text by itself, from its name in the vocabulary."""
        name = str(cast(_Vocabulary, self.tokenizer).convert_ids_to_tokens(token))
        if (byte := _BYTE.fullmatch(name)) is not None:
            return bytes.fromhex(byte[1])
        return bytes(_LETTERS[c] for c in name) if all(c in _LETTERS for c in name) else name.encode()


def _unwritable(calls: Sequence[tuple[ToolCall, str]]) -> str:
    """Why calls cannot be sent as JSON; "" where they can."""
    try:
        orjson.dumps([dict(call.arguments) for call, _ in calls])
    except TypeError as error:  # an integer of more than 64 bits
        return f"the arguments cannot be sent: {error}"
    return ""


@dataclass(frozen=True)
class RequestPrompt:
    """The tokens that the engine is asked to continue, and what they stand for."""

    ids: Tokens
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    text: str
    """As the chat template renders it."""
    parent: int | None = None
    """The request whose answer it goes on from, token by token; ``None``: it begins a sequence."""
    left: tuple[int, int] | None = None
    """Where one begins a sequence beside others, the request with which it shares its first messages, and how many
    these are."""


@dataclass(frozen=True)
class _End:
    """A sequence up to the end of an answer."""

    request: int
    ids: Tokens
    prompt: str
    text: str
    """The prompt and the answer as it was sampled."""
    ended: bool


class Sequences:
    """The sequences of one episode.

    A request goes on from an answer where its messages begin with what was said up to there, and the chat template
    writes that beginning as it did: the tokens that were seen and sampled stay, and those of the new messages follow.

    Args:
        writer: Renders and reads.
    """

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self._ends: dict[bytes, _End] = {}
        self._seen: dict[bytes, int] = {}

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool]) -> RequestPrompt:
        """The prompt of a request.

        Raises:
            Refused: The chat template does not take it.
        """
        text = self.writer.prompt_text(messages, tools)
        prompt = RequestPrompt(as_tokens([]), tuple(messages), tuple(tools), unbroken(text))
        hashes = digests(tools, messages)
        for count in range(len(messages) - 1, 0, -1):
            end = self._ends.get(hashes[count])
            if end is not None and (follow := self._follow(prompt, text, count, end)) is not None:
                return replace(prompt, ids=np.concatenate([end.ids, as_tokens(follow)]), parent=end.request)
        prefix = next((n for n in range(len(messages), 0, -1) if hashes[n] in self._seen), 0)
        branch = (self._seen[hashes[prefix]], prefix) if prefix else None
        return replace(prompt, ids=as_tokens(self.writer.ids(text)), left=branch)

    def _follow(self, prompt: RequestPrompt, text: str, count: int, end: _End) -> list[int] | None:
        """Token ids from the end of an answer to the end of the prompt; ``None`` where the template rewrote it."""
        if prompt.text.startswith(end.text):  # the template writes the answer as it was sampled
            return self.writer.ids(text, len(end.text))
        history = unbroken(self.writer.conversation(prompt.messages[:count], prompt.tools))
        if not (prompt.text.startswith(history) and history.startswith(end.prompt)):
            return None
        *_, last = (None, *self.writer.specials.finditer(history, len(end.prompt)))
        if last is None:  # nothing marks the end of the answer
            return None
        return self.writer.ids(text, last.end() if end.ended else last.start())

    def record_answer(self, request: int, prompt: RequestPrompt, answer: Message, ids: Tokens) -> None:
        """Records an answer that the agent has got, from which requests may go on.

        Args:
            request: Number of the request.
            prompt: Its prompt.
            answer: The answer as the agent has it.
            ids: Its tokens as they were sampled.
        """
        hashes = digests(prompt.tools, (*prompt.messages, answer))
        for digest in hashes[1:]:
            self._seen.setdefault(digest, request)
        ids = as_tokens(ids)
        text = prompt.text + str(self.writer.tokenizer.decode(ids.tolist(), skip_special_tokens=False))
        whole = np.concatenate([prompt.ids, ids])
        self._ends[hashes[-1]] = _End(request, whole, prompt.text, text, self.writer.has_end(ids.tolist()))
