"""Planned answers: their blocks, and the codecs that ask for them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsuite.core.tools import Tool, ToolCall
from envsuite.prompting import make_codec
from envsuite.prompting.plan import BLOCKS, read_plan

COMMAND = [Tool.of_string("act", "Act.", "command", "")]
ANSWER = "<think>so</think><switch>SWITCH</switch><subgoal>find a mug</subgoal><action>look</action>"
pieces = st.lists(
    st.sampled_from(
        [*(f"<{slash}{name}>" for name in (*BLOCKS, "think") for slash in ("", "/")), "KEEP", " ", "<", "İ", "go"]
    ),
    max_size=24,
).map("".join)


@given(st.one_of(pieces, st.text()), st.booleans())
def test_blocks_are_closed_follow_each_other_and_come_after_the_thought(answer: str, lowercase: bool):
    plan = read_plan(answer, lowercase)
    thought = answer.find("</think>") if not lowercase else -1
    end = thought + len("</think>") if thought >= 0 else 0
    for name in BLOCKS:
        if name in plan.spans:
            begin, after = plan.spans[name]
            text = answer[begin:after].lower() if lowercase else answer[begin:after]
            assert text.startswith(f"<{name}>") and text.endswith(f"</{name}>") and begin >= end
            assert text.count(f"</{name}>") == 1, "it ends where it is first closed"
            end = after
    assert not plan.switch or "switch" in plan.spans
    assert (plan.subgoal is not None) == ("subgoal" in plan.spans)


@given(pieces, st.booleans())
def test_a_plan_changes_no_action_that_is_read(answer: str, lowercase: bool):
    one, other = (make_codec("tags", plan=plan, lowercase=lowercase) for plan in (False, True))
    assert one.parse(answer, COMMAND, 1) == other.parse(answer, COMMAND, 1)
    assert isinstance(other.format_past_step(answer, None), str)


@pytest.mark.parametrize(
    ("text", "switch"),
    [("SWITCH", True), ("KEEP", False), (" keep ", False), ("", False), ("  ", False), ("yes", True)],
)
def test_all_but_keep_and_nothing_is_a_switch(text: str, switch: bool):
    assert read_plan(f"<switch>{text}</switch><subgoal>a</subgoal>").switch is switch
    assert not read_plan("<subgoal>a</subgoal><action>b</action>").switch


def test_tags_in_capitals_are_found_where_answers_are_read_in_lower_case():
    assert not read_plan(ANSWER.upper()).spans
    assert read_plan(ANSWER.upper(), lowercase=True) == read_plan(ANSWER, lowercase=True).__class__(
        read_plan(ANSWER).spans, True, "FIND A MUG"
    )


def test_instructions_show_the_form_and_a_history_the_subgoal():
    for name in ("tags", "brackets"):
        codec = make_codec(name, plan=True)
        told = codec.system(COMMAND, 1)
        form = next(line for line in told.splitlines() if "<action>" in line)
        assert list(read_plan(form).spans) == list(BLOCKS) and "KEEP" in told and "SWITCH" in told
        assert "<switch>" not in make_codec(name).system(COMMAND, 1)
        look = (ToolCall("act", {"command": "look"}),)
        assert codec.format_past_step(ANSWER, look) == f"<subgoal>find a mug</subgoal>{codec.show(look)}"
        assert codec.format_past_step("<action>look</action>", look) == codec.show(look)
        assert codec.format_past_step("?", None) == "none"
