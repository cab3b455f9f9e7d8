"""Mixtures: experts that the engine tells, and the trainer compares or follows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from episodes import token_table
from numpy.typing import NDArray
from row_by_row import batch_logprobs, row_logprobs, same_gradients, taken_gradients
from test_update import rng
from tiny_runs import in_float64
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from benchmarks.families import VOCABULARY, built, families, shrunk
from envsuite.core.errors import DataError
from envsuite.playing.engine import Completion, Sampling
from trainers.policy import accumulation
from trainers.policy.accumulation import Batch
from trainers.policy.adapter import (
    adapter_tensors,
    add_adapter,
    as_reference,
    check_adapter,
    continue_adapter,
    frozen_weights,
    keep_reference,
    merge_adapter,
    merged_weights,
    save_adapter,
)
from trainers.policy.attention import checkpoint_activations
from trainers.policy.config import AdapterConfig, OptimConfig
from trainers.policy.loss import Objective
from trainers.policy.model import Policy
from trainers.policy.packing import micro_batches
from trainers.policy.routing import balance_of, routers, routing
from trainers.policy.rows import use_rows
from trainers.policy.selfcheck import check_replay
from trainers.policy.update import Updater
from trainers.rollout.hf_engine import HFEngine
from trainers.rollout.plain_engine import PlainEngine
from trainers.settings import ConfigError
from trainers.steps import StepTable
from trainers.steps.experts import cut, fill_experts

FAMILIES = ("qwen3_moe", "granitemoe", "glm4_moe")
TENSORS = ("experts.gate_up_proj", "experts.down_proj")
FORCED = ("qwen3_moe", "gpt_oss", "glm4_moe")


@pytest.fixture(params=FAMILIES)
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    return built(request.param)


def _told(prompts: list[list[int]], answers: list[Completion]) -> StepTable:
    """Rows of answers, with the experts that the engine tells of them."""
    experts = np.empty(len(answers), object)
    experts[:] = [answer.experts for answer in answers]
    rows = [(prompt, answer.token_ids.tolist()) for prompt, answer in zip(prompts, answers, strict=True)]
    return token_table(rows, experts=experts)


def _updater(policy: Policy, **optim: Any) -> Updater:
    sgd = torch.optim.SGD(policy.parameters(), 0.0)
    return Updater(Accelerator(cpu=True), policy, sgd, OptimConfig(lr=1e-30, **optim), Objective())


def _sampled(model: PreTrainedModel) -> tuple[StepTable, HFEngine]:
    """Rows of two turns each; the second prompt goes on from the first."""
    engine = HFEngine(model, max_batch=3)
    some = np.random.default_rng(3)
    start = some.integers(0, VOCABULARY, 40).tolist()
    prompts = [[*start, *some.integers(0, VOCABULARY, 3 + n).tolist()] for n in range(5)]
    answers = engine.generate(prompts, Sampling(max_tokens=9), seed=0)
    later = [[*prompt, *answer.token_ids.tolist(), 7] for prompt, answer in zip(prompts, answers, strict=True)]
    answers += engine.generate(later, Sampling(max_tokens=9), seed=1)
    return _told(prompts + later, answers), engine


def _own(model: PreTrainedModel, tokens: NDArray[np.int64]) -> NDArray[np.integer[Any]]:
    with torch.no_grad(), routing(model) as routed:
        model(torch.from_numpy(tokens)[None].long(), use_cache=False)
    found = routed.experts(model)
    assert found is not None
    return np.asarray(found)


def _of_many(name: str) -> PreTrainedModel:
    """A model of two layers with experts, eight in two groups if the family has these, three of which a token takes."""
    torch.manual_seed(7)
    config = shrunk(name)
    more = {"n_routed_experts": 8, "num_experts": 8, "num_local_experts": 8, "num_experts_per_tok": 3}
    for key, value in {**more, "first_k_dense_replace": 0, "n_group": 1 + (name == "glm4_moe")}.items():
        if hasattr(config, key):
            setattr(config, key, value)
    made: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return made.train(False)


def _foreign(table: StepTable, count: int = 4, k: int = 2) -> StepTable:
    """The table with experts that nobody would choose, the same in each row that begins with a token."""
    experts = np.empty(len(table), object)
    for row in range(len(table)):
        tokens = [*table.prompt[row], *table.response[row][:-1]]
        shift = (np.cumsum(tokens)[:, None] + np.arange(2))[:, :, None]
        experts[row] = (((shift + np.arange(k) * (1 + shift // count % 2)) % count).astype(np.uint8),)
    return replace(table, experts=experts)


def _forced(name: str, logits: Tensor, given: Tensor) -> Tensor:
    """Weights of given experts by each family's formula."""
    if name == "gpt_oss":
        return logits.gather(1, given).softmax(-1)
    if name == "glm4_moe":
        some = logits.sigmoid().gather(1, given)
        return some / (some.sum(-1, keepdim=True) + 1e-20)
    return logits.softmax(-1).gather(1, given)


