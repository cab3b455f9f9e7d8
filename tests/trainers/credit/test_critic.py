"""The critic: what it reads, what it learns, and that a run goes on with it."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import numpy as np
import orjson
import pytest
import torch
from accelerate import Accelerator
from folders import SUPPORT
from numpy.testing import assert_allclose
from test_critic_heads import OPTIM, SIZE, critic_of, gradient_of, with_targets
from test_critic_heads import read as value_of
from tiny_runs import BOTH, model, rewrite, step_table, train, weights, without_times, write_settings

from trainers.credit.config import CriticConfig
from trainers.credit.critic import Critic
from trainers.credit.estimators.base import Valued
from trainers.policy.config import ModelConfig
from trainers.policy.hidden import Fingerprint, at_prompt_ends
from trainers.settings import ConfigError
from trainers.steps.columns import STATES
from trainers.steps.parquet import read_episodes
from trainers.train import main

ONE = (Valued(),)


@pytest.mark.parametrize("per", ["step", "token"])
def test_a_critic_of_its_own_has_the_gradient_of_each_row_by_itself(per: str, tmp_path: Path) -> None:
    value = Valued(per=per)
    critic = critic_of("model", (value,), tmp_path)
    torch.nn.init.normal_(critic.module.value.weight)
    table = step_table(np.random.default_rng(4), SIZE)
    read = critic.columns(table)
    returns = np.random.default_rng(5).normal(size=len(value_of(read, value)))
    found = []
    for row in range(len(table)):
        prompt, response = table.prompt[row], table.response[row]
        ends = [len(prompt)] if per == "step" else range(len(prompt), len(prompt) + len(response))
        for end in ends:
            text = torch.from_numpy(np.concatenate([prompt, response])[:end])[None]
            states = critic.module.backbone(text, use_cache=False).last_hidden_state[0, -1]
            found.append(critic.module.value(states)[0])
    together = torch.stack(found)
    assert_allclose(value_of(read, value), together.detach().numpy(), rtol=1e-4, atol=1e-5)
    (0.5 * (together - torch.from_numpy(returns)).square().mean()).backward()
    expected = torch.cat([p.grad.flatten() for p in critic.module.parameters()])
    own = torch.cat([grad.flatten() for grad in gradient_of(critic, read, [returns]).values()])
    assert float((own - expected).norm() / expected.norm()) < 1e-4


def test_a_head_reads_the_policy_and_does_not_change_it(tmp_path: Path) -> None:
    critic = critic_of("head", ONE, tmp_path, lr=0.1)
    before = {name: tensor.clone() for name, tensor in critic.policy.state_dict().items()}
    table = step_table(np.random.default_rng(1), SIZE)
    read = critic.columns(table)
    (states,) = at_prompt_ends(critic.policy, table, [Fingerprint()], budget=60, share_prefix=True)
    assert np.array_equal(read.extra[STATES], states)
    critic.learn(with_targets(read, ONE, [np.ones(len(table))]), np.random.default_rng(0))
    assert all(torch.equal(tensor, before[name]) for name, tensor in critic.policy.state_dict().items())
    assert all(p.grad is None for p in critic.policy.parameters())


def test_making_a_critic_draws_no_random_number_of_the_run() -> None:
    policy, accelerator = model("qwen2", SIZE), Accelerator(cpu=True)
    before = torch.get_rng_state()
    Critic(CriticConfig(), accelerator, policy, ModelConfig(), OPTIM, [Valued()], seed=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_values_that_moved_further_than_the_clip_teach_nothing_more(tmp_path: Path) -> None:
    far = critic_of("head", ONE, tmp_path, lr=0.5, epochs=40, clip=0.1)
    table = step_table(np.random.default_rng(1), SIZE)
    learnt = far.learn(with_targets(far.columns(table), ONE, [np.full(len(table), 100.0)]), np.random.default_rng(0))
    assert learnt["value_clip_fraction"] > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("critic", ["head", "model"])
@pytest.mark.parametrize("recipe", ["steppo", "ppo"])
def test_a_run_with_a_critic_resumes_to_the_same_end_to_the_last_bit(place: Path, recipe: str, critic: str) -> None:
    settings = {"recipe": recipe, "method": {"critic": {"kind": critic, "lr": 0.01, "epochs": 2, "minibatches": 2}}}
    whole = write_settings(place, **settings)
    assert main(["--config", str(whole)]) == 0
    broken = write_settings(place, **settings, output=str(place / "other"))
    program = (sys.executable, str(SUPPORT / "killed_run.py"), "metrics", "3", str(int(signal.SIGKILL)))
    assert train("--config", str(broken), program=program).returncode == -signal.SIGKILL
    assert main(["--config", str(broken), "--resume"]) == 0
    one, two = place / "runs" / "tiny", place / "other" / "tiny"
    records = without_times(one)
    assert records == without_times(two)
    ends = [run / "checkpoints" / "iteration-00004" for run in (one, two)]
    assert weights(ends[0]) == weights(ends[1])
    first, one, two = (end / "critic.safetensors" for end in (ends[0].with_name("iteration-00002"), *ends))
    assert one.read_bytes() == two.read_bytes()
    assert first.read_bytes() != one.read_bytes(), "it has learnt"
    assert all(record["train/value_loss"] > 0 for record in records if "train/value_loss" in record)


@pytest.mark.slow
def test_while_the_critic_warms_up_the_policy_rests(place: Path) -> None:
    changes = {"recipe": "steppo", "iterations": 3, "method": {"critic": {"lr": 0.01, "warmup": 2}}}
    assert main(["--config", str(write_settings(place, **changes))]) == 0
    records = [r for r in without_times(place / "runs" / "tiny") if "train/optimizer_steps" in r]
    assert [r["train/optimizer_steps"] for r in records] == [0, 0, 2]
    assert all(r["train/value_grad_norm"] > 0 for r in records)


@pytest.mark.slow
def test_a_checkpoint_without_a_critic_is_refused_by_a_run_with_one(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--config", str(write_settings(place, iterations=1, recipe="steppo"))]) == 0
    state = place / "runs" / "tiny" / "checkpoints" / "iteration-00001" / "state.json"
    body = orjson.loads(state.read_bytes())
    assert body["parts"].pop("critic")
    rewrite(state, orjson.dumps(body))
    capsys.readouterr()
    config = write_settings(place, iterations=2, recipe="steppo")
    assert main(["--config", str(config), "--resume", str(state.parent)]) == 1
    assert "has no critic; it was written by a run without one" in capsys.readouterr().err


def test_a_critic_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    model("qwen2", SIZE + 3).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"has 64 tokens, the policy 61"):
        config = CriticConfig(kind="model", path=str(tmp_path))
        Critic(config, Accelerator(cpu=True), model("qwen2", SIZE), ModelConfig(), OPTIM, [Valued()], seed=1)


def test_a_layer_that_the_model_does_not_have_is_refused(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    changes = {"recipe": "bipace", "method": {"embedding": {"layer": -3}}}
    assert main(["--config", str(write_settings(place, **changes))]) == 2
    assert "method.embedding.layer is -3" in capfd.readouterr().err


@pytest.mark.slow
def test_two_processes_train_the_critic_of_one(place: Path) -> None:
    both = (*BOTH, "-m", "trainers.train")
    for kind in ("head", "model"):
        critic = {"kind": kind, "lr": 0.001, "epochs": 2, "minibatches": 1}
        changes = {"recipe": "steppo", "iterations": 1, "method": {"critic": critic}, "name": kind}
        changes["evaluation.envs"] = []
        run = train("--config", str(write_settings(place, **changes)), program=both, timeout=300)
        assert run.returncode == 0, run.stderr
        alone = train("--config", str(write_settings(place, **changes, output=str(place / "alone"))))
        assert alone.returncode == 0, alone.stderr
        one, two = (without_times(place / folder / kind)[0] for folder in ("runs", "alone"))
        for name in ("train/value_loss", "train/value_grad_norm", "train/return"):
            assert one[name] == pytest.approx(two[name], rel=1e-4), f"{kind}: {name}"


def test_remax_plays_one_greedy_episode_a_task_and_does_not_train_on_it(place: Path) -> None:
    changes = {"recipe": "remax", "iterations": 1, "evaluation.envs": []}
    assert main(["--config", str(write_settings(place, **changes))]) == 0
    (record,) = without_times(place / "runs" / "tiny")
    assert record["train/episodes"] == 6, "as many as without the baseline"
    episodes = read_episodes(place / "runs/tiny/episodes/iteration-00001.parquet")
    greedy = [episode for episode in episodes if episode.greedy]
    assert len(episodes) == 8 and {episode.group_id for episode in greedy} == {0, 1} and len(greedy) == 2
    assert len({episode.episode_id for episode in episodes}) == 8
    trained = sum(len(episode.steps) for episode in episodes if not episode.greedy)
    assert record["train/steps"] == trained
    sampled = sum(len(step.response_ids) for episode in episodes for step in episode.steps)
    assert record["train/tokens_total"] == sampled


@pytest.mark.parametrize("radius", [None, 0.2])
def test_bipace_reads_the_actors_hidden_states_and_keeps_the_radius_it_found(place: Path, radius: float | None) -> None:
    options = {"embedder": "actor_hidden", "radius": radius}
    changes = {"recipe": "bipace", "iterations": 2, "method": {"options": options}, "evaluation.envs": []}
    assert main(["--config", str(write_settings(place, **changes))]) == 0
    record = without_times(place / "runs" / "tiny")[-1]
    assert record["diag/cluster/size_mean"] > 1
    state = orjson.loads((place / "runs/tiny/checkpoints/iteration-00002/state.json").read_bytes())
    found = state["parts"]["method"]["estimator"]["radius"]
    assert found == radius if radius is not None else 0.02 < found < 0.4
    assert state["config"]["method"]["options"]["radius"] == radius, "the settings stay as they were given"
