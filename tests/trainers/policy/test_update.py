"""The update: minibatches and gradients of any number of processes, the schedule, the guard, old log-probabilities."""

from __future__ import annotations

import math
import weakref
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from hypothesis import given
from hypothesis import strategies as st
from ranks import on_ranks
from tiny_runs import model, step_table
from update_cases import gradients, not_finite, updates

from trainers.policy import accumulation
from trainers.policy.accumulation import Batch, teaching_rows
from trainers.policy.config import OptimConfig
from trainers.policy.guard import DivergenceError
from trainers.policy.hidden import with_some_response
from trainers.policy.loss import Objective
from trainers.policy.loss.config import CorrectionConfig
from trainers.policy.loss.selection import SELECTING
from trainers.policy.loss.token_losses import LOSSES
from trainers.policy.model import Policy
from trainers.policy.packing import micro_batches
from trainers.policy.partition import minibatch_count, minibatches
from trainers.policy.tree import TokenTree
from trainers.policy.tree_plan import TreePlan
from trainers.policy.update import Updater, learning_rate
from trainers.settings import ConfigError
from trainers.steps import Ragged

SIZE = 61
CPU = Accelerator(cpu=True)
PLAIN = {"lr": 1.0, "max_grad_norm": 1e9, "tokens_per_microbatch": 100}


def make(objective: Objective, adam: bool = False, recompute: bool = False, **optim: Any) -> Updater:
    """An updater of one process with a tiny model."""
    config = OptimConfig(**{**PLAIN, **optim})
    policy = Policy(model("qwen2", SIZE))
    optimizer = (torch.optim.AdamW if adam else torch.optim.SGD)(policy.parameters(), lr=config.lr)
    return Updater(CPU, policy, optimizer, config, objective, iterations=2, recompute=recompute)


def flat(updater: Updater) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in updater.policy.parameters()])


def some(seed: int = 0) -> Batch:
    """Steps whose log-probabilities by the engine differ from the policy's."""
    table = step_table(np.random.default_rng(seed), SIZE, groups=5)
    noise = np.random.default_rng(seed + 1)
    table.logprob.values[:] = make(Objective()).logprobs(table) + noise.normal(0, 0.3, len(table.logprob.values))
    return Batch(table, noise.normal(size=len(table.response.values)))


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


# -- several processes -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def alone() -> tuple[Any, Any]:
    """Gradients and updates of one process."""
    return on_ranks(gradients, 1)[0], on_ranks(updates, 1)[0]


@pytest.mark.seconds
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_every_loss_has_the_value_and_gradient_of_one_process_on_several(ranks, alone):
    for rank, found in enumerate(on_ranks(gradients, ranks)):
        assert found.keys() == alone[0].keys() and len(found) == 65
        for name, (gradient, loss) in alone[0].items():
            off = float((found[name][0] - gradient).norm() / gradient.norm())
            assert off < 1e-6 and found[name][1] == pytest.approx(loss, rel=1e-6, abs=1e-6), (name, rank, off)


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_updates_of_several_processes_take_the_optimiser_steps_of_one(ranks, alone):
    for found in on_ranks(updates, ranks):
        for name, (weights, told) in alone[1].items():
            torch.testing.assert_close(found[name][0], weights, rtol=1e-5, atol=1e-6, msg=name)
            own = {key: value for key, value in found[name][1].items() if key != "computed_tokens"}
            assert own == pytest.approx({key: told[key] for key in own}, rel=1e-4, abs=1e-6), name
            assert found[name][1]["computed_tokens"] >= told["computed_tokens"], "what ranks share, each computes"
    steps = {name: told["optimizer_steps"] for name, (_, told) in alone[1].items()}
    assert steps["parts"] == 6 and steps["rows"] == 4 and steps["more parts than episodes"] == 10


def test_a_step_that_is_not_finite_on_one_process_is_skipped_on_all_and_named_by_all():
    for told in on_ranks(not_finite, 2):
        assert told["same"] and told["skipped"] == 1.0, "the weights are those before"
        assert "advantage: nan in episode " in told["message"]


