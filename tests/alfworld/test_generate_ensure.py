from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import psutil
import pytest
from waiting import until

from envsuite.alfworld.families import FAMILIES
from envsuite.alfworld.generate import MANIFEST, GameSet, ensure, main
from envsuite.alfworld.scenes import SceneDifficulty
from envsuite.core.errors import UsageError
from envsuite.data.locks import try_locked

CLI = [sys.executable, "-m", "envsuite.alfworld.generate"]
# The program with two worker processes, each of which stops before its second game.
STOPPING = """
import sys
from envsuite.alfworld import generate

STOP = (
    "import os; from envsuite.alfworld import generate; make = generate.make; generate.make = lambda *given: "
    "(os.kill(os.getpid(), 19) if given[1:3] in [('train', 2), ('train', 3)] else None) or make(*given); "
)
generate._cores = lambda: 2
generate._BOOT = generate._BOOT.replace("work(**", STOP + "work(**")
generate.main(sys.argv[1:])
"""


def content(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def receptacles(game: Path) -> tuple[tuple[str, int], ...]:
    problem = json.loads(game.read_bytes())["pddl_problem"]
    return tuple(sorted(Counter(re.findall(r"\(receptacleType \S+ (\w+)\)", problem)).items()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure(tmp_path_factory.mktemp("games"), seed=0, games=60)


def test_splits_are_tenths_and_families_equal(folder: Path) -> None:
    for split, number in (("train", 48), ("valid_seen", 6), ("valid_unseen", 6)):
        records = [json.loads(f.read_bytes()) for f in (folder / "json_2.1.1" / split).glob("*/*/traj_data.json")]
        assert len(records) == number
        assert Counter(r["task_type"] for r in records) == {f.name: number // 6 for f in FAMILIES}
        assert all((folder / "json_2.1.1" / split).glob(f"*/{r['task_id']}/game.tw-pddl") for r in records)
    assert len({f.parent.name for f in folder.rglob("game.tw-pddl")}) == 60


def test_unseen_rooms_have_other_receptacles_than_those_of_train_and_valid_seen(folder: Path) -> None:
    seen, unseen = (
        {receptacles(game) for split in splits for game in (folder / "json_2.1.1" / split).rglob("game.tw-pddl")}
        for splits in (("train", "valid_seen"), ("valid_unseen",))
    )
    assert unseen and not seen & unseen


@pytest.mark.seconds
def test_several_processes_make_what_one_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envsuite.alfworld.generate._cores", lambda: 1)
    alone = content(ensure(tmp_path / "alone", 0, 240))
    monkeypatch.setattr("envsuite.alfworld.generate._cores", lambda: 3)
    assert content(ensure(tmp_path / "together", 0, 240)) == alone


def test_more_games_begin_with_those_there_are_of_fewer(folder: Path, tmp_path: Path) -> None:
    more = content(ensure(tmp_path, 0, 90))
    fewer = content(folder)
    assert {name: more.get(name) for name in fewer if name != MANIFEST} == {
        name: data for name, data in fewer.items() if name != MANIFEST
    }


def test_seeds_and_difficulties_have_folders_of_their_own(folder: Path, tmp_path: Path) -> None:
    other = ensure(tmp_path, 1, 18)
    easy = ensure(tmp_path, 1, 18, SceneDifficulty(hidden=0, decoys=0))
    assert other != easy
    games = [{f.parent.name for f in f.rglob("game.tw-pddl")} for f in (folder, other, easy)]
    assert len(set.union(*games)) == 60 + 18 + 18


def test_games_that_are_there_are_left_as_they_are(folder: Path) -> None:
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*")}
    assert ensure(folder.parent, 0, 60) == folder
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("*")} == before


@pytest.mark.parametrize("harm", ["no manifest", "half a manifest", "a game gone"])
def test_a_folder_that_is_not_whole_is_made_anew(harm: str, tmp_path: Path) -> None:
    folder = ensure(tmp_path, 0, 18)
    whole = content(folder)
    if harm == "a game gone":
        next(folder.rglob("game.tw-pddl")).unlink()
    else:
        manifest = (folder / MANIFEST).read_bytes()
        (folder / MANIFEST).unlink()
        if harm == "half a manifest":
            (folder / MANIFEST).write_bytes(manifest[: len(manifest) // 2])
    assert content(ensure(tmp_path, 0, 18)) == whole


@pytest.mark.seconds
def test_a_run_that_was_killed_leaves_nothing_that_is_used(tmp_path: Path) -> None:
    games = 300
    name = GameSet(0, games).name
    run = subprocess.Popen([sys.executable, "-c", STOPPING, "--out", str(tmp_path), "--games", str(games)])
    program = psutil.Process(run.pid)
    until(lambda: [one.status() for one in program.children()] == [psutil.STATUS_STOPPED] * 2 or run.poll() is not None)
    workers = program.children()
    run.kill()
    run.wait()
    free = try_locked(tmp_path / f".{name}.lock")
    left = tmp_path / f".{name}.partial"
    (left / "json_2.1.1" / "train" / "foreign").mkdir(parents=True)
    for worker in workers:
        worker.resume()  # it writes one more game, and ends when it finds that nobody reads what it says
    assert len(workers) == 2 and free is None and len(list(left.rglob("game.tw-pddl"))) < games
    assert not (tmp_path / name).exists()
    folder = ensure(tmp_path, 0, games)
    assert len(list(folder.rglob("game.tw-pddl"))) == games
    assert not (folder / "json_2.1.1" / "train" / "foreign").exists() and not left.exists()


def test_two_programs_at_once_get_the_same_whole_folder(tmp_path: Path) -> None:
    runs = [subprocess.Popen([*CLI, "--out", str(tmp_path), "--games", "60"], stdout=subprocess.PIPE) for _ in range(2)]
    said = {run.communicate()[0] for run in runs}
    assert [run.returncode for run in runs] == [0, 0]
    (folder,) = said
    assert len(list(Path(folder.decode().strip()).rglob("game.tw-pddl"))) == 60


def test_too_few_games_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at least 18 games"):
        ensure(tmp_path, 0, 17)


def test_a_folder_that_cannot_be_written_to_is_an_error_that_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["--out", str(tmp_path / "file" / "below"), "--games", "18"]) == 2
    assert f"can't write ALFWorld games to {tmp_path / 'file' / 'below'}" in capsys.readouterr().err


def test_the_help_has_examples_that_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    examples = re.findall(r"python -m envsuite.alfworld.generate --out (\w+)(.*)", capsys.readouterr().out)
    assert len(examples) == 4
    for name, options in examples:
        small = [word for word in re.sub(r"--games \d+", "", options).split()]
        assert main(["--out", str(tmp_path / name), *small, "--games", "18"]) == 0
        assert Path(capsys.readouterr().out.strip()).parent == tmp_path / name
