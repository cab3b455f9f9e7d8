"""The hf engine answers as the model alone would, whatever shares the batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import NAMES, POSITIONS, VOCABULARY, check_plain, drained, greedy, tiny_model
from transformers import LlamaConfig, LlamaForCausalLM, MambaConfig, MambaForCausalLM, PreTrainedModel

from envsuite.core.errors import UsageError
from envsuite.playing.engine import Completion, Request, Sampling
from trainers.policy.attention import Scoring
from trainers.rollout import slot_attention, step_plan
from trainers.rollout.hf_engine import HFEngine, PromptTokens
from trainers.rollout.kv_cache import PAGE
from trainers.rollout.radix_cache import MEMORY
from trainers.rollout.slot_attention import attend


def prompts_of(seed: int, lengths: tuple[int, ...]) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(VOCABULARY, size=length).tolist() for length in lengths]


def check_all(model: PreTrainedModel, prompts: Iterable[Sequence[int]], done: Iterable[Completion], near=1e-4) -> None:
    for prompt, completion in zip(prompts, done, strict=True):
        check_plain(model, prompt, completion, near)


@pytest.fixture(params=["compiled", "not compiled"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention by the compiled kernel of a CPU, and as on other devices."""
    if request.param == "compiled" and not step_plan.COMPILED:
        pytest.skip("the compiled kernel needs numba: pip install numba")
    monkeypatch.setattr(step_plan, "COMPILED", request.param == "compiled")


@pytest.mark.parametrize("name", NAMES)
def test_logprobs_are_those_of_a_plain_forward_pass(name, kernel):
    model = tiny_model(name)
    first, second, third = prompts_of(0, (150, 90, 3))
    prompts = [first, first, first, second, first[:120] + third, third, [5], second, first]
    done = HFEngine(model, max_batch=5).generate(prompts, Sampling(max_tokens=25), seed=4)
    assert all(len(completion.token_ids) == 25 for completion in done)
    check_all(model, prompts, done)


@pytest.mark.parametrize("name", NAMES)
def test_greedy_decoding_is_that_of_transformers_generate(name, kernel):
    model = tiny_model(name)
    prompts = prompts_of(1, (1, 7, 40, 100, 130))
    prompts += [prompts[3]] * 3 + [prompts[4][:80] + prompts[1]]
    sampling = Sampling(temperature=0, max_tokens=30, stop_ids=(3, 60))
    for completion, prompt in zip(HFEngine(model, max_batch=4).generate(prompts, sampling), prompts, strict=True):
        assert list(completion.token_ids) == greedy(model, prompt, 30, sampling.stop_ids)
        assert completion.finish_reason == ("stop" if completion.token_ids[-1] in sampling.stop_ids else "length")


def count_computed(engine: HFEngine) -> list[int]:
    """A list to which each forward pass adds its number of tokens."""
    computed: list[int] = []
    forward = engine._forward

    def counted(sequences, cache, every=False):
        computed.append(sum(sequence.length - sequence.ready for sequence in sequences))
        return forward(sequences, cache, every)

    engine._forward = counted
    return computed


@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral"])
def test_a_session_goes_on_from_what_it_has_computed_and_answers_the_same(name):
    model = tiny_model(name)
    engine = HFEngine(model, max_batch=5)
    computed = count_computed(engine)
    prompts = prompts_of(0, (100, 90, 80))
    context = {session: prompts[session // 3] for session in range(9)}
    for turn in range(4):
        computed.clear()
        engine.submit([
            Request(session, tuple(prompt), Sampling(max_tokens=8), session=session, seed=session * 10 + turn)
            for session, prompt in context.items()
        ])  # fmt: skip
        done = drained(engine)
        # Eight tokens a response, the last of which is computed with the next prompt: it and 11 new ones. The sixth
        # session finds its prompt stored, and computes the last token of it.
        assert sum(computed) == 9 * 7 + (100 + 90 + 80 + 1 if turn == 0 else 9 * 12)
        check_all(model, context.values(), [done[session] for session in context])
        for session, prompt in context.items():
            context[session] = [*prompt, *done[session].token_ids, *prompts_of(100 * turn + session, (11,))[0]]


def test_a_group_with_one_prompt_computes_it_once():
    engine = HFEngine(tiny_model("llama"), max_batch=16)
    prompt = prompts_of(0, (200,))[0]
    computed = count_computed(engine)
    engine.generate([prompt] * 16, Sampling(max_tokens=4), seed=0)
    assert sum(computed) == 200 + 16 * 3
    assert engine.prompt_tokens == PromptTokens(total=16 * 200, computed=200)
    engine.generate([prompt] * 16, Sampling(max_tokens=1), seed=1)
    assert engine.prompt_tokens.computed == 200 + 1, "the last token again, since what follows is predicted there"


def test_different_prompts_that_begin_alike_attend_together(monkeypatch):
    model = tiny_model("llama")
    monkeypatch.setattr(step_plan, "COMPILED", False)
    engine = HFEngine(model, max_batch=8)
    calls: list[int] = []
    attend = slot_attention.attend
    monkeypatch.setattr(slot_attention, "attend", lambda *given, **how: calls.append(0) or attend(*given, **how))
    forward = engine._forward
    steps: list[int] = []
    monkeypatch.setattr(engine, "_forward", lambda *given: (steps.append(len(calls)), forward(*given))[1])
    common = np.arange(150) % VOCABULARY
    for number in range(8):
        own = np.arange(80 + number) * 7 % VOCABULARY
        engine.submit([Request(number, [*common, number, *own], Sampling(max_tokens=20, ignore_eos=True))])
    while engine.pending:
        engine.poll()
    per_step = np.diff(steps)[-10:] / model.config.num_hidden_layers
    assert per_step.max() <= 3, "the beginning that all share, that of the first, and what is their own"


@pytest.mark.seconds
def test_prompts_of_eight_thousand_tokens_with_room_for_less_than_one(kernel):
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=9000, **shape)).eval()
    engine = HFEngine(model, max_batch=2, cache_tokens=4000)
    (long,) = prompts_of(0, (8000,))
    prompts = [long, [*long[:7990], 1, 2, 3], long[:100]]
    check_all(model, prompts, engine.generate(prompts, Sampling(max_tokens=4), seed=0))
    assert engine.prompt_tokens.computed <= 8000 + 3 + 100
    assert engine._cache.pages.used * PAGE <= 4000


