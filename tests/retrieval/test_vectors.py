from __future__ import annotations

import pickle
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vector_files import Drawn, stored

from envsuite.core.errors import DataError, MissingExtra
from envsuite.data.arrays import ArrayWriter
from envsuite.retrieval import approximate
from envsuite.retrieval import vectors as searching
from envsuite.retrieval.approximate import Approximate, build_index
from envsuite.retrieval.documents import Found
from envsuite.retrieval.encoders import unit
from envsuite.retrieval.vectors import SCALE, Vectors, encoder, write_vectors

QUERY = "a query"
FAISS = pytest.mark.usefixtures("faiss")


def pairs(found: Found) -> list[tuple[int, float]]:
    numbers, scores = found
    assert numbers.dtype == np.int64 and scores.dtype == np.float32
    return list(zip(numbers.tolist(), scores.tolist(), strict=True))


def by_hand(texts: list[str], query: str, k: int, stop: int | None) -> list[tuple[int, float]]:
    """All cosines one by one, sorted by score and then by number."""
    drawn = Drawn()
    asked = drawn.encode([query], "query")[0].astype(np.float64)
    if not asked.any():
        return []
    found = []
    for number, row in enumerate(drawn.encode(texts, "passage")[:stop]):
        kept = np.rint(row * np.float32(SCALE)).astype(np.float64)
        found.append((number, float(np.float32((kept * (asked / SCALE)).sum()))))
    return sorted(found, key=lambda one: (-one[1], one[0]))[:k]


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from(["", *map(str, range(40))]), max_size=60),
    st.sampled_from(["", "3", QUERY]),
    st.integers(0, 12),
    st.none() | st.integers(-1, 70),
    st.sampled_from([1, 7, 1024]),
)
def test_search_equals_a_comparison_with_every_document_even_where_documents_are_equal(
    tmp_path_factory, texts, query, k, stop, block
):
    path = tmp_path_factory.mktemp("vectors") / "file"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(searching, "_BLOCK", block)
        vectors = stored(path, texts, Drawn())
        assert len(vectors) == len(texts)
        bound = None if stop is None else max(0, stop)
        assert pairs(vectors.search(query, k, stop)) == by_hand(texts, query, k, bound)


def test_stored_vectors_are_within_half_a_step_of_the_encoders(tmp_path):
    texts = [str(i) for i in range(300)]
    vectors = stored(tmp_path / "file", texts, Drawn(64))
    assert np.abs(vectors.rows(0, 300) - Drawn(64).encode(texts, "passage")).max() <= 0.5001 / SCALE


def test_a_pickled_copy_and_many_threads_find_the_same(tmp_path):
    vectors = stored(tmp_path / "file", [str(i) for i in range(2000)], Drawn())
    copy: Vectors = pickle.loads(pickle.dumps(vectors))
    expected = pairs(vectors.search(QUERY, 20))
    with ThreadPoolExecutor(4) as pool:
        assert all(pairs(found) == expected for found in pool.map(lambda _: copy.search(QUERY, 20), range(20)))


def test_every_damaged_byte_is_noticed_or_makes_no_difference(tmp_path):
    vectors = stored(tmp_path / "file", [str(i) for i in range(50)], Drawn())
    path, offset, *_ = vectors._source
    before, expected = path.read_bytes(), pairs(vectors.search(QUERY, 50))
    for at in range(offset, len(before), 37):
        path.write_bytes(before[:at] + bytes([before[at] ^ 0xFF]) + before[at + 1 :])
        try:
            assert pairs(Vectors(path, offset, Drawn()).search(QUERY, 50)) == expected
        except DataError as error:
            assert str(path) in str(error) and "Build it again" in str(error)
    path.write_bytes(before[:-100])
    with pytest.raises(DataError, match=r"truncated|damaged"):
        Vectors(path, offset, Drawn())


def test_vectors_notice_another_model(tmp_path):
    vectors = stored(tmp_path / "file", ["a", "b"], Drawn())
    path, offset, *_ = vectors._source
    for other in (Drawn(seed="other"), Drawn(8)):
        with pytest.raises(DataError, match="of another model"):
            Vectors(path, offset, other).search(QUERY, 1)
    with pytest.raises(DataError, match="need it"):
        Vectors(path, offset).search(QUERY, 1)


def test_what_is_no_vector_is_not_stored(tmp_path, monkeypatch):
    monkeypatch.setattr(Drawn, "encode", lambda self, texts, role: np.full((len(texts), 16), np.nan, np.float32))
    with pytest.raises(DataError, match="not finite"):
        stored(tmp_path / "file", ["a"], Drawn())


def test_a_name_that_is_no_encoder_is_told_what_there_is():
    for name in ("lsa", "no-such-folder"):
        with pytest.raises(DataError, match="give the folder of a sentence-transformers model"):
            encoder(name)


