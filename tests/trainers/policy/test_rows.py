"""Row by row: a model gives what it gives in a tree of tokens, or one sequence at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from row_by_row import same_gradients, taken_gradients
from tiny_runs import BOTH, in_float64, model, save_model, step_table, train, trained, without_times, write_settings
from transformers import AutoConfig, BertLMHeadModel, Lfm2ForCausalLM, PreTrainedModel
from transformers.models.lfm2 import modeling_lfm2

from benchmarks.families import some_tree
from envsuite.core.errors import DataError
from trainers.credit.critic import ValueModel
from trainers.policy import attention, rows
from trainers.policy.attention import unsupported_reason
from trainers.policy.hidden import Fingerprint, at_prompt_ends
from trainers.policy.model import Policy
from trainers.policy.packing import distinct_tokens, micro_batches
from trainers.policy.rows import padded_rows, rows_reason, use_rows
from trainers.steps import StepTable
from trainers.train import main

SIZE = 61


def _both(name: str = "llama") -> tuple[PreTrainedModel, PreTrainedModel]:
    """Equal models in float64, the second by rows."""
    one, other = (in_float64(model(name, SIZE)) for _ in range(2))
    use_rows(other, "a test")
    return one, other


def _table() -> StepTable:
    return step_table(np.random.default_rng(3), SIZE)


@pytest.mark.parametrize("output", ["known", "unknown"])
def test_rows_have_the_statistics_and_gradients_of_a_tree(output):
    tree, _ = some_tree()
    weight = torch.from_numpy(np.random.default_rng(4).normal(size=(2, len(tree.index))))
    found = []
    for one in _both():
        policy = Policy(one).train()
        if output == "unknown":
            policy.output = None
        stats = policy(tree)
        (weight[0] * stats.logprob + weight[1] * stats.entropy).sum().backward()
        found.append((stats, taken_gradients(policy)))
    assert found[0][0].logprob.dtype == torch.float64
    torch.testing.assert_close(found[1][0].logprob, found[0][0].logprob, rtol=0, atol=1e-10)
    torch.testing.assert_close(found[1][0].entropy, found[0][0].entropy, rtol=0, atol=1e-10)
    same_gradients(found[1][1], found[0][1], 1e-10)


def test_values_and_their_gradients_are_those_of_a_tree():
    tree, _ = some_tree()
    found = []
    for one in _both():
        critic = ValueModel(one.base_model).double().train()
        if rows_reason(one):
            use_rows(one.base_model, "a test")
        with torch.no_grad():
            critic.value.weight.copy_(torch.linspace(-1, 1, 32, dtype=torch.float64)[None])
        critic.value.double().float()
        values = critic(tree)
        values.square().sum().backward()
        found.append((values.detach(), taken_gradients(critic)))
    torch.testing.assert_close(found[1][0], found[0][0], rtol=0, atol=1e-6)
    same_gradients(found[1][1], found[0][1], 1e-6)  # the last layer is float32


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("layer", [-1, -2])
def test_hidden_states_are_those_of_a_tree(layer, pooling):
    asked = [Fingerprint(layer, pooling)]
    one, other = (at_prompt_ends(m, _table(), asked, budget=60)[0] for m in _both())
    np.testing.assert_allclose(other, one, rtol=0, atol=1e-6)  # they are float32


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("budget", [25, 90, 10_000])
def test_micro_batches_of_rows_have_each_target_once_and_are_no_larger_with_padding(budget, share):
    table = _table()
    trees = list(micro_batches(table, budget, share, rows=True))
    assert sorted(np.concatenate([tree.index for tree in trees])) == list(range(len(table.response.values)))
    for tree in trees:
        rows, token = padded_rows(tree)
        assert rows.size <= budget or len(rows) == 1
        assert len(set(token.tolist())) == len(tree), "no token is in two rows"
        np.testing.assert_array_equal(rows.ravel()[token], np.arange(len(tree)))
    computed = sum(map(len, trees))
    apart = sum(map(len, micro_batches(table, 10_000, False)))
    assert distinct_tokens(table) < computed, "what branches have in common is computed in each"
    assert computed < apart if share else computed == apart, "what goes on from all of a sequence is one row with it"


def test_no_rows_are_no_micro_batch():
    empty = _table().take(np.zeros(0, np.int64))
    assert list(micro_batches(empty, 100, True, rows=True)) == [] and distinct_tokens(empty) == 0


def test_a_model_whose_tokens_see_later_ones_is_refused_by_name():
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48}
    one = BertLMHeadModel(AutoConfig.for_model("bert", vocab_size=SIZE, initializer_range=0.3, **shape)).train(False)
    with pytest.raises(DataError, match=r"^BertLMHeadModel computes something else in padded rows .* see later ones"):
        Policy(one)


def test_a_convolution_is_told_by_what_it_is_and_where_it_leaks_little_by_its_values(monkeypatch):
    config = AutoConfig.for_model(
        "lfm2", vocab_size=SIZE, hidden_size=32, num_hidden_layers=2, layer_types=["conv", "full_attention"],
        num_attention_heads=4, num_key_value_heads=2, intermediate_size=48, pad_token_id=None,
    )  # fmt: skip
    own = modeling_lfm2.causal_conv1d_fn
    monkeypatch.setattr(modeling_lfm2, "causal_conv1d_fn", own.__wrapped__ if hasattr(own, "in_tree") else own)
    monkeypatch.setattr(attention, "follow_trees", lambda _: False)
    for told in (unsupported_reason, lambda _: None):
        monkeypatch.setattr(rows, "unsupported_reason", told)
        torch.manual_seed(0)
        one = Lfm2ForCausalLM(config).train(False)
        Policy(one)
        found = "short test" if told is not unsupported_reason else "(conv, full_attention)"
        assert found in (rows_reason(one) or "")


@pytest.mark.seconds
@pytest.mark.parametrize("name", ["mamba", "lfm2"])
def test_a_model_trains_row_by_row_or_in_a_tree_and_the_run_says_so_and_what_it_costs(name, tmp_path):
    save_model(tmp_path / "model", name)
    by_row = name == "mamba"
    changes = {"iterations": 2, "method": {"critic": {"kind": "model", "lr": 0.01}}}
    lines = [line for line in trained(tmp_path, recipe="ppo", **changes) if "train/loss" in line]
    log = (tmp_path / "runs/tiny/run.log").read_text()
    assert log.count("is trained row by row, not in a tree of tokens: its layers have conv") == by_row
    assert log.count("row by row, the update computed") == by_row
    assert ("row by row" in log) == ("samples with transformers' cache" in log) == by_row
    assert len(lines) == 2 and all(line.get("train/row_cost", 0.0) > 1.0 for line in lines) == by_row
    assert by_row or not any("train/row_cost" in line for line in lines)
    assert all(line["train/logprob_gap"] < 1e-5 for line in lines), "engine and trainer agree"


@pytest.mark.seconds
def test_by_the_setting_a_model_learns_the_same_row_by_row(place):
    tree, apart = (
        [line for line in without_times(_run(place, way)) if "train/loss" in line] for way in ("auto", "always")
    )
    assert len(tree) == len(apart) == 2
    assert all("train/row_cost" in line for line in apart) and not any("train/row_cost" in line for line in tree)
    for one, other in zip(tree, apart, strict=True):
        assert one["train/success"] == other["train/success"] and one["train/tokens"] == other["train/tokens"]
        assert other["train/grad_norm"] == pytest.approx(one["train/grad_norm"], rel=1e-3)


def _run(place: Path, way: str) -> Path:
    """A run of two iterations whose model is computed that way."""
    changes = {"iterations": 2, "output": str(place / way), "model": {"path": str(place / "model"), "rows": way}}
    assert main(["--config", str(write_settings(place, **changes))]) == 0
    return place / way / "tiny"


@pytest.mark.slow
@pytest.mark.parametrize("shard", ["none", "full"])
@pytest.mark.parametrize("name", ["mamba", "lfm2"])
def test_two_processes_train_a_hybrid_whole_or_sharded(tmp_path, name, shard):
    save_model(tmp_path / "model", name)
    config = write_settings(tmp_path, iterations=2, **{"model.shard": shard})
    run = train("--config", str(config), program=(*BOTH, "-m", "trainers.train"), timeout=300)
    assert run.returncode == 0, run.stderr
    assert ("trained row by row" in (tmp_path / "runs/tiny/run.log").read_text()) == (name == "mamba")
    gaps = [line["train/logprob_gap"] for line in without_times(tmp_path / "runs/tiny") if "train/loss" in line]
    assert len(gaps) == 2 and max(gaps) < 1e-5
