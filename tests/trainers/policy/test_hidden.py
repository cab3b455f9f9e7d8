"""Hidden states read from packed sequences against those of each prompt by itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_runs import model, step_table

from trainers.credit.providers import late_layer
from trainers.policy.hidden import Fingerprint, at_prompt_ends
from trainers.steps import StepTable
from trainers.steps.table import Ragged

SIZE = 61
ALL = [Fingerprint(layer, pooling) for layer in (-1, -2) for pooling in ("last", "mean")]


def _alone(policy: torch.nn.Module, text: np.ndarray, fingerprint: Fingerprint) -> np.ndarray:
    with torch.no_grad():
        states = policy(torch.from_numpy(text)[None], output_hidden_states=True).hidden_states[fingerprint.layer][0]
    return (states[-1] if fingerprint.pooling == "last" else states.mean(0)).numpy()


def _with_empty_responses(table: StepTable) -> StepTable:
    kept = np.arange(len(table)) % 3 != 0
    rows = [table.response[row] if kept[row] else table.response[row][:0] for row in range(len(table))]
    return replace(
        table, response=Ragged.of(rows, np.int64), logprob=Ragged.of([[-1.0] * len(row) for row in rows], np.float32)
    )


@pytest.mark.parametrize("name", ["qwen2", "gpt2"])
@pytest.mark.parametrize("append", [True, False])
def test_a_prompt_has_the_hidden_states_that_it_has_by_itself(name, append):
    policy = model(name, SIZE)
    table = _with_empty_responses(step_table(np.random.default_rng(5), SIZE, append=append))
    found = at_prompt_ends(policy, table, ALL, budget=60)
    for fingerprint, states in zip(ALL, found, strict=True):
        expected = np.stack([_alone(policy, table.prompt[row], fingerprint) for row in range(len(table))])
        np.testing.assert_allclose(states, expected, rtol=1e-4, atol=1e-5)


def test_a_table_without_rows_has_no_states():
    empty = step_table(np.random.default_rng(0), SIZE).take(np.zeros(0, np.int64))
    (states,) = at_prompt_ends(model("qwen2", SIZE), empty, [Fingerprint()], budget=50)
    assert states.shape == (0, 32)


@pytest.mark.parametrize(("layers", "layer"), [(28, -8), (36, -10), (4, -1), (1, -1)])
def test_the_default_layer_is_that_of_the_paper_scaled_to_the_depth(layers, layer):
    assert late_layer(layers) == layer
