"""Strategies for steps and episodes with any content."""

from __future__ import annotations

from hypothesis import strategies as st

from envsuite.core import ToolCall
from envsuite.playing.step import Episode, Step

TOKENS = st.integers(0, 2**31 - 1)
NUMBERS = st.floats(allow_nan=False)
LOGPROBS = st.floats(allow_nan=False, width=32)
WORDS = st.text(max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | NUMBERS | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def steps(draw: st.DrawFn, t: int) -> Step:
    response = draw(st.lists(TOKENS, max_size=6))
    calls = st.builds(ToolCall, WORDS, st.dictionaries(WORDS, JSON, max_size=2))
    return Step(
        t=t,
        prompt_ids=tuple(draw(st.lists(TOKENS, max_size=6))),
        response_ids=tuple(response),
        response_logprobs=tuple(draw(st.lists(LOGPROBS, min_size=len(response), max_size=len(response)))),
        policy_version=draw(st.lists(st.integers(0, 2**40), min_size=len(response), max_size=len(response))),
        finish_reason=draw(st.sampled_from(["stop", "length"])),
        observation=draw(WORDS),
        state_key=draw(WORDS),
        action=draw(st.none() | st.lists(calls, max_size=2).map(tuple)),
        parse_error=draw(st.none() | WORDS),
        valid=draw(st.booleans()),
        reward=draw(NUMBERS),
        info=draw(st.dictionaries(WORDS, JSON, max_size=3)),
    )


@st.composite
def episodes(draw: st.DrawFn, episode_id: int) -> Episode:
    return Episode(
        episode_id=episode_id,
        group_id=draw(st.integers(0, 5)),
        env_id=draw(WORDS),
        task_id=draw(WORDS),
        task_type=draw(WORDS),
        split=draw(WORDS),
        task=draw(WORDS),
        steps=tuple(draw(steps(t)) for t in range(draw(st.integers(0, 3)))),
        terminated=draw(st.booleans()),
        truncated=draw(st.booleans()),
        success=draw(st.booleans()),
        score=draw(NUMBERS),
        greedy=draw(st.booleans()),
        error=draw(st.none() | WORDS),
        context_truncated=draw(st.booleans()),
    )
