"""The hf engine on models that keep more than keys and values: it answers as the model alone would."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
import torch
from architectures import architecture
from tiny_models import check_plain, drained, greedy, plain_logprobs
from transformers import PreTrainedModel

from benchmarks.families import VOCABULARY, built
from envsuite.playing.engine import Completion, Request, Sampling
from trainers.policy.config import ModelConfig
from trainers.policy.rows import ALWAYS, rows_reason, use_rows
from trainers.rollout import radix_cache
from trainers.rollout.engine import EngineSetup
from trainers.rollout.hf_engine import HFEngine
from trainers.rollout.plain_engine import ALIKE, PADDED, WHOLE, PlainEngine
from trainers.settings import ConfigError

WAY = {
    "jamba": PADDED, "bloom": PADDED, "mamba": PADDED,
    "deepseek_v4": ALIKE, "recurrent_gemma": WHOLE,
}  # fmt: skip


def _engine(model: PreTrainedModel, slots: int = 4, dtype: str = "float32") -> PlainEngine:
    config = ModelConfig(compute_dtype=dtype)  # type: ignore[arg-type]
    engine = PlainEngine.from_setup(EngineSetup(model, None, config, slots))  # type: ignore[arg-type]
    assert isinstance(engine, PlainEngine)
    return engine


def _prompts(*lengths: int) -> list[list[int]]:
    rng = np.random.default_rng(2)
    return [rng.integers(0, VOCABULARY - 1, length).tolist() for length in lengths]


@pytest.mark.parametrize("name", WAY)
def test_logprobs_are_those_of_a_plain_forward_pass_and_samples_are_the_same_alone(name):
    model = built(name)
    engine, prompts = _engine(model, slots=3), _prompts(11, 4, 9, 9, 17, 3)
    assert engine.way == WAY[name] and engine.max_length > 100
    lengths = [7, 2, 5, 9, 1, 6]
    engine.submit([
        Request(i, prompt, Sampling(max_tokens=lengths[i], temperature=0.7 if i % 2 else 1.0), seed=i)
        for i, prompt in enumerate(prompts)
    ])  # fmt: skip
    done = drained(engine)
    for i, prompt in enumerate(prompts):
        assert done[i].finish_reason == "length" and done[i].count == lengths[i]
        if not i % 2:
            check_plain(model, prompt, done[i])
        engine.submit([Request(9, prompt, Sampling(max_tokens=lengths[i], temperature=0.7 if i % 2 else 1.0), seed=i)])
        (again,) = drained(engine).values()
        assert again.token_ids.tolist() == done[i].token_ids.tolist()


@pytest.mark.parametrize("name", ["jamba", "bloom"])
def test_greedy_answers_are_those_of_generate(name):
    model, prompts = built(name), _prompts(11, 4, 9)
    stops = (3, 9, 21)
    done = _engine(model).generate(prompts, Sampling(temperature=0.0, max_tokens=12, stop_ids=stops))
    for prompt, completion in zip(prompts, done, strict=True):
        assert completion.token_ids.tolist() == greedy(model, prompt, 12, stops)


def test_a_request_goes_on_under_new_weights_and_each_token_has_its_version():
    model = built("jamba")
    engine, (prompt,) = _engine(model), _prompts(8)
    engine.submit([Request(0, prompt, Sampling(max_tokens=6), seed=3)])
    for _ in range(2):
        assert engine.poll(0.0) == []
    old = deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 1.1
    engine.sync([], 7)
    (done,) = engine.poll()
    assert done.policy_version.tolist() == [0, 0, 7, 7, 7, 7]
    plain = plain_logprobs(old, prompt, done.token_ids)[:2] + plain_logprobs(model, prompt, done.token_ids)[2:]
    np.testing.assert_allclose(done.logprobs, plain, rtol=0, atol=1e-4)


def test_one_that_is_given_up_or_too_long_leaves_the_others_as_they_are():
    model = built("jamba")
    engine, prompts = _engine(model), _prompts(8, 5, 6)
    for number, prompt in enumerate(prompts):
        engine.submit([Request(number, prompt, Sampling(max_tokens=9), session=number, seed=number)])
    engine.submit([Request(3, [1] * 200, Sampling(max_tokens=9))])
    (refused,) = engine.poll()
    assert refused.finish_reason == "context" and engine.pending == 3
    engine.poll(0.0)
    engine.abandon(1, 1)
    engine.release(1)
    done = drained(engine)
    assert sorted(done) == [0, 2] and engine.metrics() == {"tokens/prefill": 1.0}
    for number in done:
        check_plain(model, prompts[number], done[number])


def test_attention_sinks_are_sampled_so_though_they_are_trained_in_a_tree():
    model = architecture("gpt_oss", VOCABULARY)
    engine, (prompt,) = _engine(model), _prompts(20)
    (done,) = engine.generate([prompt], Sampling(max_tokens=8), seed=1)
    check_plain(model, prompt, done)
    assert rows_reason(model) is None


def test_a_model_that_is_computed_by_rows_because_someone_asked_keeps_the_engine_with_its_own_cache():
    model = architecture("llama", VOCABULARY)
    use_rows(model, ALWAYS)
    engine = PlainEngine.from_setup(EngineSetup(model, None, ModelConfig(), 2))  # type: ignore[arg-type]
    assert type(engine) is HFEngine


# -- recurrent layers: the hf engine goes on from states that are kept, within a bound of bytes ------------------------


HYBRIDS = ["qwen3_5_text", "lfm2", "bamba"]
RNG = np.random.default_rng(2)
START, REST = (RNG.integers(0, VOCABULARY, size).tolist() for size in (40, 60))


class Played:
    """An engine, and how many tokens each request computed."""

    def __init__(self, model: PreTrainedModel, state_bytes: int | None = None) -> None:
        self.model = model
        self.engine = HFEngine(model, max_batch=8, state_bytes=state_bytes)

    def __call__(self, *prompts: list[int], count: int = 5) -> tuple[int, list[Completion]]:
        """Returns the tokens of prompts that were computed, and the answers, which are the model's."""
        before = self.engine.prompt_tokens.computed
        self.engine.submit([Request(i, prompt, Sampling(max_tokens=count), seed=i) for i, prompt in enumerate(prompts)])
        done = drained(self.engine)
        for number, prompt in enumerate(prompts):
            check_plain(self.model, prompt, done[number])
        return self.engine.prompt_tokens.computed - before, [done[number] for number in range(len(prompts))]


