from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from question_files import (
    ALIASES,
    HOTPOT,
    HUGGING_FACE,
    MUSIQUE,
    TWO_WIKI,
    UNANSWERABLE,
    without,
    write_json,
    write_lines,
)

from envsuite.core.errors import DataError, UnknownName
from envsuite.retrieval.documents import LONGEST_KEY, DocumentProblems
from envsuite.searchqa import layouts, passages, source
from envsuite.searchqa.layouts import read_question
from envsuite.searchqa.passages import Passage, PassageKeys, join_sentences, passage, rows
from envsuite.searchqa.scoring import judge
from envsuite.searchqa.source import QuestionFiles


def read(*files: Path, **arguments: Any) -> tuple[dict[str, str], list[dict[str, Any]], DocumentProblems]:
    found = QuestionFiles(files, **arguments)
    pages = {document.key: document.text for document in found.documents()}
    return pages, list(found.tasks()), found.problems


def test_hotpotqa_s_layout(tmp_path):
    pages, (task,), problems = read(write_json(tmp_path / "hotpot_dev_distractor_v1.json", [HOTPOT]))
    assert pages == {
        "Blue Moon": "Blue Moon is a film. Ann Lee directed it.",
        "Ann Lee": "Ann Lee is a director. She was born in Rome.",
        "Red Moon": "Red Moon is a song.",
    }
    assert task == {
        "id": "h1",
        "question_id": "h1",
        "text": "Where was the director of Blue Moon born?",
        "answers": ["Rome"],
        "support": ["Blue Moon", "Ann Lee"],
        "kind": "bridge",
        "hops": 2,
        "data_set": "hotpotqa",
        "split": "validation",
        "answerable": True,
    }
    assert not problems.counts


def test_hotpotqa_s_layout_on_hugging_face_is_the_same_question_with_the_same_pages(tmp_path):
    official = read(write_json(tmp_path / "dev.json", [HOTPOT]))
    exported = read(write_lines(tmp_path / "dev.jsonl", [HUGGING_FACE]))
    assert exported[:2] == official[:2] and not exported[2].counts
    short = {"title": ["Blue Moon", "Ann Lee"], "sentences": [["Blue Moon is a film."]]}
    problems = read(write_lines(tmp_path / "short.jsonl", [{**HUGGING_FACE, "context": short}]))[2]
    assert problems.counts == {layouts.BROKEN_PASSAGE: 1, layouts.ELSEWHERE: 1, source.NOT_THERE: 1}


def test_2wikimultihopqa_s_official_aliases_are_right_answers(tmp_path):
    rows = [
        {**TWO_WIKI, "answer_id": "Q1"},
        {**TWO_WIKI, "_id": "w2", "answer": "Italy", "answer_id": "Q2"},
        {**TWO_WIKI, "_id": "w3", "answer": "1900", "answer_id": None},
    ]
    file = write_json(tmp_path / "dev.json", rows)
    before, (first, *_), problems = QuestionFiles([tmp_path]).digest(), *read(tmp_path)[1:]
    assert first["answers"] == ["Ann Lee"] and problems.counts[source.NO_ALIASES] == 1
    assert problems.places[source.NO_ALIASES] == ["dev.json"]
    write_lines(tmp_path / "id_aliases.json", [*ALIASES, {"Q_id": "Q3"}])
    for place in (file, tmp_path):
        _, tasks, problems = read(place)
        assert [task["answers"] for task in tasks] == [
            ["Ann Lee", "Lee, Ann", "A. Lee"],
            ["Italy", "Italian"],
            ["1900"],
        ]
        assert problems.counts == {layouts.PAST_THE_END: 3, source.BROKEN_ALIASES: 1}
    assert judge("Lee, Ann", tasks[0]["answers"]).em == judge("the Italian", tasks[1]["answers"]).em == 1.0
    assert QuestionFiles([tmp_path]).digest() == QuestionFiles([file]).digest() != before


