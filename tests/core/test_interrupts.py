"""Ctrl-C at every moment of a command: status 130 and one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent / "interrupted"
SCRIPT = "import sys; from envsuite.cli import main; sys.exit(main())"
"""What pip writes into the file ``envsuite``."""


def _interrupted(at: str, *command: str, cwd: Path) -> tuple[int, str]:
    """Runs a command that gets a Ctrl-C when it imports ``at``; returns its status and what it said."""
    path = os.pathsep.join([str(HERE), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "INTERRUPTED_AT": at, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    return run.returncode, run.stderr


@pytest.mark.parametrize("at", ["gymnasium", "envsuite.core.registration", "envsuite.installation.probes"])
def test_a_command_that_is_interrupted_while_it_starts_ends_with_a_line(at: str, tmp_path: Path) -> None:
    (tmp_path / "envsuite").write_text(SCRIPT)
    assert _interrupted(at, str(tmp_path / "envsuite"), "doctor", cwd=tmp_path) == (130, "interrupted\n")


@pytest.mark.parametrize(
    ("at", "command"),
    [
        ("gymnasium", "trainers.train"),
        ("pydantic", "trainers.train"),
        ("torch", "envsuite.cli show-prompt"),
        ("torch", "envsuite.cli report"),
        pytest.param("transformers", "trainers.train", marks=pytest.mark.slow),
        pytest.param("trainers.run.assembly", "trainers.train", marks=pytest.mark.slow),
        pytest.param("trainers.run.evaluation", "envsuite.cli eval model", marks=pytest.mark.slow),
        pytest.param("trainers.imitation.training", "envsuite.cli imitate", marks=pytest.mark.slow),
        pytest.param("trainers.planning.plan", "envsuite.cli plan", marks=pytest.mark.slow),
        pytest.param("accelerate.commands.launch", "envsuite.cli quickstart", marks=pytest.mark.slow),
        pytest.param("torch.distributed.run", "envsuite.cli quickstart", marks=pytest.mark.slow),
        pytest.param("trainers.run.zero_shot", "envsuite.cli show-prompt", marks=pytest.mark.slow),
    ],
)
def test_a_program_of_the_trainer_that_is_interrupted_while_it_imports_ends_with_a_line(
    at: str, command: str, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    assert _interrupted(at, "-m", *command.split(), cwd=tmp_path) == (130, "interrupted\n")


@pytest.mark.parametrize("command", [["-c", "import envsuite"], ["-m", "timeit", "-n1", "-r1", "import envsuite"]])
def test_in_other_programs_ctrl_c_stays_what_it_was(command: list[str], tmp_path: Path) -> None:
    status, said = _interrupted("envsuite.core.registration", *command, cwd=tmp_path)
    assert status != 130 and said.endswith("KeyboardInterrupt\n")
