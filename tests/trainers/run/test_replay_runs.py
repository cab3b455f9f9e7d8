"""Self-imitation and refilled groups in a whole run, and in its update."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from even_tokens import EvenTokens
from folders import SUPPORT
from safetensors.numpy import load_file
from tiny_runs import BOTH, model, save_model, step_table, train, trained, without_times, write_settings

from trainers.policy.accumulation import Batch, log_probabilities
from trainers.policy.config import OptimConfig
from trainers.policy.loss import Objective
from trainers.policy.model import Policy
from trainers.policy.update import Updater
from trainers.train import main

assert EvenTokens  # importing it enters it
SPEAR: dict[str, Any] = {
    "recipe": "spear",
    "method": {
        # In place of SPEAR's own reward, in which the episodes of a random model do not differ.
        "shapers": {"even_tokens": {}, "spear": {"outcome": "environment"}},
        "replay": {"size": 3, "warmup": 2, "mask": 0.3},
    },
    "evaluation.every": 0,
    "iterations": 5,
}


def _settings(place: Path, **changes: Any) -> str:
    return str(write_settings(place, **{**SPEAR, **changes}))


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never stopped, in the folder ``runs/tiny``."""
    place = tmp_path_factory.mktemp("reference")
    save_model(place / "model")
    assert main(["--config", _settings(place)]) == 0
    return place


def test_the_buffer_fills_is_imitated_once_and_is_empty_again(reference):
    records = without_times(reference / "runs/tiny")[1:-1]
    updates = [record["replay/updates"] for record in records]
    assert 1.0 in updates and updates[0] == 0.0
    assert any(0.0 < record["replay/fill"] < 1.0 for record in records[:3]), "of a checkpoint of the stopped runs"
    for before, record in zip([None, *records], records, strict=False):
        stored = 0.0 if before is None else before["replay/stored"]
        assert record["replay/updates"] == float(stored >= 3), "when it was full before the iteration (Algorithm 1)"
        if record["replay/updates"]:
            assert record["replay/stored"] == record["replay/admitted"] == 0.0
            assert 0.0 < record["replay/recalibrated"] <= 1.0 and record["replay/advantage"] > 0.0
            assert record["replay/tokens"] > 0 and record["replay/age"] >= 1.0
            assert record["replay/masked"] <= record["replay/candidates"]
        else:
            assert record["replay/stored"] == stored + record["replay/admitted"]
            assert record["replay/fill"] == pytest.approx(record["replay/stored"] / 3)
    assert [record["replay/gamma"] for record in records] == pytest.approx([0.5, 1, 1, 1, 1])
    assert all(record["shape/mu"] > 0.99 for record in records)
    assert len({record["replay/cov_high"] for record in records}) == 1, "bounds are those of the first iteration"


@pytest.mark.slow
def test_two_processes_fill_one_buffer_and_resume_it(reference, tmp_path):
    script = str(SUPPORT / "even_tokens.py")
    config = _settings(reference, output=str(tmp_path / "runs"), checkpoint_every=1, keep_checkpoints=9)
    train("--config", config, program=(*BOTH, script), status=0)
    alone, both = without_times(reference / "runs/tiny"), without_times(tmp_path / "runs/tiny")
    assert [record["iteration"] for record in both] == [record["iteration"] for record in alone]
    told = [name for name in alone[1] if name.startswith(("replay/", "shape/"))]
    for name in told:
        assert both[1][name] == pytest.approx(alone[1][name], rel=1e-4), f"the same episodes at first: {name}"
    assert any(record["replay/updates"] == 1.0 for record in both[1:-1])
    for later in (tmp_path / "runs/tiny/checkpoints").glob("iteration-0000[2-5]"):
        later.rename(tmp_path / later.name)
    train("--config", config, "--resume", program=(*BOTH, script), status=0)
    assert without_times(tmp_path / "runs/tiny")[:3] == both[:3]
    resumed, whole = (
        load_file(folder / "iteration-00005/replay.safetensors")
        for folder in (tmp_path / "runs/tiny/checkpoints", tmp_path)
    )
    assert all(np.array_equal(resumed[name], whole[name], equal_nan=True) for name in whole)


@pytest.mark.slow
def test_groups_without_variance_are_replaced_until_the_rounds_are_used_up(place):
    method = {"filters": {"zero_variance": {"refill_rounds": 2}}}
    changes = {"recipe": "dapo", "method": method, "evaluation.every": 0, "iterations": 2}
    for record in trained(place, **changes)[1:-1]:
        assert record["filter/refill_rounds"] == 2.0, "a random model solves nothing"
        assert record["filter/refill_groups"] == 4.0 and record["filter/refill_lacking"] == 2.0
        assert record["train/groups"] == 6.0 and record["train/episodes"] == 18.0, "all that was played is measured"
        assert record["filter/zero_variance"] == 1.0 and record["filter/zero_variance_groups"] == 6.0
        assert record["train/steps"] == 0.0


