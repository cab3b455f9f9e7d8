"""The built-in literature: what it promises of papers, citations and queries, and that it is the same everywhere."""

from __future__ import annotations

import hashlib
import json
import re
from itertools import islice
from typing import Any

import pytest

from envsuite.core.errors import UsageError
from envsuite.papersearch.citing import MOST_PAPERS
from envsuite.papersearch.literature import FIELD, LEAST_GOLD, MOST_GOLD, Literature
from envsuite.papersearch.vocabulary import table
from envsuite.retrieval.analysis import analyze
from envsuite.retrieval.documents import Document

LISTS = ("adjectives", "nouns", "tasks", "devices", "media")


@pytest.fixture(scope="module")
def source() -> Literature:
    return Literature(7_000, seed=5)


@pytest.fixture(scope="module")
def papers(source: Literature) -> dict[str, Document]:
    return {paper.key: paper for paper in source.documents()}


@pytest.fixture(scope="module")
def queries(source: Literature) -> list[dict[str, Any]]:
    return [dict(task) for task in source.tasks()]


def test_each_paper_has_a_key_and_clean_sentences_of_its_own_and_cites_papers_that_are_no_newer(papers):
    assert len(papers) == len({paper.text for paper in papers.values()}) == 7_000
    for key, paper in papers.items():
        assert re.fullmatch(r"P\d{7}", key) and 2000 <= paper.date // 10_000 < 2025
        assert len({*paper.links}) == len(paper.links) and key not in paper.links
        assert all(papers[cited].date <= paper.date for cited in paper.links)
        assert 60 <= len(paper.text.split()) <= 120
        for text in (paper.title, paper.text):
            assert not re.search(r"[{}%]|  ", text)
            assert text[0].isupper()
        assert all(sentence[0].isupper() for sentence in paper.text.split(". "))
        assert paper.facts["authors"] and paper.facts["venue"]


def test_hidden_gold_shares_no_word_with_the_names_in_the_query_and_other_gold_does(papers, queries):
    phrases = [*table("sentences")["method-problem"], *table("sentences")["problem-setting"]]
    phrases += table("sentences")["method-setting"]
    said = {word for line in phrases for word in analyze(re.sub(r"\{\w\}", " ", line))}
    hidden = 0
    for task in queries:
        asked = {*analyze(task["text"])} - said
        for key in task["gold"]:
            common = asked & {*analyze(f"{papers[key].title} {papers[key].text}")}
            assert (not common) == (key in task["hidden"])
            hidden += not common
    assert 0.25 < hidden / sum(len(task["gold"]) for task in queries) < 0.5
    assert sum(bool(task["hidden"]) for task in queries) > len(queries) * 0.8


def test_3_to_20_gold_papers_no_newer_than_the_query_can_be_reached_by_citations_from_one_that_it_names(
    papers, queries
):
    assert len(queries) > 200
    for task in queries:
        assert LEAST_GOLD <= len(task["gold"]) <= MOST_GOLD and {*task["hidden"]} < {*task["gold"]}
        assert all(papers[key].date <= task["date"] for key in task["gold"])
        gold = {*task["gold"]}
        reached = gold - {*task["hidden"]}
        assert reached
        while more := {
            key for key in gold - reached
            if {*papers[key].links} & reached or any(key in papers[other].links for other in reached)
        }:  # fmt: skip
            reached |= more
        assert reached == gold


def test_a_larger_literature_begins_with_the_same_fields(papers):
    larger = Literature(12_000, seed=5)
    assert list(islice(larger.documents(), FIELD)) == list(papers.values())[:FIELD]
    assert next(iter(larger.documents())) != next(iter(Literature(12_000, seed=6).documents()))


@pytest.mark.parametrize("papers", [200, 237, 751])
def test_small_literatures_have_queries_of_every_split(papers):
    source = Literature(papers)
    assert len({paper.key for paper in source.documents()}) == papers
    assert {task["split"] for task in source.tasks()} == {"train", "validation", "test"}


def test_the_number_of_queries_is_bounded_however_many_papers_there_are():
    assert 25 <= len(list(Literature(20_000, queries=50).tasks())) <= 50
    assert len(list(Literature(3_000, queries=7).tasks())) <= 7


@pytest.mark.parametrize(("papers", "queries"), [(199, 10), (MOST_PAPERS + 1, 10), (1000, 0)])
def test_impossible_sizes_are_refused(papers, queries):
    with pytest.raises(UsageError, match="give"):
        Literature(papers, 0, queries)


def test_the_digest_changes_with_every_argument():
    sources = [Literature(), Literature(papers=10_001), Literature(seed=1), Literature(queries=1_999)]
    assert len({source.digest() for source in sources}) == 4
    assert Literature().digest() == Literature().digest()


def test_the_generator_is_pinned():
    found = hashlib.sha256()
    for paper in islice(Literature().documents(), 500):
        found.update(json.dumps([paper.key, paper.title, paper.text, paper.date, *paper.links]).encode())
    found.update(json.dumps([dict(task) for task in islice(Literature().tasks(), 200)]).encode())
    assert found.hexdigest()[:12] == "e4ac75d72d1b", "the literature has changed: increase the version in GENERATOR"


def test_no_word_is_in_two_lists_or_in_a_sentence():
    lists = table("words")
    stems = [stem for name in LISTS for word in lists[name] for stem in analyze(word)]
    assert len(stems) == len({*stems}) == sum(len(lists[name]) for name in LISTS)
    lines = [line for lines in table("sentences").values() for line in lines]
    assert not {*stems} & {stem for line in lines for stem in analyze(re.sub(r"\{\w+\}", " ", line))}