def _naive(model: PreTrainedModel, table: StepTable) -> Tensor:
    """Log-probabilities of the rows, one by one, by a model whose routers are replaced."""
    name, parts = model.config.model_type, []
    before = [router.forward for router in routers(model)]
    for row in range(len(table)):
        given = torch.from_numpy(np.concatenate(table.experts[row])).long()
        for number, router in enumerate(routers(model)):

            def forward(
                states: Tensor, router: Any = router, own: Tensor = given[:, number]
            ) -> tuple[Tensor, Tensor, Tensor]:
                logits = states.view(-1, states.shape[-1]) @ router.weight.T
                logits = logits + router.bias if name == "gpt_oss" else logits
                return logits, _forced(name, logits, own) * getattr(router, "routed_scaling_factor", 1.0), own

            router.forward = forward
        prompt, response = table.prompt[row], torch.from_numpy(table.response[row]).long()
        ids = torch.tensor([[*prompt, *response[:-1]]])
        logits = model(ids, use_cache=False).logits[0, len(prompt) - 1 :]
        parts.append(logits.log_softmax(-1).gather(1, response[:, None])[:, 0])
    for router, own in zip(routers(model), before, strict=True):
        router.forward = own
    return torch.cat(parts)


def test_the_engine_tells_the_experts_that_the_model_takes(model):
    table, engine = _sampled(model)
    assert engine.records_experts
    for row in range(len(table)):
        tokens = np.concatenate([table.prompt[row], table.response[row][:-1]])
        told = np.concatenate(table.experts[row])
        assert told.dtype == np.uint8 and told.shape == (len(tokens), len(routers(model)), 2)
        np.testing.assert_array_equal(np.sort(told), np.sort(_own(model, tokens)))
    parts = [part for parts in table.experts for part in parts]
    kept = {id(base): base for base in (part if part.base is None else part.base for part in parts)}
    distinct = sum(map(len, micro_batches(table, 10_000, True)))
    assert sum(map(len, kept.values())) < 1.5 * distinct < sum(map(len, parts)), "rows share what they begin with"


def test_the_experts_of_a_request_are_those_of_the_newest_weights():
    model = built("qwen3_moe")
    engine = HFEngine(model, max_batch=2)
    prompt = list(range(20))
    first = engine.generate([prompt], Sampling(max_tokens=4), seed=0)[0]
    with torch.no_grad():
        for router in routers(model):
            router.weight.copy_(router.weight.flip(0))
    engine.sync([], 1)
    second = engine.generate([prompt], Sampling(max_tokens=4), seed=0)[0]
    np.testing.assert_array_equal(np.concatenate(second.experts)[:1, 0], 3 - np.concatenate(first.experts)[:1, 0])


