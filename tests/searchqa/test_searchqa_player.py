"""The player that a base model imitates, and how it reads the pages of the generated encyclopaedia."""

import random
import re
from pathlib import Path
from typing import Any

import pytest
from question_files import HOTPOT, write_json
from teaching import Turn, played

import envsuite  # noqa: F401  # registers the environments
from envsuite.core.errors import UsageError
from envsuite.searchqa.encyclopaedia import Encyclopaedia
from envsuite.searchqa.entities import LINKED
from envsuite.searchqa.env import SearchQAEnv
from envsuite.searchqa.pages import answers, page
from envsuite.searchqa.player import Reader, find_value, speaks_of
from envsuite.searchqa.scoring import judge

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


def test_every_fact_of_every_page_is_read_as_it_was_written() -> None:
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


def test_a_page_that_does_not_state_a_fact_has_none_of_it() -> None:
    made = Encyclopaedia(entities=400, questions=0, seed=4)
    for entity in made.world.all:
        text = page(made.world, entity, "reading").text
        for relation in entity.hidden:
            assert find_value(text, relation) is None, (relation, text)


def test_a_careful_reader_is_nearly_always_right_and_says_only_what_the_question_or_a_page_says(env: Any) -> None:
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


def test_what_no_page_says_is_unanswerable(env: Any) -> None:
    with_none = SearchQAEnv(**{**SMALL, "tasks": ["encyclopaedia-composition-2-unanswerable"]})
    for task in with_none.tasks.ids("train"):
        turns = played(with_none, task, Reader())
        assert right(turns) and turns[-1].argument == "unanswerable"


def test_a_rash_reader_answers_with_the_first_fact_of_the_first_page(env: Any) -> None:
    tasks = env.tasks.ids("train")
    rights = 0
    for task in tasks:
        turns = played(env, task, Reader(rash=1.0))
        rights += right(turns)
        assert [turn.call.name for turn in turns] in (["search", "answer"], ["search"])
        assert not any("," in turn.thought for turn in turns)
    assert rights < 0.02 * len(tasks)


def test_a_reader_that_slips_searches_again_and_is_right(env: Any) -> None:
    turns = [played(env, task, Reader(hasty=0.5)) for task in env.tasks.ids("train")[:80]]
    assert sum(turn.slip for one in turns for turn in one) > 40 and sum(map(right, turns)) > 0.9 * len(turns)


def test_a_reader_goes_on_from_a_restored_snapshot(env: Any) -> None:
    task = next(task for task in env.tasks.ids("train") if "composition-3" in task)
    env.reset(options={"task_id": task})
    token, tools = env.snapshot(), []
    for number, move in enumerate(Reader().turns(env, random.Random(0))):
        env.step(move.action)
        tools.append(move.action[0].name)
        if number == 1:
            env.restore(token)
    assert tools == ["search"] * 5 + ["answer"]


def test_a_page_that_is_cut_is_read_no_further_than_an_agent_sees(env: Any) -> None:
    short = SearchQAEnv(**{**SMALL, "passage_length": 25})
    assert not any(right(played(short, task, Reader())) for task in short.tasks.ids("train"))


def test_questions_that_start_from_no_name_are_refused_with_the_types_to_set(tmp_path: Path) -> None:
    bridges = SearchQAEnv(**{**SMALL, "tasks": ["encyclopaedia-bridge-2"]})
    published = SearchQAEnv(source=write_json(tmp_path / "hotpot_dev_distractor_v1.json", [HOTPOT]))
    for other in (bridges, published):
        split = next(split for split in ("train", "validation", "test") if other.tasks.ids(split))
        other.reset(options={"task_id": other.tasks.ids(split)[0]})
        with pytest.raises(UsageError, match=r"tasks=\['encyclopaedia-composition-2'"):
            next(Reader().turns(other, random.Random(0)))
