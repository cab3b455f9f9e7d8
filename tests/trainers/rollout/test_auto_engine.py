"""``rollout.engine: auto``: vllm on a GPU where it starts, hf elsewhere."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tiny_runs import BOTH, save_model, tokenizer, train, write_settings
from transformers import PreTrainedModel

from envsuite.core.errors import UnknownName
from trainers.planning.program import PLAN
from trainers.policy.config import ModelConfig
from trainers.rollout.config import RolloutConfig
from trainers.rollout.engine import Engine, EngineSetup
from trainers.rollout.engines import start_engine
from trainers.rollout.hf_engine import HFEngine
from trainers.rollout.vllm.engine import VLLMEngine
from trainers.run.cli import parse
from trainers.settings import ConfigError


class OnGPU(EngineSetup):
    """Says that the policy will be on a GPU."""

    @property
    def device(self) -> torch.device:
        """The device."""
        return torch.device("cuda", 0)


def _started(
    policy: PreTrainedModel, options: dict[str, Any], kind: type[EngineSetup] = OnGPU
) -> tuple[RolloutConfig, Engine, list[str]]:
    """What ``auto`` makes of its options, the engine that it starts, and what it says."""
    told: list[str] = []
    setup = kind(policy, tokenizer(), ModelConfig(), 4)
    return *start_engine(RolloutConfig(engine="auto", engine_options=options), setup, told.append), told


def test_on_a_cpu_auto_is_hf_and_says_so_in_a_line(policy):
    rollout, engine, told = _started(policy, {"arguments": {"max-model-len": 512}}, EngineSetup)
    assert isinstance(engine, HFEngine) and (rollout.engine, rollout.engine_options) == ("hf", {})
    assert told == ["rollout.engine auto: hf, not vllm: there is no CUDA, the device is cpu"]


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
def test_on_a_gpu_where_vllm_does_not_start_auto_is_hf_with_the_reason(policy, monkeypatch):
    monkeypatch.delenv("ENVSUITE_VLLM_PYTHON", raising=False)
    rollout, engine, (told,) = _started(policy, {})
    assert isinstance(engine, HFEngine) and rollout.engine == "hf" and "\n" not in told
    assert told.startswith("rollout.engine auto: hf, not vllm: ") and "has no vLLM" in told


def test_on_a_gpu_where_vllm_answers_auto_is_vllm_with_its_options(policy, server, tmp_path):
    options = {"urls": server.url, "weights_folder": str(tmp_path)}
    rollout, engine, told = _started(policy, options)
    assert isinstance(engine, VLLMEngine) and (rollout.engine, rollout.engine_options) == ("vllm", options)
    assert told == ["rollout.engine auto: vllm"]
    engine.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "first", "second"),
    [
        ("none", "vllm", "vllm"),
        ("memory", r"hf, not vllm: .*ended: the GPU has too little memory", "hf, not vllm: the GPU has too little"),
        (
            "start",
            r"hf, not vllm: .*ended: vLLM in this process: it does not start: OutOf",
            "hf, not vllm: vLLM in this",
        ),
    ],
)
def test_where_vllm_fails_in_one_process_all_of_them_answer(moment, first, second):
    """A stand-in takes vLLM's place, which waits for all processes as it starts."""
    done = train(moment, program=(*BOTH, str(Path(__file__).parents[2] / "support/auto_ranks.py")), timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    for rank, said in enumerate((first, second)):
        assert re.search(rf"rank {rank}: rollout\.engine auto: {said}", done.stdout), done.stdout


def test_options_of_auto_are_those_of_vllm():
    with pytest.raises(UnknownName, match=r"rollout.engine_options: unknown setting 'cache_tokens'"):
        parse(["--rollout.engine", "auto", "--rollout.engine_options", "{cache_tokens: 4}"])


def test_a_plan_for_another_machine_wants_the_name():
    with pytest.raises(ConfigError, match=r"decided on the machine that trains; add --rollout\.engine vllm or hf"):
        parse(["--rollout.engine", "auto"], PLAN)


@pytest.mark.slow
def test_a_run_writes_down_the_engine_that_it_has_and_keeps_it_when_it_goes_on(tmp_path):
    from trainers.train import main

    save_model(tmp_path / "model", "llama")
    config = write_settings(tmp_path, **{"rollout.engine": "hf", "rollout.engine_options": {"max_length": 400}})
    assert main(["--config", str(config), "--iterations", "1"]) == 0
    auto = ["--config", str(config), "--rollout.engine", "auto", "--rollout.engine_options", "{}"]
    assert main([*auto, "--iterations", "2", "--resume"]) == 0
    rollout = yaml.safe_load((tmp_path / "runs/tiny/config.yaml").read_text())["rollout"]
    assert (rollout["engine"], rollout["engine_options"]) == ("hf", {"max_length": 400})
    assert main([*auto, "--iterations", "1", "--name", "new"]) == 0
    assert yaml.safe_load((tmp_path / "runs/new/config.yaml").read_text())["rollout"]["engine"] == "hf"