@pytest.mark.parametrize("name", ["jamba", *HYBRIDS])
def test_in_bfloat16_it_computes_with_rounded_weights_as_the_trainer_does(name):
    model = built(name)
    engine = _engine(model, dtype="bfloat16") if name in WAY else HFEngine(model, compute_dtype="bfloat16")
    (done,) = engine.generate([START], Sampling(max_tokens=8), seed=1)
    with torch.autocast("cpu", torch.bfloat16):
        check_plain(model, START, done, 0.3)


@pytest.mark.parametrize("name", HYBRIDS)
def test_a_turn_goes_on_from_the_states_at_the_end_of_the_last_one(name):
    played = Played(built(name))
    computed, (first,) = played(START)
    assert computed == 40
    told = [*START, *first.token_ids.tolist(), *REST[:3]]
    computed, (second,) = played(told)
    assert computed == 4, "the last token that was sampled, and the three new ones"
    computed, _ = played([*told, *second.token_ids.tolist(), *REST[3:9]])
    assert computed == 7


@pytest.mark.parametrize("name", HYBRIDS)
def test_what_prompts_of_a_step_begin_with_is_computed_once_and_its_states_are_kept(name):
    played = Played(built(name))
    assert played(*[START] * 5)[0] == 40
    assert played(START)[0] == 40, "its end was never a branch"
    assert played(START)[0] == 1, "now it is"
    played = Played(built(name))
    assert played(*[[*START, token, *REST[:9]] for token in range(6)])[0] == 40 + 6 * 10
    assert played([*START, 7, *REST])[0] == 61


def test_the_first_prompt_that_branches_off_computes_what_it_shares_and_later_ones_do_not():
    played = Played(built("qwen3_5_text"))
    assert played([*START, *REST[:20]])[0] == 60
    assert played([*START, 1, *REST[:10]])[0] == 51
    assert played([*START, 2, *REST[:10]])[0] == 11


def test_states_are_kept_every_so_many_tokens_of_a_prompt(monkeypatch):
    monkeypatch.setattr(radix_cache, "EVERY", 16)
    played = Played(built("qwen3_5_text"))
    played([*START, *REST[:20]])
    assert played([*START, 1, *REST[:10]])[0] == 51 - 32
    assert played([*START[:20], 1])[0] == 21 - 16


def test_states_stay_within_their_bytes_and_those_used_longest_ago_go_first():
    model = built("qwen3_5_text")
    size = Played(model).engine._cache.states.slot_bytes  # type: ignore[union-attr]
    assert size == 1792, "two layers: 2 heads of 8 x 8 numbers, and 3 tokens of 32 channels"
    none = Played(model, state_bytes=0)
    _, (first,) = none(START)
    assert none([*START, *first.token_ids.tolist(), 1])[0] == 46, "nothing is kept"
    two = Played(model, state_bytes=2 * size + 1)
    ends = []
    for start in (1, 2, 3):
        prompt = [start, *START]
        ends.append([*prompt, *two(prompt)[1][0].token_ids.tolist(), 5])
        states = two.engine._cache.states
        assert states is not None and states.used <= 2 and states.size <= (1 + 8 + 2) * size
    assert two(ends[2])[0] == 2
    assert two(ends[0])[0] == len(ends[0])


def test_a_negative_bound_is_refused():
    model = built("lfm2")
    with pytest.raises(ConfigError, match="state_bytes is -1, but must be 0 or more"):
        HFEngine.check_model({"state_bytes": -1}, model.config, "a model")
