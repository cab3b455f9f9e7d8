"""What an update says of itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from test_update import flat, make, rng, some

from trainers.policy.accumulation import Batch
from trainers.policy.hidden import with_some_response
from trainers.policy.loss import Objective
from trainers.steps import Ragged


def test_staleness_is_the_mean_number_of_steps_since_a_token_was_sampled() -> None:
    batch, updater = some(), make(Objective())
    updater.steps = 5
    offsets = batch.table.response.offsets
    versions = np.arange(len(batch.table.response.values)) % 3
    table = replace(
        batch.table, policy_version=Ragged(versions.astype(batch.table.policy_version.values.dtype), offsets)
    )
    told = updater.update(Batch(table, batch.advantage), rng()).train
    assert told["staleness"] == pytest.approx(5 - versions.mean())


def test_the_entropy_is_the_mean_over_the_response_tokens() -> None:
    batch, updater = some(), make(Objective(), minibatches=1)
    rows = []
    with torch.no_grad():
        for row in range(len(batch.table)):
            prompt, response = batch.table.prompt[row], batch.table.response[row]
            logits = updater.policy.model(torch.tensor([[*prompt, *response]])).logits[0]
            rows.append(logits[len(prompt) - 1 : len(prompt) + len(response) - 1].log_softmax(-1))
    every = torch.cat(rows)
    told = updater.update(batch, rng()).train
    assert told["entropy"] == pytest.approx(float(-(every.exp() * every).sum(-1).mean()), rel=1e-4)


def test_the_entropy_is_that_of_all_rows_where_only_some_or_none_teach() -> None:
    batch, updater = some(), make(Objective(), lr=1e-30)
    table, offsets = batch.table, batch.table.response.offsets
    all_taught = updater.update(batch, rng()).train["entropy"]
    assert all_taught > 1.0
    # As if the tokens that were sampled were as probable as the entropy says.
    table.logprob.values[:] = -np.repeat(
        [updater.update(batch.take(np.array([row])), rng()).train["entropy"] for row in range(len(table))],
        np.diff(offsets),
    )
    for share in (0.5, 0.0):
        teaches = np.random.default_rng(3).random(len(table)) < share
        advantage = batch.advantage * teaches[table.response.row_of]
        told = updater.update(Batch(table, advantage), rng()).train
        assert told["entropy"] == pytest.approx(all_taught, rel=1e-5)
    left_out = updater.update(batch.take(np.arange(3)), rng(), sampled=table).train
    nothing = updater.update(Batch(table, batch.advantage).take(np.zeros(0, np.int64)), rng(), sampled=table).train
    assert left_out["entropy"] == pytest.approx(all_taught, rel=1e-5) == nothing["entropy"]


def test_an_update_of_nothing_takes_no_step_and_says_so() -> None:
    batch, updater = some(), make(Objective())
    before = flat(updater)
    told = updater.update(Batch(batch.table.take(np.zeros(0, np.int64)), np.zeros(0)), rng()).train
    assert updater.steps == 0 and bool((flat(updater) == before).all())
    nothing = ("loss", "policy_loss", "grad_norm", "clip_fraction", "approx_kl", "tokens")
    assert {told[name] for name in nothing} == {0.0}
    assert told["ratio_mean"] == told["ratio_max"] == 1.0


def test_steps_with_an_empty_response_get_one_token_and_no_step_keeps_its_further_columns() -> None:
    table = some().table
    rows = table.with_columns(more=np.arange(len(table))).with_token_columns(extra=np.ones(len(table.response.values)))
    lengths = np.maximum(table.response.lengths, 1)
    assert (table.response.lengths == 0).any()
    found = with_some_response(rows)
    assert found.response.lengths.tolist() == found.logprob.lengths.tolist() == lengths.tolist()
    assert not found.extra and not found.token_extra
    for row in np.flatnonzero(table.response.lengths):
        assert found.response[row].tolist() == table.response[row].tolist()
        assert found.logprob[row].tolist() == table.logprob[row].tolist()
    full = rows.take(np.flatnonzero(table.response.lengths))
    assert not with_some_response(full).extra and not with_some_response(full).token_extra
