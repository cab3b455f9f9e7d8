"""The scripted engine answers what its function says."""

from __future__ import annotations

from trainers.rollout.engine import Request, Sampling
from trainers.rollout.scripted import ScriptedEngine


def test_it_answers_each_request_with_what_the_function_says_in_order() -> None:
    engine = ScriptedEngine(lambda request: [*request.prompt_ids, 9])
    engine.sync([], 3)
    engine.submit([Request(5, (1, 2), Sampling()), Request(4, (), Sampling())])
    assert engine.pending == 2
    first, second = engine.poll()
    assert (first.request_id, first.token_ids.tolist(), first.logprobs.tolist()) == (5, [1, 2, 9], [0.0, 0.0, 0.0])
    assert (second.request_id, second.token_ids.tolist()) == (4, [9])
    assert first.finish_reason == "stop" and first.policy_version.tolist() == [3, 3, 3] and first.error is None
    assert engine.pending == 0 and engine.poll() == []


def test_an_answer_beyond_max_tokens_is_cut_and_says_so() -> None:
    (done,) = ScriptedEngine(lambda request: range(10)).generate([[0]], Sampling(max_tokens=4))
    assert done.token_ids.tolist() == [0, 1, 2, 3] and len(done.logprobs) == 4 and done.finish_reason == "length"
