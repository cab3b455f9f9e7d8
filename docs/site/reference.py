"""Generated reference pages: the settings of the programs, and the public modules."""

from __future__ import annotations

import importlib
import itertools
import json
import pkgutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

import yaml

from trainers.credit.recipes import recipes
from trainers.imitation.config import ImitateConfig
from trainers.run.config import TrainConfig
from trainers.settings.words import DescribedSetting, describe_settings

SETTINGS = {
    "configuration-train": (
        TrainConfig,
        "Settings of a run",
        "`trainers.train`, `envsuite eval model`, `envsuite plan` and `envsuite show-prompt` read them",
    ),
    "configuration-imitate": (ImitateConfig, "Settings of imitation", "`envsuite imitate` reads them"),
}
HOW = """A file of settings is YAML: `model: {path: FOLDER}` there is `--model.path FOLDER` on the command line. Of
several `--config` files the later ones win, and the command line wins over all. An unknown name or a value of another
type is refused with the nearest name and the file that has it. `name[]` is an item of a list. This page is made from
the docstrings of the settings.
"""
ALONE = "Settings without a section"
MODULES: dict[str, tuple[str, ...]] = {
    "Environments": ("envsuite", "envsuite.core", "envsuite.vector", "envsuite.remote"),
    "Prompts": ("envsuite.prompting",),
    "Data and search": ("envsuite.data", "envsuite.retrieval", "envsuite.interpreter"),
    "Evaluation": ("envsuite.evaluation.panels.*", "envsuite.evaluation.*"),
    "Steps and rollouts": (
        "trainers.steps",
        "trainers.rollout.engine",
        "envsuite.playing.manager",
        "envsuite.playing.loop",
    ),
    "Methods": (
        "trainers.credit",
        "trainers.credit.estimators",
        "trainers.settings.registry",
        "trainers.run.features.tracking.tracker",
    ),
}
"""Groups of public modules; ``package.*`` is every module of the package that reads no command line."""


def settings_page(name: str) -> str:
    """The page of one kind of settings."""
    cls, title, who = SETTINGS[name]
    parts = [f"# {title}\n\n{who}.\n\n{HOW}"]
    groups: dict[str, list[DescribedSetting]] = {}
    for setting in describe_settings(cls):
        top, inside, _ = setting.path.partition(".")
        groups.setdefault(top.removesuffix("[]") if inside else ALONE, []).append(setting)
    for name, group in groups.items():
        parts.append(f"## {name}\n\n" + "".join(map(_setting, group)))
    return "\n".join(parts)


def _setting(setting: DescribedSetting) -> str:
    default = yaml.safe_dump(_plain(setting.default), default_flow_style=True, width=1000, allow_unicode=True)
    default = default.removesuffix("\n").removesuffix("\n...")
    text = f": {setting.kind}; default `{default}`\n"
    return f"`{setting.path}`\n{text}" + (f": {_escaped(setting.text)}\n\n" if setting.text else "\n")


def _escaped(text: str) -> str:
    """A docstring as Markdown: ``code`` stays, characters with a meaning are escaped elsewhere."""
    parts = text.split("``")
    plain = [part.translate({ord(mark): f"\\{mark}" for mark in "<*_$|[]"}) for part in parts[::2]]
    code = [f"`{part}`" for part in parts[1::2]]
    return "".join(itertools.chain.from_iterable(itertools.zip_longest(plain, code, fillvalue="")))


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=lambda part: asdict(part) if is_dataclass(part) else str(part)))  # type: ignore[arg-type]


def recipes_page() -> str:
    """The page that lists the recipes."""
    rows = []
    for entry in recipes().values():
        variants = ", ".join(f"`{entry.name}/{variant}`" for variant in entry.variants)
        rows.append(f"| `{entry.name}` | {entry.description} | {entry.paper} | {variants} |\n")
    return (
        "# Recipes\n\nValues of `recipe`; `--list-recipes` of `trainers.train` shows the same. Additions are joined to "
        "a method with `+`, as in `gigpo+scpo`.\n\n| recipe | what it is | paper | variants |\n|---|---|---|---|\n"
        + "".join(rows)
    )


@dataclass(frozen=True)
class ApiPage:
    """The reference of one public module."""

    module: str
    group: str

    @property
    def page(self) -> str:
        """Name of its page."""
        return f"api/{self.module}"

    @property
    def summary(self) -> str:
        """First line of the module's docstring."""
        return str(importlib.import_module(self.module).__doc__).strip().splitlines()[0]

    def markdown(self) -> str:
        """The page; Sphinx's autodoc writes its body."""
        body = f".. automodule:: {self.module}\n   :members:\n   :show-inheritance:\n"
        return f"# {self.module}\n\n```{{eval-rst}}\n{body}```\n"


def api_pages() -> list[ApiPage]:
    """The pages of all public modules."""
    return [ApiPage(module, group) for group, names in MODULES.items() for module in _modules(names)]


def _modules(names: Sequence[str]) -> Iterator[str]:
    for name in names:
        if not name.endswith(".*"):
            yield name
            continue
        package = importlib.import_module(name.removesuffix(".*"))
        for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            if found.name.rpartition(".")[2] not in ("cli", "command", "__main__"):
                yield found.name


def api_index(pages: Sequence[ApiPage]) -> str:
    """The page that lists the public modules."""
    parts = ["# Python API\n\nMade from the docstrings of the modules that other packages may import.\n"]
    for group, inside in itertools.groupby(pages, key=lambda page: page.group):
        parts.append(f"\n## {group}\n\n" + "".join(f"- [`{p.module}`](/{p.page}.md): {p.summary}\n" for p in inside))
    return "".join(parts)
