"""How texts become terms, and the index that ranks documents by them."""

from __future__ import annotations

import io
import pickle
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envsuite.core.errors import DataError
from envsuite.papersearch.literature import Literature
from envsuite.retrieval import builder as building
from envsuite.retrieval import index, word_break
from envsuite.retrieval import index as searching
from envsuite.retrieval.analysis import STOP_WORDS, analyze, term_of
from envsuite.retrieval.bm25 import length_of, norm
from envsuite.retrieval.builder import IndexBuilder
from envsuite.retrieval.corpus import Corpus
from envsuite.retrieval.corpus_build import build
from envsuite.retrieval.index import Hit, Index
from envsuite.retrieval.porter import stem
from envsuite.retrieval.word_break import LONGEST, properties, words

WORDS = "red green blue shirt shoe lamp cotton running the and 3.5mm ★ 東京 x1 hat".split()
Opened = Callable[..., Index]
word_texts = st.lists(st.sampled_from(WORDS), max_size=30).map(" ".join)
corpora = st.dictionaries(st.text("ABXé😀", min_size=1, max_size=3), word_texts, max_size=12)


def built(documents: Iterable[tuple[str, str]]) -> bytes:
    with IndexBuilder() as builder, io.BytesIO() as file:
        for key, text in documents:
            builder.add(key, text)
        builder.write(file)
        return file.getvalue()


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    path = tmp_path_factory.mktemp("index") / "index"

    def of(documents: Mapping[str, str], engine: searching.Engine = "numpy") -> Index:
        path.unlink(missing_ok=True)
        path.write_bytes(built(documents.items()))
        return Index(path, engine=engine)

    return of


@pytest.fixture(scope="module")
def library() -> dict[str, str]:
    """Many documents, with words as frequent as Zipf has it."""
    draw = random.Random(0)
    names = [f"w{i}" for i in range(400)]
    weights = [1 / (i + 1) for i in range(400)]
    return {f"{i:05}": " ".join(draw.choices(names, weights, k=draw.randint(0, 80))) for i in range(3000)}


def transcribed(documents: Mapping[str, str], query: str, k: int) -> list[tuple[str, float]]:
    """BM25 as its formula says, document by document, with Lucene's rounding and nothing clever."""
    one, k1, b = np.float32(1), np.float32(0.9), np.float32(0.4)
    terms = {key: analyze(text) for key, text in documents.items()}
    filled = sum(bool(found) for found in terms.values())
    mean = np.float32(sum(map(len, terms.values())) / max(filled, 1))
    asked = sorted(Counter(analyze(query)).items())
    holding = {term: sum(term in found for found in terms.values()) for term, _ in asked}
    scores = {}
    for key, found in terms.items():
        total = 0.0
        for term, times in asked:
            if term in found:
                idf = np.float32(np.log(1 + (filled - holding[term] + 0.5) / (holding[term] + 0.5)))
                weight = np.float32(times) * idf
                inverse = one / (k1 * ((one - b) + b * np.float32(length_of(norm(len(found)))) / mean))
                total += float(weight - weight / (one + np.float32(found.count(term)) * inverse))
        if np.float32(total) > 0:
            scores[key] = float(np.float32(total))
    return sorted(scores.items(), key=lambda hit: (-hit[1], hit[0]))[:k]


@settings(max_examples=60)
@given(corpora, word_texts, st.integers(1, 15))
def test_hits_and_scores_are_those_of_the_formula(opened, documents, query, k):
    hits = opened(documents).search(query, k)
    assert [(hit.key, hit.score) for hit in hits] == transcribed(documents, query, k)


@settings(max_examples=30)
@given(corpora, st.randoms(use_true_random=False))
def test_the_order_in_which_documents_come_does_not_change_the_file(documents, shuffler):
    shuffled = list(documents.items())
    shuffler.shuffle(shuffled)
    assert built(shuffled) == built(documents.items())


