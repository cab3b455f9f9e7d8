from __future__ import annotations

import hashlib
import json
from collections import Counter
from functools import cache
from typing import Any

import pytest
from encyclopaedia_facts import Facts

from envsuite.core.errors import UsageError
from envsuite.retrieval.documents import LONGEST_KEY, Document
from envsuite.searchqa.encyclopaedia import Encyclopaedia
from envsuite.searchqa.entities import DATES, LINKED
from envsuite.searchqa.pages import mention, value_text
from envsuite.searchqa.questions import NO_ANSWER
from envsuite.searchqa.scoring import normalise_answer

SIZES = ((3000, None, 0), (3000, 1000, 7), (100, 20, 1), (12_000, 4000, 3))


EVERY_SIZE = pytest.mark.parametrize("size", [*SIZES[:-1], pytest.param(SIZES[-1], marks=pytest.mark.slow)])


@cache
def made(entities: int, questions: int | None, seed: int) -> tuple[Encyclopaedia, list[Document], list[dict[str, Any]]]:
    source = Encyclopaedia(entities, questions, seed)
    return source, list(source.documents()), list(source.tasks())


@EVERY_SIZE
def test_a_search_over_all_facts_finds_the_answer_of_each_question_and_no_other(
    size: tuple[int, int | None, int],
) -> None:
    source, _, tasks = made(*size)
    world = source.world
    facts = Facts(source.facts(), {world.title(entity): entity.kind for entity in world.all})
    for task in tasks:
        found = facts.answers(task["query"])
        if not task["answerable"]:
            assert found == set() and task["answers"] == [NO_ANSWER]
            continue
        (value,) = found
        relation = task["query"].get("path", [""])[-1]
        if relation in DATES or relation == "length":
            value = value_text(world, relation, value)
        elif relation == "population":
            value = f"{int(value):,}"
        assert str(value) in task["answers"], task


@EVERY_SIZE
def test_a_description_fits_one_entity_even_by_facts_that_no_page_states(size: tuple[int, int | None, int]) -> None:
    source, _, tasks = made(*size)
    world = source.world
    everything = [
        (world.title(entity), relation, world.title(world.all[int(value)]) if relation in LINKED else value)
        for entity in world.all
        for relation, value in entity.facts.items()
    ]
    facts = Facts(everything, {world.title(entity): entity.kind for entity in world.all})
    described = [task for task in tasks if "kind" in task["query"].get("from", {})]
    assert described
    assert all(len(facts.start(task["query"]["from"])) == 1 for task in described)


@EVERY_SIZE
def test_supporting_pages_state_the_facts_and_hidden_ones_are_on_no_page(size: tuple[int, int | None, int]) -> None:
    source, documents, tasks = made(*size)
    world = source.world
    pages = {document.key: document for document in documents}
    assert len(pages) == len(documents) == source.size
    for document in documents:
        assert document.key == document.key.strip() and "\n" not in document.key and len(document.key) <= LONGEST_KEY
        assert set(document.links) <= pages.keys() - {document.key}
        assert "{" not in document.text and "  " not in document.text and document.text.endswith(".")
    for entity in world.all:
        text = pages[world.title(entity)].text
        for relation, value in entity.facts.items():
            shown = [value_text(world, relation, value, american) for american in (False, True)]
            stated = any(one in text or f"{one[:1].upper()}{one[1:]}" in text for one in shown)
            if relation in entity.hidden:
                assert not stated or relation in ("population", "university", "birthplace"), (text, relation, shown)
            else:
                assert stated, (text, relation, shown)
            if relation in LINKED and relation not in entity.hidden:
                assert world.title(world.all[int(value)]) in pages[world.title(entity)].links
    for task in tasks:
        assert set(task["support"]) <= pages.keys()
        assert len(task["support"]) == task["hops"]


