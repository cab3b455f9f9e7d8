"""LoRA on models of every architecture: what peft computes by itself is what the trainer and the engine compute."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from architectures import COMPUTED, architecture
from peft import PeftModel
from policies import logprobs
from row_by_row import batch_logprobs, row_logprobs, same_gradients, taken_gradients
from safetensors.torch import load_file, save_file
from tiny_runs import save_model, step_table
from transformers import PreTrainedModel

from envsuite.core.errors import DataError, MissingExtra
from envsuite.playing.engine import Sampling
from trainers.credit.config import CriticConfig
from trainers.credit.critic import Critic
from trainers.credit.estimators.base import CriticValue
from trainers.credit.providers import Reference
from trainers.policy.adapter import (
    WEIGHTS,
    adapter_tensors,
    add_adapter,
    as_reference,
    keep_reference,
    merge_adapter,
    merged_weights,
    save_adapter,
)
from trainers.policy.attention import checkpoint_activations
from trainers.policy.config import AdapterConfig, ModelConfig, OptimConfig
from trainers.policy.loading import load_model, load_tokenizer
from trainers.policy.model import Policy
from trainers.policy.packing import micro_batches
from trainers.rollout.hf_engine import HFEngine
from trainers.settings import ConfigError
from trainers.steps import StepTable
from trainers.steps.columns import REFERENCE

SIZE = 61
SAMPLED = [name for name in COMPUTED if name != "gpt_oss"]  # the hf engine lacks attention sinks, and says so
LORA = AdapterConfig(rank=4, alpha=6)


def _table() -> StepTable:
    return step_table(np.random.default_rng(3), SIZE)


def _learnt(policy: PreTrainedModel, seed: int = 5, scale: float = 0.1) -> PreTrainedModel:
    """Weights as if the adapter had been trained: at the beginning it changes nothing."""
    torch.manual_seed(seed)
    for tensor in adapter_tensors(policy).values():
        tensor.add_(scale * torch.randn_like(tensor))
    return policy


def _adapted(name: str, config: AdapterConfig = LORA) -> PreTrainedModel:
    policy = architecture(name, SIZE)
    add_adapter(policy, config, "owner/base")
    return _learnt(policy)


def _by_peft(name: str, folder: Path) -> PeftModel:
    plain = architecture(name, SIZE)
    plain.set_attn_implementation("eager")
    return PeftModel.from_pretrained(plain, str(folder), is_trainable=True)


@pytest.mark.parametrize("checkpointing", [True, False], ids=["recomputed", "kept"])
@pytest.mark.parametrize("name", COMPUTED)
def test_log_probabilities_and_gradients_are_those_of_peft(name, checkpointing, tmp_path):
    adapted, table = _adapted(name), _table()
    save_adapter(adapted, tmp_path)
    naive = _by_peft(name, tmp_path)
    weight = torch.from_numpy(np.random.default_rng(4).normal(size=len(table.response.values))).float()
    expected = row_logprobs(naive, table)
    (expected * weight).sum().backward()
    if checkpointing:
        checkpoint_activations(adapted)
    logprobs = batch_logprobs(Policy(adapted).train(), table, weight, 120)
    assert float((logprobs - expected.detach()).abs().max()) < 1e-5
    found, wanted = taken_gradients(adapted), taken_gradients(naive)
    assert all(".lora_" in key for key in found)
    same_gradients(found, {key.removeprefix("base_model.model."): gradient for key, gradient in wanted.items()})


@pytest.mark.seconds
@pytest.mark.parametrize("name", SAMPLED)
def test_the_engine_and_the_merged_model_give_the_trainers_log_probabilities(name, tmp_path):
    adapted = _adapted(name)
    save_adapter(adapted, tmp_path)
    plain, engine = architecture(name, SIZE), HFEngine(adapted)
    whole = merge_adapter(architecture(name, SIZE), tmp_path)
    prompts, off = [[1, 2, 3, 4, 5], [1, 2, 3, 9], [7]], 0.0
    for prompt, done in zip(prompts, engine.generate(prompts, Sampling(max_tokens=9), seed=0), strict=True):
        ids = torch.tensor([[*prompt, *done.token_ids]])
        for of in (adapted, whole):
            np.testing.assert_allclose(done.logprobs, logprobs(of, prompt, done.token_ids), rtol=0, atol=1e-4)
        with torch.no_grad():
            off = max(off, float((plain(ids).logits - whole(ids).logits).abs().max()))
    assert off > 0.01, "the adapter changes the model"


def test_frozen_weights_in_bfloat16_change_log_probabilities_and_gradients_by_rounding_alone(place):
    """Against float32 with the same rounded weights: 0.1 nats, and 10 % of the gradient's norm."""
    rounded = {"compute_dtype": "bfloat16", "adapter": AdapterConfig(rank=4, base="bfloat16")}
    short = load_model(ModelConfig(path=str(place / "model"), **rounded))
    exact = load_model(ModelConfig(path=str(place / "model"), adapter=AdapterConfig(rank=4)))
    for key, parameter in short.named_parameters():
        assert parameter.dtype == (torch.float32 if parameter.requires_grad else torch.bfloat16), key
    own = dict(exact.named_parameters())
    for key, parameter in _learnt(short).named_parameters():
        own[key].data = parameter.data.float()
    table = step_table(np.random.default_rng(3), 300)
    flat = []
    for policy in (Policy(short, compute_dtype="bfloat16").train(), Policy(exact).train()):
        (batch,) = micro_batches(table, 10_000, True)
        stats = policy(batch)
        (stats.logprob * torch.linspace(-1, 1, len(stats.logprob))).sum().backward()
        gradient = torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])
        assert gradient.dtype == torch.float32
        flat.append((stats.logprob.detach(), gradient))
    (logprob, gradient), (exact_logprob, exact_gradient) = flat
    assert 1e-4 < float((logprob - exact_logprob).abs().max()) < 0.1
    assert float((gradient - exact_gradient).norm() / exact_gradient.norm()) < 0.1


