"""Requirements and versions, as pip and packaging judge them."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement as Theirs
from packaging.version import Version

from envsuite.installation import packages
from envsuite.installation.packages import Requirement, fits, lacking, parse, requirements_of

NUMBERS = st.lists(st.integers(0, 30), min_size=1, max_size=4).map(lambda parts: ".".join(map(str, parts)))
OPERATORS = st.sampled_from([">=", "<=", "==", "!=", "<", ">"])


@given(NUMBERS, st.lists(st.tuples(OPERATORS, NUMBERS), max_size=3), st.sampled_from(["", "+cpu"]))
def test_a_version_fits_where_packaging_says_so(version: str, bounds: list[tuple[str, str]], local: str) -> None:
    ours = fits(version + local, Requirement("x", tuple(bounds)))
    theirs = Theirs("x" + ",".join(operator + bound for operator, bound in bounds)).specifier
    assert ours == theirs.contains(Version(version), prereleases=True)


@given(NUMBERS.filter(lambda text: "." in text), NUMBERS)
def test_a_compatible_release_is_judged_as_by_packaging(bound: str, version: str) -> None:
    assert fits(version, Requirement("x", (("~=", bound),))) == Theirs(f"x~={bound}").specifier.contains(version)


def test_every_requirement_of_an_installed_package_is_read_as_packaging_reads_it() -> None:
    compared = 0
    for distribution in metadata.distributions():
        for line in distribution.requires or ():
            theirs, (_, ours) = Theirs(line), parse(line)
            if theirs.url is None and not str(theirs.specifier).count("*"):
                assert (ours.name, set(ours.extras)) == (theirs.name, theirs.extras), line
                assert {o + v for o, v in ours.bounds} == {str(one) for one in theirs.specifier}, line
                compared += 1
    assert compared > 100


@given(st.text(max_size=30))
def test_any_text_is_a_requirement_or_a_value_error(text: str) -> None:
    try:
        extra, requirement = parse(text)
    except ValueError:
        return
    assert requirement.name and extra == ""  # no marker of an extra in so short a text


def test_an_extra_needs_what_the_extras_in_it_need() -> None:
    known = {
        "a": (Requirement("envsuite", extras=("b",)), Requirement("one")),
        "b": (Requirement("envsuite", extras=("a", "c")), Requirement("two")),
        "c": (Requirement("three"),),
    }
    assert {requirement.name for requirement in requirements_of("a", known)} == {"one", "two", "three"}


def test_what_an_extra_lacks_is_named_as_pip_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lacking("serve") == []
    monkeypatch.setattr(packages, "version_of", lambda name: {"flask": "3.0"}.get(name))
    flask, uvicorn, httptools = lacking("serve")
    assert flask.startswith("flask>=3.1") and uvicorn.startswith("uvicorn>=") and httptools.startswith("httptools>=")


def test_nothing_is_imported_to_look_at_packages() -> None:
    code = (
        "import sys; from envsuite.installation.packages import lacking; lacking('train');"
        "print([m for m in ('torch', 'transformers', 'pyarrow', 'trainers') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