def test_some_names_are_shared_and_then_pages_and_questions_tell_them_apart() -> None:
    source, _, tasks = made(*SIZES[0])
    world = source.world
    shared = [entity for entity in world.all if world.bearers[entity.name] > 1]
    assert len(shared) > 100
    assert all(world.title(entity) == f"{entity.name} ({entity.descriptor})" for entity in shared)
    mentions = Counter((entity.kind, mention(world, entity)) for entity in world.all)
    assert max(number for (kind, _), number in mentions.items() if kind in ("person", "town", "river", "company")) == 1
    assert any("(" in title for task in tasks for title in task["support"])


@EVERY_SIZE
def test_no_question_chain_start_or_settling_fact_is_in_two_splits(size: tuple[int, int | None, int]) -> None:
    _, _, tasks = made(*size)
    assert len({task["id"] for task in tasks}) == len(tasks) == len({task["text"] for task in tasks})
    assert len({json.dumps(task["query"]) for task in tasks}) == len(tasks)
    starts: dict[str, set[str]] = {}
    settled: dict[tuple[str, str], set[str]] = {}
    for task in tasks:
        query = task["query"]
        for form in query.get("of", [query]):
            known = form["from"].get("title", task["support"][0])
            if task["hops"] != 3 or task["kind"] != "comparison":  # one side of these is a work: looked at by title too
                assert known in task["support"]
            starts.setdefault(known, set()).add(task["split"])
        if "of" not in query:
            settled.setdefault((task["support"][-1], query["path"][-1]), set()).add(task["split"])
    assert all(len(splits) == 1 for splits in (*starts.values(), *settled.values()))


def test_the_splits_are_80_10_10_and_all_kinds_and_hops_are_there() -> None:
    _, _, tasks = made(*SIZES[0])
    assert Counter(task["split"] for task in tasks) == {"train": 800, "validation": 100, "test": 100}
    assert [task["split"] for task in tasks] == ["train"] * 800 + ["validation"] * 100 + ["test"] * 100
    kinds = Counter((task["kind"], task["hops"]) for task in tasks)
    assert {kind for kind, _ in kinds} == {"bridge", "comparison", "composition", "inference"}
    assert all(kinds[kind, hops] >= 15 for kind in ("bridge", "comparison", "composition") for hops in (2, 3, 4))
    unanswerable = sum(not task["answerable"] for task in tasks)
    assert 60 <= unanswerable <= 130
    said = Counter(task["answers"][0] for task in tasks)
    assert abs(said["yes"] - said["no"]) <= 3


@pytest.mark.slow
def test_no_question_but_a_comparison_says_its_answer() -> None:
    for size in SIZES:
        for task in made(*size)[2]:
            if task["kind"] != "comparison":
                text = f" {normalise_answer(task['text'])} "
                assert not any(f" {normalise_answer(answer)} " in text for answer in task["answers"]), task


def _digest(source: Encyclopaedia) -> str:
    hashed = hashlib.sha256(source.digest().encode())
    for document in source.documents():
        hashed.update(repr((document.key, document.title, document.text, document.links)).encode())
    for task in source.tasks():
        hashed.update(json.dumps(task).encode())
    return hashed.hexdigest()


def test_a_seed_gives_this_encyclopaedia_for_ever() -> None:
    assert _digest(Encyclopaedia(400, 100, 5)) == "9baee632f22fcf2294edcf5abcae1184c7e974502de6f58ccf5bf9612b7d287f"
    assert _digest(Encyclopaedia(400, 100, 6)) != _digest(Encyclopaedia(400, 100, 5))


def test_too_few_entities_or_too_many_questions_are_refused() -> None:
    with pytest.raises(UsageError, match="entities=99: give 100 or more"):
        Encyclopaedia(99)
    with pytest.raises(UsageError, match="give 0 or more"):
        Encyclopaedia(100, -1)
    with pytest.raises(UsageError, match="ask for fewer questions"):
        list(Encyclopaedia(100, 5000).tasks())