def test_what_does_not_fit_in_memory_goes_through_the_disk_and_changes_nothing(library, monkeypatch):
    at_once = built(library.items())
    monkeypatch.setattr(building, "RUN", 5000)
    monkeypatch.setattr(building, "_REMEMBERED", 50)
    assert built(library.items()) == at_once


def test_the_builder_leaves_nothing_behind(tmp_path):
    with IndexBuilder(tmp_path) as builder, io.BytesIO() as file:
        builder.add("a", "red shirt")
        builder.write(file)
        assert list(tmp_path.iterdir())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("query", ["w0 w1 w2", "w300 w5 w5 w0", " ".join(f"w{i}" for i in range(70)), "w399"])
def test_blocks_and_their_number_change_no_hit(opened, library, monkeypatch, query):
    whole = opened(library).search(query, 100)
    monkeypatch.setattr(searching, "_BLOCK", 64)
    assert opened(library).search(query, 100) == whole
    assert [(hit.key, hit.score) for hit in whole] == transcribed(library, query, 100)


def test_numba_gives_the_same_bit_for_bit(opened, library):
    pytest.importorskip("numba")
    plain, fast = opened(library), opened(library, "numba")
    for query in ("w0", "w0 w1 w2 w3", "w7 w7 w350", "absent", " ".join(f"w{i}" for i in range(100))):
        assert fast.search(query, 50) == plain.search(query, 50)


@pytest.mark.parametrize("query", ["", "   ", "the and", "absent", "\ud800", "***"])
def test_a_query_without_a_known_word_finds_nothing(opened, query):
    assert opened({"a": "red shirt", "b": ""}).search(query, 50) == []


@pytest.mark.parametrize("query", ['"red shirt"', "+red -shirt", "red^5 AND shirt", "(red shirt", "red~ /shirt/ \\"])
def test_operators_and_quotes_are_no_syntax(opened, query):
    index = opened({"a": "red", "b": "shirt red", "c": "shirt"})
    assert {hit.key for hit in index.search(query)} == {"a", "b", "c"}


def test_a_query_of_ten_thousand_words_is_answered(opened, library):
    index = opened(library)
    query = " ".join(f"w{i % 400}" for i in range(10_000))
    once = index.search(" ".join(f"w{i}" for i in range(400)), 20)
    assert [hit.key for hit in index.search(query, 20)] == [hit.key for hit in once]


@settings(max_examples=30)
@given(corpora)
def test_keys_and_numbers_belong_together(opened, documents):
    index = opened(documents)
    assert [index.key(number) for number in range(len(index))] == sorted(documents)
    assert all(index.key(index.number(key) or 0) == key for key in documents)
    assert index.number("absent") is None
    with pytest.raises(IndexError, match="no document"):
        index.key(len(index))


def test_an_index_may_lie_anywhere_in_a_file(tmp_path):
    path = tmp_path / "catalogue"
    with open(path, "wb") as file:
        file.write(b"something else")
        places = []
        for text in ("red shirt", "blue shoe"):
            with IndexBuilder() as builder:
                builder.add("a", text)
                places.append(builder.write(file))
            file.write(b"more")
    assert [[hit.key for hit in Index(path, place).search("shoe")] for place in places] == [[], ["a"]]


def test_a_pickled_index_and_many_threads_find_the_same(opened, library):
    index = opened(library)
    queries = [f"w{i} w{i * 7 % 400} w0" for i in range(60)]
    alone = [index.search(query) for query in queries]
    other: Index = pickle.loads(pickle.dumps(index))
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(other.search, queries)) == alone


def test_two_documents_with_one_key_are_refused():
    with pytest.raises(DataError, match="two documents have the key 'a'"):
        built([("a", "x"), ("b", "x"), ("a", "y")])


SAMPLE = {f"k{i}": " ".join(WORDS[: i % 15 + 1]) for i in range(40)}
CONTENT = built(SAMPLE.items())
QUERIES = ("red", "shirt lamp hat", "★ 東京 x1")


