from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from official_scripts import hotpot_em, hotpot_f1, hotpot_support, musique_f1, squad_normal_form
from question_files import HOTPOT, MUSIQUE, TWO_WIKI, UNANSWERABLE, without, write_json, write_lines
from teaching import Acting, played

from envsuite.core import DataError, ToolCall, UnknownName, UsageError
from envsuite.core.players import Player
from envsuite.retrieval.corpus_build import build
from envsuite.retrieval.documents import InMemory
from envsuite.searchqa.encyclopaedia import Encyclopaedia
from envsuite.searchqa.env import SearchQAEnv
from envsuite.searchqa.expert import SearchQAExpert
from envsuite.searchqa.lexical import SearchQALexical
from envsuite.searchqa.milestones import SearchQAMilestones
from envsuite.searchqa.scoring import (
    CANNOT_BE_ANSWERED,
    CLOSED,
    Judgement,
    exact_match,
    f1,
    judge,
    normalise_answer,
    says_unanswerable,
    support_scores,
)
from envsuite.searchqa.source import QuestionFiles

SMALL: dict[str, Any] = {"entities": 600, "questions": 200}


def search(query: str) -> ToolCall:
    return ToolCall("search", {"query": query})


def answer(text: str) -> ToolCall:
    return ToolCall("answer", {"text": text})


