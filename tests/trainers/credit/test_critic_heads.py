"""Critics with several outputs, and critics that keep some layers of their model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from architectures import COMPUTED, architecture
from safetensors.torch import load_file
from tiny_runs import model, save_model, step_table, without_times, write_settings

from trainers.credit.config import CriticConfig
from trainers.credit.critic import Critic
from trainers.credit.estimators.base import Valued
from trainers.credit.estimators.vetta import VETTA
from trainers.policy.adapter import save_adapter
from trainers.policy.config import AdapterConfig, ModelConfig, OptimConfig
from trainers.policy.loading import load_backbone, load_model
from trainers.policy.stateful import Mismatch
from trainers.settings import ConfigError
from trainers.steps import Ragged, StepTable
from trainers.train import main

SIZE = 61
OPTIM = OptimConfig(tokens_per_microbatch=60, max_grad_norm=1e9)
TURN_AND_TOKEN = VETTA().values
THREE = (Valued("value"), Valued("value_low", at="low_start"), Valued("value_high"))
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
    path = None
    if kind != "head":
        model("qwen2", SIZE, seed=3).save_pretrained(folder)
        path = str(folder)
    if kind == "truncated":
        settings["blocks"] = 1
    config = CriticConfig(kind=kind, path=path, **{"clip": None, **settings})
    return Critic(config, Accelerator(cpu=True), model("qwen2", SIZE), ModelConfig(), OPTIM, values, seed=1)


def gradient_of(critic: Critic, steps: StepTable, targets: list[np.ndarray]) -> dict[str, torch.Tensor]:
    """The gradient of the loss of all values against these targets."""
    critic.module.zero_grad()
    wanted = critic._targets(with_targets(steps, critic.values, targets))
    critic._accumulate(wanted, np.arange(len(steps)), [len(one.target) for one in wanted.outputs])
    return {name: p.grad.clone() for name, p in critic.module.named_parameters()}


def read(steps: StepTable, value: Valued) -> np.ndarray:
    return steps.extra[value.name] if value.per == "step" else steps.token_extra[value.name].values


def with_targets(steps: StepTable, values: tuple[Valued, ...], targets: list[np.ndarray]) -> StepTable:
    for value, target in zip(values, targets, strict=True):
        named = {value.target: target}
        steps = steps.with_columns(**named) if value.per == "step" else steps.with_token_columns(**named)
    return steps


@pytest.mark.seconds
@pytest.mark.parametrize("kind", ["head", "model", "truncated"])
@pytest.mark.parametrize("values", [TURN_AND_TOKEN, THREE], ids=["turn and token", "three"])
def test_each_output_learns_the_targets_of_its_places(kind: str, values: tuple[Valued, ...], tmp_path: Path) -> None:
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
def test_a_value_at_a_token_is_that_of_the_text_before_it(kind: str, tmp_path: Path) -> None:
    values = (Valued("value"), Valued("value_low", at="low_start"), Valued("value", "token"))
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
def test_the_gradient_is_the_sum_of_the_means_over_each_outputs_own_values(kind: str, tmp_path: Path) -> None:
    table = table_with_an_empty_response()
    weight = torch.from_numpy(np.random.default_rng(8).normal(size=(2, 32))).float()
    rng = np.random.default_rng(5)
    targets = [rng.normal(size=len(table)), rng.normal(size=len(table.response.values))]

    def gradient(values: tuple[Valued, ...], rows: list[int], own: list[np.ndarray]) -> dict[str, torch.Tensor]:
        critic = critic_of(kind, values, tmp_path)
        critic.module.value.weight.data[:] = weight[rows]
        found = gradient_of(critic, critic.columns(table), own)
        return {name: grad for name, grad in found.items() if not name.startswith("value.")}

    both = gradient(TURN_AND_TOKEN, [0, 1], targets)
    turn = gradient((Valued(),), [0], targets[:1])
    token = gradient((Valued(per="token"),), [1], targets[1:])
    scale = max(float(one.abs().max()) for one in both.values())
    for name, found in both.items():
        assert float((found - turn[name] - token[name]).abs().max()) < 1e-5 * scale, name


def test_a_state_of_other_outputs_is_refused_with_the_tensor_that_differs(tmp_path: Path) -> None:
    one, two = critic_of("head", (Valued(per="token"),), tmp_path), critic_of("head", TURN_AND_TOKEN, tmp_path)
    with pytest.raises(Mismatch, match=r"value\.bias has shape \(1,\), that of the config \(2,\)"):
        two.parts[0].load(one.parts[0].state())


@pytest.mark.parametrize("name", COMPUTED)
def test_first_layers_compute_what_the_whole_model_has_there(name: str, tmp_path: Path) -> None:
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


def test_of_an_adapted_policy_the_first_layers_have_the_adapter_merged_and_a_new_one(tmp_path: Path) -> None:
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


def test_more_layers_than_the_model_has_are_refused(tmp_path: Path) -> None:
    model("qwen2", SIZE).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"method\.critic\.blocks is 3, but .* has 2 layers; take at most 2"):
        load_backbone(ModelConfig(path=str(tmp_path)), "model.path", layers=3)
    with pytest.raises(ConfigError, match=r"method\.critic\.blocks is for a critic of kind truncated"):
        CriticConfig(kind="model", blocks=2)


@pytest.mark.parametrize("kind", ["head", "model"])
def test_an_output_learns_from_the_steps_that_its_column_names_alone(kind: str, tmp_path: Path) -> None:
    values = (Valued("value_high", learns="segment"), Valued("value_low", at="low_start"))
    critic = critic_of(kind, values, tmp_path)
    torch.nn.init.normal_(critic.module.value.weight)
    table = table_with_an_empty_response()
    table = table.with_columns(segment=np.arange(len(table)) % 3 == 0)
    rng = np.random.default_rng(4)
    targets = [rng.normal(size=len(table)) for _ in values]
    other = np.where(table.extra["segment"], targets[0], 1e6)
    read = critic.columns(table)
    wanted = critic._targets(with_targets(read, values, targets))
    assert [len(one.target) for one in wanted.outputs] == [int(table.extra["segment"].sum()), len(table)]
    one, two = (gradient_of(critic, read, [high, targets[1]]) for high in (targets[0], other))
    assert all(torch.equal(one[name], two[name]) for name in one) and any(grad.any() for grad in one.values())


@pytest.mark.parametrize(
    ("recipe", "critic", "shape"),
    [
        pytest.param("vetta", {"kind": "truncated", "blocks": 1}, (2, 32), marks=pytest.mark.slow),
        ("hiper", {"kind": "head"}, (2, 32)),
        pytest.param("steppo", {"kind": "truncated"}, (1, 32), marks=pytest.mark.slow),
    ],
)
def test_a_run_trains_every_output_and_goes_on_from_its_checkpoint(
    place: Path, recipe: str, critic: dict[str, Any], shape: tuple[int, int]
) -> None:
    settings = {
        "recipe": recipe, "iterations": 1, "checkpoint_every": 1, "evaluation.envs": [],
        "prompt.plan": recipe == "hiper", "method": {"critic": {**critic, "lr": 0.01, "minibatches": 1}},
    }  # fmt: skip
    assert main(["--config", str(write_settings(place, **settings))]) == 0
    assert main(["--config", str(write_settings(place, **{**settings, "iterations": 2})), "--resume"]) == 0
    records = without_times(place / "runs" / "tiny")
    assert [record["train/value_loss"] > 0 for record in records] == [True, True]
    weights = load_file(place / "runs/tiny/checkpoints/iteration-00002/critic.safetensors")
    (name,) = (name for name in weights if name.startswith("weights") and name.endswith("value.weight"))
    assert tuple(weights[name].shape) == shape
    assert all(row.any() for row in weights[name]), "each output has learnt"
    if critic["kind"] == "truncated" and "blocks" in critic:
        assert not any(".layers.1." in name for name in weights)
