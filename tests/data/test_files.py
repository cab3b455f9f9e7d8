from __future__ import annotations

import os
from pathlib import Path

import pytest

from envsuite.data.files import write_atomically


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
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
def test_who_may_read_a_file_is_what_the_umask_says(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        write_atomically(tmp_path / "file", b"")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o666 & ~mask
