"""Requirements of extras, and versions that fulfil them."""

from __future__ import annotations

import subprocess
import sys

import pytest
from packaging.requirements import Requirement

from envsuite.installation.packages import Dependency, requirements, requirements_of


@pytest.mark.parametrize(
    ("version", "fits"), [("3.9", False), ("3.10", True), ("3.10+cpu", True), ("3.11rc1", True), (None, False)]
)
def test_a_version_fits_within_the_bounds_a_build_or_candidate_of_it_too(version: str | None, fits: bool) -> None:
    dependency = Dependency(Requirement("x[y]>=3.10; extra == 'serve'"), version)
    assert dependency.fits is fits and dependency.specifier == "x[y]>=3.10"


def test_each_requirement_is_under_its_extra_and_those_without_one_under_the_base() -> None:
    by_extra = requirements()
    assert {"gymnasium", "numpy"} <= {requirement.name for requirement in by_extra[""]}
    assert {requirement.name for requirement in by_extra["serve"]} == {"flask", "uvicorn", "httptools"}


def test_an_extra_needs_what_the_extras_in_it_need() -> None:
    known = {
        "a": (Requirement("envsuite[b]"), Requirement("one")),
        "b": (Requirement("envsuite[a,c]"), Requirement("two")),
        "c": (Requirement("three"),),
    }
    assert {requirement.name for requirement in requirements_of("a", known)} == {"one", "two", "three"}


def test_nothing_is_imported_to_look_at_packages() -> None:
    code = (
        "import sys; from envsuite.installation.packages import requirements; requirements();"
        "print([m for m in ('torch', 'transformers', 'pyarrow', 'trainers') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
