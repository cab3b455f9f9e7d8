"""The engine vllm inside the trainer's process, with vLLM itself, on a CPU.

vLLM may need other versions than the tests have, so ``in_process_cases.py`` and the runs are started with the
interpreter that ``ENVSUITE_VLLM_PYTHON`` names; docs/engine.md says how to make one that has both.
"""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache
from pathlib import Path

import pytest
import yaml
from in_process_cases import CASES
from tiny_runs import LAUNCH, ROOT

PYTHON = os.environ.get("ENVSUITE_VLLM_PYTHON")
_NEEDED = "import importlib.util as u, sys; sys.exit(any(u.find_spec(n) is None for n in {}))"
_HERE = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def _missing(*packages: str) -> bool:
    return PYTHON is None or bool(subprocess.run([PYTHON, "-c", _NEEDED.format(packages)], check=False).returncode)


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        _missing("vllm", "accelerate", "gymnasium", "pyarrow", "peft"),
        reason="ENVSUITE_VLLM_PYTHON names no interpreter with vLLM and the packages of the trainer",
    ),
]


@cache
def _results(setup: str) -> dict[str, str]:
    """Cases of a setup, and what went wrong in each."""
    assert PYTHON is not None
    command = [PYTHON, str(Path(__file__).with_name("in_process_cases.py")), setup]
    run = subprocess.run(command, capture_output=True, text=True, env=_HERE, timeout=600, check=False)
    assert run.returncode == 0, run.stderr[-4000:]
    found: dict[str, str] = json.loads(run.stdout.splitlines()[-1])
    return found


ENDS = ("nothing_of_the_process_is_changed", "the_process_group_is_gone")


@pytest.mark.parametrize(
    ("setup", "name"),
    [(setup, name) for setup, cases in CASES.items() for name in (*(case.__name__ for case in cases), *ENDS)],
)
def test_in_process(setup, name):
    assert not _results(setup)[name], _results(setup)[name]


@pytest.mark.parametrize("name", ["an_unknown_argument", "sleep_on_a_cpu", "several_devices"])
def test_settings_that_cannot_work_in_the_process_are_refused(name):
    assert not _results("refused")[name], _results("refused")[name]


@pytest.mark.parametrize("processes", [1, 2])
def test_a_run_trains_with_vllm_in_each_of_its_processes_and_goes_on_from_its_checkpoint(tmp_path, processes):
    settings = yaml.safe_load((ROOT / "configs/textcraft.yaml").read_text())
    settings["rollout"] |= {"tasks": 2, "group_size": 2, "engine": "vllm", "engine_options": {"place": "process"}}
    settings["evaluation"]["episodes"] = 4
    settings |= {"output": str(tmp_path), "checkpoint_every": 1}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings))
    launch = [*LAUNCH[1:], "--config_file", str(ROOT / f"configs/accelerate/cpu{processes}.yaml")]
    for iterations, more in ((1, ()), (2, ("--resume",))):
        arguments = ["--config", str(tmp_path / "config.yaml"), "--iterations", str(iterations), *more]
        run = subprocess.run(
            [str(PYTHON), *launch, "-m", "trainers.train", *arguments],
            capture_output=True, text=True, env=_HERE, timeout=600, check=False,
        )  # fmt: skip
        assert run.returncode == 0, run.stderr[-4000:]
        assert (tmp_path / f"textcraft/checkpoints/iteration-{iterations:05d}").is_dir()
    log = (tmp_path / "textcraft/run.log").read_text()
    assert log.count("vLLM in this process: log-probabilities of the probe differ") >= 4