def opened(page: str) -> ToolCall:
    return ToolCall("open", {"page": page})


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of one question of each data set, and an unanswerable one."""
    folder = tmp_path_factory.mktemp("three")
    write_lines(folder / "questions_dev.jsonl", [HOTPOT, {**TWO_WIKI, "answer": "yes"}, MUSIQUE, UNANSWERABLE])
    return build(QuestionFiles([folder]), folder / "three.corpus")


def started(three: Path, task: str, **arguments: Any) -> SearchQAEnv:
    env = SearchQAEnv(source=three, split="validation", **arguments)
    env.reset(options={"task_id": task})
    return env


def reward_of(env: SearchQAEnv, *steps: list[ToolCall]) -> float:
    """The reward of the last step, which is the only one with a reward."""
    rewards = [env.step(step)[1] for step in steps]
    assert not any(rewards[:-1])
    return rewards[-1]


HIDDEN = "3hop1__1_2_3/unanswerable"


@pytest.mark.parametrize(
    ("task", "said", "em", "f1"),
    [
        ("h1", "Rome", 1, 1),
        ("h1", "Rome Italy", 0, 2 / 3),
        ("h1", "Oslo", 0, 0),
        ("w1", "Yes.", 1, 1),
        ("w1", "yes it is", 0, 0),  # yes counts as a whole there
        ("3hop1__1_2_3", "Fox", 1, 1),
        (HIDDEN, "The question cannot be answered.", 1, 1),
        (HIDDEN, "unanswerable", 1, 1),
        (HIDDEN, "Fox", 0, 0),
    ],
)
def test_the_reward_is_the_exact_match_or_f1_of_the_answer(three, task, said, em, f1):
    assert reward_of(started(three, task), [answer(said)]) == em
    assert reward_of(started(three, task, reward="f1"), [answer(said)]) == pytest.approx(f1)
    env = started(three, task)
    observation, _, terminated, _, info = env.step([answer(said)])
    assert terminated and info["valid"] and info["success"] == bool(em) and info["score"] == pytest.approx(f1)
    assert info["metrics"]["em"] == em and info["metrics"]["f1"] == info["score"]
    assert observation["text"] == ("The answer is right." if em else "The answer is wrong.")


@pytest.mark.parametrize(
    ("said", "reward", "plain"), [("Rome", "em", 1.0), ("Oslo", "em", 0.0), ("Rome Italy", "f1", 2 / 3)]
)
def test_the_format_reward_is_for_an_episode_without_invalid_actions(three, said, reward, plain):
    for first, format_reward in (([search("moon")], 0.2), ([search(" ")], 0), ([ToolCall("nothing", {})], 0), ([], 0)):
        env = started(three, "h1", reward=reward, format_reward=0.2)
        assert reward_of(env, first, [answer(said)]) == pytest.approx(0.8 * plain + format_reward)


def test_searches_of_a_step_are_answered_together_and_an_answer_ends_the_step(three):
    env = started(three, "h1", results=1)
    observation, _, _, _, info = env.step([search("director Ann"), search("moon film"), search("director Ann")])
    assert observation["text"] == (
        'search "director Ann": 1 passages, 1 new\n'
        'search "moon film": 1 passages, 1 new\n'
        'search "director Ann": 1 passages, 1 new (searched before)\n\n'
        "Passages found (2):\n"
        "[Ann Lee] Ann Lee is a director. She was born in Rome.\n"
        "[Blue Moon] Blue Moon is a film. Ann Lee directed it.\n\n"
        "Earlier queries:\ndirector Ann\nmoon film"
    )
    assert info["metrics"]["support_recall"] == 1.0 and info["metrics"]["searches"] == 2.0
    _, reward, terminated, _, info = env.step([answer("Rome"), search("x")])
    assert (reward, terminated, info["metrics"]["calls"]) == (1.0, True, 3.0)


def test_what_was_wrong_with_the_last_calls_is_told_and_the_others_count(three):
    env = started(three, "h1", results=1, open_pages=True)
    observation, _, terminated, _, info = env.step([search(""), search("moon film"), opened("Nowhere"), answer("  ")])
    assert not terminated and not info["valid"]
    assert info["error"] == "the query is empty; there is no page of this title; the answer is empty"
    assert all(why in observation["text"] for why in str(info["error"]).split("; "))
    assert "[Blue Moon]" in observation["text"]
    observation, _, _, _, info = env.step([ToolCall("expand", {})])
    assert (
        not info["valid"]
        and "[Blue Moon]" in observation["text"]
        and "Tools: search, open, answer" in observation["text"]
    )
    observation, *_ = env.step([search("x" * 1001)])
    assert "the query has 1,001 characters, more than 1,000" in observation["text"]


def test_a_page_is_opened_whole_with_its_links():
    env = SearchQAEnv(open_pages=True, passage_length=20, **SMALL)
    env.reset(seed=1)
    key = env.session.question.support[0]
    document = env.collection.corpus.document(env.collection.corpus.number(key) or 0)
    observation, _, _, _, info = env.step([opened(f" {key} ")])
    assert document.text in observation["text"] and info["metrics"]["opened"] == 1.0
    assert all(link in observation["text"] for link in document.links)
    assert not SearchQAEnv(**SMALL).action_space.contains((opened(key),))


def test_observations_are_bounded_and_may_have_the_last_results_only(three):
    env = started(three, "h1", shown=1, passage_length=30, results=3)
    text = env.step([search("film song director music rule city")])[0]["text"]
    assert text.count("\n[") == 1 and "earlier ones are not shown" in text and "…" in text
    env = started(three, "h1", observation="new", results=1)
    env.step([search("director Ann")])
    text = env.step([search("moon film")])[0]["text"]
    assert "[Blue Moon]" in text and "[Ann Lee]" not in text and "Earlier queries" not in text


def test_observations_in_search_r1_s_words(three):
    env = started(three, "h1", observation="search-r1", results=2)
    text = env.step([search("blue moon film lee director")])[0]["text"]
    assert text == (
        'Doc 1(Title: "Blue Moon") Blue Moon is a film. Ann Lee directed it.\n'
        'Doc 2(Title: "Ann Lee") Ann Lee is a director. She was born in Rome.'
    )


def test_the_state_key_is_that_of_question_passages_and_queries_in_any_order(three):
    def key(task: str, *steps: str) -> str:
        env = started(three, task)
        return [env.step([search(query) for query in step.split()])[4]["state_key"] for step in steps][-1]

    assert key("h1", "moon lee") == key("h1", "lee moon")
    assert len({key("h1", "moon lee"), key("h1", "lee moon", "city"), key("w1", "moon lee")}) == 3


def test_goal_identity_and_types(three):
    env = SearchQAEnv(source=three, split="validation")
    assert env.goal("h1").endswith("Question: Where was the director of Blue Moon born?")
    assert 'answer "unanswerable"' in env.goal("h1"), "said of all questions where some cannot be answered"
    assert env.identity(HIDDEN)["question_id"] == "3hop1__1_2_3" and env.identity(HIDDEN)["answerable"] is False
    assert env.tasks.types == {
        "h1": "hotpotqa-bridge-2",
        "w1": "2wikimultihopqa-comparison-2",
        "3hop1__1_2_3": "musique-composition-3",
        HIDDEN: "musique-composition-3-unanswerable",
    }
    assert SearchQAEnv(source=three, split="validation", tasks=["hotpotqa-bridge-2"]).tasks.ids("validation") == ("h1",)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"retriever": "google"}, UnknownName),
        ({"retriever": ["bm25", "bm25"]}, UsageError),
        ({"source": "/nowhere"}, DataError),
    ],
)
def test_arguments_out_of_range_are_refused(arguments, error):
    with pytest.raises(error):
        SearchQAEnv(**{**SMALL, **arguments})


def test_a_corpus_without_questions_or_with_other_tasks_is_refused(tmp_path):
    pages, (first, second, *_) = tuple(Encyclopaedia(100, 10).documents()), Encyclopaedia(100, 10).tasks()
    for tasks, message in (
        ([], "no questions"),
        ([{"id": "1", "text": "x", "gold": []}], "not a question"),
        ([first, {**second, "data_set": "hotpotqa"}], "generated questions among published"),
    ):
        with pytest.raises(DataError, match=message):
            SearchQAEnv(source=build(InMemory("some", pages, tasks), tmp_path / "some.corpus"))


def play(env: SearchQAEnv, player: Player, task: str) -> tuple[float, float]:
    """Reward of an episode, and the share of the supporting pages that were found."""
    turns = played(env, task, Acting(player), 5)
    assert all(turn.info["valid"] for turn in turns)
    return sum(turn.reward for turn in turns), turns[-1].info["metrics"]["support_recall"]


def test_the_expert_answers_every_question_and_lexical_some():
    env = SearchQAEnv(**SMALL)
    tasks = [task for ids in env.tasks.splits.values() for task in ids]
    rewards, recalls = zip(*(play(env, SearchQAExpert(), task) for task in tasks), strict=True)
    assert {*rewards} == {1.0} and np.mean(recalls) > 0.98
    assert 0.02 < np.mean([play(env, SearchQALexical(), task)[0] for task in tasks]) < 0.5


@pytest.mark.seconds
@pytest.mark.parametrize("data_set", ["hotpotqa", "2wikimultihopqa", "musique"])
def test_the_expert_answers_the_published_questions(shared, data_set):
    env = SearchQAEnv(source=shared / "data" / "questions" / data_set)
    rewards, recalls = zip(*(play(env, SearchQAExpert(), task) for task in env.tasks.ids("train")[:60]), strict=True)
    assert {*rewards} == {1.0} and np.mean(recalls) > 0.9


def test_no_observation_has_the_answer_before_a_page_with_it_is_found():
    env = SearchQAEnv(**SMALL)
    looked = 0
    for ids in env.tasks.splits.values():
        for task in ids:
            env.reset(options={"task_id": task})
            question = env.session.question
            golds = {
                f" {normalise_answer(gold)} " for gold in question.answers if gold not in ("yes", "no", "unanswerable")
            }
            golds = {gold for gold in golds if gold not in f" {normalise_answer(env.observation['task'])} "}
            for key in question.support:
                if env.done:
                    break
                env.step([search(key)])
                text = env.observation["text"]
                pages = " ".join(" ".join(env.collection.corpus.content(number)) for number in env.session.seen)
                for gold in golds:
                    if gold not in f" {normalise_answer(pages)} ":
                        looked += 1
                        assert gold not in f" {normalise_answer(text)} "
            for support in question.support:
                assert support not in str(env.observation["commands"])
    assert looked > 100


def test_milestones_are_the_supporting_pages_and_the_answer(three):
    env = started(three, "h1", results=1)
    milestones = SearchQAMilestones(env)
    assert milestones.count == 3
    reached = []
    for action in ([search("moon film")], [search("moon film")], [search("director Ann")], [answer("Rome")]):
        reached.append(milestones.count_reached(action, env.step(action)[4]))
    assert reached == [1, 0, 1, 1]


def test_questions_that_are_left_out_are_counted_in_every_info_and_on_the_terminal(tmp_path, caplog):
    rows = [{**HOTPOT, "_id": f"h{number}"} for number in range(5)]
    file = write_json(tmp_path / "dev.json", [*rows[:3], *(without(row, "context") for row in rows[3:])])
    env = SearchQAEnv(source=file, split="validation")
    assert len(env.tasks.ids("validation")) == 3 and env.tasks.source == "official"
    left_out = "a question without passages, and no corpus is given (left out): 2"
    assert env.reset(seed=0)[1]["versions"]["data_problems"] == left_out
    assert f"dev.json: {left_out}" in caplog.messages
    file = write_json(tmp_path / "whole.json", rows)
    assert "data_problems" not in SearchQAEnv(source=file, split="test").reset(seed=0)[1]["versions"]


def test_a_corpus_of_generated_questions_says_so_wherever_it_lies(tmp_path):
    env = SearchQAEnv(source=build(Encyclopaedia(100, 10), tmp_path / "some.corpus"))
    assert env.tasks.source == "builtin" and set(env.tasks.types.values())
    assert all(kind.startswith("encyclopaedia-") for kind in env.tasks.types.values())


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("The  Beatles!", "beatles"),
        ("a-b c", "ab c"),  # punctuation goes before articles: "a-b" is one word then
        ("A. B. an apple", "b apple"),
        ("Theatre", "theatre"),
        ("«the» Été", "« » été"),
        ("the_a", "thea"),
        ("", ""),
        ("\tthe\n", ""),
        ("İstanbul", "i̇stanbul"),
    ],
)
def test_normalisation_is_lower_case_then_punctuation_then_articles_then_blanks(text, wanted):
    assert normalise_answer(text) == wanted == squad_normal_form(text)


def test_of_an_unanswerable_question_the_claim_that_it_is_is_right_and_the_hidden_answer_wrong():
    assert judge("Unanswerable.", ["Rome"], answerable=False) == Judgement(1.0, 1.0)
    assert judge("The question cannot be answered", ["Rome"], answerable=False) == Judgement(1.0, 1.0)
    assert judge("Rome", ["Rome"], answerable=False) == Judgement(0.0, 0.0)
    assert judge("unanswerable", ["Rome"]) == Judgement(0.0, 0.0)
    assert judge("Rome", ["Rome"]) == Judgement(1.0, 1.0)
    assert all(normalise_answer(text) == text and says_unanswerable(text) for text in CANNOT_BE_ANSWERED)


texts = (
    st.text(max_size=30)
    | st.text(alphabet="aathe n.'yeso-_ İßé", max_size=20)
    | st.lists(st.sampled_from(["yes", "no", "the", "York", "york", "Obama"]), max_size=4).map(" ".join)
)


@given(texts, st.lists(texts.filter(normalise_answer), max_size=3))
def test_scores_equal_the_official_scripts_on_any_text(answer, golds):
    assert exact_match(answer, golds) == any(hotpot_em(answer, gold) for gold in golds)
    assert f1(answer, golds) == max((hotpot_f1(answer, gold) for gold in golds), default=0.0)
    assert f1(answer, golds, closed=()) == max((musique_f1(answer, gold) for gold in golds), default=0.0)
    assert 0.0 <= judge(answer, golds).f1 <= 1.0


@given(st.sampled_from(["The The", "A", "!!!", "the", "a an"]), texts)
@pytest.mark.parametrize("closed", [CLOSED, ()])
def test_of_a_gold_answer_that_normalises_to_nothing_only_itself_is_right(closed, gold, answer):
    right = answer.lower().split() == gold.lower().split()
    assert exact_match(answer, [gold]) == bool(f1(answer, [gold], closed)) == right
    assert exact_match(f" {gold.upper()}", [gold]) and f1(gold.lower(), [gold], closed) == 1.0


pages = st.lists(st.sampled_from("ABCDEF"), max_size=8)


@given(pages, pages)
def test_support_scores_equal_hotpotqa_s(found, gold):
    wanted = support_scores(found, gold)
    assert (wanted.em, wanted.f1, wanted.precision, wanted.recall) == hotpot_support(found, gold)
