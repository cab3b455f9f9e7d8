"""Requirements of the base package and of its extras, compared with what is installed; nothing is imported."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata

PACKAGE = "envsuite"
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][\w.-]*)\s*(?:\[([^\]]*)\])?\s*\(?([^;)]*)\)?\s*(?:;(.*))?", re.DOTALL)
_EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")
_BOUND = re.compile(r"(>=|<=|==|!=|~=|<|>)\s*([^,\s]+)")


@dataclass(frozen=True)
class Requirement:
    """A package that is needed, with bounds on its version."""

    name: str
    bounds: tuple[tuple[str, str], ...] = ()
    """Operators and versions, all of which must hold."""
    extras: tuple[str, ...] = ()

    @property
    def specifier(self) -> str:
        """Returns the requirement as pip takes it."""
        extras = f"[{','.join(self.extras)}]" if self.extras else ""
        return f"{self.name}{extras}{','.join(operator + version for operator, version in self.bounds)}"


@dataclass(frozen=True)
class Dependency:
    """A requirement and what is there of it."""

    requirement: Requirement
    version: str | None
    """Version that is installed; ``None`` if it is not, or its metadata cannot be read."""

    @property
    def fits(self) -> bool:
        """Whether a version is installed that fulfils the requirement."""
        return self.version is not None and fits(self.version, self.requirement)


def parse(text: str) -> tuple[str, Requirement]:
    """Parses a requirement of a package's metadata.

    Returns:
        The extra that it belongs to, empty for the base, and the requirement.

    Raises:
        ValueError: It is none.
    """
    match = _REQUIREMENT.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a requirement")
    name, extras, bounds, marker = match.groups()
    extra = _EXTRA.search(marker or "")
    extra_names = tuple(sorted(filter(None, (word.strip() for word in (extras or "").split(",")))))
    return (extra.group(1) if extra else ""), Requirement(name, tuple(_BOUND.findall(bounds)), extra_names)


def fits(version: str, requirement: Requirement) -> bool:
    """Whether ``version`` fulfils the bounds, judged by the numbers of the release alone."""
    return all(_holds(_release(version), operator, _release(limit)) for operator, limit in requirement.bounds)


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", re.split(r"[+a-zA-Z-]", version, maxsplit=1)[0]))


def _holds(version: tuple[int, ...], operator: str, limit: tuple[int, ...]) -> bool:
    width = max(len(version), len(limit))
    here, there = (numbers + (0,) * (width - len(numbers)) for numbers in (version, limit))
    if operator == "~=":
        return here >= there and here[: len(limit) - 1] == limit[:-1]
    return {
        ">=": here >= there,
        "<=": here <= there,
        "==": here == there,
        "!=": here != there,
        "<": here < there,
        ">": here > there,
    }[operator]


def requirements() -> dict[str, tuple[Requirement, ...]]:
    """Returns what the base (``""``) and each extra require directly, by the metadata of the installed package.

    Raises:
        importlib.metadata.PackageNotFoundError: The package runs from a folder and is not installed.
    """
    by_extra: dict[str, list[Requirement]] = {"": []}
    for extra in metadata.metadata(PACKAGE).get_all("Provides-Extra") or ():
        by_extra[extra] = []
    for line in metadata.requires(PACKAGE) or ():
        extra, requirement = parse(line)
        by_extra.setdefault(extra, []).append(requirement)
    return {extra: tuple(group) for extra, group in by_extra.items()}


def requirements_of(extra: str, by_extra: dict[str, tuple[Requirement, ...]]) -> Iterator[Requirement]:
    """Yields the packages that an extra requires, those of the extras that it includes too."""
    visited_extras, pending = set[str](), [extra]
    while pending:
        current = pending.pop(0)
        if current in visited_extras:
            continue
        visited_extras.add(current)
        for requirement in by_extra.get(current, ()):
            if requirement.name == PACKAGE:
                pending.extend(requirement.extras)
            else:
                yield requirement


def look_up_dependency(requirement: Requirement) -> Dependency:
    """Looks up the version that is installed."""
    return Dependency(requirement, version_of(requirement.name))


def version_of(name: str) -> str | None:
    """Returns the installed version of a package; ``None`` if there is none or its metadata cannot be read."""
    try:
        version = metadata.version(name)
    except (metadata.PackageNotFoundError, KeyError, OSError, UnicodeDecodeError):
        return None
    return version if isinstance(version, str) else None


def lacking(extra: str) -> list[str]:
    """Returns the requirements of an extra that are not fulfilled, as pip takes them.

    A package that runs from a folder and is not installed has no metadata; nothing is known to lack then.
    """
    try:
        by_extra = requirements()
    except metadata.PackageNotFoundError:
        return []
    return [needed.specifier for needed in requirements_of(extra, by_extra) if not look_up_dependency(needed).fits]
