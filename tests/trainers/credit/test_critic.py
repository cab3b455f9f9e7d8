"""The critic: what it reads, what it learns, its outputs and layers, and that a run goes on with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import torch
from accelerate import Accelerator
from architectures import COMPUTED, architecture
from numpy.testing import assert_allclose
from tiny_runs import (
    BOTH,
    model,
    rewrite,
    save_model,
    step_table,
    train,
    trained,
    without_times,
    write_settings,
)

from trainers.credit.config import CriticConfig
from trainers.credit.critic import Critic
from trainers.credit.estimators.base import CriticValue
from trainers.credit.estimators.vetta import VETTA
from trainers.policy.adapter import save_adapter
from trainers.policy.config import AdapterConfig, ModelConfig, OptimConfig
from trainers.policy.hidden import Fingerprint, at_prompt_ends
from trainers.policy.loading import load_backbone, load_model
from trainers.policy.stateful import StateMismatch
from trainers.settings import ConfigError
from trainers.steps import Ragged, StepTable
from trainers.steps.columns import STATES
from trainers.steps.parquet import read_episodes
from trainers.train import main

SIZE = 61
OPTIM = OptimConfig(tokens_per_microbatch=60, max_grad_norm=1e9)
TURN_AND_TOKEN = VETTA().values
THREE = (CriticValue("value"), CriticValue("value_low", at="low_start"), CriticValue("value_high"))
LORA = AdapterConfig(rank=4)


def table_with_an_empty_response() -> StepTable:
    table = step_table(np.random.default_rng(1), SIZE)
    lengths = table.response.lengths.copy()
    assert lengths[1]
    kept = np.repeat(np.arange(len(table)) != 1, lengths)
    lengths[1] = 0
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    response, logprob = (Ragged(column.values[kept], offsets) for column in (table.response, table.logprob))
    emptied = StepTable(
        table.group_id, table.episode_id, table.t, table.reward, table.state_key, table.valid,
        prompt=table.prompt, response=response, logprob=logprob,
    )  # fmt: skip
    return emptied.with_columns(low_start=np.arange(len(table)) % 3)


def critic_of(kind: str, values: Any, folder: Path, **settings: Any) -> Critic:
    model("qwen2", SIZE, seed=3).save_pretrained(folder)
    config, own = CriticConfig(kind=kind, **{"clip": None, **settings}), ModelConfig(path=str(folder))
    return Critic(config, Accelerator(cpu=True), model("qwen2", SIZE), own, OPTIM, values, seed=1)


def gradient_of(critic: Critic, steps: StepTable, targets: list[np.ndarray]) -> dict[str, torch.Tensor]:
    """The gradient of the loss of all values against these targets."""
    critic.module.zero_grad()
    wanted = critic._targets(with_targets(steps, critic.values, targets))
    critic._accumulate(wanted, np.arange(len(steps)), [len(one.target) for one in wanted.outputs])
    return {name: p.grad.clone() for name, p in critic.module.named_parameters()}


def read(steps: StepTable, value: CriticValue) -> np.ndarray:
    return steps.extra[value.name] if value.per == "step" else steps.token_extra[value.name].values


def with_targets(steps: StepTable, values: tuple[CriticValue, ...], targets: list[np.ndarray]) -> StepTable:
    for value, target in zip(values, targets, strict=True):
        named = {value.target: target}
        steps = steps.with_columns(**named) if value.per == "step" else steps.with_token_columns(**named)
    return steps


@pytest.mark.seconds
@pytest.mark.parametrize("kind", ["head", "model", "truncated"])
@pytest.mark.parametrize("values", [TURN_AND_TOKEN, THREE], ids=["turn and token", "three"])
def test_each_output_learns_the_targets_of_its_places(kind, values, tmp_path):
    critic = critic_of(kind, values, tmp_path, lr=0.01, epochs=40, minibatches=2)
    table = table_with_an_empty_response()
    before = critic.columns(table)
    sizes = [len(table) if value.per == "step" else len(table.response.values) for value in values]
    assert [len(read(before, value)) for value in values] == sizes
    assert not any(read(before, value).any() for value in values)
    rng = np.random.default_rng(2)
    targets = [rng.normal(3.0 * (-1) ** number, 1.0, size) for number, size in enumerate(sizes)]
    learnt = critic.learn(with_targets(before, values, targets), np.random.default_rng(3))
    assert learnt["value_loss"] > 0 and learnt["value_grad_norm"] > 0
    after = critic.columns(table)
    for value, target in zip(values, targets, strict=True):
        assert ((read(after, value) - target) ** 2).mean() < 0.2 * (target**2).mean(), value


@pytest.mark.parametrize("kind", ["head", "model"])
def test_a_value_at_a_token_is_that_of_the_text_before_it(kind, tmp_path):
    values = (CriticValue("value"), CriticValue("value_low", at="low_start"), CriticValue("value", "token"))
    critic = critic_of(kind, values, tmp_path)
    torch.nn.init.normal_(critic.module.value.weight)
    critic.module.value.weight.data[1:] = critic.module.value.weight.data[0]
    table = table_with_an_empty_response()
    found = critic.columns(table)
    tokens = Ragged(found.token_extra["value"].values, table.response.offsets)
    for row, at in enumerate(table.extra["low_start"]):
        if len(tokens[row]):
            assert found.extra["value"][row] == pytest.approx(tokens[row][0], rel=1e-5)
            last = len(tokens[row]) - 1
            assert found.extra["value_low"][row] == pytest.approx(tokens[row][min(at, last)], rel=1e-5)
        else:
            assert found.extra["value_low"][row] == pytest.approx(found.extra["value"][row], rel=1e-5)


@pytest.mark.parametrize("kind", ["head", "model"])
def test_the_gradient_is_the_sum_of_the_means_over_each_outputs_own_values(kind, tmp_path):
    table = table_with_an_empty_response()
    weight = torch.from_numpy(np.random.default_rng(8).normal(size=(2, 32))).float()
    rng = np.random.default_rng(5)
    targets = [rng.normal(size=len(table)), rng.normal(size=len(table.response.values))]

    def gradient(values: tuple[CriticValue, ...], rows: list[int], own: list[np.ndarray]) -> dict[str, torch.Tensor]:
        critic = critic_of(kind, values, tmp_path)
        critic.module.value.weight.data[:] = weight[rows]
        found = gradient_of(critic, critic.columns(table), own)
        return {name: grad for name, grad in found.items() if not name.startswith("value.")}

    both = gradient(TURN_AND_TOKEN, [0, 1], targets)
    turn = gradient((CriticValue(),), [0], targets[:1])
    token = gradient((CriticValue(per="token"),), [1], targets[1:])
    scale = max(float(one.abs().max()) for one in both.values())
    for name, found in both.items():
        assert float((found - turn[name] - token[name]).abs().max()) < 1e-5 * scale, name


def test_a_state_of_other_outputs_is_refused_with_the_tensor_that_differs(tmp_path):
    one, two = critic_of("head", (CriticValue(per="token"),), tmp_path), critic_of("head", TURN_AND_TOKEN, tmp_path)
    with pytest.raises(StateMismatch, match=r"value\.bias has shape \(1,\), that of the config \(2,\)"):
        two.parts[0].load(one.parts[0].state())


@pytest.mark.parametrize("name", COMPUTED)
def test_first_layers_compute_what_the_whole_model_has_there(name, tmp_path):
    whole = architecture(name, SIZE)
    whole.save_pretrained(tmp_path)
    cut = load_backbone(ModelConfig(path=str(tmp_path)), "model.path", layers=1)
    assert cut.config.num_hidden_layers == 1
    assert len(getattr(cut.config, "layer_types", None) or [0]) == 1
    tokens = torch.arange(1, 20)[None]
    base = whole.base_model
    (norm,) = (getattr(base, key) for key in ("norm", "ln_f", "final_layer_norm") if hasattr(base, key))
    with torch.no_grad():
        expected = norm(base(tokens, output_hidden_states=True, use_cache=False).hidden_states[1])
        found = cut(tokens, use_cache=False).last_hidden_state
    assert float((found - expected).abs().max()) < 1e-5 * float(expected.abs().max())
    kept = {parameter for parameter, _ in cut.named_parameters()}
    assert kept < {parameter for parameter, _ in base.named_parameters()}


def test_of_an_adapted_policy_the_first_layers_have_the_adapter_merged_and_a_new_one(tmp_path):
    config = ModelConfig(path=str(save_model(tmp_path / "model")), adapter=LORA)
    policy = load_model(config)
    for key, parameter in policy.named_parameters():
        if "lora_B" in key:
            torch.nn.init.normal_(parameter, std=0.1)
    save_adapter(policy, tmp_path / "adapter")
    tokens = torch.arange(1, 12)[None]
    cut = load_backbone(ModelConfig(path=str(tmp_path / "adapter"), adapter=LORA), "model.path", layers=1)
    assert len(cut.layers) == 1 and cut.config.num_hidden_layers == 1
    assert {key for key, p in cut.named_parameters() if p.requires_grad} == {
        key for key, _ in cut.named_parameters() if ".lora_" in key
    }
    with torch.no_grad():
        states = policy.base_model(tokens, output_hidden_states=True, use_cache=False).hidden_states[1]
        expected, found = policy.base_model.norm(states), cut(tokens, use_cache=False).last_hidden_state
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_more_layers_than_the_model_has_are_refused(tmp_path):
    model("qwen2", SIZE).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"critic of kind truncated has 3 layers, but .* has 2; set method\.critic"):
        load_backbone(ModelConfig(path=str(tmp_path)), "model.path", layers=3)


@pytest.mark.parametrize("kind", ["head", "model"])
def test_an_output_learns_from_the_steps_that_its_column_names_alone(kind, tmp_path):
    values = (CriticValue("value_high", learns="segment"), CriticValue("value_low", at="low_start"))
    critic = critic_of(kind, values, tmp_path)
    torch.nn.init.normal_(critic.module.value.weight)
    table = table_with_an_empty_response()
    table = table.with_columns(segment=np.arange(len(table)) % 3 == 0)
    rng = np.random.default_rng(4)
    targets = [rng.normal(size=len(table)) for _ in values]
    other = np.where(table.extra["segment"], targets[0], 1e6)
    known = critic.columns(table)
    wanted = critic._targets(with_targets(known, values, targets))
    assert [len(one.target) for one in wanted.outputs] == [int(table.extra["segment"].sum()), len(table)]
    one, two = (gradient_of(critic, known, [high, targets[1]]) for high in (targets[0], other))
    assert all(torch.equal(one[name], two[name]) for name in one) and any(grad.any() for grad in one.values())


# -- The critic


ONE = (CriticValue(),)


@pytest.mark.parametrize("per", ["step", "token"])
def test_a_critic_of_its_own_has_the_gradient_of_each_row_by_itself(per, tmp_path):
    value = CriticValue(per=per)
    critic = critic_of("model", (value,), tmp_path)
    torch.nn.init.normal_(critic.module.value.weight)
    table = step_table(np.random.default_rng(4), SIZE)
    known = critic.columns(table)
    returns = np.random.default_rng(5).normal(size=len(read(known, value)))
    found = []
    for row in range(len(table)):
        prompt, response = table.prompt[row], table.response[row]
        ends = [len(prompt)] if per == "step" else range(len(prompt), len(prompt) + len(response))
        for end in ends:
            text = torch.from_numpy(np.concatenate([prompt, response])[:end])[None]
            states = critic.module.backbone(text, use_cache=False).last_hidden_state[0, -1]
            found.append(critic.module.value(states)[0])
    together = torch.stack(found)
    assert_allclose(read(known, value), together.detach().numpy(), rtol=1e-4, atol=1e-5)
    (0.5 * (together - torch.from_numpy(returns)).square().mean()).backward()
    expected = torch.cat([p.grad.flatten() for p in critic.module.parameters()])
    own = torch.cat([grad.flatten() for grad in gradient_of(critic, known, [returns]).values()])
    assert float((own - expected).norm() / expected.norm()) < 1e-4


def test_a_head_reads_the_policy_and_does_not_change_it(tmp_path):
    critic = critic_of("head", ONE, tmp_path, lr=0.1)
    before = {name: tensor.clone() for name, tensor in critic.policy.state_dict().items()}
    table = step_table(np.random.default_rng(1), SIZE)
    known = critic.columns(table)
    (states,) = at_prompt_ends(critic.policy, table, [Fingerprint()], budget=60)
    assert np.array_equal(known.extra[STATES], states)
    critic.learn(with_targets(known, ONE, [np.ones(len(table))]), np.random.default_rng(0))
    assert all(torch.equal(tensor, before[name]) for name, tensor in critic.policy.state_dict().items())
    assert all(p.grad is None for p in critic.policy.parameters())


def test_making_a_critic_draws_no_random_number_of_the_run():
    policy, accelerator = model("qwen2", SIZE), Accelerator(cpu=True)
    before = torch.get_rng_state()
    Critic(CriticConfig(), accelerator, policy, ModelConfig(), OPTIM, [CriticValue()], seed=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_values_that_moved_further_than_the_clip_teach_nothing_more(tmp_path):
    far = critic_of("head", ONE, tmp_path, lr=0.5, epochs=40, clip=0.1)
    table = step_table(np.random.default_rng(1), SIZE)
    learnt = far.learn(with_targets(far.columns(table), ONE, [np.full(len(table), 100.0)]), np.random.default_rng(0))
    assert learnt["value_clip_fraction"] > 0.5


@pytest.mark.slow
def test_while_the_critic_warms_up_the_policy_rests(place):
    changes = {"recipe": "steppo", "iterations": 3, "method": {"critic": {"lr": 0.01, "warmup": 2}}}
    records = [r for r in trained(place, **changes) if "train/optimizer_steps" in r]
    assert [r["train/optimizer_steps"] for r in records] == [0, 0, 2]
    assert all(r["train/value_grad_norm"] > 0 for r in records)


@pytest.mark.slow
def test_a_checkpoint_without_a_critic_is_refused_by_a_run_with_one(place, capsys):
    trained(place, iterations=1, recipe="steppo")
    state = place / "runs" / "tiny" / "checkpoints" / "iteration-00001" / "state.json"
    body = orjson.loads(state.read_bytes())
    assert body["parts"].pop("critic")
    rewrite(state, orjson.dumps(body))
    capsys.readouterr()
    config = write_settings(place, iterations=2, recipe="steppo")
    assert main(["--config", str(config), "--resume", str(state.parent)]) == 1
    assert "has no critic; it was written by a run without one" in capsys.readouterr().err


def test_a_layer_that_the_model_does_not_have_is_refused(place, capfd):
    changes = {"recipe": "bipace", "method": {"options": {"layer": -3}}}
    assert main(["--config", str(write_settings(place, **changes))]) == 2
    assert "method.options.layer is -3" in capfd.readouterr().err


@pytest.mark.slow
def test_two_processes_train_the_critic_of_one(place):
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


def test_remax_plays_one_greedy_episode_a_task_and_does_not_train_on_it(place):
    (record,) = trained(place, recipe="remax", iterations=1, **{"evaluation.envs": []})
    assert record["train/episodes"] == 6, "as many as without the baseline"
    episodes = read_episodes(place / "runs/tiny/episodes/iteration-00001.parquet")
    greedy = [episode for episode in episodes if episode.greedy]
    assert len(episodes) == 8 and {episode.group_id for episode in greedy} == {0, 1} and len(greedy) == 2
    assert len({episode.episode_id for episode in episodes}) == 8
    assert record["train/steps"] == sum(len(episode.steps) for episode in episodes if not episode.greedy)
    sampled = sum(len(step.response_ids) for episode in episodes for step in episode.steps)
    assert record["train/tokens_total"] == sampled


@pytest.mark.parametrize("radius", [None, 0.2])
def test_bipace_reads_the_actors_hidden_states_and_keeps_the_radius_it_found(place, radius):
    options = {"embedder": "actor_hidden", "radius": radius}
    changes = {"recipe": "bipace", "iterations": 2, "method": {"options": options}, "evaluation.envs": []}
    assert trained(place, **changes)[-1]["diag/cluster/size_mean"] > 1
    state = orjson.loads((place / "runs/tiny/checkpoints/iteration-00002/state.json").read_bytes())
    found = state["parts"]["method"]["estimator"]["radius"]
    assert found == radius if radius is not None else 0.02 < found < 0.4
    assert state["config"]["method"]["options"]["radius"] == radius, "the settings stay as they were given"
