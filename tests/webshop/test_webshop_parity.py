import json

import pytest

from benchmarks.parity import main
from benchmarks.parity_webshop import Recordings, webshop
from envsuite.webshop.env import WebShop
from envsuite.webshop.nouns import SpacyTagger


def test_rewards_rankings_and_episodes_equal_the_recordings(shared, official_files, recorded_nouns):
    golden = shared / "golden" / "webshop"
    recordings = Recordings(
        rewards=[golden / "rewards_a.json"],
        searches=[golden / "searches_a.json"],
        episodes=[golden / "episodes_a.json"],
        sessions=shared / "data" / "webshop" / "sessions",
    )
    report = webshop(official_files, recordings, recorded_nouns, WebShop)
    assert not report.differences, report.text()
    assert report.counts["rewards within 1e-9"] == 2000
    assert report.counts["goals that are among ours"] == 2040
    assert report.counts["rankings"] == 200
    assert report.counts["observations"] == report.counts["available actions"] == 371
    assert report.counts["steps of the environment"] == 324
    assert report.counts["people: rewards of these parts"] == 5


@pytest.mark.slow
def test_spacy_finds_the_recorded_nouns(shared, official_files):
    pytest.importorskip("spacy", reason="needs the extra webshop-build")
    nouns = shared / "golden" / "webshop" / "title_nouns.json"
    report = webshop(official_files, Recordings(nouns=nouns), SpacyTagger())
    assert not report.differences, report.text()
    assert report.counts["titles with their nouns"] == 1000


def test_a_difference_is_found_listed_and_told_by_the_exit_status(shared, official_files, tmp_path, capsys):
    golden = shared / "golden" / "webshop"
    rewards = json.loads((golden / "rewards_a.json").read_text())[:3]
    rewards[0]["reward"] += 1e-6
    rewards[1]["goal"]["price_upper"] += 10
    episodes = json.loads((golden / "episodes_a.json").read_text())[:1]
    episodes[0]["steps"][1]["available"]["clickables"].pop()
    searches = json.loads((golden / "searches_a.json").read_text())[:1]
    searches[0]["hits"][0], searches[0]["hits"][1] = searches[0]["hits"][1], searches[0]["hits"][0]
    paths = []
    for name, content in (("rewards", rewards), ("episodes", episodes), ("searches", searches)):
        paths += [f"--{name}", str(tmp_path / f"{name}.json")]
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    nouns = ["--nouns", str(golden / "title_nouns.json")]
    files = ["--products", str(official_files.products), "--attributes", str(official_files.attributes)]
    assert main(["webshop", *files, *paths, *nouns]) == 1
    printed = capsys.readouterr().out
    for said in (
        "rewards within 1e-9, rewards.json, purchase 0",
        "goals that are among ours, rewards.json, purchase 1",
    ):
        assert said in printed
    assert "available actions, episodes.json, episode 0, step 1" in printed and "rankings, searches.json" in printed


def test_what_is_missing_is_named(tmp_path, capsys):
    files = ["--products", str(tmp_path / "none.json"), "--attributes", str(tmp_path / "none.json")]
    assert main(["webshop", *files]) == 2
    assert "nothing to compare with" in capsys.readouterr().err
    assert main(["webshop", *files, "--rewards", "none.json", "--nouns", str(tmp_path / "nouns.json")]) == 2
    assert "nouns.json: not a readable recording" in capsys.readouterr().err
