import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from games import IDS, arguments, game
from transformers.utils import get_json_schema

from envsuite.core import ToolEnv
from envsuite.core.methods import as_method

if importlib.util.find_spec("trl") is None:
    pytest.skip("TRL is not installed: pip install 'envsuite[examples]'", allow_module_level=True)
Messages = list[dict[str, Any]]
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def conversations(env_id: str) -> tuple[list[Messages], Messages]:
    """The expert's game as a conversation, and the same given up after its first call; and the tools."""
    first, turns = game(env_id, one_call=True)
    messages: Messages = [{"role": "user", "content": f"{first['task']}\n\n{first['text']}"}]
    for turn in turns:
        (call,) = turn.action
        said = {"type": "function", "function": {"name": call.name, "arguments": dict(call.arguments)}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [said]})
        messages.append({"role": "tool", "name": call.name, "content": turn.observation["text"]})
    env = gymnasium.make(env_id, **arguments(env_id)).unwrapped
    assert isinstance(env, ToolEnv)
    named = sorted(env.tools, key=lambda tool: tool.name)  # TRL lists an object's methods by name
    tools = [get_json_schema(as_method(tool, lambda owner, call: "")) for tool in named]
    won = [*messages, {"role": "assistant", "content": "Done."}]
    given_up = [*messages[:3], {"role": "assistant", "content": "I give up."}]
    return [won, given_up], tools


@pytest.mark.slow
@pytest.mark.parametrize("env_id", IDS)
def test_grpo_trainer_takes_two_steps_on(env_id, tmp_path):
    from tiny_qwen import make
    from trl.chat_template_utils import qwen3_chat_template, qwen3_training_chat_template

    make(tmp_path / "model", qwen3_chat_template, qwen3_training_chat_template, *conversations(env_id))
    run = subprocess.run(
        [
            sys.executable,
            EXAMPLES / "trl_grpo.py",
            tmp_path / "model",
            "2",
            env_id,
            json.dumps(arguments(env_id)),
        ],
        cwd=tmp_path,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    state = json.loads((tmp_path / "runs" / "trl" / "checkpoint-2" / "trainer_state.json").read_text())
    steps = [entry for entry in state["log_history"] if "rewards/Episode/mean" in entry]
    assert [entry["step"] for entry in steps] == [1, 2]
    assert max(entry["tools/call_frequency"] for entry in steps) > 0, steps
    assert max(entry["rewards/Episode/mean"] for entry in steps) > 0, steps
    assert max(entry["grad_norm"] for entry in steps) > 0, steps
    assert not any(entry["completions/clipped_ratio"] for entry in steps), steps
