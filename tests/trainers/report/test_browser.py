"""The episode browser of report.html, used in Chromium by keys and by its address."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from typing import Any

import pytest
from chromium import CUT_OFF, Tab
from episodes import episode, step
from synthetic_run import make_run

from envsuite.playing.step import Episode
from trainers.report.html import write_html
from trainers.report.methods import Advantages
from trainers.report.run import RunData, moving_mean
from trainers.steps.parquet import read_episodes, write_episodes


@pytest.fixture
def tab(browser: Tab) -> Iterator[Tab]:
    browser.size(1280)
    browser.complaints.clear()
    yield browser
    assert browser.complaints == []


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunData:
    """A run whose saved advantages are those of its method, and whose last episodes are an evaluation's."""
    folder = make_run(tmp_path_factory.mktemp("runs") / "craft", iterations=4, groups=3, size=4, steps=5)
    run = RunData.load(folder)
    for _, path in run.episode_files():
        episodes = read_episodes(path)
        write_episodes(path, episodes, None, texts(episodes))
        (own,) = Advantages(run, ["own"]).of_file(path)
        write_episodes(path, episodes, own.values, texts(episodes))
    write_episodes(folder / "episodes" / "eval-00004.parquet", episodes, None, texts(episodes))
    write_html(run)
    return run


def texts(episodes: list[Episode]) -> dict[tuple[int, int], tuple[str, str]]:
    return {
        (episode.episode_id, step.t): (f"P {step.observation}", f"ANSWER {step.info['score']} of {step.state_key}")
        for episode in episodes
        for step in episode.steps
    }


def address(run: RunData, hash: str = "") -> str:
    return (run.folder / "report.html").resolve().as_uri() + hash


def played(run: RunData, kind: str = "iteration") -> list[Episode]:
    return [one for label, path in run.episode_files() if label.startswith(kind) for one in read_episodes(path)]


def shown(tab: Tab) -> int:
    return int(tab.text("#count").split()[0])


def open_all(tab: Tab, run: RunData, query: str = "") -> None:
    tab.open(address(run, f"#episodes/iteration-1/0/0?in=iterations{query}"))
    tab.until("document.getElementById('count').textContent.includes(' of 48 episodes')")


def outcome(episode: Episode) -> str:
    return "failed" if episode.error is not None else "solved" if episode.success else "unsolved"


def test_filters_are_combined_and_counted(tab, run):
    episodes = played(run)
    open_all(tab, run)
    assert shown(tab) == len(episodes) == 48
    for value in ("solved", "unsolved", "failed"):
        tab.choose("outcome", value)
        assert shown(tab) == sum(outcome(one) == value for one in episodes)
    tab.choose("outcome", "unsolved")
    tab.choose("invalid", "cut")
    cut = [e for e in episodes if outcome(e) == "unsolved" and any(step.refusal == "cut" for step in e.steps)]
    assert shown(tab) == len(cut) > 0
    tab.choose("type", cut[0].task_type)
    family = [one for one in cut if one.task_type == cut[0].task_type]
    assert 0 < shown(tab) == len(family) < len(episodes)
    label = tab.run("[...document.getElementById('outcome').options].find((o) => o.value === 'solved').textContent")
    assert label == f"solved ({sum(outcome(one) == 'solved' for one in episodes)})"
    tab.run("document.querySelector('#filters button[type=reset]').click()")
    tab.until("document.getElementById('count').textContent.startsWith('48 of 48')")


def test_a_search_looks_through_tasks_observations_and_completions(tab, run):
    episodes = played(run)
    word = episodes[3].steps[0].state_key.split("/")[0]
    open_all(tab, run)
    tab.run("document.getElementById('list').focus()")
    tab.key("/", "/")
    tab.type(f"of {word.upper()}"[:40])
    wanted = [one for one in episodes if any(f"of {word}" in f"of {step.state_key}" for step in one.steps)]
    assert 0 < len(wanted) < 48
    tab.until("document.getElementById('list').ariaBusy === 'false'")
    assert shown(tab) == len(wanted)
    tab.choose("search", "no such text")
    tab.until("document.getElementById('count').textContent.startsWith('0 of')")
    assert "No episode fits" in tab.text("#episode")