def test_a_full_batch_needs_no_further_round(place):
    method = {"filters": {"zero_variance": {"refill_rounds": 3}}, "shapers": {"even_tokens": {}}}
    changes = {"recipe": "dapo", "method": method, "evaluation.every": 0, "iterations": 1, "rollout.group_size": 6}
    record = trained(place, **changes)[1]
    assert record["filter/refill_lacking"] == 0.0 and record["filter/refill_rounds"] < 3
    assert record["train/groups"] == 2.0 + record["filter/refill_groups"]


@pytest.mark.parametrize("per", ["step", "token"])
def test_divergence_from_the_start_is_charged_in_the_reward(place, per):
    recipe = "reinforce_pp" if per == "token" else "grpo"
    changes = {"recipe": recipe, "method": {"shapers": {"kl_penalty": {"coef": 1.0, "per": per}}}}
    changes |= {"evaluation.every": 0, "iterations": 2}
    first, second = trained(place, **changes)[1:-1]
    assert first["shape/kl"] == pytest.approx(0.0, abs=1e-5), "the first iteration is played by the reference"
    assert second["shape/kl"] > 1e-4 or second["shape/kl"] < -1e-4
    charged = second["train/return"] - second["train/shaped_return"]
    assert charged > 0.2 if per == "step" else charged >= 0.0


@pytest.mark.parametrize("old", ["auto", "engine"])
def test_in_bfloat16_the_policy_of_the_start_pays_nothing_for_rounding_but_with_the_engines(place, old):
    changes = {"recipe": "grpo", "method": {"shapers": {"kl_penalty": {"coef": 1.0, "estimator": "abs"}}}}
    changes |= {"evaluation.envs": [], "iterations": 1, "model.compute_dtype": "bfloat16", "optim.old_logprobs": old}
    (record,) = (line for line in trained(place, **changes) if "shape/kl" in line)
    assert record["shape/kl"] == 0.0 if old == "auto" else record["shape/kl"] > 1e-5


def _updater(policy: torch.nn.Module, objective: Objective, parts: int = 1) -> Updater:
    sgd = torch.optim.SGD(policy.parameters())
    optim = OptimConfig(lr=1.0, max_grad_norm=1e9, minibatches=parts, tokens_per_microbatch=64)
    return Updater(Accelerator(cpu=True), Policy(policy), sgd, optim, objective)


def test_an_update_with_replay_follows_the_sum_of_both_gradients():
    rng = np.random.default_rng(0)
    objective = Objective(aggregation="seq-mean-token-mean", clip_low=None, clip_high=None)
    own, old = (step_table(np.random.default_rng(seed), 61) for seed in (1, 2))
    first, second = (rng.normal(size=len(table.response.values)) for table in (own, old))
    policy = model("qwen2", 61)
    updater = _updater(policy, objective)
    factor = np.where(rng.random(len(second)) < 0.3, 0.0, 0.5)
    one, two = updater.gradient(own, first), updater.gradient(old, second * factor)
    before = {name: p.detach().clone() for name, p in updater.policy.named_parameters()}
    updated = updater.update(Batch(own, first), rng, Batch(old, second, factor))
    for name, p in updater.policy.named_parameters():
        torch.testing.assert_close(before[name] - p.detach(), one[name] + two[name], rtol=1e-4, atol=1e-6)
    assert updated.replay["tokens"] == len(old.response.values) and updated.train["tokens"] == len(own.response.values)


def test_replay_alone_takes_a_step_where_nothing_of_its_own_is_left():
    rng = np.random.default_rng(0)
    table = step_table(np.random.default_rng(3), 61)
    updater = _updater(model("qwen2", 61), Objective(), parts=2)
    none, ones = np.zeros(0), np.ones(len(table.response.values))
    updater.update(Batch(table.take(np.zeros(0, np.int64)), none), rng, Batch(table, ones))
    assert updater.steps == 2, "one for each minibatch"
    updater.update(Batch(table.take(np.zeros(0, np.int64)), none), rng)
    assert updater.steps == 2


def test_log_probabilities_are_those_of_the_policy_in_the_order_of_the_tokens():
    table = step_table(np.random.default_rng(4), 61)
    policy = model("qwen2", 61)
    found = log_probabilities(Policy(policy), table, OptimConfig(tokens_per_microbatch=50))
    for row in range(len(table)):
        prompt, response = table.prompt[row], table.response[row]
        if len(response):
            with torch.no_grad():
                logits = policy(torch.tensor([[*prompt, *response]])).logits[0].log_softmax(-1)
            want = logits[torch.arange(len(prompt) - 1, len(prompt) + len(response) - 1), torch.tensor(response)]
            own = found[table.response.offsets[row] : table.response.offsets[row + 1]]
            np.testing.assert_allclose(own, want.double().numpy(), atol=1e-4)
