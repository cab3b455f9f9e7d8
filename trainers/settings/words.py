"""Reads settings from command lines and YAML files, and formats the page that ``--help`` shows."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml

from envsuite.core.errors import UnknownName, nearest
from trainers.settings.check import LARGEST, ConfigError, adapter, alternatives, checked, section, shape_at
from trainers.settings.shipped import located, shipped_configs

C = TypeVar("C")
SEE = "\nSee --help for the settings."


class RepeatedKey(yaml.YAMLError):
    """A mapping with a key that is given twice, of which YAML would drop one silently."""


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML loader that reads 1e-5 as a number and refuses a key given twice, in C where PyYAML has it."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Returns a mapping.

        Raises:
            RepeatedKey: A key stands in it twice; the message names its line.
        """
        lines = dict[str, int]()
        for key, _ in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            if name in lines:
                raise RepeatedKey(f"line {line}: {name} is given twice, first in line {lines[name]}; write it once")
            lines[name] = line
        return super().construct_mapping(node, deep)  # type: ignore[no-any-return]


Loader.yaml_implicit_resolvers = {key: list(value) for key, value in yaml.SafeLoader.yaml_implicit_resolvers.items()}
Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*(?:\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with ``over`` on top; dictionaries are merged, anything else is replaced.

    An estimator other than that of ``base`` starts without the options of the old one.
    """
    base = dict(base)
    if "estimator" in over and over["estimator"] != base.get("estimator"):
        base.pop("options", None)
    for key, value in over.items():
        old = base.get(key)
        base[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return base


def read_file(name: str) -> dict[str, Any]:
    """The settings of a YAML file, in this folder or installed with the trainer.

    Raises:
        ConfigError: It cannot be read, or holds something else.
    """
    try:
        settings = yaml.load(located(name).read_text(encoding="utf-8"), Loader)
    except FileNotFoundError as error:
        near = nearest(name, shipped_configs(), 1)
        hint = f" Nearest of those that are installed: {near[0]}." if near else ""
        raise ConfigError(
            f"--config {name}: there is no such file in {Path.cwd()}, nor is one of that name installed.{hint} "
            "envsuite train --list-configs lists them"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {name}: cannot be read ({error})") from error
    except RepeatedKey as error:
        raise ConfigError(f"--config {name}, {error}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"--config {name}: not YAML ({error})") from error
    if not isinstance(settings, dict):
        raise ConfigError(f"--config {name}: settings were expected (key: value), got {type(settings).__name__}")
    return settings


def split(
    arguments: Sequence[str], own: Mapping[str, str | None]
) -> tuple[dict[str, list[str]], list[tuple[str, str | None]]]:
    """Splits a command line into the program's options and the settings, each with its value as it was typed.

    Args:
        arguments: The command line.
        own: Options of the program, each with its value where none follows; ``None`` if one must follow.

    Raises:
        ConfigError: A word is not an option, or an option lacks its value.
    """
    options: dict[str, list[str]] = {}
    settings: list[tuple[str, str | None]] = []
    words = list(arguments)
    while words:
        name, equals, value = words.pop(0).partition("=")
        if not name.startswith("--") or name == "--":
            raise ConfigError(f"{name}: not an option; settings are given as --name value{SEE}")
        follows = bool(words) and not words[0].startswith("--")
        word = value if equals else words.pop(0) if follows else None
        if name not in own:
            settings.append((name, word))
            continue
        word = own[name] if word is None else word
        if not word:
            raise ConfigError(f"{name} needs a value{SEE}")
        options.setdefault(name, []).append(word)
    return options, settings


def whole_number(option: str, word: str, least: int = 1, most: int = LARGEST) -> int:
    """Returns the number that an option of the command line gives.

    Args:
        option: The option, for messages.
        word: Its value, as it was typed.
        least: Least number.
        most: Greatest number.

    Raises:
        ConfigError: It gives none.
    """
    if not word.isdecimal() or not least <= int(word) <= most:
        limit = f", and at most {most}" if most < LARGEST else ""
        raise ConfigError(f"{option} {word}: it must be a whole number of at least {least}{limit}")
    return int(word)


def over(
    cls: type[Any],
    values: Mapping[str, Any],
    settings: Sequence[tuple[str, str | None]],
    foreign: Callable[[Sequence[str]], str | None] = lambda path: None,
) -> dict[str, Any]:
    """Merges the settings of a command line over ``values``; a setting with free keys is replaced as a whole.

    Args:
        cls: Class of the settings.
        values: Settings below those of the command line.
        settings: Names as they were typed, and words.
        foreign: Returns the setting here that another framework calls by a path, if there is one; for messages.

    Raises:
        UnknownName: A setting does not exist; the message lists what does.
        ConfigError: A value is missing.
    """
    base, overrides = dict(values), dict[str, Any]()
    for name, word in settings:
        path = name.removeprefix("--").split(".")
        try:
            shape = shape_at(cls, path)
        except UnknownName as error:
            if (own := foreign(path)) is not None:
                raise UnknownName(f"{name}: there is no such setting; here it is --{own}{SEE}") from None
            texts = {f"--{setting.path}": setting.text.lower() for setting in describe_settings(cls)}
            words = {*path[-1].lower().split("_")}
            near = nearest(name, texts, 1) or [
                option for option, text in texts.items() if words <= {*re.findall(r"\w+", text)}
            ]
            raise UnknownName(f"{name}: {error}{f' ({name}: nearest is {near[0]})' if near else ''}{SEE}") from None
        value = _value(name, word, shape)
        if not dataclasses.is_dataclass(section(shape)):
            base = _without(base, path)
        overrides = merge(overrides, functools.reduce(lambda below, key: {key: below}, reversed(path), value))
    return merge(base, overrides)


def _value(name: str, word: str | None, shape: Any) -> Any:
    """Parses a word from the command line: as text where the setting is text, else as YAML."""
    shapes = {option for option in alternatives(shape) if option is not types.NoneType}
    if word is None and shapes == {bool}:
        return True
    if word is None:
        raise ConfigError(f"{name} needs a value{SEE}")
    texts = all(option is str or typing.get_origin(option) is Literal for option in shapes)
    if texts and not (word == "null" and types.NoneType in alternatives(shape)):
        return word
    try:
        return yaml.load(word, Loader)
    except RepeatedKey as error:
        raise ConfigError(f"{name}, {error}") from error
    except (yaml.YAMLError, ValueError):
        return word


def _without(values: Mapping[str, Any], path: Sequence[str]) -> dict[str, Any]:
    key, *keys_below = path
    below = values.get(key)
    if keys_below and isinstance(below, Mapping):
        return {**values, key: _without(below, keys_below)}
    return {name: value for name, value in values.items() if name != key}


@dataclass(frozen=True)
class DescribedSetting:
    """One setting, as ``--help`` shows it."""

    path: str
    kind: str
    """Type of the setting, or its choices."""
    default: Any
    text: str


def describe_settings(cls: type[Any]) -> Iterator[DescribedSetting]:
    """Every setting of ``cls`` and of the sections in it, with the text below its field."""
    schema = adapter(cls).json_schema()
    (top,) = schema["prefixItems"]
    yield from _describe_node(top, schema.get("$defs", {}), cls(), "")


def _describe_node(
    node: Mapping[str, Any], definitions: Mapping[str, Any], default: Any, path: str
) -> Iterator[DescribedSetting]:
    for name, entry in _resolve_node(node, definitions)["properties"].items():
        where = f"{path}{name}"
        value = getattr(default, name) if dataclasses.is_dataclass(default) else entry.get("default")
        inner = next((part for part in _options(entry, definitions) if "properties" in part), None)
        text = " ".join(str(entry.get("description", "")).split())
        if inner is None or not dataclasses.is_dataclass(value):
            kinds = dict.fromkeys(_kind(part) for part in _options(entry, definitions))
            yield DescribedSetting(where, " | ".join(kinds), value, text)
        if inner is not None:
            yield from _describe_node(inner, definitions, value, f"{where}.")
        for item in (_resolve_node(part.get("items", {}), definitions) for part in _options(entry, definitions)):
            if "properties" in item:
                yield from _describe_node(item, definitions, value[0] if value else None, f"{where}[].")


def _resolve_node(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    return definitions[node["$ref"].rsplit("/", 1)[1]] if "$ref" in node else node


def _options(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [_resolve_node(part, definitions) for part in node.get("anyOf", [node])]


def _kind(node: Mapping[str, Any]) -> str:
    if "enum" in node:
        return " | ".join(map(str, node["enum"]))
    if "const" in node:
        return str(node["const"])
    if "properties" in node:
        return "section"
    name = {"array": "list", "object": "{key: value}", "integer": "int", "number": "float", "boolean": "bool"}
    kind = name.get(str(node.get("type", "")), str(node.get("type", "any")))
    bounds = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    limits = [f"{sign} {node[key]:g}" for key, sign in bounds.items() if key in node and node[key] != LARGEST]
    return f"{kind} {', '.join(limits)}".strip()


def parse_settings(cls: type[C], arguments: Sequence[str] | None, program: str, description: str) -> C:
    """The settings of a program whose only other options are ``--config FILE`` and ``--help``.

    Raises:
        UnknownName: A setting does not exist; the message lists what does.
        ConfigError: A setting has a value that is not allowed.
    """
    options, words = split(sys.argv[1:] if arguments is None else arguments, {"--config": None, "--help": "yes"})
    if "--help" in options:
        head = f"usage: {program} [--config FILE ...] [--SETTING VALUE ...]\n\n{description}"
        sys.stdout.write(help_text(cls, head, {"--config FILE": "YAML file of settings; may be given several times."}))
        raise SystemExit(0)
    values: dict[str, Any] = functools.reduce(merge, map(read_file, options.get("--config", [])), {})
    return checked(cls, over(cls, values, words))


def help_text(
    cls: type[Any], head: str, options: Mapping[str, str], shown: Callable[[str], bool] = lambda path: True
) -> str:
    """The page of a program.

    Args:
        cls: Its settings.
        head: Text above them.
        options: The program's own options, each with its description.
        shown: Whether the setting at a path is on the page.
    """
    lines = [head.rstrip(), "", "options:"]
    more = {} if any(name.startswith("--help") for name in options) else {"--help": "Show this page, and stop."}
    for name, text in {**options, **more}.items():
        lines += [f"  {name}", *textwrap.wrap(text, 110, initial_indent=" " * 8, subsequent_indent=" " * 8)]
    lines += ["", "settings:"]
    for setting in (entry for entry in describe_settings(cls) if shown(entry.path)):
        plain = json.loads(json.dumps(setting.default, default=dataclasses.asdict))
        default = yaml.safe_dump(plain, default_flow_style=True, width=1000, allow_unicode=True)
        default = default.removesuffix("\n").removesuffix("\n...")
        option = setting.path if "[]" in setting.path else f"--{setting.path}"
        lines.append(f"  {option} ({setting.kind}; default: {default})")
        lines += textwrap.wrap(setting.text, 110, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return "\n".join(lines) + "\n"
