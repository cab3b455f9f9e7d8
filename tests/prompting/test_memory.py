import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsuite.core import UsageError
from envsuite.prompting import Compact, Full, Summary, Window, make_memory


@pytest.mark.parametrize("memory", [Window(0), Window(2), Summary(0), Summary(3), Full(), Compact(1024)], ids=str)
def test_a_memory_is_what_its_text_describes(memory):
    assert make_memory(str(memory)) == memory
    assert make_memory(f" {memory} ") == memory


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("windw(2)", r"unknown memory 'windw\(2\)'. Did you mean 'window\(2\)'\? Known:"),
        ("window", r"Did you mean 'window\(2\)'"),
        ("full(3)", "Did you mean 'full'"),
        ("window(two)", "Did you mean"),
        ("", r"Known: \"window\(K\)\""),
        ("window(-1)", r"window\(-1\): the number of pairs must be 0 or more"),
        ("summary(-1)", r"summary\(-1\): the number of pairs must be 0 or more"),
        ("summary", r"Did you mean 'summary\(2\)'"),
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
