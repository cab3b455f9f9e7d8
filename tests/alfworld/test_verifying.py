"""``envsuite data verify alfworld``, on real and built-in games that are damaged on purpose."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envsuite.alfworld import verifying
from envsuite.alfworld.game_file import GAME, TRAJECTORY
from envsuite.alfworld.source import find_root
from envsuite.alfworld.tasks import load
from envsuite.alfworld.verifying import Report, play_game, published_checksums, verify_games
from envsuite.cli import main
from envsuite.data.part import sha256_of

SEEN = {"pick_heat_then_place_in_recep-Potato-None-Fridge-12/trial_T20190908_014451_271080"}


@pytest.fixture(scope="module")
def builtin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eighteen built-in games, six of each split."""
    games, _ = load("builtin", games=18)
    root = tmp_path_factory.mktemp("builtin") / "json_2.1.1"
    shutil.copytree(games.root, root)
    return root


@pytest.fixture
def whole(builtin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the built-in games, as if these and no others were published."""
    root = tmp_path / "mine" / "json_2.1.1"
    shutil.copytree(builtin, root)
    monkeypatch.setattr(verifying, "PUBLISHED", {"train": 6, "valid_seen": 6, "valid_unseen": 6})
    monkeypatch.setattr(verifying, "published_checksums", dict)
    return root


@pytest.fixture
def seen(games_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the real games of valid_seen."""
    root = tmp_path / "json_2.1.1"
    shutil.copytree(games_root / "json_2.1.1" / "valid_seen", root / "valid_seen")
    monkeypatch.setattr(verifying, "PUBLISHED", {"valid_seen": 140})
    return root


def trials(root: Path, split: str) -> list[Path]:
    return sorted((root / split).glob("*/*"))


def kinds(report: Report) -> Counter[str]:
    return Counter(finding.kind for finding in report.findings)


def edit(trial: Path, name: str = GAME, **changes: Any) -> None:
    body = orjson.loads((trial / name).read_bytes())
    (trial / name).write_bytes(orjson.dumps(body | changes))


def cut(trial: Path) -> None:
    (trial / GAME).write_bytes((trial / GAME).read_bytes()[:9000])


def impossible(trial: Path) -> None:
    """Have the goal ask for an object in a receptacle of a type that the room does not have."""
    problem = orjson.loads((trial / GAME).read_bytes())["pddl_problem"]
    start = problem.index("(:goal")
    there = set(re.findall(r"\(receptacleType \w+ (\w+)\)", problem[:start]))
    other = next(kind for kind in re.findall(r"(\w+) - rtype", problem) if kind not in there)
    goal, changed = re.subn(r"\(receptacleType \?r \w+\)", f"(receptacleType ?r {other})", problem[start:])
    assert changed
    edit(trial, pddl_problem=problem[:start] + goal)


def placing(root: Path) -> Path:
    return next(trial for trial in trials(root, "train") if trial.parent.name.startswith("pick_and_place_simple"))


def test_a_whole_download_is_whole_and_every_game_is_won(whole):
    report = verify_games(whole.parent, play=True)
    assert report.findings == () and report.games == {"train": 6, "valid_seen": 6, "valid_unseen": 6}
    assert report.walkthroughs + report.solved == 18


DAMAGES: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "no game": (lambda trial: (trial / GAME).unlink(), "missing", r"has no game\.tw-pddl"),
    "no trial": (shutil.rmtree, "missing", "1 of the 6 published games"),
    "no trajectory": (lambda trial: (trial / TRAJECTORY).unlink(), "missing", "ALFWorld does not find the game"),
    "game cut": (cut, "damaged", "truncated"),
    "trajectory cut": (lambda trial: (trial / TRAJECTORY).write_bytes(b"{"), "damaged", "truncated"),
    "unknown family": (lambda trial: edit(trial, TRAJECTORY, scene=0, task_type=7), "damaged", "no text"),
    "another object": (lambda trial: (trial / GAME).write_bytes(b"[]"), "damaged", "not an object of JSON"),
    "another game": (lambda trial: shutil.copy(trials(trial.parents[2], "train")[-1] / GAME, trial), "altered", "task"),
    "no grammar": (lambda trial: edit(trial, grammar=""), "damaged", "does not state its task"),
    "not checked": (lambda trial: edit(trial, solvable=None), "missing", "1 of the 6 published games"),
    "marked unsolvable": (lambda trial: edit(trial, solvable=False), "missing", "or not solvable"),
    "another family": (lambda trial: edit(trial, TRAJECTORY, task_type="look_at_obj_in_light"), "altered", "task look"),
    "another trial": (lambda trial: edit(trial, TRAJECTORY, task_id="trial_T0"), "altered", "of the trial trial_T0"),
    "unsolvable": (impossible, "unsolvable", "neither its walkthrough nor the expert"),
    "wrong walkthrough": (lambda trial: edit(trial, walkthrough=["look"]), "altered", "own walkthrough does not reach"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_each_damage_is_found_and_named(whole, name):
    damage, kind, what = DAMAGES[name]
    trial = placing(whole)
    damage(trial)
    report = verify_games(whole, play=name in ("unsolvable", "wrong walkthrough"))
    found = [finding for finding in report.findings if re.search(what, finding.what)]
    assert found and {finding.kind for finding in found} == {kind}
    assert kind in ("missing", "unsolvable") or set(kinds(report)) == {kind}, "what is damaged is not missing, too"
    assert all(finding.path.is_relative_to(trial) or finding.path == whole / "train" for finding in report.findings)


def test_folders_without_a_game_are_a_fact_where_the_count_is_right(whole):
    trial = trials(whole, "train")[0]
    shutil.copytree(trial, trial.with_name("trial_T2"))
    (trial.with_name("trial_T2") / GAME).unlink()
    sliced = whole / "train" / "pick_and_place_simple-AppleSliced-None-Plate-3" / "trial_T3"
    sliced.mkdir(parents=True)
    (sliced / TRAJECTORY).write_bytes(b"not read")
    report = verify_games(whole)
    assert report.findings == () and report.notes == ("train: 1 folders have a trajectory and no game",)


def test_the_real_games_of_valid_seen_are_the_published_ones_and_are_won(seen):
    report = verify_games(seen)
    assert report.findings == () and report.games == {"valid_seen": 140}
    assert set(published_checksums()["valid_seen"]) >= SEEN and len(published_checksums()["valid_seen"]) == 140


@pytest.mark.slow
def test_every_real_game_is_won(games_root):
    report = verify_games(games_root, play=True)
    assert kinds(report) == {"missing": 2}, "the splits that are not in the shared data"
    assert (report.walkthroughs, report.solved) == (140, 200)


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_changed_byte_of_a_published_game_is_found(games_root, tmp_path, data):
    source = data.draw(st.sampled_from(trials(games_root / "json_2.1.1", "valid_seen")))
    trial = tmp_path / "valid_seen" / source.parent.name / source.name
    if not trial.is_dir():
        shutil.copytree(source, trial)
    content = bytearray((source / GAME).read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    (trial / GAME).write_bytes(content)
    assert "altered" in {finding.kind for finding in verifying._inspect("valid_seen", trial)}


@given(place=st.integers(0, 10**6), mask=st.integers(1, 255), name=st.sampled_from([GAME, TRAJECTORY]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_changed_byte_of_any_game_gives_findings_and_no_error(builtin, tmp_path, place, mask, name):
    source = trials(builtin, "train")[place % 6]
    trial = tmp_path / source.parent.name / source.name
    if not trial.is_dir():
        shutil.copytree(source, trial)
    content = bytearray((source / name).read_bytes())
    content[place % len(content)] ^= mask
    for one in (GAME, TRAJECTORY):
        (trial / one).write_bytes(content if one == name else (source / one).read_bytes())
    found = list(verifying._inspect("train", trial))
    if all(finding.kind != "damaged" for finding in found):
        verifying.read_game(trial / verifying.GAME)


def test_the_published_checksums_are_those_of_the_games(games_root):
    for split, checksums in published_checksums().items():
        games = (find_root(games_root) / split).glob(f"*/*/{GAME}")
        assert {f"{f.parts[-3]}/{f.parts[-2]}": sha256_of(f) for f in games} == dict(checksums)


def test_a_game_in_the_words_of_people_is_not_called_unsolvable(whole):
    trial = placing(whole)
    grammar = orjson.loads((trial / GAME).read_bytes())["grammar"]
    stated = re.search(r"Your task is to: [^\"\\]*", grammar)
    assert stated
    words = "Your task is to: tidy up a bit."
    edit(trial, grammar=grammar.replace(stated[0], words), walkthrough=[])
    report = verify_games(whole, play=True)
    assert report.findings == () and "1 games have no walkthrough that wins" in report.notes[0]


def test_a_game_is_won_by_the_expert_where_its_walkthrough_does_not_or_it_is_given_up(whole, monkeypatch):
    for walkthrough in ((), ("go nowhere",)):
        assert play_game(placing(whole) / GAME, walkthrough) == "expert"
    monkeypatch.setattr("envsuite.alfworld.verifying.LONGEST", 1)
    assert play_game(placing(whole) / GAME, ()) == "lost"


def test_the_command_has_exit_codes(whole, capsys):
    assert main(["data", "verify", "alfworld", str(whole.parent)]) == 0
    assert "none is missing or altered (--play plays them, too)" in capsys.readouterr().out
    (placing(whole) / GAME).unlink()
    assert main(["data", "verify", "alfworld", str(whole)]) == 1
    out, err = capsys.readouterr()
    assert f"{placing(whole)}: missing: perhaps one of these" in out and "2 missing; games: train 5" in err
    assert main(["data", "verify", "alfworld", str(whole / "nowhere")]) == 2
    assert "there is no folder" in capsys.readouterr().err
    assert main(["data", "verify", "webshop", str(whole)]) == 2
    assert "DIR and --play are for alfworld alone" in capsys.readouterr().err
    assert main(["data", "verify", "--play"]) == 2


def test_games_that_were_put_there_by_hand_are_looked_into(whole, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("ENVSUITE_DATA", str(tmp_path / "data"))
    assert main(["data", "verify", "alfworld"]) == 1
    assert "not fetched" in capsys.readouterr().out
    shutil.copytree(whole, tmp_path / "data" / "alfworld" / "json_2.1.1")
    for command in (["data", "verify", "alfworld"], ["data", "verify"]):
        assert main(command) == 0
        out, err = capsys.readouterr()
        assert "games: train 6" in out and "not fetched by this command" in err
