"""Where data lie, and how a file is written whole."""

from __future__ import annotations

import os
from pathlib import Path

import gymnasium
import pytest
from hypothesis import given
from hypothesis import strategies as st

import envsuite  # noqa: F401
from envsuite.cli import main
from envsuite.core.errors import EnvsuiteError
from envsuite.data.files import write_atomically
from envsuite.data.places import without_paths


@pytest.fixture
def unwritable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The home is one where nobody can write."""
    monkeypatch.delenv("ENVSUITE_DATA")
    monkeypatch.setenv("HOME", "/proc/nobody")


@pytest.mark.usefixtures("unwritable")
@pytest.mark.parametrize(("env_id", "arguments"), [("ALFWorld-v0", {"games": 19}), ("WebShop-v0", {"products": 301})])
def test_an_environment_whose_home_cannot_be_written_names_the_variable(env_id, arguments):
    with pytest.raises(EnvsuiteError, match=r"/proc/nobody.*set ENVSUITE_DATA to a folder that can be written"):
        gymnasium.make(env_id, **arguments)


@pytest.mark.usefixtures("unwritable")
def test_data_that_are_fetched_to_a_home_that_cannot_be_written_name_the_variable(capsys):
    assert main(["data", "fetch", "textcraft"]) != 0
    assert "set ENVSUITE_DATA to a folder that can be written" in capsys.readouterr().err


def test_a_message_for_another_machine_has_no_path_of_this_one(tmp_path, data_folder):
    assert without_paths(f"{data_folder}/alfworld: missing") == "$ENVSUITE_DATA/alfworld: missing"
    assert without_paths(f"{data_folder}x: missing").startswith("…/")
    for form in ("{}: no", "at '{}'", '"{}"', "({})", "a,{}", "={}", "{}, line 3"):
        told = without_paths(form.format(tmp_path / "a" / "shop.json"))
        assert told == form.format("…/shop.json")


def test_paths_that_the_reader_named_stay_and_what_is_no_path_does_too(tmp_path):
    told = without_paths(f"{tmp_path}/mine/games: no; {tmp_path}/minerals: no", [f"{tmp_path}/mine"])
    assert told == f"{tmp_path}/mine/games: no; …/minerals: no"
    for text in ("get 1/2 or 3 / 4", "http://usr/bin", "<split>/usr", "POST /v1/sessions", "and/or", "/", "no path"):
        assert without_paths(text) == text


@given(st.text())
def test_any_text_can_be_told(text):
    assert str(Path(__file__).parent) not in without_paths(f"{text} {__file__} {text}")


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(monkeypatch, tmp_path):
    path = tmp_path / "new" / "index.json"
    write_atomically(path, b"old")

    def pull_the_plug(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", pull_the_plug)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [file.name for file in path.parent.iterdir()] == ["index.json"]


@pytest.mark.parametrize("mask", [0o022, 0o027, 0o077])
def test_who_may_read_a_file_is_what_the_umask_says(tmp_path, mask):
    before = os.umask(mask)
    try:
        write_atomically(tmp_path / "file", b"")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o666 & ~mask
