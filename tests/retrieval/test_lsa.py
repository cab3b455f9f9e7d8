from __future__ import annotations

import io
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vector_files import stored

from envsuite.core.errors import DataError
from envsuite.data.arrays import Arrays
from envsuite.retrieval import lsa as fitting
from envsuite.retrieval.lsa import Lsa, Matrix, counts, decomposed
from envsuite.retrieval.vectors import Vectors, write_vectors

ANIMALS = "cat dog horse cow sheep goat pig hen".split()
TOOLS = "hammer saw drill wrench pliers chisel file lathe".split()


def shelf(size: int, seed: int = 0) -> list[str]:
    """Texts of words of one of two topics each."""
    draw = random.Random(seed)
    return [" ".join(draw.choices((ANIMALS, TOOLS)[i % 2], k=4)) for i in range(size)]


@given(st.lists(st.lists(st.integers(-1, 9), max_size=8), max_size=8))
def test_a_sparse_product_is_the_dense_one(rows: list[list[int]]) -> None:
    matrix = counts(rows)
    dense = np.zeros((len(rows), 10), dtype=np.float32)
    for i, row in enumerate(rows):
        for number in row:
            if number >= 0:
                dense[i, number] += 1
    right = np.arange(30, dtype=np.float32).reshape(10, 3)
    assert (matrix @ right == dense @ right).all()
    left = np.arange(len(rows) * 2, dtype=np.float32).reshape(len(rows), 2)
    assert (matrix.transposed(10) @ left == dense.T @ left).all()


def test_long_products_are_computed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    matrix = counts(draw.integers(-1, 50, 20).tolist() for _ in range(200))
    right = draw.standard_normal((50, 4), dtype=np.float32)
    whole = matrix @ right
    monkeypatch.setattr(fitting, "_TOGETHER", 7)
    assert (matrix @ right == whole).all()


def test_the_decomposition_finds_the_largest_singular_vectors() -> None:
    draw = np.random.default_rng(0)
    dense = (draw.standard_normal((60, 8)) * 2.0 ** -np.arange(8)) @ draw.standard_normal((8, 40))
    values = dense.astype(np.float32)
    ends = np.arange(61) * 40
    matrix = Matrix(ends, np.tile(np.arange(40), 60), values.ravel())
    found = decomposed(matrix, 40, 5)
    exact = np.linalg.svd(dense)[2][:5]
    assert np.abs(np.abs(found.T @ exact.T) - np.eye(5)).max() < 1e-3
    assert (found.max(axis=0) == np.abs(found).max(axis=0)).all()
    assert decomposed(matrix, 40, 20).shape == (40, 8)  # its rank


def test_words_of_one_topic_are_near_without_a_common_word(tmp_path: Path) -> None:
    texts = shelf(400)
    vectors = stored(tmp_path / "file", texts, Lsa(2), given=False)
    numbers, scores = vectors.search("a goat", 200)
    assert all(number % 2 == 0 for number in numbers.tolist()) and scores[-1] > 0.9
    without = [number for number in numbers.tolist() if "goat" not in texts[number]]
    assert len(without) > 50


def test_queries_are_encoded_from_the_file_as_by_the_fitted_encoder(tmp_path: Path) -> None:
    encoder = Lsa(6)
    vectors = stored(tmp_path / "file", shelf(100), encoder, given=False)
    for query in ("goat", "goat goat saw", "the saws", "unknown", "", "goat " * 1000, "東京 cat"):
        assert np.abs(vectors.encode(query) - encoder.encode([query], "query")[0]).max() < 1e-6
    assert len(vectors.search("unknown words", 5)[0]) == 0


def test_the_same_texts_give_the_same_bytes() -> None:
    contents = []
    for _ in range(2):
        with io.BytesIO() as file:
            write_vectors(file, Lsa(8), shelf(200))
            contents.append(file.getvalue())
    assert contents[0] == contents[1]


def test_vectors_of_a_large_corpus_are_fitted_to_evenly_spaced_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "SAMPLE", 100)
    texts = shelf(450) + ["rare words here"] * 50
    whole, part = Lsa(4), Lsa(4)
    whole.fit(texts)
    part.fit(texts[::5])
    assert (whole.encode(texts, "passage") == part.encode(texts, "passage")).all()


def test_only_the_most_frequent_terms_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "TERMS", 2)
    encoder = Lsa(2)
    encoder.fit(["a1 b1 c1", "a1 b1", "a1 b1 c1", "d1 a1"])
    known = encoder.encode(["a1", "b1", "c1", "d1"], "query").any(axis=1)
    assert known.tolist() == [True, True, False, False]


def test_texts_without_a_common_word_cannot_be_fitted() -> None:
    for texts in ([], [""], ["one two", "three four"]):
        with pytest.raises(DataError, match="no word is in two of the texts"):
            Lsa().fit(texts)


def test_a_stored_encoder_can_be_written_again(tmp_path: Path) -> None:
    first = stored(tmp_path / "first", shelf(100), Lsa(4), given=False)
    opened = first._opened()
    second = stored(tmp_path / "second", shelf(50), opened, given=False)
    assert second.search("goat", 5)[0].tolist() == [n for n in first.search("goat", 100)[0].tolist() if n < 50][:5]
    assert isinstance(second._arrays, Arrays) and isinstance(second, Vectors)
