from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsuite.core.errors import DataError
from envsuite.data.arrays import ALIGNMENT, PIECE, Arrays, ArrayWriter

REMEDY = "Make it again."


def block(strings: list[bytes], numbers: list[int], before: bytes = b"") -> tuple[bytes, int]:
    with io.BytesIO(before) as file:
        file.seek(len(before))
        writer = ArrayWriter(file, "sample", 3)
        writer.add_strings("names", strings)
        writer.add("numbers", "u4", [np.array(numbers[:3], dtype=np.uint32), np.array(numbers[3:], dtype=np.uint32)])
        writer.close({"made": "here"})
        assert file.tell() == len(file.getvalue())
        return file.getvalue(), writer.offset


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("arrays") / "file"


def put(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)  # not written over: the file may still be mapped
    path.write_bytes(content)


@given(
    st.lists(st.binary(max_size=9), unique=True).map(sorted),
    st.lists(st.integers(0, 2**32 - 1), max_size=9),
    st.binary(max_size=99),
)
def test_what_was_written_is_read_wherever_the_block_begins(path, strings, numbers, before):
    content, offset = block(strings, numbers, before)
    put(path, content + b"behind")
    arrays = Arrays(path, "sample", 3, REMEDY, offset)
    assert offset % ALIGNMENT == 0
    assert arrays.facts == {"made": "here"}
    assert [arrays.string("names", i) for i in range(arrays.strings("names"))] == strings
    assert arrays.read("numbers", 0, arrays.length("numbers")).tolist() == numbers
    assert [arrays.find("names", string) for string in strings] == list(range(len(strings)))
    assert arrays.find("names", b"ten bytes!") is None


@pytest.mark.parametrize("size", [PIECE - ALIGNMENT - 1, PIECE, PIECE + 1, 3 * PIECE])
def test_every_byte_of_large_arrays_is_guarded(path, size):
    content, _ = block([b"x" * size, b"y"], [1, 2, 3, 4])
    put(path, content)
    assert Arrays(path, "sample", 3, REMEDY).string("names", 0) == b"x" * size
    at = content.index(b"x" * size) + size - 1
    put(path, content[:at] + b"z" + content[at + 1 :])
    arrays = Arrays(path, "sample", 3, REMEDY)
    with pytest.raises(DataError, match=r"damaged between its bytes .* Make it again\."):
        arrays.string("names", 0)


def test_what_is_read_cannot_be_written(path):
    content, _ = block([], [1, 2])
    put(path, content)
    with pytest.raises(ValueError, match="read-only"):
        Arrays(path, "sample", 3, REMEDY).read("numbers", 0, 2)[0] = 9


def test_a_block_of_another_kind_or_version_or_a_half_written_one_is_refused(path):
    content, _ = block([b"a"], [1])
    put(path, content)
    with pytest.raises(DataError, match="holds a sample, not a catalogue"):
        Arrays(path, "catalogue", 3, REMEDY)
    with pytest.raises(DataError, match="version 3, and this program reads version 4"):
        Arrays(path, "sample", 4, REMEDY)
    put(path, bytes(ALIGNMENT) + content[ALIGNMENT:])
    with pytest.raises(DataError, match="half-written"):
        Arrays(path, "sample", 3, REMEDY)