def test_2wikimultihopqa_s_layout_and_facts_past_the_last_sentence(tmp_path):
    pages, (task,), problems = read(write_json(tmp_path / "train.json", [TWO_WIKI]))
    assert pages["Ann Lee"] == "Ann Lee( born 1900) directs. She lives."
    assert task["data_set"] == "2wikimultihopqa" and task["kind"] == "comparison" and task["split"] == "train"
    assert task["support"] == ["Ann Lee", "Bo Kim"]
    assert problems.counts == {layouts.PAST_THE_END: 1, source.NO_ALIASES: 1}
    assert problems.places[layouts.PAST_THE_END] == ["train.json:1 (w1)"]


def test_musique_s_layout_titles_that_repeat_and_null_supports(tmp_path):
    file = write_lines(tmp_path / "musique_full_v1.0_dev.jsonl", [MUSIQUE, UNANSWERABLE])
    pages, (first, second), problems = read(file)
    assert list(pages) == ["Canon", "Canon (2)", "Oslo", "Bo Kim"]
    assert first["answers"] == ["J. Fox", "Jo Fox", "Fox"] and first["support"] == ["Bo Kim", "Oslo"]
    assert (first["hops"], first["kind"], first["answerable"]) == (3, "composition", True)
    assert first["id"] == "3hop1__1_2_3" and second["id"] == "3hop1__1_2_3/unanswerable"
    assert second["answerable"] is False and second["support"] == ["Bo Kim"]
    assert second["question_id"] == first["question_id"]
    assert problems.counts == {layouts.NULL_SUPPORT: 1}


def test_what_is_wrong_is_counted_with_its_place_and_the_rest_is_read(tmp_path):
    lines = [
        HOTPOT,
        "{broken",
        '["a list"]',
        "",
        {**HOTPOT, "question": "Again?"},
        {**HOTPOT, "_id": "no answer", "answer": None},
        {**HOTPOT, "_id": "blank answer", "answer": " "},
        {**HOTPOT, "_id": ""},
        without({**HOTPOT, "_id": "no context"}, "context"),
        {"name": "other"},
        {**HOTPOT, "_id": "elsewhere", "supporting_facts": [["Nowhere", 0], ["Ann Lee", -1], "x", ["Ann Lee", "0"]]},
        {**HOTPOT, "_id": "long", "question": "x" * 10_001},
        {**HOTPOT, "_id": "odd", "context": [["Ann Lee", []], "x", [3, ["x"]], ["New", "One text."]]},
    ]
    file = write_lines(tmp_path / "lines.jsonl", lines)
    pages, tasks, problems = read(file)
    assert [task["id"] for task in tasks] == ["h1", "elsewhere", "odd"]
    assert tasks[1]["support"] == ["Ann Lee"] and pages["New"] == "One text."
    assert problems.counts == {
        passages.BROKEN: 2,
        source.SAME_ID: 1,
        layouts.NO_ANSWER: 2,
        layouts.NO_ID: 1,
        source.NO_CONTEXT: 1,
        layouts.NO_QUESTION: 1,
        layouts.ELSEWHERE: 3,  # one of "elsewhere", two of "odd", whose pages are other questions' pages
        layouts.PAST_THE_END: 1,
        layouts.NO_FACTS: 2,
        layouts.LONG: 1,
        layouts.BROKEN_PASSAGE: 3,
        source.NOT_THERE: 1,
    }
    assert problems.places[passages.BROKEN] == ["lines.jsonl:2", "lines.jsonl:3"]
    assert problems.places[source.SAME_ID] == ["lines.jsonl:5 (h1)"]
    with pytest.raises(DataError, match=r"lines\.jsonl:2: a line that is no JSON object"):
        read(file, strict=True)


