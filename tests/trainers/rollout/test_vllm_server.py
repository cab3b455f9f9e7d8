"""The engine vllm with vLLM itself, on a CPU.

``ENVSUITE_VLLM_PYTHON`` names an interpreter that has it; docs/engine.md says how to make one.
"""

from __future__ import annotations

import copy
import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import policies
import pytest
import torch
from policies import PROMPTS, change, logprobs, wide_llama
from tiny_runs import tokenizer, write_settings
from transformers import PreTrainedModel

from envsuite.playing.engine import EngineFailed, Request, Sampling
from trainers.policy.adapter import adapter_tensors, add_adapter, merged_weights
from trainers.policy.config import AdapterConfig, ModelConfig
from trainers.rollout.engine import EngineSetup
from trainers.rollout.vllm import files
from trainers.rollout.vllm.child import ChildServer
from trainers.rollout.vllm.engine import VLLMEngine
from trainers.train import main

PYTHON = os.environ.get("ENVSUITE_VLLM_PYTHON")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PYTHON is None, reason="ENVSUITE_VLLM_PYTHON names no interpreter with vLLM"),
]


def _setup(policy: PreTrainedModel, **settings: Any) -> EngineSetup:
    return EngineSetup(policy, tokenizer(), ModelConfig(**settings), 16)


@pytest.fixture(scope="module", params=["tied", "untied"])
def engine(request: pytest.FixtureRequest) -> Iterator[VLLMEngine]:
    """With a server of its own; its policy is ``engine.setup.model``."""
    setup = _setup(wide_llama(request.param == "tied"))
    made = VLLMEngine.from_setup(setup, python=PYTHON)
    yield made
    made.close()


@pytest.fixture
def policy(engine: VLLMEngine) -> PreTrainedModel:
    """The trainer's model, changed since the last update of the server."""
    found = engine._update.setup.model
    change(found, by=0.01)
    return found


@pytest.mark.parametrize("temperature", [1.0, 0.4])
def test_logprobs_are_the_trainers_after_an_update(engine, policy, temperature):
    engine.sync(policy.named_parameters(), 5)
    policies.check_sampled(engine, policy, temperature, 5)


def test_more_prompt_tokens_than_one_pass_takes_come_through(engine, policy):
    engine.sync(policy.named_parameters(), 1)
    prompts = [np.random.default_rng(i).integers(4, 500, 490).tolist() for i in range(20)]  # 9,800 tokens
    answers = engine.generate(prompts, Sampling(max_tokens=4, ignore_eos=True), seed=2)
    for prompt, answer in zip(prompts, answers, strict=True):
        np.testing.assert_allclose(answer.logprobs, logprobs(policy, prompt, answer.token_ids.tolist(), 1.0), atol=3e-4)


def test_a_request_in_flight_goes_on_under_new_weights_with_the_version_of_each_token(engine, policy):
    engine.sync(policy.named_parameters(), 1)
    before = copy.deepcopy(policy)
    policies.ask_all(engine)
    assert engine.poll(0.5) == []
    change(policy, by=0.01)
    engine.sync(policy.named_parameters(), 2)
    policies.check_update_in_flight(engine, before, policy)


def test_an_adapter_goes_alone_and_is_proven_like_all_weights(monkeypatch):
    policy = wide_llama(tied=True)
    add_adapter(policy, AdapterConfig(rank=4, alpha=12), "base")
    write, whole, sent = files.write_adapter, files.write_weights, []
    with closing(VLLMEngine.from_setup(_setup(policy), python=PYTHON)) as engine:
        monkeypatch.setattr(files, "write_weights", lambda *given: sent.append(1) or whole(*given))
        engine.sync(merged_weights(policy), 0)
        for version in (1, 2):
            with torch.no_grad():
                for tensor in adapter_tensors(policy).values():
                    tensor.add_(torch.randn(tensor.shape) * 0.1)
            engine.sync(merged_weights(policy), version)
            policies.check_adapter(engine, policy)
        assert len(sent) == 1, "what is below the adapter is sent once"
        monkeypatch.setattr(files, "write_adapter", policies.corrupting(write))
        with pytest.raises(EngineFailed, match=r"not the trainer's in layers\.1: they are stale"):
            engine.sync(merged_weights(policy), 3)