# -- minibatches -----------------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 10**6), parts=st.integers(1, 9), groups=st.integers(1, 6), members=st.integers(1, 4))
def test_minibatches_are_whole_episodes_of_about_equally_many_rows(seed, parts, groups, members):
    table = step_table(np.random.default_rng(seed), 5, groups=groups, members=members)
    cut = minibatches(CPU, table, parts, np.random.default_rng(seed))
    assert len(cut) == parts and sorted(np.concatenate(cut).tolist()) == list(range(len(table)))
    for rows in cut:
        assert not set(table.episode_id[rows]) & set(np.delete(table.episode_id, rows)), "an episode is split"
        assert abs(len(rows) - len(table) / parts) <= 3, "an episode has at most three rows"
        of_group = np.array([len(set(table.episode_id[rows][table.group_id[rows] == g])) for g in range(groups)])
        assert of_group.max() - of_group.min() <= 2, "every group has its share"


@given(seed=st.integers(0, 10**6), parts=st.integers(2, 5))
def test_minibatches_depend_on_the_set_of_rows_and_not_on_their_order(seed, parts):
    table = step_table(np.random.default_rng(seed), 5)
    mixed = table.take(np.random.default_rng(seed + 1).permutation(len(table)))
    found = []
    for one in (table, mixed):
        cut = minibatches(CPU, one, parts, np.random.default_rng(seed))
        found.append([set(zip(one.episode_id[rows].tolist(), one.t[rows].tolist(), strict=True)) for rows in cut])
    assert found[0] == found[1]


def test_minibatches_differ_from_draw_to_draw():
    table, generator = step_table(np.random.default_rng(0), 5, groups=8), rng()
    first, second = (minibatches(CPU, table, 2, generator)[0].tolist() for _ in range(2))
    assert first != second


@pytest.mark.parametrize(("rows", "count"), [(1, 30), (10, 3), (29, 2), (30, 1), (64, 1)])
def test_the_number_of_minibatches_follows_from_their_rows(rows, count):
    table = step_table(np.random.default_rng(0), 5, groups=20)
    assert minibatch_count(CPU, table.take(np.arange(30)), 1, rows) == count
    assert minibatch_count(CPU, table, 4, None) == 4
    with pytest.raises(ConfigError, match="minibatches is 2 and minibatch_rows 64"):
        OptimConfig(minibatches=2, minibatch_rows=64)


# -- the optimiser's step --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
@pytest.mark.parametrize("warmup", [0, 3])
def test_with_equally_many_steps_in_each_iteration_the_schedule_is_that_of_the_steps(schedule, warmup):
    config, total = OptimConfig(lr=0.5, schedule=schedule, warmup=warmup), 20
    for step in range(total):
        share = max(0.0, (step - warmup) / (total - warmup))
        fall = {"constant": 1.0, "linear": 1 - 0.9 * share, "cosine": 0.1 + 0.45 * (1 + math.cos(math.pi * share))}
        expected = 0.5 * (step + 1) / warmup if step < warmup else 0.5 * fall[schedule]
        assert learning_rate(config, step, step / total) == pytest.approx(expected, rel=1e-12)


@given(
    steps=st.lists(st.integers(0, 9), min_size=2, max_size=12), warmup=st.integers(0, 20),
    schedule=st.sampled_from(["linear", "cosine"]),
)  # fmt: skip
def test_however_many_steps_the_iterations_take_the_rate_falls_to_a_tenth(steps, warmup, schedule):
    config, taken, rates = OptimConfig(lr=1.0, schedule=schedule, warmup=warmup), 0, [2.0]
    for iteration, count in enumerate(steps):
        for number in range(count):
            rate = learning_rate(config, taken, (iteration + number / count) / len(steps))
            if taken >= warmup:
                assert 0.1 <= rate <= min(1.0, rates[-1])
                rates.append(rate)
            taken += 1
    if taken > warmup:
        assert learning_rate(config, taken, 1.0) == pytest.approx(0.1)


def test_an_update_follows_the_warm_up_and_the_schedule():
    batch, seen = some(), []
    updater = make(Objective(), lr=0.1, warmup=2, schedule="linear", minibatches=3)
    original = updater.optimizer.step
    updater.optimizer.step = lambda: seen.append(updater.optimizer.param_groups[0]["lr"]) or original()
    told = updater.update(batch, rng(), iteration=1).train
    assert seen == pytest.approx([0.05, 0.1, 0.1]) and told["lr"] == seen[-1] and told["optimizer_steps"] == 3
    updater.update(batch, rng(), iteration=2)
    assert seen[3:] == pytest.approx([0.1 * (1 - 0.9 * share) for share in (1 / 4, 2 / 4, 3 / 4)])