def test_a_given_corpus_has_the_pages_and_questions_need_no_context(tmp_path):
    file = write_json(tmp_path / "test.json", [without(HOTPOT, "context"), {**TWO_WIKI, "_id": "w2"}])
    rows = [
        {"title": "Ann Lee", "text": "Another text."},
        {"title": "Ann Lee", "text": "Ann Lee( born 1900)  directs. She lives."},
        {"title": "Blue Moon", "text": ["Blue Moon is a film.", " Ann Lee directed it."]},
        {"title": "", "text": "x"},
        {"title": "Empty", "text": ""},
    ]
    corpus = write_json(tmp_path / "corpus.json", rows)
    pages, (first, second), problems = read(file, corpus=corpus)
    assert list(pages) == ["Ann Lee", "Ann Lee (2)", "Blue Moon"]
    assert first["support"] == ["Blue Moon", "Ann Lee"]
    assert second["support"] == ["Ann Lee (2)"]  # the passage of the same text
    assert problems.counts[passages.NO_PASSAGE] == 2
    assert problems.counts[source.NOT_THERE] == 1
    assert problems.places[passages.NO_PASSAGE] == ["corpus.json:4", "corpus.json:5"]


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(
    "content",
    [
        json.dumps({"Rome": ["Rome is a city.", " It is old."], "Oslo": "Oslo is a city."}),
        json.dumps(
            [{"title": "Rome", "text": "Rome is a city. It is old."}, {"title": "Oslo", "text": "Oslo is a city."}]
        ),
        '{"id": "0", "title": "Rome", "text": "Rome is a city. It is old."}\n{"id": "1", "title": "Oslo", '
        '"text": "Oslo is a city."}\n',
        '{"id": "0", "contents": "\\"Rome\\"\\nRome is a city. It is old."}\n{"id": "1", "contents": '
        '"\\"Oslo\\"\\nOslo is a city."}',
        '{"id": 12, "title": "Rome", "text": [["Rome is a city.", " It is old."]]}\n{"id": 25, "title": "Oslo", '
        '"text": [["Oslo is"], ["a city."]]}\n',
    ],
    ids=["object", "list", "lines", "search-r1", "hotpotqa-wiki"],
)
def test_layouts_of_a_corpus(tmp_path, content, zipped):
    path = tmp_path / ("wiki.json.gz" if zipped else "wiki.json")
    path.write_bytes(gzip.compress(content.encode()) if zipped else content.encode())
    problems = DocumentProblems()
    found = list(passages.passages(path, problems))
    assert found == [Passage("Rome", "Rome is a city. It is old."), Passage("Oslo", "Oslo is a city.")]
    assert not problems.counts


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"{broken", "neither JSON nor"), (b"3", "a JSON list or object"), (b"", "neither"), (b"\xff\xfe", "neither")],
)
def test_a_file_that_is_no_json_is_refused_by_name(tmp_path, content, message):
    path = tmp_path / "train.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read(path)
    assert str(path) in str(caught.value)


def test_missing_truncated_and_empty_places_are_refused_by_name(tmp_path):
    with pytest.raises(DataError, match="no such file or folder"):
        QuestionFiles([tmp_path / "absent.json"])
    with pytest.raises(DataError, match="no files of questions"):
        QuestionFiles([tmp_path])
    file = write_json(tmp_path / "dev.json", [HOTPOT])
    with pytest.raises(DataError, match="no such file of passages"):
        QuestionFiles([file], tmp_path / "absent")
    with pytest.raises(UnknownName, match="validation"):
        QuestionFiles([file], split="dev")
    cut = tmp_path / "dev.jsonl.gz"
    cut.write_bytes(gzip.compress(json.dumps(HOTPOT).encode())[:-20])
    with pytest.raises(DataError, match=r"dev\.jsonl\.gz"):
        read(cut)
    with pytest.raises(DataError, match=r"dev\.jsonl\.gz"):
        QuestionFiles([cut]).digest()


def test_the_split_is_that_of_the_name_or_the_one_given(tmp_path):
    names = {
        "train": ("hotpot_train_v1.1.json", "train100.json"),
        "validation": ("hotpot_dev_fullwiki_v1.json", "valid.json"),
        "test": ("musique_ans_v1.0_test.jsonl", "questions.json", "training_of_birds.json"),
    }
    for name, split in ((name, split) for split, some in names.items() for name in some):
        (task,) = read(write_lines(tmp_path / name, [HOTPOT]))[1]
        assert task["split"] == split, name
        (task,) = read(tmp_path / name, split="train")[1]
        assert task["split"] == "train"


