"""Each answer is the model's own, whatever the order of submitting, polling, giving up and changing weights."""

from __future__ import annotations

from functools import cache
from unittest import mock

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from radix_checks import check_tree
from tiny_models import VOCABULARY, plain_and_best_logprobs, tiny_model
from transformers import PreTrainedModel

from benchmarks.families import built
from envsuite.playing.engine import Request, Sampling
from trainers.rollout import radix_cache, step_plan
from trainers.rollout.hf_engine import HFEngine


@cache
def stock(seed: int) -> tuple[int, ...]:
    """Tokens from which prompts are cut; few beginnings, so that prompts often begin alike."""
    return tuple(np.random.default_rng(seed).integers(VOCABULARY, size=200).tolist())


prompts = st.builds(
    lambda a, cut, b, more: stock(a)[:cut] + stock(b)[:more],
    st.integers(0, 1),
    st.sampled_from([0, 1, 2, 40, 65, 66, 100, 130]),
    st.integers(2, 3),
    st.sampled_from([1, 2, 15, 70]),
)
actions = st.one_of(
    st.tuples(st.just("submit"), prompts, st.integers(1, 9), st.none() | st.integers(0, 4)),
    st.tuples(st.just("follow"), st.integers(0, 4), st.integers(0, 12), st.integers(1, 9)),
    st.tuples(st.just("fold"), st.integers(0, 4), st.sampled_from([0, 30, 64, 90]), st.integers(1, 9)),
    st.just(("poll",)),
    st.tuples(st.just("release"), st.integers(0, 4)),
    st.just(("weights",)),
    st.just(("rest",)),
    st.just(("step",)),
    st.tuples(st.just("abandon"), st.integers(0, 5)),
)


@settings(max_examples=40)
@given(
    st.sampled_from(["llama", "gpt2", "mistral"]),
    st.integers(1, 6),
    st.sampled_from([None, 0, 40, 300]),
    st.booleans(),
    st.lists(actions, min_size=1, max_size=30),
)
def test_any_schedule_gives_each_prompt_its_own_greedy_continuation(name, max_batch, cache_tokens, compiled, schedule):
    """Attends by the compiled kernel, if there is one, and as on other devices, with calls that are cheap."""
    cheap = mock.patch.dict(step_plan._CALL, {"cpu": 20})
    with cheap, mock.patch.object(step_plan, "COMPILED", compiled and step_plan.COMPILED):
        _play(tiny_model(name), max_batch, cache_tokens, schedule)


@settings(max_examples=30)
@given(
    st.sampled_from(["qwen3_5_text", "lfm2", "bamba"]),
    st.integers(1, 6),
    st.sampled_from([None, 0, 300]),
    st.sampled_from([None, 0, 5000, 20_000]),
    st.lists(actions, min_size=1, max_size=20),
)
def test_any_schedule_does_so_with_states_of_recurrent_layers(name, max_batch, cache_tokens, state_bytes, schedule):
    """Keeps states every 16 tokens; takes some kilobytes for one."""
    with mock.patch.object(radix_cache, "EVERY", 16):
        _play(hybrid(name), max_batch, cache_tokens, schedule, state_bytes)


@cache
def hybrid(name: str) -> PreTrainedModel:
    return built(name)


def _play(
    model: PreTrainedModel, max_batch: int, cache_tokens: int | None, schedule: list[tuple],
    state_bytes: int | None = None,
) -> None:  # fmt: skip
    engine = HFEngine(model, max_batch=max_batch, cache_tokens=cache_tokens, state_bytes=state_bytes)
    size = model.config.get_text_config().vocab_size
    asked: dict[int, Request] = {}
    context: dict[int, tuple[int, ...]] = {}
    answered: set[int] = set()

    def submit(prompt: tuple[int, ...], count: int, session: int | None) -> None:
        known = [token % size for token in prompt[: min(250, engine.max_length - 10)]]
        request = Request(len(asked), known, Sampling(temperature=0, max_tokens=count), session=session)
        asked[request.request_id] = request
        engine.submit([request])

    def poll(timeout: float | None = None) -> None:
        done = engine.poll(timeout)
        assert done or timeout is not None or not engine.pending
        check_tree(engine._cache, [row.cached for row in engine._running])
        if (states := engine._cache.states) is not None and state_bytes is not None:
            assert states.size <= states.slot_bytes * max(9, 1 + max_batch) + state_bytes
        for completion in done:
            request = asked[completion.request_id]
            assert completion.request_id not in answered
            answered.add(completion.request_id)
            assert len(completion.token_ids) == request.sampling.max_tokens
            plain, best = plain_and_best_logprobs(model, request.prompt_ids, completion.token_ids)
            np.testing.assert_allclose(completion.logprobs, plain, rtol=0, atol=1e-4)
            np.testing.assert_allclose(plain, best, rtol=0, atol=1e-4)  # the likeliest token, or one in a tie with it
            if request.session is not None:
                context[request.session] = (*request.prompt_ids.tolist(), *completion.token_ids.tolist())

    for action in schedule:
        match action:
            case "submit", prompt, count, session:
                submit(prompt, count, session)
            case "follow", session, more, count:
                submit(context.get(session, stock(4)[:70]) + stock(5)[:more], count, session)
            case "fold", session, cut, count:
                submit(context.get(session, stock(4)[:70])[:cut] + stock(6)[:20], count, session)
            case ("poll",):
                poll()
            case "release", session:
                engine.release(session)
            case ("weights",):
                engine.sync([], engine.policy_version + 1)
            case ("rest",):
                engine.rest()
            case ("step",):
                poll(timeout=0.0)
            case "abandon", number:
                under_way = [row.request.request_id for row in (*engine._waiting, *engine._running)]
                if number < len(under_way):
                    engine.abandon(under_way[number], asked[under_way[number]].session)
                    answered.add(under_way[number])
        assert engine.pending == len(asked) - len(answered)
    while engine.pending:
        poll()
    assert answered == set(asked) and engine.poll() == []
