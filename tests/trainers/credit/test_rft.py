"""Rejection sampling and imitation: what is accepted, the gradient beside the way by hand, earlier rounds, runs."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from step_tables import step_tables
from test_replay import played
from tiny_runs import model, step_table, trained, weights, without_times, write_settings
from torch import Tensor
from transformers import PreTrainedModel

from trainers.credit.config import MethodConfig
from trainers.credit.crediting import Credit
from trainers.credit.estimators import Advantage
from trainers.credit.estimators.rft import RFT
from trainers.credit.filters import Accepted
from trainers.credit.rounds import EarlierRounds
from trainers.credit.spear.replay import ReplayConfig
from trainers.policy.config import OptimConfig
from trainers.policy.loss import Objective
from trainers.policy.model import Policy
from trainers.policy.update import Updater
from trainers.run.config import TrainConfig
from trainers.settings import ConfigError, checked
from trainers.steps import StepTable
from trainers.train import main

SIZE = 61


@given(step_tables(), st.data())
def test_the_best_of_the_accepted_episodes_of_each_task_stay(steps: StepTable, data: st.DataObject) -> None:
    score = data.draw(st.none() | st.integers(-2, 3).map(float))
    most = data.draw(st.none() | st.integers(1, 3))
    episodes = {episode: float(steps.reward[steps.episode_id == episode].sum()) for episode in set(steps.episode_id)}
    solved = {episode: data.draw(st.booleans()) for episode in episodes}
    steps = steps.with_columns(success=np.array([solved[episode] for episode in steps.episode_id], np.bool_))
    groups = defaultdict(list)
    for episode, value in sorted(episodes.items(), key=lambda pair: (-pair[1], pair[0])):
        if solved[episode] if score is None else value >= score:
            groups[int(steps.group_id[steps.episode_id == episode][0])].append(episode)
    stay = {episode for accepted in groups.values() for episode in accepted[:most]}
    wanted = [episode in stay for episode in steps.episode_id]
    assert_array_equal(Accepted(score, most)(steps), np.array(wanted, np.bool_))


def imitation_loss(plain: PreTrainedModel, table: StepTable, weight: str) -> Tensor:
    """The mean over all response tokens of -w log p, a step at a time."""
    losses = []
    returns = {episode: table.reward[table.episode_id == episode].sum() for episode in set(table.episode_id)}
    for row in range(len(table)):
        prompt, response = (column[row].tolist() for column in (table.prompt, table.response))
        logits = plain(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
        picked = logits.log_softmax(-1)[torch.arange(len(response)), torch.tensor(response, dtype=torch.long)]
        losses.append(-picked.sum() * (1.0 if weight == "one" else float(returns[table.episode_id[row]])))
    return torch.stack(losses).sum() / len(table.response.values)


@pytest.mark.parametrize("weight", ["one", "score"])
def test_the_gradient_is_that_of_imitation_by_hand(weight: str) -> None:
    table = step_table(np.random.default_rng(0), SIZE, groups=4)
    rng = np.random.default_rng(1)
    table = table.with_reward(rng.integers(0, 3, len(table)).astype(float))
    keep = Accepted(score=1.0)(table)
    assert keep.any() and not keep.all()
    table = table.take(np.flatnonzero(keep))
    policy = Policy(model("qwen2", SIZE))
    objective = Objective(loss="gpg", aggregation="token-mean")
    optimizer = torch.optim.SGD(policy.parameters(), lr=1.0)
    updater = Updater(Accelerator(cpu=True), policy, optimizer, OptimConfig(tokens_per_microbatch=100), objective)
    advantage = RFT(weight)(table)  # type: ignore[arg-type]
    computed = updater.gradient(table, advantage.tokens(table))

    plain = model("qwen2", SIZE)
    imitation_loss(plain, table, weight).backward()
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(computed[f"model.{name}"], parameter.grad, rtol=1e-4, atol=1e-6)


def test_what_the_last_rounds_accepted_is_imitated_again_and_is_in_the_checkpoint() -> None:
    rounds = EarlierRounds(ReplayConfig("rounds", size=2), Accelerator(cpu=True), seed=0)
    for number in range(1, 5):
        steps = played(number, [[0, 1, 1], [2, 0, 0]])
        keep = np.repeat([False, True, True, True, False, False], 2)
        credit = Credit(steps, Advantage(np.full(len(steps), 0.5)), keep)
        batch, metrics = rounds.advance(credit, number, lambda _: np.zeros(0))
        seen = [] if batch is None else sorted({*batch.table.extra["iteration"].tolist()})
        assert seen == [age for age in (number - 2, number - 1) if age > 0]
        assert metrics["replay/admitted"] == 3.0
        assert batch is None or (batch.advantage == 0.5).all()
        again = EarlierRounds(ReplayConfig("rounds", size=2), Accelerator(cpu=True), seed=0)
        again.load(rounds.state())
        assert_array_equal(again.buffer.table.response.values, rounds.buffer.table.response.values)
        rounds = again


@pytest.mark.seconds
def test_a_run_learns_from_rounds_and_goes_on_from_a_checkpoint_to_the_same_end(place: Path) -> None:
    settings = {
        "recipe": "rft", "method.filters": {"accepted": {"score": 0.0, "most": 3}}, "optim.epochs": 2,
        "method.replay": {"rules": "rounds", "size": 2}, "evaluation.envs": [], "checkpoint_every": 1,
        "optim.schedule": "constant",
    }  # fmt: skip
    whole = trained(place, iterations=2, **settings)
    assert whole[-1]["replay/rows"] > 0 and np.isfinite(whole[-1]["train/loss"])
    settings["output"] = str(place / "other")
    for iterations, more in ((1, ()), (2, ("--resume",))):
        assert main(["--config", str(write_settings(place, iterations=iterations, **settings)), *more]) == 0
    ends = [place / folder / "tiny" for folder in ("runs", "other")]
    assert without_times(ends[1]) == whole
    assert weights(ends[0] / "checkpoints/iteration-00002") == weights(ends[1] / "checkpoints/iteration-00002")


def test_rounds_are_for_rft_alone_which_needs_a_filter() -> None:
    with pytest.raises(ConfigError, match="rft would imitate every episode"):
        checked(TrainConfig, {"method": {"estimator": "rft"}})
    for estimator, rules in (("grpo", "rounds"), ("rft", "paper")):
        with pytest.raises(ConfigError, match="rft takes rounds, other methods paper or code"):
            checked(MethodConfig, {"estimator": estimator, "replay": {"rules": rules}})
