"""Requirements of the base package and of its extras, compared with what is installed; nothing is imported."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata

from packaging.requirements import Requirement
from packaging.version import InvalidVersion

PACKAGE = "envsuite"


@dataclass(frozen=True)
class Dependency:
    """A requirement and what is there of it."""

    requirement: Requirement
    version: str | None
    """Version that is installed; ``None`` if it is not, or its metadata cannot be read."""

    @property
    def fits(self) -> bool:
        """Whether a version is installed that fulfils the requirement."""
        try:
            return self.version is not None and self.requirement.specifier.contains(self.version, prereleases=True)
        except InvalidVersion:  # packaging before 26
            return False

    @property
    def specifier(self) -> str:
        """The requirement as pip takes it."""
        return str(self.requirement).partition(";")[0].rstrip()


def requirements() -> dict[str, tuple[Requirement, ...]]:
    """Returns what the base (``""``) and each extra require directly, by the metadata of the installed package.

    Raises:
        importlib.metadata.PackageNotFoundError: The package runs from a folder and is not installed.
    """
    extras = ["", *(metadata.metadata(PACKAGE).get_all("Provides-Extra") or ())]
    by_extra: dict[str, list[Requirement]] = {extra: [] for extra in extras}
    for requirement in map(Requirement, metadata.requires(PACKAGE) or ()):
        marker = requirement.marker
        extra = next((name for name in extras if marker is None or marker.evaluate({"extra": name})), None)
        if extra is not None:  # else it is not for this machine
            by_extra[extra].append(requirement)
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
                pending.extend(sorted(requirement.extras))
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
