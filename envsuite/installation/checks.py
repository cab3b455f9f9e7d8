"""Checks of packages and data, and of the quick start as a whole."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

import envsuite
from envsuite.core.errors import EnvsuiteError
from envsuite.data import catalog
from envsuite.data.catalog import DataSet
from envsuite.data.manager import state
from envsuite.data.places import cache_root
from envsuite.data.progress import format_size
from envsuite.installation.check import InstallationCheck
from envsuite.installation.packages import (
    PACKAGE,
    Dependency,
    look_up_dependency,
    requirements,
    requirements_of,
    version_of,
)
from envsuite.installation.probes import module, try_imports

OLDEST_PYTHON = (3, 11)
HIDDEN_EXTRAS = ("dev",)
_MODULES = {"pillow": "PIL", "pyyaml": "yaml"}


def python_itself() -> list[InstallationCheck]:
    """Python and the package."""
    running = f"{platform.python_version()} on {platform.platform(terse=True)}, {sys.executable}"
    version = InstallationCheck("packages", "Python", "ok", running, required=True)
    if sys.version_info < OLDEST_PYTHON:
        version = InstallationCheck("packages", "Python", "broken", running, "install Python 3.11 or newer", True)
    folder = Path(envsuite.__file__).parent
    pip_version = version_of(PACKAGE)
    about = f"{envsuite.__version__} from {folder}"
    if pip_version == envsuite.__version__:
        return [version, InstallationCheck("packages", PACKAGE, "ok", about, required=True)]
    finding = f"{about}, but the version that pip knows is {pip_version}"
    if pip_version is None:
        finding = f"{about}; not installed: extras are not known"
    return [version, InstallationCheck("packages", PACKAGE, "warning", finding, f"pip install -e {folder.parent}")]


def packages() -> list[InstallationCheck]:
    """The base, each extra, and whether what the quick start imports can be imported."""
    try:
        by_extra = requirements()
    except metadata.PackageNotFoundError:
        return []
    dependencies = {
        extra: [look_up_dependency(requirement) for requirement in requirements_of(extra, by_extra)]
        for extra in by_extra
        if extra not in HIDDEN_EXTRAS
    }
    checks = [_extra(extra, group, by_extra[extra]) for extra, group in dependencies.items()]
    quickstart_needs = [d for extra in ("", "train") for d in dependencies.get(extra, ()) if d.fits]
    return [*checks, *_imports(list(dict.fromkeys(d.requirement.name for d in quickstart_needs)))]


def _extra(extra: str, dependencies: list[Dependency], direct: Sequence[Requirement]) -> InstallationCheck:
    """Returns the state of an extra.

    Args:
        extra: The extra; empty for the base.
        dependencies: What it needs, and what the extras in it need.
        direct: Its own requirements. The versions of theirs are told where those extras are.
    """
    name, needs = (f"[{extra}]" if extra else "base"), extra in ("", "train")
    mend = f"pip install '{PACKAGE}[{extra}]'" if extra else f"pip install {PACKAGE}"
    lacking = [d for d in dependencies if d.version is None]
    unfit = [d for d in dependencies if d.version is not None and not d.fits]
    if unfit:
        finding = ", ".join(f"{d.requirement.name} {d.version}, but {d.specifier}" for d in unfit)
        return InstallationCheck("packages", name, "broken", f"another version is needed: {finding}", mend, needs)
    if lacking:
        finding = ", ".join(d.specifier for d in lacking)
        return InstallationCheck("packages", name, "absent", f"not installed: {finding}", mend, needs)
    versions = [f"{d.requirement.name} {d.version}" for d in dependencies if d.requirement in direct]
    inner_extras = [f"[{inner}]" for needed in direct if needed.name == PACKAGE for inner in sorted(needed.extras)]
    finding = ", ".join([*versions, *inner_extras]) or "needs no package"
    return InstallationCheck("packages", name, "ok", finding, required=needs)


def _imports(names: list[str]) -> list[InstallationCheck]:
    """Packages that are installed but cannot be imported."""
    modules = {_MODULES.get(name.lower(), name.replace("-", "_")): name for name in names}
    checks = []
    for imports, why in try_imports(list(modules)).items():
        if why:
            mend = f"pip install --force-reinstall --no-deps '{modules[imports]}=={version_of(modules[imports])}'"
            finding = f"installed, but cannot be imported: {why}"
            checks.append(InstallationCheck("packages", modules[imports], "broken", finding, mend, True))
    return checks


def conflicts() -> list[InstallationCheck]:
    """Requirements of any installed package that another one's version breaks, as pip finds them."""
    probe = module("pip", "--disable-pip-version-check", "check", seconds=60.0)
    if probe.code != 0 and not (probe.code == 1 and probe.out.strip()):
        return [InstallationCheck("packages", "conflicts", "absent", f"pip check cannot be asked: {probe.why}")]
    lines = [line.strip() for line in probe.out.splitlines() if " has requirement " in line]
    mend = "a virtual environment for each of those that disagree"
    # packages without one of theirs are not among them: what envsuite's extras lack is told above
    agreement = InstallationCheck("packages", "conflicts", "ok", "no two packages want different versions")
    return [InstallationCheck("packages", "conflicts", "warning", line, mend) for line in lines] or [agreement]


def data() -> list[InstallationCheck]:
    """The official data of each benchmark, and what was derived from it."""
    return [*(_data_set(data_set) for data_set in catalog.data_sets()), _cache()]


def _data_set(data_set: DataSet) -> InstallationCheck:
    name, mend = data_set.name, f"envsuite data fetch {data_set.name}"
    try:
        local = state(data_set)
    except (EnvsuiteError, OSError) as error:
        return InstallationCheck("data", name, "broken", str(error).splitlines()[0], mend)
    if local.state == "absent":
        return InstallationCheck("data", name, "absent", "not fetched; built-in tasks need none", mend)
    about = f"{format_size(local.size)}, version {local.version}, {local.folder / (data_set.tree or '')}"
    if local.state == "partial":
        return InstallationCheck("data", name, "broken", f"incomplete, damaged or of an older version: {about}", mend)
    return InstallationCheck("data", name, "ok", f"{about}; envsuite data verify {name} reads every byte")


def _cache() -> InstallationCheck:
    root = cache_root()
    errors: list[OSError] = []
    size = 0
    for folder, _, files in os.walk(root, onerror=errors.append):
        for name in files:
            path = Path(folder) / name
            size += path.lstat().st_size if path.is_symlink() or path.exists() else 0
    wrong = [error for error in errors if not isinstance(error, FileNotFoundError)]
    if wrong:
        mend = "set ENVSUITE_DATA to a folder that can be read and written"
        return InstallationCheck("data", "cache", "broken", f"{root} cannot be read: {wrong[0].strerror}", mend)
    return InstallationCheck("data", "cache", "ok", f"{root}: {format_size(size)}")


def quickstart() -> list[InstallationCheck]:
    """Whether the trainer takes the settings of the quick start."""
    probe = module("envsuite.cli", "quickstart", "--check")
    if probe.code == 0:
        return [InstallationCheck("quick start", "settings", "ok", "found", required=True)]
    mend = "pip install 'envsuite[train]'"
    return [InstallationCheck("quick start", "settings", "broken", probe.why, mend, True)]
