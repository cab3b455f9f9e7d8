"""Each architecture, packed, with shared prefixes and recomputed activations, against one sequence at a time."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from architectures import BY_ROWS, COMPUTED, WINDOW, architecture
from pretended_cuda import flash_on_cpu
from row_by_row import batch_logprobs, row_logprobs, same_gradients, taken_gradients
from tiny_runs import step_table

from trainers.policy.attention import checkpoint_activations
from trainers.policy.model import Policy
from trainers.policy.packing import micro_batches
from trainers.policy.rows import by_rows, rows_reason
from trainers.policy.selfcheck import check_backbone, check_policy
from trainers.policy.tree_plan import Tiles
from trainers.steps import StepTable

SIZE = 61
_MASK = Tiles.mask


def _table() -> StepTable:
    table = step_table(np.random.default_rng(3), SIZE)
    longest = max(len(table.prompt[row]) + len(table.response[row]) for row in range(len(table)))
    assert longest > 2 * WINDOW, "sequences go past the window"
    return table


@pytest.mark.parametrize("kernel", [nullcontext, flash_on_cpu], ids=["tiles", "flash"])
@pytest.mark.parametrize("share", [True, False], ids=["shared", "apart"])
@pytest.mark.parametrize("checkpointing", [True, False], ids=["recomputed", "kept"])
@pytest.mark.parametrize("name", [*COMPUTED, *BY_ROWS])
def test_log_probabilities_and_every_gradient_are_those_of_single_sequences(name, checkpointing, share, kernel):
    model, table = architecture(name, SIZE), _table()
    model.set_attn_implementation("eager")
    weight = torch.from_numpy(np.random.default_rng(4).normal(size=len(table.response.values))).float()
    expected = row_logprobs(model, table)
    (expected * weight).sum().backward()
    wanted = taken_gradients(model)
    if checkpointing:
        checkpoint_activations(model)
    policy = Policy(model)
    assert by_rows(policy) == (name in BY_ROWS)
    with kernel():
        found = batch_logprobs(policy.train(), table, weight, 120, share)
    assert float((found - expected.detach()).abs().max()) < 1e-5
    same_gradients(taken_gradients(model), wanted)


def test_checkpointing_computes_each_layer_again_in_the_backward_pass():
    model, calls = architecture("llama", SIZE), []
    model.base_model.layers[0].self_attn.register_forward_hook(lambda *_: calls.append(1))
    for recomputed in (0, 1):
        if recomputed:
            checkpoint_activations(model)
        policy = Policy(model).train()
        (batch, *_) = micro_batches(_table(), 10_000, True)
        calls.clear()
        policy(batch).logprob.sum().backward()
        assert len(calls) == 1 + recomputed


def test_a_wrong_window_is_noticed_though_the_sequences_of_the_check_are_shorter_than_it(monkeypatch):
    model = architecture("mistral", SIZE)
    model.config.sliding_window = 4096
    Policy(model)
    check_backbone(model.base_model)
    assert model.config.sliding_window == 4096
    monkeypatch.setattr(Tiles, "mask", _one_too_wide)
    for check, checked in ((check_policy, model), (check_backbone, model.base_model)):
        check(checked)
        assert "in a tree of tokens than in separate sequences (off by" in (rows_reason(checked) or "")


def _one_too_wide(self: Tiles, groups: int, dtype: torch.dtype, window: int | None) -> torch.Tensor:
    """Mask of a window that is one token wider than asked for."""
    return _MASK(self, groups, dtype, None if window is None else window + 1)


def test_the_model_is_left_with_its_own_attention_and_windows():
    model = architecture("gemma3", SIZE).train()
    before = model.config._attn_implementation
    Policy(model)
    assert model.config._attn_implementation == before and model.training
    assert [layer.self_attn.sliding_window for layer in model.model.layers] == [WINDOW, None]