def test_a_folder_has_all_its_files_but_corpora_and_the_digest_is_that_of_the_contents(tmp_path):
    write_json(tmp_path / "a_train.json", [HOTPOT])
    write_json(tmp_path / "b_dev.json", [TWO_WIKI])
    write_json(tmp_path / "b_corpus.json", [])
    found = QuestionFiles([tmp_path])
    assert found.name == "a_train.json + b_dev.json"
    assert [(task["id"], task["split"]) for task in found.tasks()] == [("h1", "train"), ("w1", "validation")]
    assert found.digest() == QuestionFiles([tmp_path / "a_train.json", tmp_path / "b_dev.json"]).digest()
    assert found.digest() != QuestionFiles([tmp_path], split="test").digest()
    write_json(tmp_path / "b_dev.json", [{**TWO_WIKI, "answer": "Bo Kim"}])
    assert found.digest() != QuestionFiles([tmp_path]).digest()


REAL = {
    "hotpotqa": (100, 994, {("bridge", 2): 78, ("comparison", 2): 22}),
    "2wikimultihopqa": (
        500,
        3112,
        {("composition", 2): 227, ("comparison", 2): 162, ("bridge-comparison", 4): 92, ("inference", 2): 19},
    ),
    "musique": (100, 1890, {("composition", 2): 68, ("composition", 3): 27, ("composition", 4): 5}),
}


@pytest.mark.parametrize("data_set", REAL)
def test_the_real_data_sets_are_read_whole(shared, data_set):
    pages, tasks, problems = read(shared / "data" / "questions" / data_set)
    questions, passages_, kinds = REAL[data_set]
    assert len(tasks) == questions and len(pages) == passages_
    assert Counter((task["kind"], task["hops"]) for task in tasks) == kinds
    assert all(set(task["support"]) <= pages.keys() and len(task["support"]) == task["hops"] for task in tasks)
    assert {task["data_set"] for task in tasks} == {data_set}
    missing = {layouts.PAST_THE_END: 6, source.NO_ALIASES: 1}
    assert problems.counts == (missing if data_set == "2wikimultihopqa" else {})


@pytest.mark.parametrize("data_set", ["hotpotqa", "musique"])
def test_the_published_corpora_are_the_union_of_the_passages(shared, data_set):
    folder = shared / "data" / "questions" / data_set
    alone = read(folder)
    given_ = read(folder, corpus=folder / "train100_corpus.json")
    assert sorted(alone[0].values()) == sorted(given_[0].values())
    assert [len(task["support"]) for task in alone[1]] == [len(task["support"]) for task in given_[1]]


titles = st.text(max_size=12) | st.sampled_from(["A", "A (2)", "A (2) (2)", " A ", "x" * 300, "\u2028", ""])


@given(st.lists(titles, max_size=30))
def test_keys_are_unique_short_lines(names):
    keys = PassageKeys()
    found = [keys.key(name) for name in names]
    assert len(set(found)) == len(found)
    assert all(0 < len(key) <= LONGEST_KEY and key == key.strip() and len(key.splitlines()) == 1 for key in found)


PAIRED = ["title", "sentences", "sent_id"]
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(PAIRED), inner, max_size=3),
    max_leaves=8,
)
fields = ["question", "answer", "answer_aliases", "context", "supporting_facts", "paragraphs", "question_decomposition"]


@given(
    st.sampled_from([HOTPOT, TWO_WIKI, MUSIQUE]),
    st.dictionaries(st.sampled_from([*fields, "id", "_id", "type", "answerable"]), values, max_size=4),
)
def test_no_content_of_an_entry_raises(row, changes):
    problems = DocumentProblems()
    found = read_question({**row, **changes}, "here", problems)
    assert found is not None or problems.counts
    if found is not None:
        assert found.text and found.answers and found.answers[0] and found.task_id


@given(values | st.dictionaries(st.sampled_from(["title", "text", "contents", "paragraph_text"]), values))
def test_no_passage_raises(row):
    found = passage(row)
    assert found is None or (found.title.strip() and found.text)
    assert isinstance(join_sentences(row), str)


@given(st.binary(max_size=60) | st.lists(values).map(lambda v: json.dumps(v).encode()))
def test_no_file_raises_but_a_data_error(tmp_path_factory, content):
    folder = tmp_path_factory.getbasetemp() / "fuzz"
    folder.mkdir(exist_ok=True)
    for name in ("a.json", "a.jsonl", "a.json.gz"):
        (folder / name).write_bytes(content)
        try:
            list(rows(folder / name, DocumentProblems()))
        except DataError as error:
            assert str(folder / name) in str(error)