def test_the_gradient_is_clipped_to_its_norm_and_its_norm_is_told_before():
    batch = some()
    free, clipped = make(Objective()), make(Objective(), max_grad_norm=0.01)
    moved = []
    for updater in (free, clipped):
        before = flat(updater)
        told = updater.update(batch, rng()).train
        moved.append(before - flat(updater))
        assert told["grad_norm"] == pytest.approx(float(moved[0].norm()), rel=1e-3) and told["grad_norm"] > 0.02
    assert float(moved[1].norm()) == pytest.approx(0.01, rel=1e-3)
    torch.testing.assert_close(moved[1] / 0.01, moved[0] / moved[0].norm(), rtol=1e-2, atol=1e-4)


# -- what is not finite ----------------------------------------------------------------------------------------------


def spoilt(kind: str, updater: Updater) -> Batch:
    """A batch with one quantity that is not finite."""
    batch = some()
    if kind == "advantage":
        batch.advantage[3] = np.nan
    elif kind == "log-probability of the engine":
        batch.table.logprob.values[3] = np.nan
    elif kind == "log-probability":
        with torch.no_grad():
            next(iter(updater.policy.parameters()))[:] = np.nan
    else:
        parameter = dict(updater.policy.named_parameters())["model.model.norm.weight"]
        parameter.register_hook(lambda gradient: gradient * np.inf)
    return batch


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("advantage", r"advantage: nan in episode \d+, step \d+; look at method\.options"),
        ("log-probability of the engine", r"log-probability of the engine: nan in episode \d+, step \d+; "),
        ("log-probability", r"log-probability: nan in episode \d+, step \d+; .*lower optim\.lr"),
        ("gradient", r"gradient: model\.model\.norm\.weight; try a lower optim\.lr"),
    ],
)
def test_a_gradient_that_is_not_finite_is_not_stepped_and_after_some_the_run_stops(kind, said):
    updater = make(Objective(), adam=True, lr=0.01)
    updater.update(some(), rng())
    batch = spoilt(kind, updater)
    before, state = flat(updater), [s["exp_avg"].clone() for s in updater.optimizer.state.values()]
    for _ in range(2):
        told = updater.update(batch, rng()).train
        assert told["skipped_steps"] == 1 and told["optimizer_steps"] == 1 == updater.steps
    with pytest.raises(DivergenceError, match=rf"loss ppo\): 3 optimiser steps in a row .*{said}") as raised:
        updater.update(batch, rng())
    assert raised.value.weights_good
    assert torch.equal(flat(updater).nan_to_num(), before.nan_to_num())
    assert all(torch.equal(s["exp_avg"], old) for s, old in zip(updater.optimizer.state.values(), state, strict=True))
    assert all(p.grad is None for p in updater.policy.parameters())


def test_a_step_that_is_taken_begins_the_count_anew():
    updater = make(Objective(), lr=0.01)
    good, bad = some(), spoilt("advantage", updater)
    for batch in (bad, bad, good, bad, bad, good):
        skipped = updater.update(batch, rng()).train["skipped_steps"]
        assert skipped == (batch is bad)
    for _ in range(2):
        updater.update(bad, rng())
    with pytest.raises(DivergenceError):
        updater.update(bad, rng())


@pytest.mark.parametrize("lr", [1e30, 1e25])
def test_weights_that_a_step_has_spoilt_are_never_returned(lr):
    updater = make(Objective(), adam=True, lr=lr)
    with pytest.raises(
        DivergenceError, match=r"a weight is not finite, or beyond 1e18, .* try a lower optim\.lr"
    ) as raised:
        updater.update(some(), rng())
    assert not raised.value.weights_good


# -- old log-probabilities -------------------------------------------------------------------------------------------

STEPPO = Objective(ratio="step", clip_low=3e-4, clip_high=4e-4)


def test_ratios_compare_with_the_policy_before_the_update_in_every_epoch():
    updater = make(Objective(clip_low=None, clip_high=None), recompute=True, epochs=2, lr=0.3)
    batch = some()
    old, again = updater.logprobs(batch.table), None
    original = updater.optimizer.step

    def step() -> None:
        nonlocal again
        original()
        again = updater.logprobs(batch.table) if again is None else again

    updater.optimizer.step = step
    told = updater.update(batch, rng()).train
    assert told["ratio_mean"] == pytest.approx((1.0 + np.exp(again - old).mean()) / 2, rel=1e-4)
    assert told["approx_kl"] == pytest.approx((old - again).mean() / 2, rel=1e-3)