@pytest.mark.parametrize("way", ["tree", "parts", "rows", "checkpointing"])
@pytest.mark.parametrize("name", FORCED)
def test_foreign_experts_give_what_a_model_forced_to_them_does(name, way):
    model = _of_many(name)
    model.set_experts_implementation("eager")  # in float64, too
    table = _foreign(_sampled(built("qwen3_moe"))[0], 8, 3)
    if way == "rows":
        use_rows(model, "a test")
    if way == "checkpointing":
        checkpoint_activations(model)
    policy = Policy(model, replay=True).train()
    in_float64(policy)
    weight = torch.from_numpy(np.random.default_rng(4).normal(size=len(table.response.values)))
    found = torch.zeros_like(weight)
    for tree in micro_batches(table, 60, True, rows=way == "rows"):
        stats = policy(replace(tree, part=23) if way == "parts" else tree)
        index = torch.from_numpy(tree.index)
        found[index] = stats.logprob.detach().double()
        (stats.logprob * weight[index]).sum().backward()
        compared, tokens, choices, others = policy.rerouted.tolist()
        assert choices == compared * len(routers(model)) and 0 < tokens <= compared and tokens <= others <= choices
    ours = taken_gradients(policy)
    policy.eval()
    wanted = _naive(model, table)
    (wanted * weight).sum().backward()
    torch.testing.assert_close(found, wanted.detach().double(), atol=1e-6, rtol=0)
    theirs = taken_gradients(policy)
    same_gradients(ours, theirs)
    assert any(name.endswith("gate.weight") or "router" in name for name in ours)


def test_the_models_own_experts_change_nothing(model):
    table, _ = _sampled(model)
    own, replayed = Policy(model), Policy(model, replay=True)
    for tree in micro_batches(table, 10_000, True):
        a, b = own(tree), replayed(tree)
        assert torch.equal(a.logprob, b.logprob)
        assert own.rerouted.tolist() == replayed.rerouted.tolist() == [len(tree), 0, len(tree) * len(routers(model)), 0]


def test_tokens_whose_experts_are_not_known_go_where_the_model_sends_them():
    model = built("qwen3_moe")
    table = _foreign(_sampled(model)[0])
    some = table.experts.copy()
    some[:] = [parts if row == 3 else () for row, parts in enumerate(some)]
    policy, own = Policy(model, replay=True), Policy(model)
    (tree,) = micro_batches(replace(table, experts=some), 10_000, False)
    plain, mixed = own(tree), policy(tree)
    row = table.response.row_of[tree.index]
    assert torch.equal(plain.logprob[row != 3], mixed.logprob[row != 3])
    assert not torch.allclose(plain.logprob[row == 3], mixed.logprob[row == 3], atol=1e-3)
    assert policy.rerouted[0] == len(np.concatenate(table.experts[3]))
    (none,) = micro_batches(table.without_experts(), 10_000, True)
    assert none.experts is None


@pytest.mark.parametrize("budget", [60, 10_000])
def test_a_token_of_several_rows_has_the_experts_of_the_first(budget):
    table, _ = _sampled(built("qwen3_moe"))
    experts = table.experts.copy()
    experts[:] = [(np.full_like(np.concatenate(parts), row),) for row, parts in enumerate(experts)]
    (whole,) = micro_batches(replace(table, experts=experts), 10_000, True)
    assert whole.experts is not None
    of_token = {tuple(whole.tokens[whole.path(n)]): int(whole.experts[n, 0, 0]) for n in range(len(whole))}
    for tree in micro_batches(replace(table, experts=experts), budget, True):
        assert tree.experts is not None
        for n in range(len(tree)):
            assert of_token[tuple(tree.tokens[tree.path(n)])] == int(tree.experts[n, 0, 0])
    assert set(of_token.values()) == set(range(10))


def test_parts_are_cut_and_filled():
    parts = tuple(np.arange(n * 10, n * 10 + n, dtype=np.uint8)[:, None, None] for n in (3, 1, 4))
    whole = np.concatenate(parts)
    for begin in range(9):
        for end in (None, *range(begin, 9)):
            found = cut(parts, begin, end)
            np.testing.assert_array_equal(np.concatenate([whole[:0], *found]), whole[begin:end])
    assert [np.concatenate(p).ravel().tolist() for p in fill_experts([(), parts[1:2]], [2, 1])] == [[255, 255], [10]]
    assert fill_experts([(), ()], [2, 1]) == [(), ()]