def answers(path: Path) -> list[list[Hit]]:
    return [Index(path).search(query, 50) for query in QUERIES]


@given(st.integers(0, len(CONTENT) - 1), st.integers(1, 255))
def test_a_changed_byte_is_an_error_or_changes_no_answer(tmp_path_factory, at, change):
    whole, changed = (tmp_path_factory.getbasetemp() / name for name in ("whole", "changed"))
    whole.write_bytes(CONTENT)
    changed.unlink(missing_ok=True)
    changed.write_bytes(CONTENT[:at] + bytes([CONTENT[at] ^ change]) + CONTENT[at + 1 :])
    try:
        found = answers(changed)
    except DataError as error:
        assert str(changed) in str(error) and "Build it again" in str(error)
    else:
        assert found == answers(whole)


@given(st.integers(0, len(CONTENT) - 1))
def test_a_truncated_file_is_refused(tmp_path_factory, size):
    path = tmp_path_factory.getbasetemp() / "truncated"
    path.unlink(missing_ok=True)
    path.write_bytes(CONTENT[:size])
    with pytest.raises(DataError, match="Build it again"):
        Index(path)


def test_a_missing_a_foreign_and_an_old_file_are_named_with_the_remedy(tmp_path, monkeypatch):
    path = tmp_path / "index"
    with pytest.raises(DataError, match="cannot be read"):
        Index(path)
    path.write_bytes(b"SQLite format 3\0" * 100)
    with pytest.raises(DataError, match=r"holds no search index.*Type this\."):
        Index(path, remedy="Type this.")
    path.unlink()
    path.write_bytes(CONTENT)
    monkeypatch.setattr(searching, "VERSION", 2)
    with pytest.raises(DataError, match="version 1, and this program reads version 2"):
        Index(path)


def test_lengths_are_those_of_lucenes_small_float():
    assert [norm(n) for n in (0, 1, 23, 24, 31, 32, 39, 40, 41, 42)] == [0, 1, 23, 24, 31, 32, 39, 40, 40, 41]
    assert norm(2**31 - 1) == 255
    assert all(norm(length_of(byte)) == byte for byte in range(256))
    assert all(length_of(norm(n)) <= n < length_of(norm(n) + 1) for n in range(20_000))


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 5), st.sampled_from([3, 1000]))
def test_the_best_are_kept_in_order_whatever_the_blocks(seed, k, blocks, values):
    draw = np.random.default_rng(seed)
    scores = draw.integers(0, values, size=blocks * 700).astype(np.float32)
    scores[draw.random(len(scores)) < draw.random()] = 0
    best = searching._Best(k)
    for first in range(0, len(scores), 700):
        best.offer(first, scores[first : first + 700])
    wanted = [n for n in np.lexsort((np.arange(len(scores)), -scores)).tolist() if scores[n] > 0][:k]
    numbers, found = best.result()
    assert numbers.tolist() == wanted and found.tolist() == scores[wanted].tolist()


def test_terms_in_memory_change_no_score(tmp_path, monkeypatch):
    source = Literature(600)
    corpus = Corpus(build(source, tmp_path / "small.corpus"))
    terms = [Counter(analyze(f"{task['text']} {task['text'][:30]}")) for task in source.tasks()]
    stops = [None, 0, 1, 37, 599, 600, 9_999]
    monkeypatch.setattr(index, "_KEPT", 500)  # so that it forgets, too
    kept = [corpus.index.best(one, 10, stop) for one in terms for stop in stops]
    monkeypatch.setattr(index, "_SMALL", 0)
    plain = [corpus.index.best(one, 10, stop) for one in terms for stop in stops]
    for (numbers, scores), (others, other_scores) in zip(kept, plain, strict=True):
        assert np.array_equal(numbers, others) and np.array_equal(scores, other_scores)


