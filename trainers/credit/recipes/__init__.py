"""Recipes: named compositions of method settings, as data.

A file is a method of its own, or an addition to one: it says which it is put ``over`` when it is named alone. Further
compositions are named with ``+``: ``gigpo+scpo``, ``hgpo+spear``, ``gigpo+dr_bot+spear``. What a paper sets for one
benchmark or model only is a variant: ``gigpo/webshop``, ``bipace/1.5b``, ``gigpo/webshop+scpo/webshop``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from envsuite.core.errors import DataError, UsageError, unknown
from trainers.settings.words import Loader, merge

COMPOSITIONS = (
    "gigpo+scpo", "hgpo+scpo", "bipace+scpo",
    "gigpo+dr_bot", "grpo+spear", "gigpo+spear", "hgpo+spear", "dr_bot+spear", "gigpo+dr_bot+spear",
)  # fmt: skip
"""Compositions that papers report, or that are obvious; any other can be named too."""


@dataclass(frozen=True)
class MethodRecipe:
    """One file of this folder, or a composition of several."""

    name: str
    description: str
    """One line of description."""
    paper: str
    method: dict[str, Any]
    """Settings of the ``method`` section."""
    over: str | None = None
    """The method that an addition is put on when it is named alone; ``None`` for a method of its own."""
    optim: dict[str, Any] = field(default_factory=dict)
    """Settings of the ``optim`` section: those of a variant, which fit one size of model and batch, or of a method that
    reads no log-probabilities of who played."""
    rollout: dict[str, Any] = field(default_factory=dict)
    """Settings of the ``rollout`` section, of a method whose episodes are played in a way of their own."""
    pool: dict[str, Any] | None = None
    """Settings of the ``pool`` section, of a method whose episodes are stored ones."""
    variants: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    """Sections ``method`` and ``optim`` of each variant, which are laid over the recipe's."""


@cache
def recipes() -> dict[str, MethodRecipe]:
    """The recipe of each file by name, sorted.

    Raises:
        DataError: A file lacks something, or has something else.
    """
    by_name = {}
    for file in sorted(files(__name__).iterdir(), key=lambda entry: entry.name):
        if file.name.endswith(".yaml"):
            name = file.name.removesuffix(".yaml")
            try:
                by_name[name] = MethodRecipe(name, **yaml.load(file.read_text(encoding="utf-8"), Loader))
            except TypeError as error:
                raise DataError(
                    f"{file}: a recipe has description, paper and method, and nothing else ({error})"
                ) from error
    return by_name


def recipe(name: str) -> MethodRecipe:
    """The whole recipe of that name: a method, an addition over its method, or a composition ``method+addition+…``.

    Raises:
        UnknownName: A part does not exist; the message lists what exists.
        UsageError: The parts do not fit together.
    """
    parts = [_part(part) for part in name.split("+")]
    if parts[0].over is not None:
        parts.insert(0, _part(parts[0].over))
    base, *additions = parts
    additional = ", ".join(entry.name for entry in recipes().values() if entry.over is not None)
    for place, part in enumerate(additions):
        if part.over is None:
            raise UsageError(
                f"recipe {name!r}: {part.name!r} is a method of its own, as {base.name!r} is; what can follow a '+' is "
                f"{additional}"
            )
        if part in additions[:place]:
            raise UsageError(f"recipe {name!r}: {part.name!r} is there twice")
    if not additions:
        return base
    method, optim = base.method, base.optim
    for part in additions:
        method, optim = merge(method, part.method), merge(optim, part.optim)
    # An addition's rewards come before a method's penalties: what is a success must not depend on those.
    order = dict.fromkeys(key for part in (*additions, base) for key in part.method.get("shapers", {}))
    if order:
        method = {**method, "shapers": {key: method["shapers"][key] for key in order}}
    return MethodRecipe(
        "+".join(part.name for part in parts),
        f"{base.name} with {' and '.join(part.name for part in additions)}",
        "; ".join(dict.fromkeys(part.paper for part in (*additions, base))),
        method,
        optim=optim,
        rollout=base.rollout,
        pool=base.pool,
    )


def _part(name: str) -> MethodRecipe:
    """The recipe of a file, or a variant of it."""
    file, _, variant = name.partition("/")
    if file not in recipes():
        raise unknown("recipe", file, recipes())
    base = recipes()[file]
    if not variant:
        return base
    if variant not in base.variants:
        raise unknown(f"variant of recipe {file}", variant, base.variants)
    over = base.variants[variant]
    method = merge(base.method, over.get("method", {}))
    return replace(base, name=name, method=method, optim=merge(base.optim, over.get("optim", {})))