def test_weights_that_stay_behind_stop_a_whole_run_with_a_checkpoint(tmp_path, monkeypatch, capfd):
    write, written = files.write_weights, list[Any]()

    def stale(weights: Any, folder: Path, dtype: torch.dtype) -> dict[str, int]:
        written.append([(name, tensor.detach().clone()) for name, tensor in weights])
        fingerprints = write(written[-1], folder, dtype)
        write(written[0], folder, dtype)
        return fingerprints

    monkeypatch.setattr(files, "write_weights", stale)
    options = {"python": PYTHON}
    changes: dict[str, Any] = {"model.path": "trainers/models/craft-1m", "rollout.engine": "vllm"}
    config = write_settings(tmp_path, **changes, **{"rollout.engine_options": options, "evaluation.envs": []})
    assert main(["--config", str(config)]) == 1
    said = capfd.readouterr().err
    assert "its weights are not the trainer's in" in said and "Go on with --resume" in said
    assert (tmp_path / "runs/tiny/checkpoints/iteration-00001").is_dir()


PACKED = """
import vllm.model_executor.layers.utils as layers
packed = layers.dispatch_cpu_unquantized_gemm
from envsuite_worker import TakesWeights
layers.dispatch_cpu_unquantized_gemm = packed
"""


def test_packed_copies_that_an_update_does_not_reach_stop_the_run(tmp_path, monkeypatch):
    (tmp_path / "packed_worker.py").write_text(PACKED)
    monkeypatch.chdir(tmp_path)  # python -m imports from here
    policy = wide_llama(tied=True)
    arguments = {"worker-extension-cls": "packed_worker.TakesWeights"}
    with closing(VLLMEngine.from_setup(_setup(policy), python=PYTHON, arguments=arguments)) as engine:
        change(policy, by=0.01)
        with pytest.raises(EngineFailed, match=r"not the trainer's in|log-probabilities of a probe differ"):
            engine.sync(policy.named_parameters(), 1)


def test_bfloat16_differs_by_no_more_than_its_tolerance_and_a_killed_server_ends_the_run():
    policy = wide_llama(tied=True)
    with closing(VLLMEngine.from_setup(_setup(policy, compute_dtype="bfloat16"), python=PYTHON)) as engine:
        change(policy, by=0.01)
        engine.sync(policy.named_parameters(), 1)
        answers = engine.generate(PROMPTS, Sampling(max_tokens=40, ignore_eos=True), seed=1)
        own = [logprobs(policy, p, a.token_ids.tolist(), 1.0) for p, a in zip(PROMPTS, answers, strict=True)]
        gaps = np.abs(np.concatenate(own) - np.concatenate([a.logprobs for a in answers]))
        assert 1e-5 < gaps.mean() < 0.2  # random weights make sharper predictions than trained ones
        (server,) = engine._hosts
        assert isinstance(server, ChildServer)
        engine.submit([Request(0, [5, 6], Sampling(max_tokens=400, ignore_eos=True))])
        os.killpg(server._process.pid, signal.SIGKILL)
        began = time.monotonic()
        with pytest.raises(EngineFailed, match=r"it was killed by SIGKILL\nThe end of"):
            engine.poll()
        assert time.monotonic() - began < 10


def test_the_longest_sequence_is_what_the_memory_of_a_server_holds():
    setup, memory = _setup(wide_llama(tied=True)), {"kv-cache-memory-bytes": 1 << 19}
    with closing(VLLMEngine.from_setup(setup, python=PYTHON, arguments=memory)) as engine:
        assert 16 < engine.max_length < 512, "the model's is 512"
        engine.sync(setup.model.named_parameters(), 1)
        short, long = engine.generate([[5, 6], [5] * 400], Sampling(max_tokens=4, ignore_eos=True), seed=1)
        assert (short.finish_reason, long.finish_reason) == ("length", "context")


def test_a_server_that_does_not_start_says_why():
    setup = _setup(wide_llama(tied=True))
    with pytest.raises(EngineFailed, match=r"did not start: it exited with code \d+\n(.|\n)*no-such-option"):
        VLLMEngine.from_setup(setup, python=PYTHON, arguments={"no-such-option": 1})