RECORDED = orjson.loads((Path(__file__).parent / "lucene_terms.json").read_bytes())["pairs"]

# Characters of all classes of the table, the rare ones as likely as letters.
CLASSES = sorted(set(properties().of))
SOME = [chr(properties().of.index(number)) for number in CLASSES]
texts = st.text(st.one_of(st.sampled_from(SOME), st.characters()), max_size=40)


def test_terms_are_those_that_lucene_found_in_recorded_texts():
    different = [text for text, terms in RECORDED if analyze(text) != terms]
    assert not different
    assert len(RECORDED) == 400


@given(texts)
def test_any_text_is_analysed_and_no_term_is_empty(text):
    terms = analyze(text)
    assert all(terms)
    assert not set(terms) & {"the", "and"}


@given(texts)
def test_words_follow_each_other_in_the_text_and_no_word_is_too_long(text):
    at = 0
    for word in words(text):
        at = text.index(word, at) + len(word)
        assert len(word.encode("utf-16-le", "surrogatepass")) <= 2 * LONGEST


@given(st.text(st.characters(max_codepoint=127), max_size=60))
def test_the_short_way_for_ascii_finds_what_the_patterns_find(text):
    assert words(text) == [text[start:end] for start, end in word_break._spans(text)]


@given(texts, st.sampled_from([" ", "\n", "\t", "\u3000", "\u2028", "\x1c"]), texts)
def test_white_space_ends_every_word(left, space, right):
    assert words(left + space + right) == words(left) + words(right)


def test_of_all_white_space_only_one_character_joins_words():
    joining = [c for c in range(0x110000) if chr(c).isspace() and properties().names[properties().of[c]]]
    assert joining == [0x202F]


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("The cats' toys, O'Neil's", ["cat", "toi", "o'neil"]),
        ("wi:fi 12:30 3.5mm 1,000 a_b", ["wi:fi", "12", "30", "3.5mm", "1,000", "a_b"]),
        ("★ five® stars™ 👍🏽 🇩🇪🇫🇷", ["★", "five", "®", "star", "™", "👍🏽", "🇩🇪", "🇫🇷"]),
        ("東京タワー ひら ภาษาไทย 한국어", ["東", "京", "タワー", "ひ", "ら", "ภาษาไทย", "한국어"]),
        ("İSTANBUL ΛΌΓΟΣ", ["istanbul", "λόγοσ"]),
        ("...!? -- __ \u200d \ud800", []),
    ],
)
def test_the_rules_by_example(text, terms):
    assert analyze(text) == terms


@pytest.mark.parametrize(
    ("word", "stemmed"),
    [
        ("caresses", "caress"), ("ponies", "poni"), ("ties", "ti"), ("agreed", "agre"), ("feed", "feed"),
        ("hopping", "hop"), ("hoping", "hope"), ("falling", "fall"), ("relational", "relat"), ("sky", "sky"),
        ("happy", "happi"), ("archaeology", "archaeolog"), ("possibly", "possibl"), ("adoption", "adopt"),
        ("controlling", "control"), ("rate", "rate"), ("ion", "ion"), ("ies", "i"), ("us", "us"), ("", ""),
    ],
)  # fmt: skip
def test_stems(word, stemmed):
    assert stem(word) == stemmed


def test_a_word_is_cut_at_255_units_and_goes_on_as_a_new_one():
    assert list(map(len, words("a" * 600))) == [255, 255, 90]
    assert list(map(len, words("𐐨" * 300))) == [127, 127, 46]


@pytest.mark.parametrize("unit", ["_", "_\u0301", "\u200d", "x_", "#\u0301"])
def test_a_long_run_of_anything_is_analysed_in_seconds(unit):
    start = time.process_time()
    words(unit * (300_000 // len(unit)))
    assert time.process_time() - start < 5


def test_there_are_33_stop_words():
    assert len(STOP_WORDS) == 33 and all(term_of(word.upper()) is None for word in STOP_WORDS)
