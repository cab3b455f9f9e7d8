import importlib.util
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from answering import answering
from games import IDS, arguments, game

from envsuite.prompting import TagsCodec

if importlib.util.find_spec("verifiers") is None:
    pytest.skip("verifiers is not installed: pip install 'envsuite[examples]'", allow_module_level=True)
HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"


@contextmanager
def model(replies: list[str]) -> Iterator[tuple[str, list[Any]]]:
    """An OpenAI-compatible endpoint that gives ``replies`` one after the other; its address, and what it was asked."""
    asked: list[Any] = []

    def answer(method: str, path: str, body: Any) -> tuple[int, object]:
        asked.append(body["messages"])
        said = sum(message["role"] == "assistant" for message in asked[-1])
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": replies[said]}}
        return 200, {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}

    with answering(answer) as url:
        yield f"{url}/v1", asked


@pytest.mark.slow
@pytest.mark.parametrize("env_id", IDS)
def test_verifiers_plays_to_the_end_and_records_the_reward_of(env_id, tmp_path):
    _, turns = game(env_id)
    replies = ["Hello!", *(TagsCodec().write(turn.action, "I know this one.") for turn in turns)]
    with model(replies) as (url, asked):
        options = {
            "--model": "m",
            "--client.base-url": url,
            "--client.api-key-var": "KEY",
            "--env.taskset.game": env_id,
            "--env.taskset.split": "train",
            "--env.taskset.kwargs": json.dumps(arguments(env_id)),
            "--env.agent.harness.id": "one_call",
            "--env.agent.runtime.type": "subprocess",
        }
        command = [Path(sys.executable).parent / "vf-eval", "verifiers_env", "--no-push", "--no-rich"]
        run = subprocess.run(
            [*command, *itertools.chain(*options.items())],
            cwd=tmp_path,
            env={**os.environ, "KEY": "x", "PYTHONPATH": os.pathsep.join(map(str, (EXAMPLES, HERE, HERE.parents[1])))},
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert run.returncode == 0, run.stderr[-3000:]
    assert len(asked) == len(replies)
    assert asked[1][-1]["content"].startswith("no <action>")
    (traces,) = tmp_path.glob("outputs/**/traces.jsonl")
    (trace,) = json.loads(traces.read_text())["traces"]
    assert trace["ok"] and trace["rewards"]["reward"]["score"] == sum(turn.reward for turn in turns)
    assert trace["metrics"] == {"success": 1.0, "score": turns[-1].info["score"]}