@pytest.mark.seconds
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_where_engine_and_trainer_agree_recomputing_changes_no_bit(parts, level, monkeypatch):
    # Each sequence by itself: the same bits.
    monkeypatch.setattr(accumulation, "micro_batches", partial(micro_batches, share_prefix=False))
    batch, ends, told = some(), [], []
    batch.table.logprob.values[:] = make(Objective(), tokens_per_microbatch=1).logprobs(batch.table)
    for recompute in (False, True):
        updater = make(
            STEPPO,
            recompute=recompute,
            minibatches=parts,
            correction=CorrectionConfig(level=level),
            tokens_per_microbatch=1,
        )
        told.append(updater.update(batch, rng()).train)
        ends.append(flat(updater))
    assert torch.equal(*ends)
    assert {**told[1], **told[0]} == told[1]
    assert [told[1][f"engine_weight_{name}"] for name in ("mean", "max", "cut")] == [1.0, 1.0, 0.0]


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_a_perturbed_engine_gives_the_gradient_of_the_naive_formula(level):
    batch = some()
    updater = make(Objective(), recompute=True, correction=CorrectionConfig(level=level, cap=1.3), lr=1e-3)
    own, engine = updater.logprobs(batch.table), batch.table.logprob.values.astype(np.float64)
    gaps = own - engine
    if level == "sequence":
        row_of = batch.table.response.row_of
        gaps = np.bincount(row_of, gaps, len(batch.table))[row_of]
    weights = np.minimum(np.exp(gaps), 1.3)
    before = flat(updater)
    updater.update(batch, rng())
    moved = (before - flat(updater)) / 1e-3
    agreeing = replace(batch.table, logprob=replace(batch.table.logprob, values=own.astype(np.float32)))
    naive = make(Objective()).gradient(agreeing, batch.advantage * weights)
    expected = torch.cat([gradient.flatten() for gradient in naive.values()])
    assert float((moved - expected).norm() / expected.norm()) < 1e-3


@pytest.mark.parametrize(
    ("setting", "dtype", "engine", "trainer"),
    [
        ("auto", "float32", "hf", False), ("auto", "bfloat16", "hf", True), ("auto", "float32", "vllm", True),
        ("engine", "bfloat16", "vllm", False), ("trainer", "float32", "hf", True),
    ],
)  # fmt: skip
def test_auto_recomputes_where_formats_or_engines_differ(setting, dtype, engine, trainer):
    assert OptimConfig(old_logprobs=setting).recomputes(dtype, engine) == trainer


def test_replayed_rows_keep_the_log_probabilities_of_the_engine():
    updater, batch = make(Objective(), recompute=True, lr=1e-12), some()
    told = updater.update(some(5), rng(), batch).replay
    ratio = np.exp(updater.logprobs(batch.table) - batch.table.logprob.values)
    assert told["ratio_mean"] == pytest.approx(ratio.mean(), rel=1e-4)


# -- rows that teach nothing -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("loss", "ratio"), [
    *((loss, "token") for loss in LOSSES if loss not in SELECTING), ("ppo", "step"), ("cispo", "sequence"),
])  # fmt: skip
def test_rows_without_advantage_have_no_gradient_and_are_not_computed(loss, ratio):
    batch, objective = some(), Objective(loss=loss, ratio=ratio)  # type: ignore[arg-type]
    idle = (np.random.default_rng(2).random(len(batch.table)) < 0.5)[batch.table.response.row_of]
    advantage = np.where(idle, 0.0, batch.advantage)
    expected = make(replace(objective, entropy_coef=1e-30)).gradient(batch.table, advantage)
    updater, computed = make(objective), 0

    def count(_: Any, given: tuple[TokenTree]) -> None:
        nonlocal computed
        computed += len(given[0].target)

    updater.policy.register_forward_pre_hook(count)
    found = updater.gradient(batch.table, advantage)
    assert 0 < computed == (~idle).sum() < len(idle)
    scale = max(float(gradient.abs().max()) for gradient in expected.values())
    for name, gradient in expected.items():
        assert float((found[name] - gradient).abs().max()) < 1e-6 * scale, name