@pytest.mark.parametrize("tokens", [300, 900])
def test_keys_and_values_take_no_more_than_a_share_of_the_free_memory(tokens, monkeypatch):
    model = tiny_model("llama")
    plain = HFEngine(model, max_batch=16)
    engine = HFEngine(model, max_batch=16)
    memory = tokens * engine._cache.token_bytes / MEMORY
    assert memory > 0
    engine._cache._free = lambda: memory - engine._cache.pages.size
    most: list[int] = []
    forward = engine._forward
    monkeypatch.setattr(engine, "_forward", lambda *given: (most.append(len(engine._running)), forward(*given))[1])
    prompts = prompts_of(0, (100,) * 12)
    found, wanted = (e.generate(prompts, Sampling(max_tokens=30), seed=1) for e in (engine, plain))
    assert [list(c.token_ids) for c in found] == [list(c.token_ids) for c in wanted]
    assert max(most) == tokens // 130, "as many at a time as there is room for"
    assert engine._cache.pages.count * PAGE <= tokens + max(most) * PAGE, "the last page of each may be begun"
    assert plain._cache.pages.count * PAGE > 1500


def test_free_memory_is_asked_once_a_step_however_many_requests_begin_and_end():
    engine = HFEngine(tiny_model("llama"), max_batch=8)
    questions: list[int] = []
    engine._cache._free = lambda: questions.append(0) or 1e9
    computed = count_computed(engine)
    engine.generate(prompts_of(0, (40,) * 30), Sampling(max_tokens=5), seed=0)
    assert len(computed) == 20 and 0 < len(questions) <= len(computed)


def test_one_request_runs_however_little_memory_there_is():
    engine = HFEngine(tiny_model("llama"), max_batch=4)
    engine._cache._free = lambda: 0.0
    assert all(c.count == 5 for c in engine.generate(prompts_of(0, (40, 50)), Sampling(max_tokens=5), seed=0))


@pytest.mark.parametrize(
    "sampling", [Sampling(max_tokens=9), Sampling(temperature=0.7, top_p=0.9, top_k=20, max_tokens=9)]
)
def test_a_seeded_sample_does_not_depend_on_what_shares_the_batch(sampling):
    model = tiny_model("gpt2")
    prompts = prompts_of(5, (30, 70, 101, 2))
    alone = [HFEngine(model).generate([p], sampling, seed=i)[0].token_ids.tolist() for i, p in enumerate(prompts)]
    together = HFEngine(model).generate(prompts, sampling, seed=0)
    assert [c.token_ids.tolist() for c in together] == alone
    again = HFEngine(model, max_batch=2)
    again.generate(prompts[::-1], Sampling(max_tokens=3))
    assert [c.token_ids.tolist() for c in again.generate(prompts, sampling, seed=0)] == alone
    assert [c.token_ids.tolist() for c in again.generate(prompts, sampling, seed=50)] != alone


def test_a_request_in_flight_goes_on_under_new_weights():
    model = tiny_model("llama")
    prompt = prompts_of(2, (80,))[0]
    engine = HFEngine(model, max_batch=2)
    engine.sync([], 4)
    sampling = Sampling(temperature=0, max_tokens=20)
    engine.submit(
        [Request(0, tuple(prompt), Sampling(temperature=0, max_tokens=3)), Request(1, tuple(prompt), sampling)]
    )
    assert [c.request_id for c in engine.poll()] == [0]
    saved = [p.detach().clone() for p in model.parameters()]
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(0.9)
    try:
        engine.sync([], 5)
        done = drained(engine)[1]
        assert done.policy_version.tolist() == [4] * 3 + [5] * 17, "each token has the version that sampled it"
        assert list(done.token_ids[3:]) == greedy(model, [*prompt, *done.token_ids[:3]], 17)
        assert list(engine.generate([prompt], sampling)[0].token_ids) == greedy(model, prompt, 20)
        assert engine.generate([prompt], sampling)[0].policy_version.tolist() == [5] * 20
    finally:
        with torch.no_grad():
            for p, old in zip(model.parameters(), saved, strict=True):
                p.copy_(old)