@pytest.mark.parametrize("base", ["float32", "bfloat16"])
def test_the_engine_rounds_what_is_frozen_once_and_adapters_at_each_update(base, place):
    config = ModelConfig(path=str(place / "model"), compute_dtype="bfloat16", adapter=AdapterConfig(rank=4, base=base))
    policy = load_model(config)
    engine, sampling = HFEngine(policy, compute_dtype="bfloat16"), Sampling(max_tokens=12)
    before = engine.generate([[1, 2, 3]], sampling, seed=0)[0]
    kept = engine._frozen
    assert kept is not None and bool(kept) == (base == "float32"), "bfloat16 needs no copies"
    _learnt(policy, scale=0.3)
    engine.sync(merged_weights(policy), 1)
    after = engine.generate([[1, 2, 3]], sampling, seed=0)[0]
    assert engine._frozen is kept
    assert list(before.token_ids) != list(after.token_ids)
    alone = HFEngine(policy, compute_dtype="bfloat16").generate([[1, 2, 3]], sampling, seed=0)[0]
    np.testing.assert_array_equal(after.logprobs, alone.logprobs)


@pytest.mark.parametrize("name", COMPUTED)
def test_engines_are_given_the_whole_model_with_the_adapter_merged(name, tmp_path):
    adapted = _adapted(name)
    keep_reference(adapted)
    save_adapter(adapted, tmp_path)
    plain = architecture(name, SIZE)
    before = {key: tensor.clone() for key, tensor in merged_weights(plain)}
    whole = dict(merge_adapter(plain, tmp_path).named_parameters())
    given = dict(merged_weights(adapted))
    assert given.keys() == whole.keys() == before.keys()
    for key, tensor in given.items():
        torch.testing.assert_close(tensor, whole[key], rtol=0, atol=1e-6, msg=key)
    assert (
        sum(not torch.equal(tensor, before[key]) for key, tensor in given.items()) == len(adapter_tensors(adapted)) / 2
    )


@pytest.mark.parametrize("continued", [False, True])
def test_the_reference_is_the_model_that_the_run_began_with(continued):
    policy, table = architecture("qwen2", SIZE), _table()
    add_adapter(policy, LORA, "owner/base")
    if continued:
        _learnt(policy)
    with torch.no_grad():
        began = row_logprobs(policy, table)
    keep_reference(policy)
    trained = {key for key, parameter in policy.named_parameters() if parameter.requires_grad}
    assert sum(p.numel() for p in policy.parameters() if not p.requires_grad) < 2 * sum(
        p.numel() for p in architecture("qwen2", SIZE).parameters()
    ), "no second copy of the base"
    _learnt(policy, seed=6)
    provider = Reference(Policy(policy), "device", torch.device("cpu"), OptimConfig(tokens_per_microbatch=120))
    with torch.no_grad():
        now = row_logprobs(policy, table)
        found = provider.columns(table).token_extra[REFERENCE].values
        np.testing.assert_allclose(found, began.numpy(), atol=1e-5)
        assert float((now - began).abs().max()) > 0.01
        np.testing.assert_array_equal(row_logprobs(policy, table).numpy(), now.numpy())
        with as_reference(policy):
            assert not torch.equal(row_logprobs(policy, table), now)
    assert {key for key, parameter in policy.named_parameters() if parameter.requires_grad} == trained
    assert all(".default." in key for key in trained)
    assert not any("reference" in key for key in adapter_tensors(policy))


