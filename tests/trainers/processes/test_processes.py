"""Several processes: they work together, and what they compute is what one computes.

The helper of all tests with several processes names the process that failed, not one that waited for it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import credit_of_ranks
import orjson
import pytest
import recorded_credit
import torch
from accelerate import Accelerator
from folders import SUPPORT
from ranks import on_ranks
from safetensors.torch import load_file
from tiny_runs import BOTH, LAUNCH, begin, gradient_cases, train, without_times, write_settings
from waiting import until

from trainers.processes.distributed import check_world, run_guarded
from trainers.settings import ConfigError


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen2", "lfm2"])
def test_two_processes_have_the_gradient_of_one_however_the_rows_are_spread(tmp_path, name):
    script = str(SUPPORT / "gradient_of_ranks.py")
    for program in ((*BOTH, script), (sys.executable, script)):
        train(str(tmp_path), name, program=program, status=0)
    for case in gradient_cases():
        one, two = (load_file(tmp_path / f"{case}-{count}.safetensors") for count in (1, 2))
        assert one.keys() == two.keys()
        flat = [torch.cat([grads[key].flatten() for key in sorted(one)]) for grads in (one, two)]
        assert float((flat[1] - flat[0]).norm() / flat[0].norm()) < 1e-5, case


@pytest.fixture(scope="module")
def credit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the credit and the gradient of every method lie, as one process computes them."""
    folder = tmp_path_factory.mktemp("credit")
    assert run_guarded(lambda: credit_of_ranks.main(folder, team=False)) == 0
    return folder


def _alike(folder: Path, count: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Every method, and its credit on one process, which is that on ``count``, as is the gradient."""
    cases = sorted(path.name.removesuffix("-1.safetensors") for path in folder.glob("*-1.safetensors"))
    assert len(cases) > 20
    for name in cases:
        one, many = (load_file(folder / f"{name}-{n}.safetensors") for n in (1, count))
        assert one.keys() == many.keys()
        for key in one:
            near = 1e-12 * float(one[key].abs().max()) if one[key].numel() else 0.0
            torch.testing.assert_close(many[key], one[key], rtol=0.0, atol=near, msg=f"{name}: {key}")
        yield name, one["credit"]


@pytest.mark.seconds
@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_every_method_gives_the_same_credit_and_gradient_on_any_number_of_processes(count, credit):
    script = str(SUPPORT / "credit_of_ranks.py")
    train(str(credit), program=(*BOTH, "--num_processes", str(count), script), status=0)
    for name, found in _alike(credit, count):
        assert bool(found[:, 4].any()), f"{name}: no advantage"


@pytest.mark.slow
def test_every_method_credits_a_team_alike_on_one_process_and_on_two(credit, tmp_path):
    script = (str(SUPPORT / "credit_of_ranks.py"), str(tmp_path), "team")
    for program in ((sys.executable, *script), (*BOTH, *script)):
        train(program=program, status=0)
    for name, found in _alike(tmp_path, 2):
        for turn in (0, 1):
            assert bool(found[found[:, 1] % 2 == turn, 4].any()), f"{name}: an agent has no advantage"
        alone = load_file(credit / f"{name}-1.safetensors")["credit"]
        if name not in ("rft", "sft"):  # whose accepted episodes weigh alike, whoever earned what
            assert not torch.equal(found, alone), f"{name}: as if one had played"


def test_every_method_gives_the_credit_that_was_recorded(credit):
    found = recorded_credit.read(credit)
    before = orjson.loads(recorded_credit.FILE.read_bytes())
    again = "after a change that is meant, record anew: python tests/support/recorded_credit.py"
    assert found.keys() == before.keys(), again
    for name, figures in before.items():
        assert found[name] == pytest.approx(figures, rel=1e-5, abs=1e-5), f"{name}; {again}"


@pytest.mark.slow
@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_launcher_leaves_a_checkpoint_that_both_resume(place, kind):
    config = write_settings(place, iterations=400)
    launcher, metrics = begin(*BOTH, "-m", "trainers.train", "--config", str(config)), place / "runs/tiny/metrics.jsonl"
    until(lambda: launcher.poll() is not None or (metrics.exists() and metrics.read_bytes().count(b"\n") > 2))
    launcher.send_signal(kind)
    said = launcher.communicate(timeout=90)[0]
    assert launcher.returncode not in (0, None)
    assert "go on with --resume" in said, said
    done = len({r["iteration"] for r in without_times(place / "runs/tiny")}) - 1
    config = write_settings(place, iterations=done + 1)
    run = train("--config", str(config), "--resume", program=(*BOTH, "-m", "trainers.train"), status=0)
    assert f"resuming after iteration {done}" in run.stdout


@pytest.mark.slow
def test_a_launcher_that_starts_one_process_instead_of_two_is_found_out(place):
    program = (*LAUNCH, "--cpu", "--num_processes", "2", "-m", "trainers.train")
    run = train("--config", str(write_settings(place)), program=program)
    assert run.returncode != 0
    assert "accelerate was asked for several processes but started this one alone" in run.stderr
    assert not (place / "runs").exists()


def test_processes_that_do_not_know_of_each_other_are_refused(monkeypatch):
    accelerator = Accelerator(cpu=True)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match=r"2 processes were launched but 1 work together.*cpu2.yaml"):
        check_world(accelerator)


def second_fails(accelerator, how):
    if accelerator.process_index == 0:
        time.sleep(600)
    if how == "dies":
        os._exit(3)
    raise ValueError("the cause")


@pytest.mark.parametrize(("how", "said"), [("raises", "the cause"), ("dies", "ended without a result")])
def test_the_process_that_failed_is_named_at_once(how, said):
    with pytest.raises(AssertionError, match=rf"(?s)process 1 of 2.*{said}"):
        on_ranks(second_fails, 2, how)
