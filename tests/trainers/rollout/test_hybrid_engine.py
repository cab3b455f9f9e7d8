"""The hf engine on models with recurrent layers: it goes on from states that are kept, within a bound of bytes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_models import greedy, plain_logprobs
from transformers import PreTrainedModel

from benchmarks.families import VOCABULARY, built
from envsuite.playing.engine import Completion, Request, Sampling
from trainers.rollout import radix_cache
from trainers.rollout.hf_engine import HFEngine
from trainers.settings import ConfigError

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
        done: dict[int, Completion] = {}
        while self.engine.pending:
            done.update((c.request_id, c) for c in self.engine.poll())
        for number, prompt in enumerate(prompts):
            plain = plain_logprobs(self.model, prompt, done[number].token_ids)
            np.testing.assert_allclose(done[number].logprobs, plain, rtol=0, atol=1e-4)
        return self.engine.prompt_tokens.computed - before, [done[number] for number in range(len(prompts))]


@pytest.mark.parametrize("name", HYBRIDS)
def test_a_turn_goes_on_from_the_states_at_the_end_of_the_last_one(name: str) -> None:
    played = Played(built(name))
    computed, (first,) = played(START)
    assert computed == 40
    told = [*START, *first.token_ids.tolist(), *REST[:3]]
    computed, (second,) = played(told)
    assert computed == 4, "the last token that was sampled, and the three new ones"
    computed, _ = played([*told, *second.token_ids.tolist(), *REST[3:9]])
    assert computed == 7


@pytest.mark.parametrize("name", HYBRIDS)
def test_what_prompts_of_a_step_begin_with_is_computed_once_and_its_states_are_kept(name: str) -> None:
    played = Played(built(name))
    assert played(*[START] * 5)[0] == 40
    assert played(START)[0] == 40, "its end was never a branch"
    assert played(START)[0] == 1, "now it is"
    played = Played(built(name))
    assert played(*[[*START, token, *REST[:9]] for token in range(6)])[0] == 40 + 6 * 10
    assert played([*START, 7, *REST])[0] == 61


def test_the_first_prompt_that_branches_off_computes_what_it_shares_and_later_ones_do_not() -> None:
    played = Played(built("qwen3_5_text"))
    assert played([*START, *REST[:20]])[0] == 60
    assert played([*START, 1, *REST[:10]])[0] == 51
    assert played([*START, 2, *REST[:10]])[0] == 11


def test_states_are_kept_every_so_many_tokens_of_a_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(radix_cache, "EVERY", 16)
    played = Played(built("qwen3_5_text"))
    played([*START, *REST[:20]])
    assert played([*START, 1, *REST[:10]])[0] == 51 - 32
    assert played([*START[:20], 1])[0] == 21 - 16


def test_states_stay_within_their_bytes_and_those_used_longest_ago_go_first() -> None:
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


def test_greedy_answers_are_those_of_generate() -> None:
    model, stops = built("lfm2"), (3, 9, 21)
    prompts = [START[:11], START[:4], REST[:9]]
    done = HFEngine(model).generate(prompts, Sampling(temperature=0.0, max_tokens=12, stop_ids=stops))
    for prompt, completion in zip(prompts, done, strict=True):
        assert completion.token_ids.tolist() == greedy(model, prompt, 12, stops)


@pytest.mark.parametrize("name", HYBRIDS)
def test_in_bfloat16_it_computes_with_rounded_weights_as_the_trainer_does(name: str) -> None:
    model = built(name)
    (done,) = HFEngine(model, compute_dtype="bfloat16").generate([START], Sampling(max_tokens=8), seed=1)
    with torch.autocast("cpu", torch.bfloat16):
        plain = plain_logprobs(model, START, done.token_ids)
    np.testing.assert_allclose(done.logprobs, plain, rtol=0, atol=0.3)


def test_a_negative_bound_is_refused() -> None:
    model = built("lfm2")
    with pytest.raises(ConfigError, match="state_bytes is -1, but must be 0 or more"):
        HFEngine.check_model({"state_bytes": -1}, model.config, "a model")
