"""The critic: what it reads, what it learns, and that a run goes on with it."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import torch
from accelerate import Accelerator
from folders import SUPPORT
from tiny_runs import BOTH, model, rewrite, step_table, train, weights, without_times, write_settings

from envsuite.core.errors import UnknownName
from trainers.credit.config import CriticConfig
from trainers.credit.critic import Critic
from trainers.credit.estimators.base import Valued
from trainers.policy.config import ModelConfig, OptimConfig
from trainers.policy.hidden import Fingerprint, at_prompt_ends
from trainers.run.cli import parse
from trainers.settings import ConfigError
from trainers.steps import StepTable
from trainers.steps.columns import STATES, TARGET, VALUE
from trainers.steps.parquet import read_episodes
from trainers.train import main

SIZE = 61
OPTIM = OptimConfig(tokens_per_microbatch=60, max_grad_norm=1e9)


def _value(table: StepTable, per: str) -> np.ndarray:
    return table.extra[VALUE] if per == "step" else table.token_extra[VALUE].values


def _with_targets(table: StepTable, per: str, target: np.ndarray) -> StepTable:
    return table.with_columns(**{TARGET: target}) if per == "step" else table.with_token_columns(**{TARGET: target})


def _critic(kind: str, per: str, folder: Path, optim: OptimConfig = OPTIM, **settings: Any) -> Critic:
    if kind == "model":
        model("qwen2", SIZE, seed=3).save_pretrained(folder)
    config = CriticConfig(kind=kind, path=str(folder) if kind == "model" else None, **{"clip": None, **settings})
    return Critic(config, Accelerator(cpu=True), model("qwen2", SIZE), ModelConfig(), optim, [Valued(per=per)], seed=1)


@pytest.mark.seconds
@pytest.mark.parametrize("kind", ["head", "model"])
@pytest.mark.parametrize("per", ["step", "token"])
def test_a_critic_learns_the_returns_of_its_places(kind: str, per: str, tmp_path: Path) -> None:
    critic = _critic(kind, per, tmp_path, lr=0.01, epochs=25, minibatches=2)
    table = step_table(np.random.default_rng(1), SIZE)
    read = critic.columns(table)
    value = _value(read, per)
    assert value.shape == (len(table) if per == "step" else len(table.response.values),)
    assert not value.any(), "it begins with nothing to say"
    returns = np.random.default_rng(2).normal(1.0, 1.0, len(value))
    learnt = critic.learn(_with_targets(read, per, returns), np.random.default_rng(3))
    assert learnt["value_loss"] > 0 and learnt["value_grad_norm"] > 0
    again = _value(critic.columns(table), per)
    assert ((again - returns) ** 2).mean() < 0.2 * (returns**2).mean()


@pytest.mark.parametrize("per", ["step", "token"])
def test_a_critic_of_its_own_has_the_gradient_of_each_row_by_itself(per: str, tmp_path: Path) -> None:
    critic = _critic("model", per, tmp_path)
    torch.nn.init.normal_(critic.module.value.weight)
    table = step_table(np.random.default_rng(4), SIZE)
    read = critic.columns(table)
    returns = np.random.default_rng(5).normal(size=len(_value(read, per)))
    value = []
    for row in range(len(table)):
        prompt, response = table.prompt[row], table.response[row]
        ends = [len(prompt)] if per == "step" else range(len(prompt), len(prompt) + len(response))
        for end in ends:
            text = torch.from_numpy(np.concatenate([prompt, response])[:end])[None]
            states = critic.module.backbone(text, use_cache=False).last_hidden_state[0, -1]
            value.append(critic.module.value(states)[0])
    together = torch.stack(value)
    np.testing.assert_allclose(_value(read, per), together.detach().numpy(), rtol=1e-4, atol=1e-5)
    (0.5 * (together - torch.from_numpy(returns)).square().mean()).backward()
    expected = torch.cat([p.grad.flatten() for p in critic.module.parameters()])
    critic.module.zero_grad()
    rows = np.arange(len(table))
    critic._accumulate(critic._targets(_with_targets(read, per, returns)), rows, np.array([len(returns)]))
    found = torch.cat([p.grad.flatten() for p in critic.module.parameters()])
    assert float((found - expected).norm() / expected.norm()) < 1e-4


def test_a_head_reads_the_policy_and_does_not_change_it(tmp_path: Path) -> None:
    critic = _critic("head", "step", tmp_path, lr=0.1)
    before = {name: tensor.clone() for name, tensor in critic.policy.state_dict().items()}
    table = step_table(np.random.default_rng(1), SIZE)
    read = critic.columns(table)
    (states,) = at_prompt_ends(critic.policy, table, [Fingerprint()], budget=60, share_prefix=True)
    assert np.array_equal(read.extra[STATES], states)
    critic.learn(_with_targets(read, "step", np.ones(len(table))), np.random.default_rng(0))
    assert all(torch.equal(tensor, before[name]) for name, tensor in critic.policy.state_dict().items())
    assert all(p.grad is None for p in critic.policy.parameters())


def test_making_a_critic_draws_no_random_number_of_the_run() -> None:
    policy, accelerator = model("qwen2", SIZE), Accelerator(cpu=True)
    before = torch.get_rng_state()
    Critic(CriticConfig(), accelerator, policy, ModelConfig(), OPTIM, [Valued()], seed=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_values_that_moved_further_than_the_clip_teach_nothing_more(tmp_path: Path) -> None:
    far = _critic("head", "step", tmp_path, lr=0.5, epochs=40, clip=0.1)
    table = step_table(np.random.default_rng(1), SIZE)
    learnt = far.learn(_with_targets(far.columns(table), "step", np.full(len(table), 100.0)), np.random.default_rng(0))
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
    assert without_times(one) == without_times(two)
    ends = [run / "checkpoints" / "iteration-00004" for run in (one, two)]
    assert weights(ends[0]) == weights(ends[1])
    for name in ("critic.safetensors",):
        assert (ends[0] / name).read_bytes() == (ends[1] / name).read_bytes(), name
    first = ends[0].with_name("iteration-00002") / "critic.safetensors"
    assert first.read_bytes() != (ends[0] / "critic.safetensors").read_bytes(), "it has learnt"
    assert all(record["train/value_loss"] > 0 for record in without_times(one) if "train/value_loss" in record)


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
    assert (
        main(["--config", str(write_settings(place, iterations=2, recipe="steppo")), "--resume", str(state.parent)])
        == 1
    )
    assert "has no critic; it was written by a run without one" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            ["--recipe", "steppo", "--method.critic", "null"],
            Exception,
            "needs the column 'value', which a critic",
        ),
        (["--recipe", "grpo", "--method.critic", "{kind: head}"], ConfigError, r"method\.critic is set, but grpo"),
        (["--recipe", "ppo", "--method.critic", "{kid: head}"], UnknownName, "Nearest: 'kind'"),
        (["--recipe", "ppo", "--method.critic.lr", "0"], ConfigError, r"method\.critic\.lr is 0"),
        (["--recipe", "ppo", "--method.critic.epochs", "0"], ConfigError, r"method\.critic\.epochs is 0"),
        (["--recipe", "ppo", "--method.critic.path", "x"], ConfigError, r"method\.critic\.path .* kind model"),
        (["--recipe", "remax", "--method.greedy_baseline", "false"], Exception, "greedy_baseline: true"),
        (["--recipe", "gspo", "--method.greedy_baseline", "true"], ConfigError, "greedy_baseline is set, but gspo"),
        (["--recipe", "bipace", "--method.embedding", "null"], Exception, r"method\.embedding: {}"),
        (["--recipe", "bipace", "--method.options.embedder", "identity"], ConfigError, "embedding is set, but bipace"),
        (
            ["--recipe", "bipace", "--method.embedding.layer", "3"],
            ConfigError,
            r"embedding\.layer is 3; it must be less",
        ),
    ],
)
def test_what_a_method_lacks_or_does_not_read_is_said_when_the_config_is_read(
    arguments: list[str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        parse(arguments)


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
        changes = {
            "recipe": "steppo",
            "iterations": 1,
            "method": {"critic": critic},
            "name": kind,
            "evaluation.envs": [],
        }
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
