"""The page of PaperSearch: its server, without a browser."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hundred_papers import COUNT, GOLD, HUB, LONG, MARKUP
from playing import WAY, Tab, action, app_of, played

from envsuite.papersearch.env import PaperSearchEnv
from envsuite.papersearch.page import state as states
from envsuite.papersearch.page.visits import UNDOS, PageTasks, Visit
from envsuite.retrieval.corpus_build import LONGEST_TEXT


@pytest.fixture
def tab(hundred: Path) -> Tab:
    return Tab(app_of(hundred).test_client())


def test_an_episode_on_the_page_is_that_of_the_environment(tab, hundred):
    env = played(hundred)
    tab.post("/api/score", show=True)
    total, before = 0.0, set[str]()
    for calls in WAY:
        tab.step(calls)
        _, reward, terminated, _, info = env.step(action(calls))
        total += reward
        session = env.session
        ranked = session.papers[session.rank_papers()].tolist()
        ids = [paper["id"] for paper in tab.state["papers"]]
        assert ids == [session.library.key(number) for number in ranked]
        assert {paper["id"] for paper in tab.state["papers"] if paper["new"]} == {*ids} - before
        before = {*ids}
        assert {paper["id"] for paper in tab.state["papers"] if paper["expanded"]} == {HUB} & {
            *map(env.library.key, session.expanded)
        }
        assert tab.state["figures"]["reward"] == total
        assert tab.state["figures"]["recall"] == info["score"] and tab.state["over"] == terminated
        assert [turn["reward"] for turn in tab.state["turns"]][-1] == reward
    assert tab.state["over"] and tab.state["figures"]["recall"] == 1.0
    assert tab.step([("search", "more")], 400)["error"].startswith("The episode is over")
    corpus = env.library.corpus
    links = {(key, corpus.key(int(cited))) for key in ids for cited in corpus.links(corpus.number(key) or 0)}
    found = [(ids[one], ids[other]) for one, other in tab.state["citations"]]
    assert {*found} == {link for link in links if link[1] in ids} and len(found) == len({*found}) > COUNT
    said = [[(call["said"], call["refused"]) for call in turn["results"]] for turn in tab.state["turns"]]
    repeated, absent = "refused, this query was searched before", "refused, no paper with this id is in the list"
    again, long = "refused, this paper was expanded before", "refused, the query has 1,001 characters, more than 1,000"
    assert said == [
        [("1 papers, 1 new", False), (repeated, True), (absent, True), ("refused, the query is empty", True)],
        [("99 papers, 99 new", False), (again, True), (absent, True), (long, True)],
        [("1 papers, 1 new", False)],
    ]
    assert [call["argument"] for call in tab.state["turns"][0]["results"]] == [argument for _, argument in WAY[0]]


@pytest.mark.parametrize("query", ['a": refused, b', "a: 3 papers, 2 new", "two\nlines: x", "refused, "])
def test_a_query_cannot_pass_for_a_result(tab, query):
    for refused in (False, True):
        tab.step([("search", query)])
        (call,) = tab.state["turns"][-1]["results"]
        assert call["refused"] is refused
        assert re.fullmatch(
            "refused, this query was searched before" if refused else r"\d+ papers, \d+ new", call["said"]
        )


def test_what_depends_on_the_papers_asked_for_is_told_at_the_end_or_on_request(tab):
    def told() -> bool:
        state = tab.state
        rewards = [turn["reward"] for turn in state["turns"]]
        return state["figures"] is not None and None not in rewards

    for calls in WAY[:2]:
        tab.step(calls)
        assert not told() and {turn["reward"] for turn in tab.state["turns"]} == {None}
        assert tab.state["missed"] is None and not any(paper["gold"] for paper in tab.state["papers"])
    tab.post("/api/score", show=True)
    assert told() and tab.state["figures"]["gold"] is None
    assert tab.state["missed"] is None and not any(paper["gold"] for paper in tab.state["papers"])
    tab.post("/api/score", show=False)
    assert not told()
    tab.step(WAY[2])
    assert told() and (tab.state["figures"]["found"], tab.state["figures"]["gold"]) == (4, 4)
    assert {paper["id"] for paper in tab.state["papers"] if paper["gold"]} == {*GOLD} and tab.state["missed"] == []


def test_at_the_limit_of_steps_the_episode_ends_and_names_what_was_not_found(tab):
    for number in range(5):
        assert not tab.state["over"]
        tab.step([("search", f"the survey {number}")])
    assert tab.state["over"] and tab.state["steps"] == tab.state["horizon"] == 5
    assert [paper["id"] for paper in tab.state["missed"]] == ["p98", "p99", "apart"]
    assert tab.state["missed"][-1] == {"id": "apart", "title": "Apart from the others", "year": 2024}


def test_without_a_limit_the_episode_goes_on_and_the_last_steps_can_be_taken_back(hundred):
    tab = Tab(app_of(hundred, horizon=None).test_client())
    for number in range(UNDOS + 3):
        tab.step([("search", f"the survey {number}")])
    assert not tab.state["over"] and tab.state["horizon"] is None
    for _ in range(UNDOS):
        assert tab.state["can_undo"]
        tab.alter("/api/undo")
    assert tab.state["steps"] == 3 and not tab.state["can_undo"]
    assert tab.alter("/api/undo", 400)["error"] == "There is nothing to take back."
    tab.step([("expand", HUB)])
    assert tab.state["total"] == COUNT


def test_undo_leads_back_to_each_state_also_from_the_end(tab):
    def seen() -> dict[str, Any]:
        return {name: value for name, value in tab.state.items() if name != "change"}

    before = [seen()]
    for calls in WAY:
        tab.step(calls)
        before.append(seen())
    for expected in before[-2::-1]:
        tab.alter("/api/undo")
        assert seen() == expected


def test_the_expert_solves_the_task_by_the_calls_of_its_hints(tab):
    while not tab.state["over"]:
        calls = tab.get("/api/hint").json["calls"]
        tab.step([(call["tool"], call["argument"]) for call in calls])
    assert tab.state["figures"]["recall"] == 1.0
    assert tab.get("/api/hint").status_code == 400


def test_a_paper_of_the_pool_opens_whole_and_another_does_not(tab):
    assert tab.get("/api/paper?id=p9").status_code == 404
    for calls in WAY[:2]:
        tab.step(calls)
    assert tab.get("/api/paper?id=p9").json["abstract"] == LONG[:LONGEST_TEXT]
    shown = tab.get("/api/paper?id=p1").json
    assert (shown["title"], shown["abstract"], shown["authors"]) == (MARKUP, MARKUP, f"Author 1, {MARKUP}")
    assert tab.get("/api/paper?id=" + quote(HUB, safe="")).json["abstract"] == "It surveys everything."
    for key in ("late", "apart", "", "nowhere", "\0", "p9 "):
        assert tab.get(f"/api/paper?id={quote(key)}").status_code == 404, key
    long = next(paper for paper in tab.state["papers"] if paper["id"] == "p9")
    assert len(long["snippet"]) <= states.SNIPPET


def test_the_page_lists_the_best_of_the_pool_and_counts_all(tab, monkeypatch):
    monkeypatch.setattr(states, "LISTED", 7)
    for calls in WAY:
        tab.step(calls)
    assert len(tab.state["papers"]) == 7 and tab.state["total"] == COUNT + 1


def test_tasks_are_gone_through_in_order_and_found_by_their_words(tab):
    assert (tab.state["task"]["id"], tab.state["task"]["number"], tab.state["task"]["of"]) == ("all", 1, 2)
    assert tab.state["task"]["until"] == "2025-01-01" and MARKUP in tab.state["task"]["query"]
    for to, expected in (("next", "short"), ("next", "all"), ("previous", "short"), ("same", "short")):
        tab.step([("search", "graph")])
        tab.alter("/api/move", to=to)
        assert (tab.state["task"]["id"], tab.state["steps"], tab.state["total"]) == (expected, 0, 0)
    tab.alter("/api/move", to="random")
    tab.alter("/api/begin", task="other")
    assert (tab.state["task"]["id"], tab.state["task"]["number"], tab.state["task"]["until"]) == ("other", None, None)
    tab.alter("/api/move", to="same")
    assert tab.state["task"]["id"] == "other"
    assert "no task" in tab.alter("/api/begin", 400, task="nowhere")["error"]
    assert tab.get("/api/state").json["state"]["task"]["id"] == "other"
    for words, ids in (("", ["all", "short"]), ("SURVEY the", ["short"]), ("onerror", ["all"]), ("zebra", [])):
        found = tab.get(f"/api/tasks?words={words}").json
        assert [task["id"] for task in found["tasks"]] == ids and found["total"] == len(ids)


def test_a_seed_chooses_the_same_random_tasks_each_time():
    env = PaperSearchEnv(papers=200, split="test")
    ids = env.tasks.ids("test")

    def walk(seed: int | None) -> list[str]:
        visit = Visit(env, PageTasks("test", ids, None, seed, 5))
        first = visit.task_id
        visit.random()
        return [first, visit.task_id]

    assert walk(3) == walk(3) and walk(None)[0] == ids[0]
    assert len({walk(seed)[0] for seed in range(20)}) > 1


def test_a_page_that_is_out_of_date_changes_nothing_and_is_told_where_it_is(tab):
    old = tab.state["change"]
    tab.step([("search", "graph")])
    made = [{"tool": "search", "argument": "survey"}]
    bodies: dict[str, dict[str, object]] = {
        "step": {"calls": made}, "undo": {}, "move": {"to": "next"}, "begin": {"task": "short"}
    }  # fmt: skip
    for path, body in bodies.items():
        answer = tab.client.post(f"/api/{path}", json={"change": old, **body}, headers=tab.headers)
        assert (
            answer.status_code == 409
            and (answer.json["state"]["steps"], answer.json["state"]["task"]["id"]) == (1, "all")
            and "copy of this tab" in answer.json["error"]
        )
    assert tab.get("/api/state").json["state"]["steps"] == 1


def test_tabs_have_episodes_of_their_own_at_the_same_time(hundred):
    app = app_of(hundred)
    tabs = [Tab(app.test_client()) for _ in range(6)]

    def play(tab: Tab, number: int) -> None:
        for calls in WAY[: 1 + number % 3]:
            tab.step(calls)

    with ThreadPoolExecutor(len(tabs)) as threads:
        list(threads.map(play, tabs, range(len(tabs))))
    assert [tab.state["total"] for tab in tabs] == [1, COUNT, COUNT + 1] * 2
    assert [tab.get("/api/state").json["state"]["total"] for tab in tabs] == [1, COUNT, COUNT + 1] * 2