def test_an_engine_that_rests_gives_back_keys_values_and_rounded_weights():
    engine = HFEngine(tiny_model(NAMES[0]), compute_dtype="bfloat16")
    prompts = prompts_of(3, (9, 14))
    first = engine.generate(prompts, Sampling(max_tokens=4), seed=1)
    assert engine._cache.pages.used and engine._rounded
    engine.rest()
    assert not engine._cache.pages.count and not list(engine._cache.nodes()) and engine._rounded is None
    again = engine.generate(prompts, Sampling(max_tokens=4), seed=1)
    assert [one.token_ids.tolist() for one in again] == [one.token_ids.tolist() for one in first]


def test_a_prompt_that_cannot_be_served_is_answered_with_an_error_and_answers_end_where_they_must():
    engine = HFEngine(tiny_model("gpt2"), max_length=50)
    empty, long, foreign, good = engine.generate([[], [1] * 50, [1, VOCABULARY], [1] * 45], Sampling(max_tokens=9))
    assert empty.error == "the prompt is empty" and not len(empty.token_ids)
    assert long.error is not None and "50" in long.error
    assert foreign.error is not None and str(VOCABULARY) in foreign.error
    assert [c.finish_reason for c in (empty, long, foreign)] == ["error", "context", "error"]
    assert good.error is None and len(good.token_ids) == 5 and good.finish_reason == "length"
    (done,) = HFEngine(tiny_model("gpt2")).generate([[1] * (POSITIONS - 4)], Sampling(max_tokens=100))
    assert len(done.token_ids) == 4, "the model has no further positions"
    sampling = Sampling(max_tokens=6, stop_ids=tuple(range(VOCABULARY)), ignore_eos=True)
    assert len(HFEngine(tiny_model("llama")).generate([[1, 2]], sampling)[0].token_ids) == 6


def test_the_model_is_left_as_it_was():
    model = tiny_model("llama")
    model.train()
    model.model.layers[0].train(False)
    try:
        HFEngine(model).generate([[1, 2, 3]], Sampling(max_tokens=3))
        assert model.training and not model.model.layers[0].training and model.model.layers[1].training
        assert model.config._attn_implementation == "sdpa"
        model(torch.tensor([[1, 2, 3]]), labels=torch.tensor([[1, 2, 3]])).loss.backward()
        assert model.model.embed_tokens.weight.grad is not None
    finally:
        model.zero_grad()
        model.train(False)


def test_bf16_logprobs_are_within_bf16_of_the_forward_pass(kernel):
    model = tiny_model("llama")
    model.to(torch.bfloat16)
    try:
        prompts = prompts_of(3, (90, 5)) * 2
        check_all(model, prompts, HFEngine(model).generate(prompts, Sampling(max_tokens=10), seed=1), 0.5)
    finally:
        model.to(torch.float32)
        tiny_model.cache_clear()


def test_a_model_with_state_outside_attention_is_refused():
    config = MambaConfig(vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=1, state_size=4)
    with pytest.raises(UsageError, match="MambaForCausalLM"):
        HFEngine(MambaForCausalLM(config))


def test_a_sharp_model_may_be_rounded_as_much_as_its_logits_are_large():
    model = deepcopy(tiny_model("llama"))
    model.lm_head.weight.data *= 16  # log-probabilities down to -200, of which bfloat16 keeps two or three digits
    assert HFEngine(model, compute_dtype="bfloat16").compute_dtype == "bfloat16"


@pytest.mark.parametrize("sharpness", [1, 16])
def test_an_engine_that_is_wrong_in_the_format_that_it_samples_in_is_refused(sharpness, monkeypatch):
    def forward(engine: HFEngine, *arguments: Any, **named: Any) -> torch.Tensor:
        logits: torch.Tensor = right(engine, *arguments, **named)
        return logits.flip(0) if logits.dtype == torch.bfloat16 else logits

    right = HFEngine._forward
    monkeypatch.setattr(HFEngine, "_forward", forward)
    model = deepcopy(tiny_model("llama"))
    model.lm_head.weight.data *= sharpness
    HFEngine(model)
    with pytest.raises(UsageError, match="short test in bfloat16"):
        HFEngine(model, compute_dtype="bfloat16")


@pytest.mark.parametrize(("causal", "masked"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_the_fused_kernel_and_plain_arithmetic_agree(causal, masked, scale):
    random = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 3, 9, 16, generator=random) for _ in range(3))
    mask = torch.randn(2, 1, 9, 9, generator=random) if masked else None
    fused, fused_sums = attend(query, key, value, mask, Scoring(scale), causal)
    # Values narrower than queries are not taken by the fused kernel.
    plain, plain_sums = attend(query, key, value[..., :15], mask, Scoring(scale), causal)
    torch.testing.assert_close(fused[..., :15], plain)
    torch.testing.assert_close(fused_sums, plain_sums)
