"""Each setting of a run has a user: a shipped file, a recipe, or a page that tells of it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any, get_args, get_origin

import yaml

from docs.build import ROOT, pages
from trainers.run.config import TrainConfig
from trainers.settings.check import alternatives, fields
from trainers.settings.words import Loader

MOST = 140
"""Settings of a run. One more wants one that goes."""


def _paths(shape: Any, path: str = "") -> Iterator[str]:
    """The settings below a shape, by their dotted names."""
    shapes = [inner for option in alternatives(shape) for inner in _items(option)]
    sections = [option for option in shapes if dataclasses.is_dataclass(option)]
    for section in sections:
        for name, inner in fields(section).items():
            yield from _paths(inner, f"{path}.{name}".lstrip("."))
    if not sections:
        yield path


def _items(option: Any) -> list[Any]:
    return (
        [inner for item in get_args(option) for inner in alternatives(item)] if get_origin(option) is list else [option]
    )


def _keys(settings: Any, path: str = "") -> Iterator[str]:
    """The keys of a file of settings, by their dotted names behind a dot."""
    if isinstance(settings, dict):
        for key, value in settings.items():
            yield from (f"{path}.{key}", *_keys(value, f"{path}.{key}"))
    elif isinstance(settings, list):
        for value in settings:
            yield from _keys(value, path)


def _tells_of(page: str, setting: str) -> bool:
    """Whether a page has a setting by its dotted name, or in code on a page that names its section."""
    section, name = ["", *setting.split(".")][-2:]
    if section and re.search(rf"(?<!\w){section}\.{name}\b", page):
        return True
    code = "\n".join(re.findall(r"```.*?```|`[^`\n]+`", page, re.S))
    return section in page and re.search(rf"`{name}`|(?<![\w.]){name}[:=]|--{name} ", code) is not None


def test_each_setting_has_a_user():
    settings = sorted(set(_paths(TrainConfig)))
    assert len(settings) <= MOST
    folders = ("configs", "research", "trainers/credit/recipes")
    files = (file for folder in folders for file in (ROOT / folder).rglob("*.yaml"))
    shipped = {key for file in files for key in _keys(yaml.load(file.read_text(encoding="utf-8"), Loader))}
    texts = [page.read_text(encoding="utf-8") for page in pages() if page.name != "CHANGELOG.md"]
    unused = [
        name
        for name in settings
        if not any(key.endswith(f".{name}") for key in shipped) and not any(_tells_of(text, name) for text in texts)
    ]
    assert not unused, "name the setting's user on a page, or remove it"
    assert not any(_tells_of(text, "optim.nothing") for text in texts), "what is nowhere is found to be so"
