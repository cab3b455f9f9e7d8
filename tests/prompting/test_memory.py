from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsuite.core import UsageError
from envsuite.prompting import CompactMemory, FullMemory, RenderedMemory, Summary, Window, make_memory


@pytest.mark.parametrize(
    "memory",
    [
        Window(0),
        Window(2),
        Window(2, 4),
        Summary(0),
        Summary(3),
        Summary(0, 2),
        FullMemory(),
        RenderedMemory(),
        CompactMemory(1024),
    ],
    ids=str,
)
def test_a_memory_is_what_its_text_describes(memory):
    assert make_memory(str(memory)) == memory
    assert make_memory(f" {memory} ") == memory and str(Window(2)) == "window(2)"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("windw(2)", r"unknown memory 'windw\(2\)'. Did you mean 'window\(2\)'\? Known:"),
        ("window", r"Did you mean 'window\(2\)'"),
        ("full(3)", "Did you mean 'full'"),
        ("", r"Known: \"window\(K\)\""),
        ("window(-1)", r"window\(-1\): the number of pairs must be 0 or more"),
        ("summary(-1)", r"summary\(-1\): the number of pairs must be 0 or more"),
        ("window(2,0)", r"window\(2,0\): the number of pairs that are left out at once must be 1 or more"),
        ("window(2,3,4)", r"unknown memory"),
        ("compact(0)", "must be 1 token or more"),
    ],
)
def test_a_text_that_describes_none_says_what_would(spec, message):
    with pytest.raises(UsageError, match=message):
        make_memory(spec)


@given(st.text() | st.from_regex(r"(window|summary|full|compact)(\(.*\))?"))
def test_any_other_text_is_a_usage_error(spec):
    try:
        assert make_memory(str(make_memory(spec))) == make_memory(spec)
    except UsageError:
        pass


@given(st.integers(0, 6), st.integers(1, 6), st.integers(0, 60))
def test_a_window_leaves_the_oldest_pairs_out_a_block_at_a_time(k, block, steps):
    memory, shown = Window(k, block), [range(Window(k, block).first(t), t) for t in range(steps + 1)]
    assert all(min(t, k) <= len(shown[t]) <= k + block - 1 for t in range(steps + 1))
    assert memory.first(0) == 0 and all(later.start - now.start in (0, block) for now, later in pairwise(shown))
    moved = sum(later.start != now.start for now, later in pairwise(shown))
    assert moved == max(0, steps - k) // block, "of `block` successive prompts, one begins anew"