@pytest.mark.seconds
@pytest.mark.parametrize("name", ["qwen3_moe", "mixtral"])
def test_in_bfloat16_the_engines_experts_narrow_the_gap(name):
    torch.manual_seed(0)
    sizes = {"num_experts": 32, "num_experts_per_tok": 4, "norm_topk_prob": True, "moe_intermediate_size": 64}
    if name == "mixtral":
        sizes = {"num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 64}
    config = AutoConfig.for_model(
        name, vocab_size=512, hidden_size=128, num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=2,
        head_dim=32, max_position_embeddings=4096, initializer_range=0.1, pad_token_id=None, bos_token_id=None,
        eos_token_id=None, **sizes,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).train(False)
    prompt = np.random.default_rng(0).integers(0, 512, 128).tolist()
    engine = HFEngine(model, max_batch=8, compute_dtype="bfloat16")
    answers = engine.generate([prompt] * 8, Sampling(max_tokens=32, ignore_eos=True), seed=0)
    table = _told([prompt] * 8, answers)
    sampled = np.concatenate([answer.logprobs for answer in answers])

    def gaps(replay: bool) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Distance of each response token's log-probability to the engine's, and the counts of rerouted tokens."""
        policy = Policy(model, compute_dtype="bfloat16", replay=replay)
        distances, counts = np.zeros(len(sampled)), np.zeros(4, np.int64)
        with torch.no_grad():
            for tree in micro_batches(table, 4096):
                distances[tree.index] = policy(tree).logprob.double().numpy() - sampled[tree.index]
                counts += policy.rerouted.numpy()
        return np.abs(distances), counts

    (own, counts), (replayed, _) = gaps(replay=False), gaps(replay=True)
    assert 0 < counts[3] < 0.3 * counts[2]
    assert replayed.max() < own.max() / 3 and replayed.mean() < own.mean() / 1.5


def test_an_update_tells_how_many_tokens_go_elsewhere():
    model = built("qwen3_moe")
    table, _ = _sampled(model)

    def told(table: StepTable, replay: bool) -> dict[str, float]:
        return (
            _updater(Policy(model, replay=replay))
            .update(Batch(table, np.ones(len(table.response.values))), rng())
            .train
        )

    same = told(table, False)
    assert same["rerouted_tokens"] == same["rerouted_choices"] == 0.0
    for replay in (False, True):
        other = told(_foreign(table), replay)
        assert 0.0 < other["rerouted_choices"] <= other["rerouted_tokens"] <= 1.0
    assert "rerouted_tokens" not in told(table.without_experts(), False)


def _balance(model: PreTrainedModel, table: StepTable) -> Tensor:
    """transformers' loss of all rows, each by itself, in the format of the logits."""
    logits: list[list[Tensor]] = [[] for _ in routers(model)]
    for row in range(len(table)):
        tokens = torch.from_numpy(np.concatenate([table.prompt[row], table.response[row][:-1]])).long()
        with routing(model, logits=True) as routed:
            model(tokens[None], use_cache=False)
        for own, of_row in zip(logits, routed.logits, strict=True):
            own.append(of_row)
    probability = torch.cat([part for own in logits for part in own]).softmax(-1)
    taken = torch.zeros_like(probability).scatter(1, probability.topk(2).indices, 1.0)
    return probability.shape[1] * (taken.mean(0) * probability.mean(0)).sum()


@pytest.mark.parametrize("way", ["tree", "parts", "rows", "checkpointing"])
@pytest.mark.parametrize("budget", [70, 10_000])
def test_the_balance_loss_is_that_of_all_rows_one_by_one(way, budget):
    table, _ = _sampled(built("qwen3_moe"))
    advantage = np.random.default_rng(5).normal(size=len(table.response.values))
    found = {}
    for coef in (0.0, 0.5):
        model = built("qwen3_moe")
        model.set_experts_implementation("eager")
        if way == "rows":
            use_rows(model, "a test")
        if way == "checkpointing":
            checkpoint_activations(model)
        policy = in_float64(Policy(model, balance_coef=coef))
        updater = _updater(policy, tokens_per_microbatch=budget)
        if way == "parts":
            whole = accumulation._trees(policy, table, OptimConfig(), 1.0)
            assert len(whole) == 1
            parts = [replace(whole[0], part=budget)]
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(accumulation, "_trees", lambda *_, parts=parts: parts)
                found[coef] = updater.gradient(table, advantage)
        else:
            found[coef] = updater.gradient(table, advantage)
        told = updater.update(Batch(table, advantage), rng()).train
    policy.zero_grad()
    policy.eval()
    wanted = 0.5 * _balance(model, table)
    assert told["balance_loss"] == pytest.approx(float(wanted), abs=1e-9)
    assert told["loss"] == pytest.approx(told["policy_loss"] + told["balance_loss"], abs=1e-9)
    wanted.backward()
    theirs = {name: p.grad for name, p in policy.named_parameters() if p.grad is not None and bool(p.grad.any())}
    ours = {name: found[0.5][name] - found[0.0][name] for name in theirs}
    same_gradients(ours, theirs, near=1e-7)  # the model's routers compute weights in float32
    last = [name for name in theirs if ".layers.1." in name]
    same_gradients({name: ours[name] for name in last}, {name: theirs[name] for name in last}, near=1e-12)
    others = [float((found[0.5][name] - found[0.0][name]).abs().max()) for name in found[0.5].keys() - theirs.keys()]
    assert max(others) < 1e-12


@pytest.mark.parametrize("name", ["qwen3_moe", "gpt_oss"])
def test_adapters_on_experts_are_what_peft_computes(name, tmp_path):
    model, config = built(name), AdapterConfig(rank=2, alpha=3, targets=["q_proj", *TENSORS])
    add_adapter(model, config, "base")
    torch.manual_seed(3)
    for tensor in adapter_tensors(model).values():
        tensor.normal_(std=0.2)
    assert sum("experts" in key for key in adapter_tensors(model)) == 2 * 2 * 2
    table = _sampled(built("qwen3_moe"))[0].without_experts()
    weight = torch.from_numpy(np.random.default_rng(4).normal(size=len(table.response.values))).float()
    policy = Policy(model)
    found = batch_logprobs(policy, table, weight, 60)
    ours = taken_gradients(policy)
    wanted = row_logprobs(model, table)
    (wanted * weight).sum().backward()
    torch.testing.assert_close(found, wanted.detach(), atol=2e-5, rtol=0)
    same_gradients(ours, taken_gradients(policy))
    whole = built(name)
    assert whole.load_state_dict(dict(merged_weights(model)), strict=True)
    torch.testing.assert_close(row_logprobs(whole, table), wanted, atol=2e-5, rtol=0)
    frozen = built(name).state_dict()
    assert all(torch.equal(tensor, frozen[key]) for key, tensor in frozen_weights(model))
    save_adapter(model, tmp_path)
    torch.testing.assert_close(row_logprobs(merge_adapter(built(name), tmp_path), table), wanted, atol=2e-5, rtol=0)
    again = built(name)
    add_adapter(again, config, "base")
    continue_adapter(again, tmp_path, config)
    assert torch.equal(row_logprobs(again, table), row_logprobs(model, table))
    keep_reference(model)
    before = row_logprobs(model, table).detach()
    for tensor in adapter_tensors(model).values():
        tensor.mul_(2.0)
    assert not torch.equal(row_logprobs(model, table), before)
    with as_reference(model):
        assert torch.equal(row_logprobs(model, table), before)


def test_the_engine_samples_experts_under_an_adapter_in_bfloat16():
    model = built("qwen3_moe")
    add_adapter(model, AdapterConfig(rank=2, alpha=3, targets=["q_proj", *TENSORS]), "base")
    torch.manual_seed(3)
    for tensor in adapter_tensors(model).values():
        tensor.normal_(std=0.2)
    for dtype, near in (("float32", 1e-5), ("bfloat16", 0.15)):
        engine = HFEngine(model, max_batch=3, compute_dtype=dtype)
        prompts = [list(range(5, 25)), list(range(5, 20))]
        answers = engine.generate(prompts, Sampling(max_tokens=9), seed=1)
        (tree,) = micro_batches(_told(prompts, answers), 10_000, True)
        found = Policy(model, compute_dtype=dtype, replay=True)(tree).logprob
        told = np.concatenate([answer.logprobs for answer in answers])[tree.index]
        torch.testing.assert_close(found.detach(), torch.from_numpy(told), atol=near, rtol=0)


def test_adapters_on_experts_have_a_base_in_float32_and_one_process():
    settings, config = built("qwen3_moe").config, AdapterConfig(targets=[*TENSORS])
    check_adapter(config, settings, "here")
    for changes in ({"base": "bfloat16"}, {}):
        with pytest.raises(ConfigError, match=r"experts\.down_proj.* set base: float32"):
            check_adapter(replace(config, **changes), settings, "here", "none" if changes else "full")


@pytest.mark.parametrize("known", [5, 1])
def test_a_minibatch_that_knows_no_experts_keeps_the_balance_loss_of_the_others(known):
    table, _ = _sampled(built("qwen3_moe"))
    experts = table.experts.copy()
    for row in range(known, len(experts)):
        experts[row] = ()
    table = replace(table, experts=experts)
    advantage = np.random.default_rng(5).normal(size=len(table.response.values))
    for seed in range(3):  # different rows in each of four minibatches
        updater = _updater(Policy(built("qwen3_moe"), balance_coef=0.5), minibatches=4)
        told = updater.update(Batch(table, advantage), np.random.default_rng(seed)).train
        assert told["balance_loss"] > 0.0


def test_the_balance_loss_is_transformers_own():
    model = built("qwen3_moe")
    tokens = torch.arange(30)[None] % VOCABULARY
    output = model(tokens, labels=tokens, output_router_logits=True)
    table = token_table([(tokens[0, :20].tolist(), [*tokens[0, 20:].tolist(), 0])])
    torch.testing.assert_close(_balance(model, table), output.aux_loss)
    assert balance_of(model.config) == 0.0
    model.config.output_router_logits, model.config.router_aux_loss_coef = True, 0.25
    assert Policy(model, balance_coef=None).balance_coef == 0.25 and Policy(model).balance_coef == 0.0


@pytest.mark.parametrize("name", ["dots1", "mixtral", "qwen3_next"])
def test_a_group_of_all_experts_is_no_choice(name):
    check_replay(_of_many(name))


@pytest.mark.slow
def test_all_families_of_mixtures_but_some_can_follow():
    refused = set()
    for name in families():
        try:
            model = built(name)
        except Exception:  # not built tiny, for reasons of its own
            continue
        if routers(model):
            try:
                check_replay(model)
            except DataError:
                refused.add(name)
    assert refused == {"jetmoe", "llama4", "llama4_text", "phimoe", "zaya"}


@pytest.mark.parametrize("name", ["llama", "llama4_text", "jetmoe", "phimoe"])
def test_models_that_cannot_follow_are_refused(name):
    with pytest.raises(DataError, match=r"model\.routing is replay, but .*set it to own"):
        check_replay(built(name))


def test_the_plain_engine_tells_none():
    engine = PlainEngine(built("qwen3_moe"), max_batch=2)
    assert not engine.records_experts
    assert engine.generate([[1, 2, 3]], Sampling(max_tokens=2), seed=0)[0].experts == ()
