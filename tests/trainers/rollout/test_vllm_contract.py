"""The installed vLLM has what the engine vllm uses of it; ``vllm_contract.py`` looks, in the interpreter that has it.

``ENVSUITE_VLLM_PYTHON`` names that interpreter; docs/engine.md says how to make one.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from policies import wide_llama

from envsuite.playing.engine import Sampling
from trainers.policy.adapter import add_adapter
from trainers.policy.config import AdapterConfig
from trainers.rollout.vllm import connection
from trainers.rollout.vllm.completions import settings_of
from trainers.rollout.vllm.proof import VLLM_RANKS
from trainers.rollout.vllm.starting import EXTENSION_FOLDER, arguments_for

PYTHON = os.environ.get("ENVSUITE_VLLM_PYTHON") or (sys.executable if importlib.util.find_spec("vllm") else None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        PYTHON is None, reason="no vLLM here, and ENVSUITE_VLLM_PYTHON names no interpreter that has one"
    ),
]
STARTED = [
    "--model", "m", "--host", "127.0.0.1", "--port", "1", "--disable-uvicorn-access-log", "--disable-log-stats",
    "--distributed-executor-backend", "external_launcher", "--kv-cache-memory-bytes", "1",
]  # fmt: skip
VARIABLES = [
    "VLLM_SERVER_DEV_MODE", "VLLM_ALLOW_RUNTIME_LORA_UPDATING", "VLLM_NO_USAGE_STATS", "VLLM_ENABLE_V1_MULTIPROCESSING",
    "VLLM_LOGGING_LEVEL", "VLLM_CPU_KVCACHE_SPACE", "VLLM_API_KEY",
]  # fmt: skip


@cache
def _missing() -> dict[str, list[str]]:
    """By kind, what the installed vLLM lacks."""
    policy = wide_llama(tied=True)
    add_adapter(policy, AdapterConfig(rank=4), "base")
    words = arguments_for(policy, "bfloat16", on_cpu=True, memory=0.5, arguments={"enable-sleep-mode": True})
    paths = {*re.findall(r'f?"(/[a-z_]\w+(?:/\w+)*(?:\?[^"]*)?)"', Path(connection.__file__ or "").read_text())}
    facts = {
        "arguments": [*words, *STARTED],
        "sampling": settings_of(Sampling(), 1),
        "routes": sorted(paths),
        "ranks": [*VLLM_RANKS],
        "variables": VARIABLES,
    }
    assert PYTHON is not None and {"/wake_up?tags={what}", "/collective_rpc"} <= paths
    run = subprocess.run(
        [PYTHON, str(Path(__file__).parents[2] / "support/vllm_contract.py")], input=json.dumps(facts),
        capture_output=True, text=True, timeout=600, check=False,
        env={**os.environ, "PYTHONPATH": str(EXTENSION_FOLDER)},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-4000:]
    found: dict[str, list[str]] = json.loads(run.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("kind", ["imports", "attributes", "arguments", "sampling", "routes", "constants"])
def test_the_installed_vllm_has_what_the_engine_uses(kind):
    assert not _missing()[kind]
