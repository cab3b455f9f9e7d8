"""PaperSearch-v0: what an agent sees and must not, the figures on its page, parity, and the player to imitate."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from seven_papers import DOCUMENTS, TASKS
from teaching import Acting, played

from benchmarks.parity_papersearch import compare
from benchmarks.parity_report import read_lines
from envsuite.core import ToolCall
from envsuite.core.errors import DataError, UnknownName
from envsuite.core.practice import Teacher
from envsuite.papersearch import prompts
from envsuite.papersearch.env import PaperSearchEnv
from envsuite.papersearch.expert import PaperSearchExpert
from envsuite.papersearch.lexical import PaperSearchLexical
from envsuite.papersearch.literature import Literature
from envsuite.papersearch.milestones import PaperSearchMilestones
from envsuite.papersearch.player import Scholar, parts_of, subject_of
from envsuite.papersearch.reading import PaperLine, papers_of, query_of
from envsuite.papersearch.tasks import load
from envsuite.retrieval.corpus import Corpus
from envsuite.retrieval.corpus_build import build
from envsuite.retrieval.documents import InMemory

SMALL: dict[str, Any] = {"papers": 1_500, "corpus_seed": 1}


def search(query: str) -> ToolCall:
    return ToolCall("search", {"query": query})


def expand(key: str) -> ToolCall:
    return ToolCall("expand", {"paper_id": key})


def test_an_episode_by_hand(seven):
    env = PaperSearchEnv(source=str(seven))
    observation, info = env.reset()
    assert observation["task"] == (
        "Find all papers that this query asks for. Papers after 2015-01-01 do not count, and are not shown.\n\n"
        "Query: Alpha beta"
    )
    assert observation["text"] == "The list of papers is empty."
    assert (info["score"], info["success"], info["task_type"], info["split"]) == (0.0, False, "pair", "train")
    observation, reward, terminated, _, info = env.step([search("delta"), expand("g4")])
    assert observation["text"] == (
        'search "delta": 1 papers, 1 new\nexpand "g4": refused, no paper with this id is in the list\n\n'
        "Papers (1), best first:\ng4 (2013) Delta beta | About delta."
    )
    assert (reward, terminated, info["valid"], info["score"]) == (0.5, False, False, 0.25)
    assert info["error"] == "no paper with this id is in the list"
    observation, reward, terminated, _, info = env.step([expand("g4"), search("alpha beta")])
    assert observation["text"] == (
        'expand g4: 1 papers, 1 new\nsearch "alpha beta": 5 papers, 4 new\n\n'
        "Papers (6), best first:\n"
        "g1 (2010) Alpha beta | Words on alpha and beta.\nold (2000) Beta | Only beta here.\n"
        "g2 (2011) Alpha | More on alpha.\ng4 (2013) Delta beta | About delta. [expanded]\n"
        "side (2014) Alpha omega | An alpha that nobody asked for.\ng3 (2012) Gamma | Nothing of the query.\n\n"
        'Earlier calls:\nsearch "delta": 1 papers, 1 new\nexpand "g4": refused, no paper with this id is in the list'
    )
    assert (reward, terminated, info["valid"], info["success"], info["score"]) == (3.0, True, True, True, 1.0)
    assert info["metrics"]["f1_all"] == 1.0 and info["metrics"]["calls"] == 3.0


def test_an_episode_goes_on_after_all_gold_is_found_if_asked_to(seven):
    env = PaperSearchEnv(source=str(seven), end_when_found=False)
    env.reset()
    _, _, terminated, _, info = env.step([search("alpha beta"), search("gamma")])
    assert info["success"] and not terminated


@pytest.mark.parametrize("selector", ["gold", "lexical"])
def test_nothing_of_the_gold_is_seen_before_it_is_found(selector):
    env = PaperSearchEnv(**SMALL, selector=selector, shown=1_000)
    inside = PaperSearchEnv(**SMALL, split=None)
    rng = random.Random(1)
    for task_id in env.tasks.ids("train")[:25]:
        task = inside.collection.task(task_id)
        corpus = inside.collection.corpus
        titles = {key: corpus.title(inside.collection.library.number(key) or 0) for key in task["gold"]}
        observation, info = env.reset(options={"task_id": task_id})
        env.action_space.seed(rng.randrange(1_000))
        for _ in range(5):
            text = f"{observation['task']}\n{observation['text']}\n{observation['commands']}"
            listed = {*re.findall(r"^(P\d{7}) \(", text, re.MULTILINE)}
            shown = {corpus.title(inside.collection.library.number(key) or 0) for key in listed}
            for key, title in titles.items():
                if key not in listed:
                    assert key not in text and (title in shown or f") {title}" not in text)
            assert not re.search(r"reward|gold|score|recall|[01]\.\d", observation["text"])
            assert all(corpus.date(inside.collection.library.number(key) or 0) <= task["date"] for key in listed)
            if env.done:
                break
            action = [env.action_space.sample()[0] for _ in range(3)]
            observation, _, _, _, info = env.step(action)
        assert task_id == info["task_id"]


def test_the_list_under_gold_is_the_same_whatever_is_gold(tmp_path, seven):
    other = build(InMemory("x", DOCUMENTS, [{**TASKS[0], "gold": ["old"]}]), tmp_path / "other.corpus")
    seen = []
    for path in (seven, other):
        env = PaperSearchEnv(source=path, end_when_found=False)
        env.reset(options={"task_id": "q-train"})
        seen.append([env.step(calls)[0] for calls in ([search("beta")], [search("gamma"), expand("g1")])])
    assert seen[0] == seen[1]


def test_observations_are_bounded():
    env = PaperSearchEnv(**SMALL, shown=5, snippet=30)
    env.reset()
    for number in range(3):
        observation = env.step([search(f"{word} {'x' * 900} {number}") for word in ("fast", "error", "study")])[0]
    assert len(observation["text"]) < 5_000
    assert len(re.findall(r"^P\d{7} \(", observation["text"], re.MULTILINE)) == 5
    assert "… and " in observation["text"]


def test_the_expert_finds_everything_and_the_lexical_baseline_much():
    recall: dict[str, float] = {}
    for name, player in (("expert", PaperSearchExpert()), ("lexical", PaperSearchLexical())):
        env = PaperSearchEnv(split="test", **SMALL)
        found = [played(env, task_id, Acting(player), 5) for task_id in env.tasks.ids("test")]
        assert all(turn.info["valid"] for turns in found for turn in turns)
        recall[name] = sum(turns[-1].info["score"] for turns in found) / len(found)
    assert recall["expert"] == pytest.approx(1.0) and 0.5 < recall["lexical"] < 0.99


@pytest.mark.parametrize("snippet", [0, 40])
def test_the_lexical_baseline_expands_no_paper_twice_and_uses_every_call_of_a_step(snippet):
    for calls in (1, 2, 5):
        env = PaperSearchEnv(**SMALL, split="test", snippet=snippet, shown=12, max_calls=calls, end_when_found=False)
        for task_id in env.tasks.ids("test")[:6]:
            turns = played(env, task_id, Acting(PaperSearchLexical()), 3)
            assert all(turn.info["valid"] for turn in turns)
            metrics = turns[-1].info["metrics"]
            assert metrics["expansions"] == 2 * max(1, calls - 1) and metrics["calls"] == 1 + 2 * calls


def test_milestones_are_the_gold_papers_found(seven):
    env = PaperSearchEnv(source=seven)
    env.reset(options={"task_id": "q-train"})
    milestones = PaperSearchMilestones(env)
    assert milestones.count == 4
    for word, reached in (("beta", 2), ("alpha", 1), ("omega", 0), ("gamma", 1)):
        calls = [search(word)]
        assert milestones.count_reached(calls, env.step(calls)[4]) == reached


def test_with_one_call_a_step_as_the_configs_train_the_rewards_of_calls_and_steps_are_equal(root):
    run, base = (yaml.safe_load((root / "configs" / f"papersearch{name}.yaml").read_text()) for name in ("", "-base"))
    kwargs = [env["kwargs"] for env in (*run["envs"], *run["evaluation"]["envs"])]
    kwargs += [game["kwargs"] for stage in base["stages"] for game in stage.get("games", ())]
    assert len(kwargs) == 4 and all(one["max_calls"] == 1 and "reward" not in one for one in kwargs)
    env, other = (PaperSearchEnv(**SMALL, max_calls=1, reward=reward) for reward in ("call", "step"))
    rng, paid = np.random.default_rng(0), 0.0
    for _ in range(20):
        task = env.reset()[1]["task_id"]
        other.reset(options={"task_id": task})
        for _ in range(6):
            call = env._propose(rng)
            if not env.done:
                taken = env.step([call])
                assert taken == other.step([call])
                paid += abs(taken[1])
    assert paid > 10


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"retriever": "bm52"}, UnknownName, "bm25"),
        ({"selector": "golden"}, UnknownName, "gold"),
        ({"source": "/nowhere/x.corpus"}, DataError, "x.corpus"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        PaperSearchEnv(**{**SMALL, **arguments})


def test_another_search_can_be_used(seven):
    class Backwards:
        name = "backwards"

        def search(self, query: str, k: int, stop: int | None = None) -> Any:
            numbers, scores = Corpus(seven).search(query, k, stop)
            return numbers[::-1], scores

    env = PaperSearchEnv(source=seven, retriever=Backwards())
    _, info = env.reset()
    assert info["versions"]["search"] == "backwards"
    assert env.step([search("delta")])[1] == 1.0


def test_an_action_that_is_none_leaves_the_list_in_sight(seven):
    env = PaperSearchEnv(source=seven)
    env.reset()
    env.step([search("delta")])
    text = env.step([ToolCall("open", {})])[0]["text"]
    assert text.startswith("Invalid action: ") and "g4 (2013) Delta beta" in text


def test_the_counts_on_the_page_are_those_of_the_task_set(page):
    tasks = load("builtin").task_set
    for split, ids in tasks.splits.items():
        kinds = ("method-problem", "problem-setting", "method-setting")
        counts = [sum(tasks.types[task_id] == kind for task_id in ids) for kind in kinds]
        assert f"| {split} | {len(ids)} | {' | '.join(map(str, counts))} |" in page


@pytest.fixture
def recordings(shared: Path) -> Path:
    return shared / "golden-3" / "papersearch_steps.jsonl"


def test_calls_earn_what_steppos_code_paid_and_find_the_same_papers(recordings):
    report = compare(read_lines(recordings))
    assert not report.differences, report.text()
    assert report.counts["rewards of steps"] == report.counts["pools after steps"] == 600


def test_rewards_of_steps_differ_from_steppos_code_where_calls_of_a_step_find_more_than_three_papers(recordings):
    def make(reward: str, **arguments: object) -> PaperSearchEnv:
        return PaperSearchEnv(reward="step", **arguments)  # type: ignore[arg-type]

    report = compare(read_lines(recordings)[:3], make)
    assert any(difference.startswith("rewards of steps") for difference in report.differences)
    assert not any(difference.startswith("pools") for difference in report.differences)


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


def test_a_careful_player_searches_words_of_the_query_then_expands_papers_of_the_list_and_a_rash_one_only_searches(env):
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


def test_the_parts_of_a_query_are_the_words_of_its_two_concepts_and_its_subject_is_all_between_them():
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
def test_any_query_has_a_subject_and_parts_which_are_of_its_words(query):
    parts = parts_of(query)
    assert parts and all(word in query for part in parts for word in part.split())
    assert subject_of(query) in query


def test_a_careful_player_finds_more_than_the_lexical_one_and_a_rash_one_far_less():
    env = PaperSearchEnv(split="test", **{**SETTING, "papers": 10_000, "corpus_seed": 0})
    careful, lexical, rash = (means(env, one) for one in (Scholar(), Acting(PaperSearchLexical()), Scholar(rash=1.0)))
    assert careful[0] > lexical[0] > rash[0] + 0.2 and careful[1] > rash[1] + 2.0


def test_who_is_careless_slips_now_and_then_and_goes_on_all_the_same(env):
    turns = [turn for task_id in env.tasks.ids("train") for turn in played(env, task_id, Scholar(careless=0.3), STEPS)]
    assert 0.2 < sum(turn.slip for turn in turns) / len(turns) < 0.4
    assert all(turn.info["valid"] for turn in turns if not turn.slip)
    said = " ".join(turn.info["error"] or "" for turn in turns if turn.slip)
    assert prompts.NOT_THERE in said and prompts.REPEATED_EXPANSION in said and prompts.REPEATED_SEARCH in said


def test_it_has_an_answer_to_every_state(seven):
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
def test_the_papers_that_are_shown_are_read_as_they_are(papers, more):
    lines = [
        prompts.paper(key, date, name, text, 20, 100) + (" [expanded]" if expanded else "")
        for key, name, text, expanded, date in papers
    ]
    said = prompts.describe_search("Papers", 1, 1)
    expansions = [prompts.describe_expansion("P1", 1, 0)]
    text = f"{said}\n\n{prompts.view(lines, len(lines) + (more if lines else 0), expansions)}"
    assert papers_of(text) == [PaperLine(key, name, expanded) for key, name, _, expanded, _ in papers]
