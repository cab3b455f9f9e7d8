"""Each setting of a run has a user: a shipped file, a recipe, a published setting, or a page that tells of it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any, get_args, get_origin

from docs.build import ROOT, pages
from trainers.run.config import TrainConfig
from trainers.settings.check import alternatives, fields

MOST = 155
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


def test_each_setting_has_a_user() -> None:
    settings = sorted(set(_paths(TrainConfig)))
    assert len(settings) <= MOST
    folders = ("configs", "research", "trainers/credit/recipes", "trainers/papers")
    files = "\n".join(
        file.read_text(encoding="utf-8") for folder in folders for file in (ROOT / folder).rglob("*.yaml")
    )
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages() if page.name != "CHANGELOG.md")
    unused = []
    for path in settings:
        name, ending = path.rpartition(".")[2], re.escape(".".join(path.split(".")[-2:]))
        in_page = re.search(rf"(?<!\w){ending}\b|`{name}`|\b{name}[:=]", text)
        if not in_page and not re.search(rf"\b{name}:", files):
            unused.append(path)
    assert not unused, "name the setting's user on a page, or remove it"
