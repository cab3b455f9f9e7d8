"""Checks that take one small step of what each installed extra is for: versions that fit may not work together."""

from __future__ import annotations

import sys
from importlib import metadata

from envsuite.installation.check import InstallationCheck
from envsuite.installation.checks import HIDDEN_EXTRAS
from envsuite.installation.packages import PACKAGE, look_up_dependency, requirements, requirements_of
from envsuite.installation.probes import try_names

OF_TRAINER = ("train", "lora", "8bit", "tensorboard", "wandb", "trackio", "gguf")
"""Extras whose steps are in ``trainers.programs.tryout``; ``envsuite.installation.tryout`` has those of the others."""
SECONDS = 300.0


def environments() -> list[InstallationCheck]:
    """A step of each installed extra that needs no trainer."""
    return _checks([extra for extra in _installed_extras() if extra not in OF_TRAINER], "envsuite.installation.tryout")


def trainer() -> list[InstallationCheck]:
    """A step of each installed extra of the trainer, all in one process, which imports its libraries once."""
    present = _installed_extras()
    extras = [extra for extra in OF_TRAINER if extra in present and "train" in present]
    return _checks(extras, "trainers.programs.tryout")


def _installed_extras() -> list[str]:
    """Extras whose packages are all there, in whatever versions."""
    try:
        by_extra = requirements()
    except metadata.PackageNotFoundError:
        return []
    return [
        extra
        for extra in by_extra
        if extra and extra not in HIDDEN_EXTRAS
        if all(look_up_dependency(requirement).version is not None for requirement in requirements_of(extra, by_extra))
    ]


def _checks(extras: list[str], program: str) -> list[InstallationCheck]:
    reasons = try_names(extras, [sys.executable, "-m", program], SECONDS)
    return [_check(extra, reasons[extra]) for extra in extras]


def _check(extra: str, why: str) -> InstallationCheck:
    name, needs = f"[{extra}]", extra == "train"
    if not why:
        return InstallationCheck("extras", name, "ok", "a step of it works", required=needs)
    if "gave no answer" in why:  # a busy machine, more likely than packages that do not go together
        finding, mend = f"a step of it did not end: {why}", "envsuite doctor, once more"
        return InstallationCheck("extras", name, "warning", finding, mend, needs)
    mend = f"pip install '{PACKAGE}[{extra}]'"
    return InstallationCheck("extras", name, "broken", f"a step of it fails: {why}", mend, needs)
