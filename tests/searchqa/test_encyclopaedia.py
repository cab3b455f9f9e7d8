"""The generated encyclopaedia, and the player that reads its pages."""

from __future__ import annotations

import hashlib
import json
import random
import re
from functools import cache
from typing import Any

import pytest
from encyclopaedia_facts import Facts
from question_files import HOTPOT, write_json
from teaching import Turn, played

import envsuite  # noqa: F401  # registers the environments
from envsuite.core.errors import UsageError
from envsuite.retrieval.documents import LONGEST_KEY, Document
from envsuite.searchqa.encyclopaedia import Encyclopaedia
from envsuite.searchqa.entities import DATES, LINKED
from envsuite.searchqa.env import SearchQAEnv
from envsuite.searchqa.pages import answers, page, value_text
from envsuite.searchqa.player import Reader, find_value, speaks_of
from envsuite.searchqa.questions import NO_ANSWER
from envsuite.searchqa.scoring import judge, normalise_answer

SIZES = ((3000, None, 0), (3000, 1000, 7), (100, 20, 1), (12_000, 4000, 3))


EVERY_SIZE = pytest.mark.parametrize("size", [*SIZES[:-1], pytest.param(SIZES[-1], marks=pytest.mark.slow)])


@cache
def made(entities: int, questions: int | None, seed: int) -> tuple[Encyclopaedia, list[Document], list[dict[str, Any]]]:
    source = Encyclopaedia(entities, questions, seed)
    return source, list(source.documents()), list(source.tasks())


@EVERY_SIZE
def test_a_search_over_all_facts_finds_the_answer_of_each_question_and_no_other(size):
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
def test_a_description_fits_one_entity_even_by_facts_that_no_page_states(size):
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
def test_supporting_pages_state_the_facts_and_hidden_ones_are_on_no_page(size):
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


@EVERY_SIZE
def test_no_question_chain_start_or_settling_fact_is_in_two_splits(size):
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


@pytest.mark.slow
def test_no_question_but_a_comparison_says_its_answer():
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


def test_a_seed_gives_this_encyclopaedia_for_ever():
    assert _digest(Encyclopaedia(400, 100, 5)) == "9baee632f22fcf2294edcf5abcae1184c7e974502de6f58ccf5bf9612b7d287f"
    assert _digest(Encyclopaedia(400, 100, 6)) != _digest(Encyclopaedia(400, 100, 5))


def test_too_few_entities_or_too_many_questions_are_refused():
    with pytest.raises(UsageError, match="entities=99: give 100 or more"):
        Encyclopaedia(99)
    with pytest.raises(UsageError, match="give 0 or more"):
        Encyclopaedia(100, -1)
    with pytest.raises(UsageError, match="ask for fewer questions"):
        list(Encyclopaedia(100, 5000).tasks())


TYPES = [f"encyclopaedia-{kind}-{hops}" for kind in ("composition", "inference") for hops in (2, 3, 4)]
SMALL = {"entities": 300, "questions": 300, "tasks": TYPES, "observation": "new"}


def right(turns: list[Turn]) -> bool:
    """Whether an episode's answer, after at most 12 valid steps, is."""
    assert len(turns) <= 12 and all(turn.info["valid"] for turn in turns)
    return bool(turns[-1].info["success"])


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENVSUITE_DATA", str(tmp_path_factory.mktemp("data")))
        yield SearchQAEnv(**SMALL)


def test_every_fact_of_every_page_is_read_as_it_was_written():
    made = Encyclopaedia(entities=400, questions=0, seed=3)
    for entity in made.world.all:
        text = page(made.world, entity, "reading").text
        for relation, value in made.world.chains(entity):
            read = find_value(text, relation)
            assert read is not None, (relation, text)
            assert judge(read, tuple(answers(made.world, relation, value)), True, ()).em == 1.0, (
                relation,
                read,
                text,
            )
            if relation in LINKED:
                assert speaks_of(read, made.world.title(made.world.all[int(value)]))


def test_a_page_that_does_not_state_a_fact_has_none_of_it():
    made = Encyclopaedia(entities=400, questions=0, seed=4)
    for entity in made.world.all:
        text = page(made.world, entity, "reading").text
        for relation in entity.hidden:
            assert find_value(text, relation) is None, (relation, text)


def test_a_careful_reader_is_nearly_always_right_and_says_only_what_the_question_or_a_page_says(env):
    tasks, rights, stated = env.tasks.ids("train"), 0, 0
    for task in tasks:
        seen, turns = env.goal(task), played(env, task, Reader())
        rights += right(turns)
        stated += turns[0].thought.split(", ") == [turn.thought for turn in turns[1:]]  # facts, where each is read
        for turn in turns:
            said = turn.argument.removeprefix("town ") if turn.call.name == "search" else turn.argument
            assert said.removeprefix("town of ") in seen or said == "unanswerable", (said, seen)
            assert re.fullmatch(r"[a-z]+(, [a-z]+)*", turn.thought), turn.thought
            seen += turn.text
    assert len(tasks) > 100 and rights > 0.97 * len(tasks) and stated > 0.8 * len(tasks)


def test_what_no_page_says_is_unanswerable(env):
    with_none = SearchQAEnv(**{**SMALL, "tasks": ["encyclopaedia-composition-2-unanswerable"]})
    for task in with_none.tasks.ids("train"):
        turns = played(with_none, task, Reader())
        assert right(turns) and turns[-1].argument == "unanswerable"


def test_a_rash_reader_answers_with_the_first_fact_of_the_first_page(env):
    tasks = env.tasks.ids("train")
    rights = 0
    for task in tasks:
        turns = played(env, task, Reader(rash=1.0))
        rights += right(turns)
        assert [turn.call.name for turn in turns] in (["search", "answer"], ["search"])
        assert not any("," in turn.thought for turn in turns)
    assert rights < 0.02 * len(tasks)


def test_a_reader_that_slips_searches_again_and_is_right(env):
    turns = [played(env, task, Reader(hasty=0.5)) for task in env.tasks.ids("train")[:80]]
    assert sum(turn.slip for one in turns for turn in one) > 40 and sum(map(right, turns)) > 0.9 * len(turns)


def test_a_reader_goes_on_from_a_restored_snapshot(env):
    task = next(task for task in env.tasks.ids("train") if "composition-3" in task)
    env.reset(options={"task_id": task})
    token, tools = env.snapshot(), []
    for number, move in enumerate(Reader().turns(env, random.Random(0))):
        env.step(move.action)
        tools.append(move.action[0].name)
        if number == 1:
            env.restore(token)
    assert tools == ["search"] * 5 + ["answer"]


def test_a_page_that_is_cut_is_read_no_further_than_an_agent_sees(env):
    short = SearchQAEnv(**{**SMALL, "passage_length": 25})
    assert not any(right(played(short, task, Reader())) for task in short.tasks.ids("train"))


def test_questions_that_start_from_no_name_are_refused_with_the_types_to_set(tmp_path):
    bridges = SearchQAEnv(**{**SMALL, "tasks": ["encyclopaedia-bridge-2"]})
    published = SearchQAEnv(source=write_json(tmp_path / "hotpot_dev_distractor_v1.json", [HOTPOT]))
    for other in (bridges, published):
        split = next(split for split in ("train", "validation", "test") if other.tasks.ids(split))
        other.reset(options={"task_id": other.tasks.ids(split)[0]})
        with pytest.raises(UsageError, match=r"tasks=\['encyclopaedia-composition-2'"):
            next(Reader().turns(other, random.Random(0)))
