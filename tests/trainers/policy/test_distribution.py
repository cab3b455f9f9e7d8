"""Log-probabilities, entropies and gradients are those of the distribution that samples, whatever its temperature."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from policies import logprobs
from tiny_runs import model, step_table, write_settings

from envsuite.core.errors import UnknownName
from envsuite.playing.engine import Sampling
from trainers.policy.accumulation import log_probabilities
from trainers.policy.config import ModelConfig, OptimConfig
from trainers.policy.loading import load_model
from trainers.policy.model import Policy
from trainers.policy.statistics import token_stats
from trainers.report.metrics import read_metrics
from trainers.rollout.hf_engine import HFEngine
from trainers.steps import StepTable
from trainers.steps.parquet import read_episodes
from trainers.steps.table import Ragged
from trainers.train import main

SIZE = 61


def _sampled(policy: torch.nn.Module, temperature: float, seed: int) -> StepTable:
    """Steps whose responses and log-probabilities are the engine's."""
    table = step_table(np.random.default_rng(seed), SIZE, append=False)
    done = HFEngine(policy).generate(
        [prompt.tolist() for prompt in (table.prompt[row] for row in range(len(table)))],
        Sampling(temperature=temperature, max_tokens=6),
        seed=seed,
    )
    return replace(
        table,
        response=Ragged.of([c.token_ids for c in done], np.int64),
        logprob=Ragged.of([c.logprobs for c in done], np.float32),
    )


@given(temperature=st.floats(0.3, 2.0), seed=st.integers(0, 1000))
@examples(max_examples=10)
def test_engine_and_policy_give_the_tempered_log_probabilities(temperature, seed):
    policy = model("qwen2", SIZE)
    table = _sampled(policy, temperature, seed)
    naive = np.concatenate([
        logprobs(policy, table.prompt[row], table.response[row], temperature) for row in range(len(table))
    ])  # fmt: skip
    np.testing.assert_allclose(table.logprob.values, naive, atol=1e-5, rtol=1e-5)
    found = log_probabilities(Policy(policy, temperature=temperature), table, OptimConfig(tokens_per_microbatch=80))
    np.testing.assert_allclose(found, naive, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("format", [torch.float32, torch.bfloat16])
def test_statistics_and_their_gradients_hold_one_copy_of_the_logits(format):
    logits = torch.randn(5, 1000, generator=torch.Generator().manual_seed(0)).to(format).requires_grad_()
    saved: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        stats = token_stats(logits, torch.arange(5), 0.4)
    assert sum(saved) < 1.1 * logits.numel()
    rows = (logits.detach().float() / 0.4).log_softmax(-1)
    torch.testing.assert_close(stats.logprob, rows[torch.arange(5), torch.arange(5)])
    torch.testing.assert_close(stats.entropy, -(rows.exp() * rows).sum(-1))
    assert stats.logprob.dtype == stats.entropy.dtype == torch.float32


def test_a_run_at_temperature_0_4_stores_and_compares_tempered_log_probabilities(place):
    changes = {"rollout.sampling.temperature": 0.4, "iterations": 1, "optim.minibatches": 1, "evaluation.envs": []}
    changes["method"] = {"objective": {"kl": "k3", "kl_coef": 0.1}, "shapers": {"kl_penalty": {}}}
    assert main(["--config", str(write_settings(place, **changes))]) == 0
    policy = load_model(ModelConfig(path=str(place / "model")))
    steps = [
        step
        for episode in read_episodes(place / "runs/tiny/episodes/iteration-00001.parquet")
        for step in episode.steps
    ]
    stored = np.concatenate([step.response_logprobs for step in steps])
    tempered, plain = (
        np.concatenate([logprobs(policy, step.prompt_ids, step.response_ids, temperature) for step in steps])
        for temperature in (0.4, 1.0)
    )
    assert np.abs(stored - tempered).max() < 1e-4
    assert np.abs(stored - plain).mean() > 0.1, "the test can tell the two apart"
    record = next(record for record in read_metrics(place / "runs/tiny/metrics.jsonl") if "train/kl" in record)
    assert record["train/logprob_gap"] < 1e-5
    divergences = {key: value for key, value in record.items() if key.rpartition("/")[2] == "kl"}
    assert len(divergences) == 2 and max(divergences.values()) < 1e-5, "the reference is at the same temperature"


def test_only_evaluation_takes_a_cut_distribution(tmp_path):
    from trainers.run.cli import parse

    with pytest.raises(UnknownName, match="'top_p'"):
        parse(["--config", str(write_settings(tmp_path, **{"rollout.sampling.top_p": 0.9}))])
    config = parse(["--config", str(write_settings(tmp_path, **{"evaluation.sampling.top_p": 0.9}))]).config
    assert config.evaluation.sampling.top_p == 0.9
