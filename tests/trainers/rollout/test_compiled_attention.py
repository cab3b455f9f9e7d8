"""The compiled kernel attends as plain arithmetic does, wherever keys and values lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainers.rollout.kv_cache import PAGE
from trainers.rollout.radix_cache import CachedSequence, RadixCache

pytest.importorskip("numba", reason="the compiled kernel needs numba: pip install numba")
from trainers.rollout import compiled_attention as compiled

KEY_HEADS, GROUPS, DIM, VALUE_DIM = 2, 2, 12, 12
Held = tuple[torch.Tensor, ...]


def plain(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: Any, scale: Any, softcap: Any) -> Any:
    """One token's heads (heads, dim) over the keys it sees (key heads, tokens, dim), in double precision."""
    first = 0 if window is None else max(0, keys.shape[1] - window)
    keys, values = (part[:, first:].double().repeat_interleave(GROUPS, 0) for part in (keys, values))
    scores = (query.double()[:, None] @ keys.transpose(1, 2)) * (DIM**-0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    return (scores.softmax(-1) @ values)[:, 0]


def attended(cache: RadixCache, query: torch.Tensor, held: Held, rows: Any, lengths: Any, *how: Any) -> torch.Tensor:
    """What the kernel gives; ``how`` is window, scale and softcap."""
    table, out = cache.table, torch.empty(*query.shape[:2], held[1].shape[2])
    places = (table.pages, table.bases, table.starts, table.counts)
    compiled.attend(query, held, rows, lengths, places, *how, out)
    return out


def one_sequence(length: int, value: float) -> tuple[RadixCache, CachedSequence, Held]:
    """A sequence whose keys are 0 and whose values are all the same."""
    cache = RadixCache(1)
    row = cache.begin(np.arange(length))
    return cache, row, tuple(torch.full((KEY_HEADS, cache.pages.count * PAGE, DIM), fill) for fill in (0.0, value))


@pytest.mark.seconds
@settings(max_examples=15)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 150), st.integers(1, 40)), min_size=1, max_size=12),
    st.sampled_from([None, 1, 7, PAGE, 90]),
    st.sampled_from([None, 0.5]),
    st.sampled_from([None, 5.0]),
    st.integers(1, 3),
    st.integers(0, 1000),
)
def test_each_token_attends_to_its_own_sequence(shapes, window, scale, softcap, threads, seed):
    """Sequences of four stocks, cut and continued, so that they share pages and part within them."""
    random = np.random.default_rng(seed)
    stocks = random.integers(50, size=(4, 150))
    cache, rows = RadixCache(len(shapes)), list[CachedSequence]()
    for stock, cut, more in shapes:
        rows.append(cache.begin(np.concatenate([stocks[stock, :cut], random.integers(50, size=more)])))
    cache.mark_computed()
    slots = cache.pages.count * PAGE
    held = tuple(
        torch.from_numpy(random.normal(size=(KEY_HEADS, slots, dim)).astype(np.float32)) for dim in (DIM, VALUE_DIM)
    )
    count = len(rows) + rows[0].length
    table_rows = np.array([row.row for row in rows] + [rows[0].row] * rows[0].length)
    lengths = np.array([row.length for row in rows] + list(range(1, rows[0].length + 1)))
    query = torch.from_numpy(random.normal(size=(count, KEY_HEADS * GROUPS, DIM)).astype(np.float32))
    before = torch.get_num_threads(), compiled._ALONE
    torch.set_num_threads(threads)
    compiled._ALONE = 0
    try:
        out = attended(cache, query, held, table_rows, lengths, window, scale, softcap)
    finally:
        torch.set_num_threads(before[0])
        compiled._ALONE = before[1]
    of_row = {row.row: row for row in rows}
    for token in range(count):
        where = torch.from_numpy(of_row[table_rows[token]].slots[: lengths[token]])
        wanted = plain(query[token], held[0][:, where], held[1][:, where], window, scale, softcap)
        torch.testing.assert_close(out[token].double(), wanted, rtol=0, atol=2e-6)


def test_scores_far_apart_neither_overflow_nor_lose_the_largest():
    cache, row, held = one_sequence(80, 0.0)
    held[0][:, row.slots[3]], held[1][:, row.slots[3]] = 200.0, 7.0
    held[0][:, row.slots[70]], held[1][:, row.slots[70]] = -200.0, 9.0
    query = torch.full((1, KEY_HEADS * GROUPS, DIM), 10.0)
    out = attended(cache, query, held, np.array([row.row]), np.array([80]), None, None, None)
    torch.testing.assert_close(out, torch.full_like(out, 7.0))


@pytest.mark.parametrize("broken", ["query", "key", "value"])
def test_what_is_not_a_number_stays_so(broken):
    """So that weights which diverged are noticed."""
    cache, row, held = one_sequence(70, 1.0)
    query = torch.ones(1, KEY_HEADS * GROUPS, DIM)
    if broken == "query":
        query[:] = torch.nan
    else:
        held[broken == "value"][:, row.slots[40]] = torch.nan
    out = attended(cache, query, held, np.array([row.row]), np.array([70]), None, None, None)
    assert bool(out.isnan().all())
