"""``envsuite eval run`` with a real endpoint: ``transformers serve`` with SmolLM2-135M-Instruct, on a CPU.

``ENVSUITE_SERVE_PYTHON`` names an interpreter with ``transformers[serving]``; docs/evaluation.md says how to make one.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from evaluating import command, said
from smollm2_server import Server, folder_with_tools

from envsuite.core.errors import MissingExtra
from envsuite.evaluation.groups import load_groups
from envsuite.evaluation.results import EpisodeResult, read_results
from envsuite.evaluation.tables import TableRow, make_rows

PYTHON = os.environ.get("ENVSUITE_SERVE_PYTHON")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PYTHON is None, reason="ENVSUITE_SERVE_PYTHON names no interpreter with transformers[serving]"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    try:
        folder = folder_with_tools(tmp_path_factory.mktemp("model"))
    except MissingExtra as missing:
        pytest.skip(str(missing))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with Server(str(PYTHON), folder, port) as made:
        yield made


def _results(folder: Path) -> dict[tuple[str, str, int], EpisodeResult]:
    """Results by policy, task and seed, without durations."""
    return {(r.conditions.policy, *r.key): replace(r, seconds=0.0) for r in read_results(folder)}


def _table(folder: Path) -> list[TableRow]:
    """The rows of the table, without durations."""
    return [replace(row, seconds=None) for row in make_rows(load_groups([folder]))]


def _lines(folder: Path) -> int:
    return sum(file.read_bytes().count(b"\n") for file in folder.glob("*.jsonl"))


def test_killed_evaluation_and_killed_server_end_with_the_results_of_an_undisturbed_run(server, tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    words = [
        "PythonMath-v0", "--policy", "endpoint", "--url", server.url, "--model", server.words[4], "--name", "SmolLM2",
        "--baseline", "direct", "--baseline", "reflexion", "--trials", 2, "--tools", "native", "--tools", "tags",
        "--temperature", 0, "--sample", 2, "--steps", 1, "--max-tokens", 16, "--memory", "window(0)",
        "--concurrency", 1,
    ]  # fmt: skip
    out, _ = said(command(*words, "--out", whole), 0)
    assert "SmolLM2, reflexion, native" in out and len(_results(whole)) == 8

    process = command(*words, "--out", cut)
    while _lines(cut) < 1:
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    before = _lines(cut)
    process = command(*words, "--out", cut)
    while _lines(cut) < before + 2:
        assert process.poll() is None
        time.sleep(0.05)
    server.kill()
    server.start()
    said(process, 0)
    assert _results(cut) == _results(whole) and _lines(cut) == 8
    assert _table(cut) == _table(whole)
    assert all(result.prompt_tokens and result.answer_tokens for result in _results(cut).values())