def test_a_critic_of_its_own_trains_and_keeps_an_adapter_too(tmp_path):
    config = ModelConfig(path=str(save_model(tmp_path / "model")), adapter=LORA)
    policy = load_model(config)
    critic = Critic(
        CriticConfig("model"), Accelerator(cpu=True), policy, config, OptimConfig(), [CriticValue()], seed=1
    )
    (part,) = critic.parts
    state = part.state()
    trained = {name for name in state["weights"] if ".lora_" in name}
    assert len(trained) == 2 * 7 * 2 and set(state["weights"]) - trained == {"value.weight", "value.bias"}
    steps = step_table(np.random.default_rng(3), 300).with_columns(value_target=np.ones(len(_table())))
    critic.learn(critic.columns(steps), np.random.default_rng(0))
    learnt = part.state()
    assert not torch.equal(learnt["weights"]["value.bias"], state["weights"]["value.bias"])
    again = Critic(CriticConfig("model"), Accelerator(cpu=True), policy, config, OptimConfig(), [CriticValue()], seed=2)
    again.parts[0].load(learnt)
    np.testing.assert_array_equal(again.columns(steps).extra["value"], critic.columns(steps).extra["value"])


# -- bad input -------------------------------------------------------------------------------------------------------


def _refused(kind: type[Exception], words: str, folder: Path, **adapter: object) -> None:
    with pytest.raises(kind, match=words):
        load_model(ModelConfig(path=str(folder), compute_dtype="bfloat16", adapter=AdapterConfig(**adapter)))


def test_targets_that_do_not_exist_are_refused_with_those_that_do_before_weights_are_read(tmp_path):
    folder = save_model(tmp_path / "model", "gpt2")
    (folder / "model.safetensors").write_bytes(b"not read")
    words = r"model.adapter.targets: q_proj: not a linear layer of .*there are: c_attn, c_fc, c_proj$"
    _refused(ConfigError, words, folder, targets=["c_fc", "q_proj"])
    _refused(ConfigError, "lm_head: not a linear layer", folder, targets=["lm_head"])
    _refused(DataError, "cannot be loaded", folder, targets=["c_fc"])


def test_formats_that_cannot_be_are_refused(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"adapter.base is bfloat16.*compute_dtype is float32"):
        ModelConfig(adapter=AdapterConfig(base="bfloat16"))
    folder = save_model(tmp_path / "model")
    if not torch.cuda.is_available():
        _refused(ConfigError, r"model.adapter.base is nf4, which needs CUDA.*base: bfloat16", folder, base="nf4")
    monkeypatch.setitem(sys.modules, "peft", None)
    _refused(MissingExtra, r"pip install 'envsuite\[lora\]'", folder)


# -- adapters as models ----------------------------------------------------------------------------------------------


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """The folder of an adapter to the model in ``model``."""
    policy = load_model(ModelConfig(path=str(save_model(tmp_path / "model")), adapter=LORA))
    (tmp_path / "adapter").mkdir()
    save_adapter(_learnt(policy), tmp_path / "adapter")
    return tmp_path / "adapter"


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"rank": 5, "alpha": 6}, r"adapter with r 4, but adapter.rank is 5"),
        ({"rank": 4, "alpha": 8}, r"adapter with lora_alpha 6, but adapter.alpha is 8"),
        ({"rank": 4, "alpha": 6, "targets": ["q_proj"]}, r"other layers than adapter.targets.*: \[down_proj"),
    ],
)
def test_an_adapter_is_continued_with_its_own_settings_only(trained, settings, words):
    with pytest.raises(ConfigError, match=words):
        load_model(ModelConfig(path=str(trained), adapter=AdapterConfig(**settings)))
    assert load_tokenizer(ModelConfig(path=str(trained), adapter=LORA)).chat_template is not None, "the base's"


def test_an_adapter_whose_base_or_weights_are_missing_is_refused(trained):
    (trained.parent / "model").rename(trained.parent / "moved")
    for adapter in (LORA, None):
        with pytest.raises(DataError, match=r"adapter_config.json names the base .*model: there is no such folder"):
            load_model(ModelConfig(path=str(trained), adapter=adapter))
    (trained.parent / "moved").rename(trained.parent / "model")
    tensors = load_file(trained / WEIGHTS)
    save_file({key: tensor[:, :2].contiguous() for key, tensor in tensors.items()}, trained / WEIGHTS)
    for adapter in (LORA, None):
        with pytest.raises(DataError, match="adapter"):
            load_model(ModelConfig(path=str(trained), adapter=adapter))
    (trained / WEIGHTS).rename(trained / "adapter_model.bin")
    with pytest.raises(DataError, match=r"no adapter_model.safetensors there"):
        load_model(ModelConfig(path=str(trained)))


def test_the_base_is_named_with_its_folder_wherever_the_run_stood(place, monkeypatch):
    monkeypatch.chdir(place)
    policy = load_model(ModelConfig(path="model", adapter=LORA))
    assert policy.peft_config["default"].base_model_name_or_path == str(place / "model")