def test_a_batch_that_teaches_nothing_takes_the_step_of_a_gradient_of_zero():
    batch, weights = some(), []
    for coefficient in (0.0, 1e-30):
        updater = make(Objective(entropy_coef=coefficient), adam=True, lr=0.1)
        updater.update(batch, np.random.default_rng(0))
        told = updater.update(replace(batch, advantage=0 * batch.advantage), np.random.default_rng(0)).train
        assert told["idle_rows"] == (0.0 if coefficient else 1.0) and told["optimizer_steps"] == 2.0
        weights.append(flat(updater))
    assert torch.equal(*weights), "AdamW's moments decay alike"


def test_where_the_loss_has_other_terms_every_row_is_computed():
    batch = some()
    still = replace(batch, advantage=0 * batch.advantage)
    answered = batch.table.response.lengths > 0
    for objective in (Objective(kl="k3"), Objective(entropy_coef=0.1), Objective(loss="kl_cov")):
        assert (teaching_rows(still, objective) == answered).all()
    assert not teaching_rows(still, Objective()).any()
    unweighed = replace(batch, factor=np.zeros(len(batch.advantage)))
    assert not teaching_rows(unweighed, Objective()).any()
    unknown = replace(batch, advantage=np.full(len(batch.advantage), np.nan))
    assert (teaching_rows(unknown, Objective()) == answered).all(), "what is not finite is not hidden"


def test_no_pass_of_a_batch_keeps_the_masks_of_the_passes_before(monkeypatch):
    plans, alive = weakref.WeakSet[TreePlan](), []
    begin = TreePlan.__init__

    def noted(self: TreePlan, *given: Any) -> None:
        alive.append(len(plans))
        begin(self, *given)
        plans.add(self)

    monkeypatch.setattr(TreePlan, "__init__", noted)
    batch = some()
    make(Objective(), tokens_per_microbatch=60).gradient(batch.table, batch.advantage)
    assert len(alive) > 5 and max(alive) == 0


# -- tokens that are picked --------------------------------------------------------------------------------------------


@pytest.mark.seconds
@pytest.mark.parametrize("loss", ["clip_cov", "kl_cov"])
def test_micro_batches_do_not_change_which_tokens_are_picked(loss):
    batch, found = some(), []
    objective = Objective(loss=loss, cov_fraction=0.1, cov_low=0.0, clip_low=0.9, clip_high=9.0)
    for budget in (1, 60, 10_000):
        updater = make(objective, tokens_per_microbatch=budget, lr=0.01)
        told = updater.update(batch, rng()).train
        assert told["selected_fraction"] == pytest.approx(int(0.1 * told["tokens"]) / told["tokens"])
        found.append(flat(updater))
    torch.testing.assert_close(found[0], found[2])
    torch.testing.assert_close(found[1], found[2])


# -- what an update says of itself -------------------------------------------------------------------------------------


def test_staleness_is_the_mean_number_of_steps_since_a_token_was_sampled():
    batch, updater = some(), make(Objective())
    updater.steps = 5
    offsets = batch.table.response.offsets
    versions = np.arange(len(batch.table.response.values)) % 3
    table = replace(
        batch.table, policy_version=Ragged(versions.astype(batch.table.policy_version.values.dtype), offsets)
    )
    told = updater.update(Batch(table, batch.advantage), rng()).train
    assert told["staleness"] == pytest.approx(5 - versions.mean())


def test_the_entropy_is_the_mean_over_the_response_tokens():
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


def test_the_entropy_is_that_of_all_rows_where_only_some_or_none_teach():
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


def test_an_update_of_nothing_takes_no_step_and_says_so():
    batch, updater = some(), make(Objective())
    before = flat(updater)
    told = updater.update(Batch(batch.table.take(np.zeros(0, np.int64)), np.zeros(0)), rng()).train
    assert updater.steps == 0 and bool((flat(updater) == before).all())
    nothing = ("loss", "policy_loss", "grad_norm", "clip_fraction", "approx_kl", "tokens")
    assert {told[name] for name in nothing} == {0.0}
    assert told["ratio_mean"] == told["ratio_max"] == 1.0


def test_steps_with_an_empty_response_get_one_token_and_no_step_keeps_its_further_columns():
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
