"""The player that a base model imitates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from teaching import Acting, played

from envsuite.core.practice import Teacher
from envsuite.papersearch import prompts
from envsuite.papersearch.env import PaperSearchEnv
from envsuite.papersearch.lexical import PaperSearchLexical
from envsuite.papersearch.literature import Literature
from envsuite.papersearch.player import Scholar, parts_of, subject_of
from envsuite.papersearch.reading import PaperLine, papers_of, query_of

SETTING: dict[str, Any] = {"papers": 1_500, "corpus_seed": 1, "max_calls": 1, "shown": 5, "snippet": 0}
STEPS = 6


@pytest.fixture(scope="module")
def env() -> PaperSearchEnv:
    return PaperSearchEnv(**SETTING)


def means(env: PaperSearchEnv, player: Teacher) -> tuple[float, float]:
    """Mean recall and reward."""
    found = [played(env, task_id, player, STEPS) for task_id in env.tasks.ids("test")]
    rewards = [turn.reward for turns in found for turn in turns]
    return sum(turns[-1].info["score"] for turns in found) / len(found), sum(rewards) / len(found)


def test_a_careful_player_searches_words_of_the_query_then_expands_papers_of_the_list_and_a_rash_one_only_searches(
    env: PaperSearchEnv,
) -> None:
    for task_id in env.tasks.ids("train"):
        query, listed = query_of(env.goal(task_id)), ""
        turns = played(env, task_id, Scholar(), STEPS)
        assert [turn.call.name for turn in turns] == ["search"] + ["expand"] * (len(turns) - 1)
        for turn in turns:
            assert turn.info["valid"] and not turn.slip
            assert all(word in (query if turn.call.name == "search" else listed) for word in turn.argument.split())
            listed = turn.text
        for turn in played(env, task_id, Scholar(rash=1.0), STEPS):
            assert turn.call.name == "search" and turn.argument in parts_of(query) and not turn.slip


def test_the_parts_of_a_query_are_the_words_of_its_two_concepts_and_its_subject_is_all_between_them() -> None:
    assert subject_of("Who has tried Hoqua for radial parsing?") == "Hoqua for radial parsing"
    literature = Literature(2_000, 5)
    field = literature.field(0)
    concepts = [name for topic in range(len(field.sizes)) for kind in literature.topic(field, topic).names
                for names in kind for name in names]  # fmt: skip
    words = {word.lower() for name in concepts for word in name.split()} - {"the", "and"}
    for task in literature.tasks():
        query, parts = task["text"], parts_of(task["text"])
        found = {word.lower() for part in parts for word in part.split()}
        assert found == {word for word in query.lower().strip("?.").split() if word in words} != set()
        subject = subject_of(query)
        assert subject in query and subject.startswith(parts[0]) and subject.endswith(parts[-1])


@given(st.text(max_size=60))
def test_any_query_has_a_subject_and_parts_which_are_of_its_words(query: str) -> None:
    parts = parts_of(query)
    assert parts and all(word in query for part in parts for word in part.split())
    assert subject_of(query) in query


def test_a_careful_player_finds_more_than_the_lexical_one_and_a_rash_one_far_less() -> None:
    env = PaperSearchEnv(split="test", **{**SETTING, "papers": 10_000, "corpus_seed": 0})
    careful, lexical, rash = (means(env, one) for one in (Scholar(), Acting(PaperSearchLexical()), Scholar(rash=1.0)))
    assert careful[0] > lexical[0] > rash[0] + 0.2 and careful[1] > rash[1] + 2.0


def test_who_is_careless_slips_now_and_then_and_goes_on_all_the_same(env: PaperSearchEnv) -> None:
    turns = [turn for task_id in env.tasks.ids("train") for turn in played(env, task_id, Scholar(careless=0.3), STEPS)]
    assert 0.2 < sum(turn.slip for turn in turns) / len(turns) < 0.4
    assert all(turn.info["valid"] for turn in turns if not turn.slip)
    said = " ".join(turn.info["error"] or "" for turn in turns if turn.slip)
    assert prompts.NOT_THERE in said and prompts.REPEATED_EXPANSION in said and prompts.REPEATED_SEARCH in said


def test_it_has_an_answer_to_every_state(seven: Path) -> None:
    env = PaperSearchEnv(source=seven, end_when_found=False, max_calls=1, snippet=20)
    turns = played(env, "q-test", Scholar(), 25)
    assert all(turn.info["valid"] for turn in turns)
    assert len({str(turn.call) for turn in turns}) == 25 and {turn.call.name for turn in turns} == {"search", "expand"}


line = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1, max_size=20)
title = line.map(lambda text: " ".join(text.replace("|", "/").split())).filter(
    lambda text: text and not text.endswith("[expanded]") and not text.startswith("(")
)


@given(st.lists(st.tuples(st.from_regex(r"[A-Z][0-9]{1,5}", fullmatch=True), title, title, st.booleans(),
                          st.sampled_from([0, 20240102])), max_size=4), st.integers(0, 2))  # fmt: skip
def test_the_papers_that_are_shown_are_read_as_they_are(papers: list[Any], more: int) -> None:
    lines = [
        prompts.paper(key, date, name, text, 20, 100) + (" [expanded]" if expanded else "")
        for key, name, text, expanded, date in papers
    ]
    said = prompts.describe_search("Papers", 1, 1)
    expansions = [prompts.describe_expansion("P1", 1, 0)]
    text = f"{said}\n\n{prompts.view(lines, len(lines) + (more if lines else 0), expansions)}"
    assert papers_of(text) == [PaperLine(key, name, expanded) for key, name, _, expanded, _ in papers]
