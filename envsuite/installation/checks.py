"""Checks of packages and data, and of the quick start as a whole."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import envsuite
from envsuite.core.errors import EnvsuiteError
from envsuite.data import catalog
from envsuite.data.catalog import DataSet
from envsuite.data.manager import state
from envsuite.data.places import cache_root
from envsuite.data.progress import sized
from envsuite.installation.check import Check
from envsuite.installation.packages import PACKAGE, Installed, Requirement, installed, needed, requirements, version_of
from envsuite.installation.probes import imported, module

OLDEST_PYTHON = (3, 11)
HIDDEN_EXTRAS = ("dev",)
_MODULES = {"pillow": "PIL", "pyyaml": "yaml"}
_SAME_MODULE = (("openenv", "openenv-core"),)
"""Distributions that install the same module: the one installed last wins, and removing either breaks the other."""


def python_itself() -> list[Check]:
    """Python and the package."""
    running = f"{platform.python_version()} on {platform.platform(terse=True)}, {sys.executable}"
    version = Check("packages", "Python", "ok", running, required=True)
    if sys.version_info < OLDEST_PYTHON:
        version = Check("packages", "Python", "broken", running, "install Python 3.11 or newer", True)
    folder = Path(envsuite.__file__).parent
    there = version_of(PACKAGE)
    about = f"{envsuite.__version__} from {folder}"
    if there is None:
        mend = f"pip install -e {folder.parent}"
        return [version, Check("packages", PACKAGE, "warning", f"{about}; not installed: extras are not known", mend)]
    if there != envsuite.__version__:
        found = f"{about}, but the version that pip knows is {there}"
        return [version, Check("packages", PACKAGE, "warning", found, f"pip install -e {folder.parent}")]
    return [version, Check("packages", PACKAGE, "ok", about, required=True)]


def packages() -> list[Check]:
    """The base, each extra, and whether what the quick start imports can be imported."""
    try:
        known = requirements()
    except metadata.PackageNotFoundError:
        return []
    extras = [extra for extra in known if extra not in HIDDEN_EXTRAS]
    checks = [_extra(extra, [installed(one) for one in needed(extra, known)], known[extra]) for extra in extras]
    wanted = [one for extra in ("", "train") for one in needed(extra, known) if installed(one).fits]
    return [*checks, *_imports(list(dict.fromkeys(one.name for one in wanted))), *_same_modules()]


def _extra(extra: str, found: list[Installed], direct: Sequence[Requirement]) -> Check:
    """Returns the state of an extra.

    Args:
        extra: The extra; empty for the base.
        found: What it needs, and what the extras in it need.
        direct: Its own requirements. The versions of theirs are told where those extras are.
    """
    name, needs = (f"[{extra}]" if extra else "base"), extra in ("", "train")
    mend = f"pip install '{PACKAGE}[{extra}]'" if extra else f"pip install {PACKAGE}"
    lacking = [one for one in found if one.version is None]
    unfit = [one for one in found if one.version is not None and not one.fits]
    if unfit:
        told = ", ".join(f"{one.requirement.name} {one.version}, but {one.requirement.written}" for one in unfit)
        return Check("packages", name, "broken", f"another version is needed: {told}", mend, needs)
    if lacking:
        told = ", ".join(one.requirement.written for one in lacking)
        return Check("packages", name, "absent", f"not installed: {told}", mend, needs)
    versions = [f"{one.requirement.name} {one.version}" for one in found if one.requirement in direct]
    included = [f"[{one}]" for requirement in direct if requirement.name == PACKAGE for one in requirement.extras]
    return Check("packages", name, "ok", ", ".join([*versions, *included]) or "needs no package", required=needs)


def _imports(names: list[str]) -> list[Check]:
    """Packages that are installed but cannot be imported."""
    modules = {_MODULES.get(name.lower(), name.replace("-", "_")): name for name in names}
    found = []
    for imports, why in imported(list(modules)).items():
        if why:
            mend = f"pip install --force-reinstall --no-deps '{modules[imports]}=={version_of(modules[imports])}'"
            told = f"installed, but cannot be imported: {why}"
            found.append(Check("packages", modules[imports], "broken", told, mend, True))
    return found


def _same_modules() -> list[Check]:
    found = []
    for pair in _SAME_MODULE:
        if all(version_of(name) for name in pair):
            told = f"{' and '.join(pair)} are both installed and overwrite each other's files"
            mend = f"pip uninstall -y {' '.join(pair)} && pip install {pair[0]}"
            found.append(Check("packages", pair[0], "warning", told, mend))
    return found


def conflicts() -> list[Check]:
    """Requirements of any installed package that another one's version breaks, as pip finds them."""
    said = module("pip", "--disable-pip-version-check", "check", seconds=60.0)
    if said.code == 0:
        return [Check("packages", "conflicts", "ok", "no two packages want different versions")]
    if said.code != 1 or not said.out.strip():
        return [Check("packages", "conflicts", "absent", f"pip check cannot be asked: {said.why}")]
    lines = [line.strip() for line in said.out.splitlines() if " has requirement " in line]
    if not lines:  # packages without one of theirs: what envsuite's extras lack is told above
        return [Check("packages", "conflicts", "ok", "no two packages want different versions")]
    mend = "a virtual environment for each of those that disagree"
    return [Check("packages", "conflicts", "warning", line, mend) for line in lines]


def data() -> list[Check]:
    """The official data of each benchmark, and what was derived from it."""
    return [*(_data_set(one) for one in catalog.data_sets()), _cache()]


def _data_set(one: DataSet) -> Check:
    mend = f"envsuite data fetch {one.name}"
    try:
        found = state(one)
    except (EnvsuiteError, OSError) as error:
        return Check("data", one.name, "broken", str(error).splitlines()[0], mend)
    if found.state == "absent":
        return Check("data", one.name, "absent", "not fetched; built-in tasks need none", mend)
    about = f"{sized(found.size)}, version {found.version}, {found.folder / (one.tree or '')}"
    if found.state == "partial":
        return Check("data", one.name, "broken", f"incomplete, damaged or of an older version: {about}", mend)
    return Check("data", one.name, "ok", f"{about}; envsuite data verify {one.name} reads every byte")


def _cache() -> Check:
    root = cache_root()
    failed: list[OSError] = []
    size = 0
    for folder, _, files in os.walk(root, onerror=failed.append):
        for name in files:
            path = Path(folder) / name
            size += path.lstat().st_size if path.is_symlink() or path.exists() else 0
    wrong = [error for error in failed if not isinstance(error, FileNotFoundError)]
    if wrong:
        mend = "set ENVSUITE_DATA to a folder that can be read and written"
        return Check("data", "cache", "broken", f"{root} cannot be read: {wrong[0].strerror}", mend)
    return Check("data", "cache", "ok", f"{root}: {sized(size)}")


def quickstart() -> list[Check]:
    """Whether the trainer finds settings and model of the quick start and takes them."""
    said = module("envsuite.cli", "quickstart", "--check")
    if said.code == 0:
        return [Check("quick start", "settings and model", "ok", "found", required=True)]
    mend = "pip install 'envsuite[train]'"
    return [Check("quick start", "settings and model", "broken", said.why, mend, True)]
