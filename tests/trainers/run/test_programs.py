"""The programs, as they are started."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import launch_command_parser
from tiny_runs import ROOT, environment, write_settings

from trainers.programs import quickstart
from trainers.programs.report import main as report
from trainers.run.cli import parse
from trainers.train import main as train


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=60, check=False)


def test_a_module_that_is_run_has_not_been_imported_before():
    run = _python("-W", "error::RuntimeWarning", "-m", "trainers.report.metrics")
    assert run.returncode == 0 and not run.stderr, run.stderr


def test_without_the_extra_the_trainer_names_it():
    hidden = "import sys, runpy; sys.modules['torch'] = None; runpy.run_module('trainers.train', run_name='__main__')"
    run = _python("-c", hidden)
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1].endswith("trainers needs torch: pip install 'envsuite[train]'"), run.stderr


@pytest.mark.seconds
def test_a_reader_that_stops_early_ends_a_program_without_a_word():
    reader, writer = os.pipe()
    os.close(reader)
    shown = [sys.executable, "-m", "envsuite.cli", "train", "--help-all"]
    run = subprocess.run(
        shown, cwd=ROOT, env=environment(), stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )
    os.close(writer)
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.seconds
def test_a_run_ends_with_its_report_or_with_how_to_get_it(place):
    few = {"iterations": 1, "evaluation.envs": []}
    assert train(["--config", str(write_settings(place, name="with", report=True, **few))]) == 0
    assert f"report: {place}/runs/with/report.html" in (place / "runs/with/run.log").read_text("utf-8")
    assert (place / "runs/with/plots/success.png").is_file()
    assert train(["--config", str(write_settings(place, name="without", report=False, **few))]) == 0
    log = (place / "runs/without/run.log").read_text("utf-8")
    assert f"envsuite report {place}/runs/without writes it" in log
    assert not list((place / "runs/without").glob("**/*.html")) + list((place / "runs/without").glob("**/*.png"))
    assert report([str(place / "runs/without")]) == 0
    assert (place / "runs/without/report.html").is_file() and (place / "runs/without/plots/success.png").is_file()


@pytest.mark.parametrize(("cores", "processes"), [({0}, 1), ({0, 1}, 2), (set(range(64)), 2)])
def test_the_quick_start_has_two_processes_with_a_thread_each_where_there_are_two_cores(
    tmp_path, monkeypatch, cores, processes
):
    launched, imitated = list[list[str]](), list[str]()

    def imitate_until_it_is_interrupted_once(words: list[str]) -> int:
        imitated.append(words[-1])
        os.makedirs(words[-1], exist_ok=True)
        return 130 if len(imitated) == 1 else 0

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores, raising=False)
    monkeypatch.setattr("trainers.programs.train.launch", lambda words: launched.append(words) or 0)
    monkeypatch.setattr(quickstart, "imitate", imitate_until_it_is_interrupted_once)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "false")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert quickstart.main(["--name", "never-started"]) == 130 and not launched
    for _ in range(2):  # what was interrupted is made anew, what is there is not
        monkeypatch.chdir(tmp_path)
        assert quickstart.main(["--name", "never-started"]) == 0
    assert imitated == ["runs/errand-base.partial"] * 2 and [*(tmp_path / "errand/runs").iterdir()] == [
        tmp_path / "errand/runs/errand-base"
    ]
    parser = launch_command_parser()
    given = parser.parse_args(launched[0])
    settings = load_config_from_file(given.config_file)
    assert settings.num_processes == processes and given.num_cpu_threads_per_process == 1
    assert given.training_script == "trainers.train" and given.module


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--optim.lrr", "1"], "Nearest: 'lr'"),
        (["--envs", "[{id: nope.py}]"], "there is no such file"),
        ([], "errand is there and has no train.yaml"),
    ],
)
def test_the_quick_start_refuses_what_cannot_work_before_it_writes(tmp_path, monkeypatch, capsys, words, reason):
    monkeypatch.chdir(tmp_path)
    if not words:
        (tmp_path / "errand").mkdir()
    assert quickstart.main(words) == 2
    assert reason in capsys.readouterr().err and not [*tmp_path.rglob("*.*")]


def test_textcraft_loses_at_most_three_iterations_and_keeps_its_last_checkpoint():
    config = parse(["--config", "configs/textcraft.yaml"]).config
    assert config.checkpoint_every == 3 and not config.iterations % 3 and config.keep_checkpoints == 2