def test_the_address_holds_the_view(tab, run):
    open_all(tab, run)
    tab.choose("outcome", "unsolved")
    tab.choose("invalid", "any")
    tab.choose("search", "answer")
    tab.choose("method", "grpo")
    tab.until("location.hash.includes('text=answer')")
    tab.run("document.getElementById('list').focus()")
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        tab.key(key)
    place, settled = "location.hash", "document.getElementById('episode').ariaBusy === 'false'"
    view = ("#count", "#episode")
    tab.until(settled)  # the address changes at once, the pane when the advantages of the file are there
    saved, before = tab.run(place), [tab.text(selector) for selector in view]
    assert "in=iterations" in saved and "outcome=unsolved" in saved and "method=grpo" in saved
    tab.open(address(run, saved))
    tab.until(f"document.getElementById('count').textContent === {json.dumps(before[0])}")
    tab.until(f"document.querySelector('table.advantages') && {settled}")
    assert [tab.text(selector) for selector in view] == before and tab.run(place) == saved


DELAYED = """(() => {
  const text = PARTS.text;
  PARTS.text = (id) => new Promise((arrive, fail) => Object.assign(window, { arrive: () => arrive(text(id)), fail }));
})()"""
"""Parts of the page come when `arrive` is called, or `fail` with an error."""


def test_of_two_methods_chosen_before_the_advantages_are_there_the_later_is_shown(tab, run):
    open_all(tab, run)
    tab.run(DELAYED)
    tab.choose("method", "grpo")
    assert tab.run("document.getElementById('episode').ariaBusy") == "true"
    tab.choose("method", "")
    assert tab.run("document.getElementById('episode').ariaBusy") == "false"
    tab.run("arrive(), BROWSER.store.credited(BROWSER.episode.file).then(() => new Promise((r) => setTimeout(r)))")
    assert cells(tab) == {}
    tab.choose("method", "grpo")
    tab.until("document.querySelector('table.advantages')")


def test_advantages_that_do_not_come_are_a_message_and_are_asked_for_again(tab, run):
    open_all(tab, run)
    tab.run(DELAYED)
    tab.choose("method", "grpo")
    tab.run("fail(new Error('the server is gone'))")
    tab.until("document.getElementById('episode').ariaBusy === 'false'")
    assert "Advantages cannot be shown (the server is gone)." in tab.text("#episode")
    tab.choose("method", "rloo")
    tab.run("arrive()")
    tab.until("document.querySelector('table.advantages')")
    assert set(cells(tab)) == {"trained with", "rloo"}


@pytest.mark.parametrize("hash", ["#episodes/%E0%A4%A/1", "#episodes//", "#episodes/nowhere/1?in=x&outcome=%", "#?a=b"])
def test_an_address_of_nothing_shows_the_last_file(tab, run, hash):
    tab.open(address(run, hash))
    tab.until("document.getElementById('count').textContent.includes('12 of 12')")


def cells(tab: Tab) -> dict[str, list[str]]:
    rows: list[list[str]] = tab.run(
        "[...document.querySelectorAll('table.advantages tbody tr')].map((r) => [...r.cells].map((c) => c.textContent))"
    )
    return {row[0]: row[1:] for row in rows}


def test_every_method_stands_beside_the_one_that_was_trained_with(tab, run):
    _, path = next(one for one in run.episode_files() if one[0] == "iteration 2")
    episode = max(read_episodes(path), key=lambda one: len(one.steps))
    tab.open(address(run, f"#episodes/iteration-2/{episode.episode_id}/1?method=*"))
    tab.until("document.querySelector('table.advantages')")
    found = cells(tab)
    computed = {one.method.name: one for one in Advantages(run).of_file(path)}
    wanted = {name: one.values for name, one in computed.items() if one.values is not None}
    wanted["trained with"] = wanted.pop("own")
    assert "grpo = dapo = gspo" in found
    assert {name.removesuffix(" mean of tokens").split(" = ")[0] for name in found} == set(wanted)
    for name, values in found.items():
        numbers = [
            wanted[name.removesuffix(" mean of tokens").split(" = ")[0]][episode.episode_id, step.t]
            for step in episode.steps
        ]
        assert [float(value) for value in values] == pytest.approx(numbers, abs=0.006)
    assert "ppo needs the column 'value'" in tab.run("document.querySelector('#episode details').textContent")
    tab.choose("method", "rloo")
    tab.until("document.querySelectorAll('table.advantages tbody tr').length === 2")
    assert set(cells(tab)) == {"trained with", "rloo"}
    tab.open(address(run, "#episodes/eval-4/0/0?method=rloo"))


