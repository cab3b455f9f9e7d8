"""Settings checked by the types of their fields, with errors that name the key, the value and what is allowed."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from envsuite.core.errors import EnvsuiteError, UnknownName, UsageError, unknown

C = TypeVar("C")
LARGEST = 2**31 - 1

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
"""In [0, 1]."""
Share = Annotated[float, Field(gt=0, le=1)]
"""In (0, 1]."""
Decay = Annotated[float, Field(ge=0, lt=1)]
"""In [0, 1)."""
Count = Annotated[int, Field(ge=0, le=LARGEST)]
AtLeastOne = Annotated[int, Field(ge=1, le=LARGEST)]
Seed = Annotated[int, Field(ge=0, le=LARGEST)]
Text = Annotated[str, Field(min_length=1)]


def _one_folder(name: str) -> str:
    if not name or name.startswith(".") or len(name) > 200 or not name.isprintable() or set(name) & {"/", "\\"}:
        raise PydanticCustomError("folder", "the name of one folder, without / and not beginning with a dot")
    return name


FolderName = Annotated[str, AfterValidator(_one_folder)]

_RULES = ConfigDict(
    extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True, coerce_numbers_to_str=True, strict=False
)


class ConfigError(UsageError):
    """A configuration that cannot work; the message names the key."""


@contextmanager
def config_errors(setting: str, kinds: type[Exception] | tuple[type[Exception], ...] = EnvsuiteError) -> Iterator[None]:
    """Makes an error of these ``kinds`` in the block, by default one that a user can mend, one of the ``setting``.

    Raises:
        ConfigError: In its place; the message begins with the setting.
    """
    try:
        yield
    except kinds as error:
        raise ConfigError(f"{setting}: {error}") from error


Origin = Callable[[Sequence[str | int]], str]
"""Function from the path of a setting to the prefix of messages about it, e.g. the name of a file."""


def checked(cls: type[C], values: Mapping[str, Any], kind: str = "setting", origin: Origin = lambda path: "") -> C:
    """Makes an object of the dataclass ``cls`` from ``values``, which may be nested, converted to its fields' types.

    Args:
        cls: Class of the object.
        values: Values of its fields; fields that are not given have their defaults.
        kind: Name of a field in messages, e.g. ``"option of estimator grpo"``.
        origin: Gives the prefix of a message from the path of the setting.

    Raises:
        UnknownName: Keys do not exist; the message lists what does, the nearest first.
        ConfigError: Values have another type, or lie outside of what is allowed; the message has a line for each. A
            number that is not finite, or an integer of more than 64 bits, is never allowed.
    """
    shape: Any = cls
    try:
        instance: C = _class_adapter(shape).validate_python((values,))[0]
    except ValidationError as error:
        errors = error.errors(include_url=False)
        messages = list(dict.fromkeys(_message(cls, values, detail, errors, kind, origin) for detail in errors))
        strange = all(detail["type"] == "unexpected_keyword_argument" for detail in errors)
        raise (UnknownName if strange else ConfigError)("\n".join(messages)) from None
    if paths := [*_boolean_paths(values, instance)]:
        raise ConfigError("\n".join(_not(values, path, "a number", kind, origin) for path in paths))
    for path, number in numbers(instance):
        if isinstance(number, int) and not -(2**63) <= number < 2**63:
            raise ConfigError(f"{path} is {_show_value(number)}; it must fit into 64 bits")
        if not math.isfinite(number):
            raise ConfigError(f"{path} is {number}; it must be a finite number")
    return instance


def check_fields(instance: Any) -> None:
    """Checks, in ``__post_init__``, that the type of each field allows its value.

    Nothing is converted, unlike what :func:`checked` does.

    Raises:
        UnknownName: A string is not one of the choices; the message lists the choices, the nearest first.
        ConfigError: Another value is not allowed; the message has a line for each.
    """
    cls: Any = type(instance)
    messages, words = dict[str, None](), True
    for name, shape in _field_adapters(cls).items():
        try:
            shape.validate_python((vars(instance)[name],), strict=True)
        except ValidationError as error:
            details = [ErrorDetails({**detail, "loc": (0, name, *detail["loc"][1:])}) for detail in error.errors()]
            messages |= {
                _message(cls, vars(instance), detail, details, "setting", lambda path: f"{cls.__name__}: "): None
                for detail in details
            }
            words &= all(detail["type"] == "literal_error" for detail in details)
    if messages:
        raise (UnknownName if words else ConfigError)("\n".join(messages))


@functools.cache
def _field_adapters(cls: type[Any]) -> dict[str, TypeAdapter[Any]]:
    return {name: adapter(shape) for name, shape in fields(cls).items()}


@functools.cache
def _class_adapter(cls: type[Any]) -> TypeAdapter[Any]:
    return adapter(cls)


def adapter(cls: Any) -> TypeAdapter[Any]:
    """Returns a validator of one-tuples of ``cls``; the tuple carries its rules into every nested dataclass."""
    return TypeAdapter(tuple[cls], config=_RULES)


def numbers(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Yields every number within a value, with its path."""
    if dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from numbers(item, join_key(path, key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from numbers(item, join_key(path, index))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value


def _boolean_paths(values: Any, instance: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yields the path of every ``true`` and ``false`` that was taken as the number 1 or 0, as pydantic takes them."""
    if isinstance(values, bool):
        if isinstance(instance, int | float) and not isinstance(instance, bool):
            yield path
    elif isinstance(values, Mapping):
        parts = vars(instance) if dataclasses.is_dataclass(instance) else instance
        for key, item in values.items():
            yield from _boolean_paths(item, parts.get(key) if isinstance(parts, Mapping) else None, (*path, key))
    elif isinstance(values, list | tuple) and isinstance(instance, list | tuple):
        for index, (item, part) in enumerate(zip(values, instance, strict=False)):
            yield from _boolean_paths(item, part, (*path, index))


def join_key(path: str, key: object) -> str:
    """Joins ``path`` and the next key or index: ``envs``, 0, ``id`` → ``envs[0].id``."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else str(key)


def shape_at(shape: Any, path: Sequence[str | int]) -> Any:
    """The annotation of the setting at ``path`` below ``shape``; ``Any`` within a mapping of free keys.

    Raises:
        UnknownName: There is no such setting; the message lists what exists beside it.
    """
    where = ""
    for key in path:
        shape = section(shape)
        if isinstance(key, int):
            shape = next(iter(typing.get_args(shape)), Any)
        elif dataclasses.is_dataclass(shape):
            hints = fields(shape)
            if key not in hints:
                raise unknown(f"setting {'in ' + where if where else ''}".rstrip(), key, hints)
            shape = hints[key]
        elif typing.get_origin(shape) is dict:
            shape = typing.get_args(shape)[1]
        elif shape is not Any:
            raise ConfigError(f"{where} is one value; it has no setting {key!r}")
        where = join_key(where, key)
    return shape


def fields(cls: Any) -> dict[str, Any]:
    """The fields of a dataclass with their annotations."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def alternatives(shape: Any) -> list[Any]:
    """The types that ``shape`` allows, without ``Annotated``."""
    while typing.get_origin(shape) is Annotated:
        shape = typing.get_args(shape)[0]
    if typing.get_origin(shape) in (types.UnionType, typing.Union):
        return [inner for option in typing.get_args(shape) for inner in alternatives(option)]
    return [shape]


def section(shape: Any) -> Any:
    """Returns the type with keys (dataclass or dict) among those that ``shape`` allows; the first one if none has."""
    options = [option for option in alternatives(shape) if option is not types.NoneType]
    return next((o for o in options if dataclasses.is_dataclass(o) or typing.get_origin(o) is dict), options[0])


def _message(
    cls: type[Any], values: Any, detail: ErrorDetails, errors: Sequence[ErrorDetails], kind: str, origin: Origin
) -> str:
    """Returns one line on the errors at one path; alternatives of a union are joined."""
    path = _present_path(values, detail["loc"])
    if detail["type"] == "unexpected_keyword_argument":
        *parents, key = detail["loc"][1:]
        where = functools.reduce(join_key, parents, "")
        names = fields(section(shape_at(cls, parents)))
        return origin(path) + str(unknown(f"{kind} in {where}" if where else kind, str(key), names))
    if detail["type"] == "literal_error":
        choices = re.findall(r"'([^']*)'", detail["ctx"]["expected"])
        return origin(path) + str(unknown(functools.reduce(join_key, path, ""), str(detail["input"]), choices))
    same = [error for error in errors if _present_path(values, error["loc"]) == path]
    return _not(values, path, " or ".join(dict.fromkeys(_requirement(error) for error in same)), kind, origin)


def _not(values: Any, path: Sequence[str | int], rule: str, kind: str, origin: Origin) -> str:
    """Returns one line on the value at ``path``, which is not as ``rule`` says."""
    where, value = functools.reduce(join_key, path, ""), values
    for key in path:
        value = value[key]
    label = where if kind == "setting" else f"{kind}: {where}"
    return f"{origin(path)}{label} is {_show_value(value)}; it must be {rule}"


def _present_path(values: Any, location: Sequence[str | int]) -> tuple[str | int, ...]:
    """Returns the part of a location that exists in ``values``, without the names of a union's alternatives."""
    path: list[str | int] = []
    for key in location[1:]:
        has_key = isinstance(values, Mapping) and key in values
        if has_key or (isinstance(values, list | tuple) and isinstance(key, int) and key < len(values)):
            values = values[key]
            path.append(key)
    return tuple(path)


def _requirement(detail: ErrorDetails) -> str:
    if detail["type"] in ("dataclass_type", "dict_type"):
        return "a section of settings (key: value)"
    if detail["type"] in ("list_type", "tuple_type"):
        return "a list: [one, two]"
    if detail["type"] == "int_parsing_size":
        return "a whole number that fits into 64 bits"
    if detail["type"] == "invalid_key":
        return "given by its name"
    if detail["type"] == "missing":
        return f"longer: value number {int(detail['loc'][-1]) + 1} is missing"
    if detail["type"] in ("too_short", "too_long", "string_too_short", "string_too_long"):
        length = detail["ctx"].get("min_length", detail["ctx"].get("max_length"))
        return f"{'longer' if detail['type'].endswith('short') else 'shorter'}: {length} is the limit"
    return re.sub(r"^Input should be ", "", detail["msg"])


def _show_value(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 80 else f"{text[:76]} …"
