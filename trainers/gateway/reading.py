"""Bodies of requests, read field by field; an error names the path of the wrong field."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import orjson

from envsuite.core.errors import DataError
from envsuite.core.schemas import check_schema
from envsuite.core.tools import Tool
from trainers.gateway.messages import Refused

T = TypeVar("T")
_INF = float("inf")
_KINDS = {str: "a string", int: "an integer", float: "a number", bool: "true or false", list: "an array"}
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""Parts of a message that are texts, and the field that has each."""


def wrong(where: str, what: str, code: str = "invalid_value") -> Refused:
    """The error of a field: ``where`` is its path, ``what`` says what it must be."""
    return Refused(400, code, what, param=where)


class Fields:
    """An object of a request.

    Args:
        value: What was sent in its place; ``None`` reads as an object without fields.
        where: Its path; "" for the whole body.

    Raises:
        Refused: It is no object.
    """

    def __init__(self, value: Any, where: str = "") -> None:
        if not isinstance(value, dict | None):
            raise wrong(where or "body", "must be an object")
        self.value: dict[str, Any] = value or {}
        self.where = where
        self._read: set[str] = set()

    def path(self, name: str) -> str:
        """The path of a field."""
        return f"{self.where}.{name}" if self.where else name

    def get(self, name: str) -> Any:
        """A field as it was sent; ``None`` where it is absent."""
        self._read.add(name)
        return self.value.get(name)

    def may(self, name: str, kind: type[T], least: float = -_INF, most: float = _INF) -> T | None:
        """A field of a kind; ``None`` where it is absent or null.

        Raises:
            Refused: It is of another kind, or a number outside ``least`` to ``most``.
        """
        if (value := self.get(name)) is None:
            return None
        fits = isinstance(value, int | float if kind is float else kind)
        if not fits or isinstance(value, bool) is not (kind is bool):
            raise wrong(self.path(name), f"must be {_KINDS.get(kind, 'an object')}", "invalid_type")
        if isinstance(value, int) and not least <= value <= most:
            raise wrong(self.path(name), f"is {value}, and not in {least} to {most}")
        return value  # type: ignore[no-any-return]

    def need(self, name: str, kind: type[T], least: float = -_INF) -> T:
        """As :meth:`may`, for a field that must be there."""
        if (value := self.may(name, kind, least)) is None:
            raise wrong(self.path(name), "is missing", "missing_required_parameter")
        return value

    def object(self, name: str) -> Fields:
        """A field that is an object; one without fields where it is absent."""
        return Fields(self.get(name), self.path(name))

    def objects(self, name: str) -> list[Fields]:
        """A field that is an array of objects; none where it is absent."""
        return [Fields(entry, f"{self.path(name)}[{i}]") for i, entry in enumerate(self.may(name, list) or ())]

    def present_names(self, *names: str) -> tuple[str, ...]:
        """Those of the names that are there, and are neither null, false nor empty."""
        values = {name: self.get(name) for name in names}
        return tuple(name for name, value in values.items() if value is not False and value not in (None, {}, [], ""))

    def unread(self, *harmless: str) -> tuple[str, ...]:
        """Paths of the fields that are there and nothing has read, besides those that are harmless."""
        unread = [name for name in self.value if name not in self._read and name not in harmless]
        return tuple(self.path(name) for name in self.present_names(*unread))

    def texts(self, name: str) -> tuple[str, ...]:
        """A field that is a text, or an array of texts, none of which is empty."""
        value = self.get(name)
        texts = (value,) if isinstance(value, str) else tuple(self.may(name, list) or ())
        if not all(isinstance(text, str) and text for text in texts):
            raise wrong(self.path(name), "must be texts that are not empty")
        return texts

    def content(self, name: str = "content") -> str:
        """A text, or the texts of an array of parts, one a line."""
        value = self.get(name)
        return value if isinstance(value, str) else "\n".join(part.text() for part in self.objects(name))

    def text(self) -> str:
        """The text of a part of a message.

        Raises:
            Refused: It is no text.
        """
        kind = self.need("type", str)
        if kind not in _TEXTS:
            raise wrong(self.path("type"), f"the model reads text alone, not {kind[:40]!r}", "unsupported_content")
        return self.need(_TEXTS[kind], str)

    def json(self, name: str) -> dict[str, Any]:
        """A field that is a text, which is an object as JSON."""
        try:
            return Fields(orjson.loads(self.need(name, str) or "{}"), self.path(name)).value
        except orjson.JSONDecodeError as error:
            raise wrong(self.path(name), f"is no JSON: {error}") from error

    def tool(self, schema: str) -> Tool:
        """A tool; ``schema`` is the field with the schema of its arguments.

        Raises:
            Refused: The name has other letters, or the schema is none.
        """
        if _NAME.fullmatch(name := self.need("name", str)) is None:
            raise wrong(self.path("name"), "must be 1 to 128 letters, digits, points, _ and -")
        parameters = self.may(schema, dict) or {"type": "object", "properties": {}}
        try:
            check_schema(parameters)
        except DataError as error:
            raise wrong(self.path(schema), f"is {error}") from error
        return Tool(name, self.may("description", str) or "", parameters)


def read_json(body: bytes) -> Fields:
    """The object of a request's body.

    Raises:
        Refused: It is no JSON, or no object.
    """
    try:
        return Fields(orjson.loads(body))
    except orjson.JSONDecodeError as error:
        raise Refused(400, "invalid_json", f"the body is no JSON: {error}") from error


def episode_of(fields: Fields) -> dict[str, Any]:
    """Returns what a request says of its place in the episode."""
    metadata = fields.object("metadata")
    return {name: metadata.may(name, str) or "" for name in ("state_key", "parent")}


def canonical(fields: Fields, *without: str) -> bytes:
    """Returns what makes two requests the same, as JSON: the order of fields does not, nor do those that are left out.

    Raises:
        Refused: It is nested too deep to be written again.
    """
    try:
        content = {name: value for name, value in fields.value.items() if name not in without}
        return orjson.dumps(content, option=orjson.OPT_SORT_KEYS)
    except TypeError as error:
        raise wrong("body", f"cannot be written again: {error}") from error


def size_of(fields: Fields) -> tuple[int, int]:
    """Returns the characters of what a request has rendered, and the fewest tokens of its messages, parts and tools."""
    characters = tokens = 0
    values = [fields.value.get(name) for name in ("messages", "input", "system", "instructions", "tools")]
    while values:
        if isinstance(value := values.pop(), str):
            characters += len(value)
        elif isinstance(value, dict):
            tokens += 2 if "role" in value else "type" in value
            values += value.values()
        elif isinstance(value, list):
            values += value
    return characters, tokens