def test_groups_in_part_show_a_message_and_no_number(tab, run, tmp_path):
    folder = shutil.copytree(run.folder, tmp_path / "run")
    path = folder / "episodes" / "iteration-00002.parquet"
    write_episodes(path, read_episodes(path)[:-2])
    part = RunData.load(folder)
    write_html(part)
    tab.open(address(part, "#episodes/iteration-2/0/0?method=*"))
    tab.until("document.querySelector('#episode .uncredited')")
    assert "has 2 of its 4 episodes, so its statistics would be wrong" in tab.text("#episode .uncredited")
    assert cells(tab) == {}


@pytest.mark.parametrize("width", [390, 1400])
def test_the_page_fits_its_window(tab, run, width):
    tab.size(width)
    tab.open(address(run, "#episodes/iteration-2/0/0?in=all&method=*"))
    tab.until("document.querySelector('table.advantages')")
    tab.run("for (const one of document.querySelectorAll('details:not(#graph)')) one.open = true")
    assert tab.run(CUT_OFF) == []


def test_the_page_opens_on_a_group_whose_rewards_differ_and_shows_the_last_answer(tab, run, tmp_path):
    folder = shutil.copytree(run.folder, tmp_path / "run")
    for iteration, best in ((5, 1.0), (6, 0.0)):
        steps = [step(0, reward=best * (i == 3)) for i in range(4)]
        made = [episode(i, one, group_id=i // 2, last_observation=f"answer {i}") for i, one in enumerate(steps)]
        write_episodes(folder / "episodes" / f"iteration-0000{iteration}.parquet", made)
    write_html(RunData.load(folder), [])
    tab.open((folder / "report.html").as_uri())
    tab.until("document.querySelector('pre.answer')")
    assert tab.text("#episode h3") == "Episode 2, iteration 5" and tab.text("pre.answer") == "answer 2"


@pytest.mark.slow
def test_five_thousand_episodes_are_filtered_while_one_types(tab, tmp_path):
    folder = make_run(tmp_path / "large", iterations=20, groups=32, size=8, steps=8, advantages=False)
    began = time.perf_counter()
    run = RunData.load(folder)
    write_html(run)
    seconds = time.perf_counter() - began
    tab.open(address(run))
    began = time.perf_counter()
    tab.run("location.hash = '#episodes/iteration-1/0/0?in=iterations'")
    tab.until("document.getElementById('count').textContent.includes('of 5120 episodes')", 60)
    unpacked = time.perf_counter() - began
    took: dict[str, Any] = {}
    for field, value in (("outcome", "unsolved"), ("search", "spruce door"), ("search", "oak"), ("invalid", "cut")):
        took[f"{field}={value}"] = tab.run(
            f"(() => {{ const b = window.BROWSER; b.$('{field}').value = {json.dumps(value)};"
            "const t = performance.now(); b.filter(); b.$('list').getBoundingClientRect();"
            "return performance.now() - t; })()"
        )
    size = (folder / "report.html").stat().st_size / 1e6
    print(f"\nwritten in {seconds:.1f} s, {size:.1f} MB; unpacked in {unpacked:.1f} s; ms: {took}")
    assert tab.run("document.querySelectorAll('#list .row').length") < 100
    assert max(took.values()) < 500


@pytest.mark.parametrize("dark", [False, True])
def test_the_graph_of_a_group_shows_every_state_and_edge_and_leads_to_its_steps(tab, run, dark):
    from trainers.report.graphs import pictures

    tab.size(1280, dark=dark)
    _, path = next((label, path) for label, path in run.episode_files() if label == "iteration 2")
    picture = pictures(path)[1]
    episode = picture.edges[0].steps[0][0]
    tab.open(address(run, f"#episodes/iteration-2/{episode}/0?method=grpo"))
    tab.until("document.querySelector('#episode h3')")
    tab.run("document.getElementById('graph').open = true")
    tab.until("document.querySelector('#graph svg')")
    count = "document.querySelectorAll('#graph svg {}').length"
    assert tab.run(count.format(".node")) == len(picture.nodes)
    assert tab.run(count.format(".edge")) == len(picture.edges)
    texts = tab.run("[...document.querySelectorAll('#graph .node > text:not(.ended)')].map((e) => e.textContent)")
    visits = [str(node.visits) for node in picture.nodes if node.kind not in ("goal", "end")]
    assert [text for text in texts if text.isdigit()] == visits
    (grpo,) = Advantages(run, ["grpo"]).of_file(path)
    assert grpo.values is not None
    for edge in picture.edges:
        told = tab.run(f"document.querySelector('.edge[data-edge=\"{edge.source}-{edge.target}\"] title').textContent")
        mean = picture.mean(edge, grpo.values)
        assert mean is not None
        assert told.startswith(f"{len(edge.steps)} steps, mean advantage ")
        shown = told.split("\n")[0].rpartition(" ")[2].replace("\u2212", "-")
        assert float(shown) == pytest.approx(mean, abs=0.006)
    last = picture.edges[-1]
    tab.run(f"document.querySelector('.edge[data-edge=\"{last.source}-{last.target}\"]')"
            ".dispatchEvent(new MouseEvent('click', {bubbles: true}))")  # fmt: skip
    wanted = next((key for key in last.steps if key[0] == episode), last.steps[0])
    tab.until(f"location.hash.startsWith('#episodes/iteration-2/{wanted[0]}/{wanted[1]}')")
    tab.until("document.querySelector('#graph .edge.current')")


CHARTS = """[...document.querySelectorAll('#main-curves figure')].map((figure) => {
  const texts = (anchor) => [...figure.querySelectorAll(`text[text-anchor=${anchor}]`)].map((one) => one.textContent);
  const lines = [...figure.querySelectorAll('path')].filter((one) => one.getAttribute('d').includes('L'));
  return { title: figure.querySelector('h3').textContent, said: figure.querySelector('figcaption').textContent,
    x: texts('middle'), y: texts('end'), joined: lines.map((one) => one.getAttribute('stroke')) };
})"""


def test_curves_tell_a_value_from_its_mean_and_join_no_evaluations(tab, tmp_path):
    run = RunData.load(make_run(tmp_path / "long", iterations=20, groups=2, size=2, steps=2))
    write_html(run, [])
    tab.open(address(run))
    tab.until("document.querySelectorAll('#main-curves figure svg').length > 8")
    charts = {chart["title"]: chart for chart in tab.run(CHARTS)}
    for title, chart in charts.items():
        assert len(chart["x"]) > 1 and len(chart["y"]) > 1, f"{title} has an axis with one number"
    values, (_, after, low, high) = run.series("train/success")[1], run.evaluation_points()[-1]
    value, mean = percent(values[-1]), percent(moving_mean(values, 5)[-1])
    held_out = f"held-out tasks, 95 % interval {percent(after)} [{percent(low)}, {percent(high)}]"
    assert charts["Success"]["said"] == f"iteration 20: training {value}, training, mean of 5 {mean}, {held_out}"
    assert set(charts["Success"]["joined"]) == {"var(--blue)", "var(--grey)"}, "the evaluations are points"
    assert charts["train/valid_actions"]["y"] == ["0 %", "25 %", "50 %", "75 %", "100 %"]
    first, *_ = (title for title in charts if title != "Success")
    assert first == "train/kl" and re.fullmatch(r"iteration 20: value [\d.]+, mean of 5 [\d.]+", charts[first]["said"])
    cards = " ".join(tab.text("#facts").split())
    assert f"{value} last iteration; mean of the last 5: {mean}" in cards
    assert "KL from the reference" in cards and "learning rate" in cards
    assert tab.text("#state") == "Finished: 20 of 20 iterations in 2 min."


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"
