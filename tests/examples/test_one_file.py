"""The page that a newcomer reads first runs, and what it computes is a gradient that helps."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "examples" / "one_file.py"


@pytest.mark.slow
def test_one_file_goes_from_an_environment_to_a_gradient():
    assert len(PAGE.read_text(encoding="utf-8").splitlines()) < 120
    run = subprocess.run(
        [sys.executable, str(PAGE), "2", "3"], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stderr
    lines = re.findall(
        r"iteration (\d)  success +([0-9.]+)%  steps (\d+)  tokens (\d+)  gradient ([0-9.]+)", run.stdout
    )
    assert [line[0] for line in lines] == ["1", "2"]
    assert any(float(gradient) > 0 for *_, gradient in lines), "the gradient is there"
