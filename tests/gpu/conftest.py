"""Tests that need CUDA: ``python -m pytest tests/gpu``. With ``--rehearse`` what a CPU can compute runs on the CPU.

A rehearsal shows that a test itself holds together; it says nothing about GPUs.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
_SKIPPED: dict[str, int] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rehearse", action="store_true", help="tests/gpu on the CPU, without what a CPU cannot compute")


def _rehearses(config: pytest.Config) -> bool:
    return bool(config.getoption("--rehearse", default=False))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "cuda_only: cannot be rehearsed on a CPU")
    config.addinivalue_line("markers", "gpus(count): needs so many GPUs")
    if _rehearses(config):
        os.environ["ACCELERATE_USE_CPU"] = "true"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for item in items:
        if HERE not in item.path.parents:
            continue
        needed = item.get_closest_marker("gpus")
        if _rehearses(config):
            reason = "a rehearsal on the CPU leaves out what needs CUDA" if item.get_closest_marker("cuda_only") else ""
        elif not count:
            reason = "torch finds no CUDA here"
        else:
            reason = f"needs {needed.args[0]} GPUs, and there is 1" if needed and count < needed.args[0] else ""
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and "tests/gpu" in report.nodeid.replace("\\", "/") and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        _SKIPPED[reason] = _SKIPPED.get(reason, 0) + 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says why tests were skipped, which pytest by itself does with -rs only."""
    for reason, count in _SKIPPED.items():
        terminalreporter.write_line(f"tests/gpu: {count} skipped: {reason}")


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> torch.device:
    """The first GPU; in a rehearsal the CPU."""
    return torch.device("cpu" if _rehearses(request.config) else "cuda:0")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a tiny model in ``model``."""
    from tiny_runs import save_model

    save_model(tmp_path / "model")
    return tmp_path
