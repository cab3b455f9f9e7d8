"""Step tables for the tests of estimators: drawn by hypothesis, or written by hand."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
from hypothesis import note
from hypothesis import strategies as st

from trainers.steps import Ragged, StepTable
from trainers.steps.columns import ENTROPY, HINDSIGHT, MILESTONE, NEXT_STATE, SUCCESS, TEACHER, TREE

Row = tuple[int, int, int, float, str, bool]
"""group, episode, t, reward, state key, valid."""


def table_of(rows: Sequence[Row], lengths: Sequence[int] | None = None) -> StepTable:
    """The rows, with responses of the given numbers of tokens (two each by default), and all extra columns."""
    keys = np.empty(len(rows), object)
    keys[:] = [row[4] for row in rows]
    tokens = Ragged.of([list(range(1, n + 1)) for n in lengths or [2] * len(rows)], np.int64)
    switches = np.array([(row[1] + row[2]) % 3 == 1 for row in rows], np.bool_)
    unlike = np.array([row[1] + 0.3 * row[2] for row in rows])
    return StepTable(
        group_id=np.array([row[0] for row in rows], np.int64),
        episode_id=np.array([row[1] for row in rows], np.int64),
        t=np.array([row[2] for row in rows], np.int64),
        reward=np.array([row[3] for row in rows], np.float64),
        state_key=keys,
        valid=np.array([row[5] for row in rows], np.bool_),
        prompt=tokens,
        response=tokens,
        logprob=Ragged(tokens.values.astype(np.float32), tokens.offsets),
        # What some methods need besides: numbers that differ from episode to episode and step to step.
        extra={
            "greedy_return": np.array([row[0] / 10 for row in rows]),
            "value": np.sin(unlike),
            "value_high": np.cos(unlike),
            "value_low": np.sin(2 * unlike),
            "value_switch": np.cos(2 * unlike),
            "switch": switches,
            "segment": switches | np.array([row[2] == 0 for row in rows], np.bool_),
            "switch_probability": np.abs(np.sin(3 * unlike)),
            "low_start": np.array([row[2] % 3 for row in rows], np.int64),
            "truncated": np.array([row[1] // 3 % 2 == 1 for row in rows], np.bool_),
            "mc_value": np.cos(unlike),
            "next_mc_value": np.cos(unlike + 0.3),
            "embedding": np.array([[row[4] == key for key in "abc"] + [True] for row in rows], float).reshape(-1, 4),
            SUCCESS: np.array([row[1] // 3 % 2 == 0 for row in rows], np.bool_),
            TREE: np.array([row[1] // 6 for row in rows]),
            NEXT_STATE: np.array(["abcd"[(row[1] + row[2]) % 4] for row in rows], object),
            MILESTONE: np.array([(row[1] + 3 * row[2]) % 5 < 2 for row in rows], np.bool_),
            "action": np.array([f"go {row[1] % 2}" if row[2] < 3 else None for row in rows], object),
        },
        token_extra={
            name: Ragged(column, tokens.offsets)
            for name, column in {
                "value": np.sin(unlike[tokens.row_of] + 0.1 * tokens.values),
                ENTROPY: 1.0 + np.sin(2.0 * unlike[tokens.row_of] + 0.3 * tokens.values),
                HINDSIGHT: -2.0 + 2.0 * np.cos(3.0 * unlike[tokens.row_of] + 0.2 * tokens.values),
                TEACHER: -1.5 + np.sin(2.5 * unlike[tokens.row_of] + 0.4 * tokens.values),
                "block": np.minimum(tokens.values, 3).astype(np.int8),
            }.items()
        },
    )


def with_one_token_a_step(steps: StepTable) -> StepTable:
    """The steps with responses of one token, whose value is the step's."""
    tokens = Ragged.of([[1]] * len(steps), np.int64)
    steps = replace(steps, response=tokens, logprob=tokens, token_extra={})
    return steps.with_token_columns(value=steps.extra["value"])


@st.composite
def step_tables(draw: st.DrawFn, min_episodes: int = 1, max_episodes: int = 4) -> StepTable:
    """Up to two groups of episodes of up to four steps, rows in any order."""
    rows: list[Row] = []
    episode = 0
    reward = st.one_of(st.sampled_from([0.0, 1.0, 10.0]), st.integers(-200, 200).map(lambda n: n / 100))
    for group in range(draw(st.integers(1, 2))):
        for _ in range(draw(st.integers(min_episodes, max_episodes))):
            episode += 1
            for t in range(draw(st.integers(1, 4))):
                rows.append(
                    (group + 5, episode * 3, t, draw(reward), draw(st.sampled_from("abc")), draw(st.booleans()))
                )
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    order = rng.permutation(len(rows))
    return table_of([rows[row] for row in order], rng.integers(0, 4, len(rows)).tolist())


def for_each(**names: Iterable[str]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Tests a property for each value of an argument on every drawn example: drawing a table is the slow part."""
    ((argument, values),) = names.items()
    tried = list(values)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)
        rest = signature.replace(parameters=[one for one in signature.parameters.values() if one.name != argument])

        @functools.wraps(test)
        def of_each(*drawn: object, **named: object) -> None:
            example = rest.bind(*drawn, **named).arguments
            for value in tried:
                note(f"{argument}: {value}")
                test(**{argument: value}, **example)

        of_each.__signature__ = rest  # type: ignore[attr-defined]
        return of_each

    return decorate