@pytest.fixture
def faiss() -> None:
    pytest.importorskip("faiss", reason="needs faiss: pip install 'envsuite[faiss]'")


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Vectors:
    """Vectors around 50 centres, written without an encoder's help."""
    path = tmp_path_factory.mktemp("many") / "file"
    draw = np.random.default_rng(0)
    centres = draw.standard_normal((50, 32))
    rows = unit(centres[draw.integers(0, 50, 20_000)] + draw.standard_normal((20_000, 32)) * 0.7)
    with path.open("wb") as file:
        writer = ArrayWriter(file, searching.KIND, searching.VERSION)
        writer.add("vectors", "i2", [np.rint(rows * SCALE).astype(np.int16)])
        writer.add("probe", "f4", [np.zeros(32)])
        writer.close({"name": "many", "dimensions": 32, "size": 20_000, "encoder": {"kind": "none"}})
    return Vectors(path)


@FAISS
def test_faiss_finds_nearly_what_the_exact_search_finds_with_the_same_scores_before_a_cut_off(
    many, tmp_path, monkeypatch
):
    monkeypatch.setattr(approximate, "SMALL", 5000)
    index = Approximate(many, build_index(many, tmp_path / "many.faiss"))
    copy = pickle.loads(pickle.dumps(index))
    draw = np.random.default_rng(1)
    for stop in (None, 12_000, 4000):
        found = 0
        for query in unit(draw.standard_normal((50, 32)) + many.rows(0, 50) * 5):
            exact = dict(pairs(many.nearest(query, 10, stop)))
            near = pairs(index.nearest(query, 10, stop))
            assert near == pairs(copy.nearest(query, 10, stop))
            assert near == sorted(near, key=lambda one: (-one[1], one[0]))
            assert all(number < (stop or len(many)) for number, _ in near)
            assert all(exact.get(number, score) == score for number, score in near)
            found += len(exact.keys() & dict(near).keys())
        assert found >= (500 if stop == 4000 else 475)


@FAISS
def test_an_index_of_other_vectors_or_a_damaged_one_is_noticed(many, tmp_path):
    path = build_index(many, tmp_path / "many.faiss")
    with pytest.raises(DataError, match="no index of these vectors"):
        Approximate(stored(tmp_path / "other", ["a", "b"], Drawn()), path)
    with pytest.raises(DataError, match="cannot be read"):
        Approximate(many, tmp_path / "missing")
    content = path.read_bytes()
    path.write_bytes(content[:-72] + content[-72:-40])  # faiss's bytes and the identity of the vectors
    with pytest.raises(DataError, match=r"without a checksum, as before\. Build it again"):
        Approximate(many, path)
    for other in (b"", b"no index", content[:-40] + content[-72:-40], content[:-1], content[1:-72] + content[-72:]):
        path.write_bytes(other)
        with pytest.raises(DataError, match=r"Build it again with build_index"):
            Approximate(many, path)._open_index()


@FAISS
def test_an_index_that_is_removed_before_the_first_search_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(approximate, "SMALL", 10)
    vectors = stored(tmp_path / "file", [str(i) for i in range(200)], Drawn())
    index = Approximate(vectors, build_index(vectors, tmp_path / "some.faiss"))
    (tmp_path / "some.faiss").unlink()
    with pytest.raises(DataError, match=r"cannot be read \(No such file.*Build it again with build_index"):
        index.search(QUERY, 5)


@FAISS
def test_a_flipped_byte_of_an_index_is_found_wherever_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(approximate, "SMALL", 10)
    vectors = stored(tmp_path / "file", [str(i) for i in range(200)], Drawn())
    path = build_index(vectors, tmp_path / "some.faiss")
    content = bytearray(path.read_bytes())
    assert len(Approximate(vectors, path).search(QUERY, 5)[0]) == 5
    for at in (*range(0, len(content) - 72, 17), *range(len(content) - 72, len(content))):
        content[at] ^= 1 << at % 8
        path.write_bytes(content)
        with pytest.raises(DataError, match="Build it again with build_index"):
            Approximate(vectors, path).search(QUERY, 5)
        content[at] ^= 1 << at % 8


def test_without_faiss_the_error_says_how_to_install_it(many, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingExtra, match=r"pip install 'envsuite\[faiss\]'"):
        build_index(many, tmp_path / "index")


def test_progress_counts_every_document(tmp_path):
    told: list[object] = []

    class Told:
        def start(self, name: str, total: int | None, offset: int) -> None:
            told.append((name, total, offset))

        def advance(self, size: int) -> None:
            told.append(size)

        def note(self, text: str) -> None: ...

        def finish(self, name: str, size: int) -> None:
            told.append((name, size))

    with (tmp_path / "file").open("wb") as file:
        write_vectors(file, Drawn(), [str(i) for i in range(600)], Told())
    assert told == [("vectors (drawn)", 600, 0), 256, 256, 88, ("vectors (drawn)", 600)]
