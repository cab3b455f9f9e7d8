"""What an agent's requests become: tokens that were seen and sampled stay, and what is told anew begins a sequence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from families import BY_NAME, published, tokenizer_of
from hypothesis import given
from hypothesis import strategies as st
from talking import CALL, TOOL, Place

from envsuite.core.tools import Tool, ToolCall
from envsuite.playing.step import Step
from envsuite.prompting.ordinary import added_tokens, unbroken
from trainers.gateway.messages import Message, ParsedRequest, Refused
from trainers.gateway.sequences import Writer
from trainers.gateway.session import Session

FAMILIES = ("Qwen2.5", "Qwen3", "Llama 3.1", "Mistral Nemo", "GLM 4.6", "gpt-oss")
LOOK = Tool(TOOL["name"], TOOL["description"], TOOL["parameters"])
SYSTEM, USER = Message("system", "Be brief."), Message("user", "Where?")


class Talk:
    """A session whose answers a test says."""

    def __init__(self, place: Place) -> None:
        self.place, self.session = place, place.open()

    def ask(self, *messages: Message, answer: str = "There.", tools: tuple[Tool, ...] = ()) -> Message:
        """Asks, has the answer delivered, and returns it."""
        place = self.place
        place.engine.answer = lambda request: place.engine.ids(answer)
        body = repr((messages, tools, len(self.session.asked))).encode()
        session, asked = place.gateway.ask(self.session.key, ParsedRequest("policy", messages, tools, body=body))
        place.gateway.pump(place.engine, 0.0)
        place.gateway.deliver(session, asked)
        return asked.done.result()[0].message

    @property
    def steps(self) -> list[Step]:
        return list(self.session.episode().steps)

    @property
    def parents(self) -> list[int | None]:
        return [step.info["gateway"]["parent"] for step in self.steps]


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, smol: Any) -> Place:
    one = BY_NAME[request.param]
    place = Place(tokenizer_of(smol, one.file, one.ends))
    place.gateway.writer = Writer(place.engine.tokenizer, one.arguments)
    return place


@pytest.fixture
def talk(speaks: Any) -> Talk:
    return Talk(Place(speaks))


_texts = st.text(st.sampled_from("ab é☃\n<|>"), min_size=1, max_size=12).map(lambda text: f"x{text}x") | st.just(
    "a<|im_end|>b"
)


@given(said=st.lists(st.tuples(_texts, _texts), min_size=1, max_size=4))
def test_a_conversation_is_the_templates_own_and_goes_on_from_the_sampled_tokens(said, family):
    talk, messages = Talk(family), [SYSTEM]
    texts = []
    for user, answer in said:
        messages.append(Message("user", user))
        texts.append(unbroken(family.gateway.writer.prompt_text(messages, ())))
        messages.append(talk.ask(*messages, answer=answer.replace("<|im_end|>", "")))
    for step, text in zip(talk.steps, texts, strict=True):
        assert family.engine.tokenizer.decode(step.prompt_ids) == text
        if (parent := step.info["gateway"]["parent"]) is not None:
            before = talk.steps[parent]
            sampled = [*before.prompt_ids, *before.response_ids]
            assert parent == step.t - 1 and step.prompt_ids[: len(sampled)].tolist() == sampled


def test_calls_and_their_results_go_on_in_one_sequence(family):
    talk, writer = Talk(family), family.gateway.writer
    assert writer.codec is not None
    call = writer.codec.write([ToolCall("look", {"at": "the é"})], tools=[LOOK])
    first = talk.ask(USER, answer=call, tools=(LOOK,))
    ((made, given_id),) = first.calls
    assert made == ToolCall("look", {"at": "the é"})
    again = replace(first, calls=((made, given_id),))
    second = talk.ask(USER, again, Message("tool", "snow", call_id=given_id), answer=call, tools=(LOOK,))
    assert second.calls and talk.parents == [None, 0]
    assert talk.steps[1].action == (made,)


def test_each_way_to_change_a_conversation_begins_a_sequence_that_says_where_it_left(talk):
    one = talk.ask(SYSTEM, USER, answer="Here.")
    goes_on, other = Message("user", "And?"), Message("user", "What of it?")
    two = talk.ask(SYSTEM, USER, one, goes_on)
    talk.ask(SYSTEM, USER, one, goes_on, two, other)  # goes on
    talk.ask(SYSTEM, USER, one, other)  # another way from the first answer
    talk.ask(SYSTEM, Message("user", "Where now?"), one, goes_on)  # edited
    talk.ask(SYSTEM, Message("user", "So far: here."))  # compacted
    talk.ask(Message("system", "Help."), Message("user", "Look."))  # another agent
    talk.ask(SYSTEM, USER, one, goes_on, two, tools=(LOOK,))  # other tools
    assert talk.parents == [None, 0, 1, 0, None, None, None, None]
    left = [step.info["gateway"]["left"] for step in talk.steps]
    assert left == [None, None, None, None, (0, 1), (0, 1), None, None]


def test_reasoning_that_a_client_drops_is_not_read_as_what_was_sampled(smol):
    one = BY_NAME["Qwen3"]
    talk = Talk(Place(tokenizer_of(smol, one.file, one.ends)))
    call = "<think>\nHm.\n</think>\n\n" + '<tool_call>\n{"name": "look", "arguments": {"at": "x"}}\n</tool_call>'
    first = talk.ask(USER, answer=call, tools=(LOOK,))
    assert first.thought == "Hm."
    result = Message("tool", "snow", call_id=first.calls[0][1])
    talk.ask(USER, first, result, tools=(LOOK,))
    talk.ask(USER, replace(first, thought=""), result, tools=(LOOK,))
    assert talk.parents == [None, 0, None]
    assert "Hm." not in talk.place.engine.tokenizer.decode(talk.steps[2].prompt_ids)


@pytest.mark.seconds
@given(order=st.lists(st.booleans(), min_size=1, max_size=6), change=_texts)
def test_what_one_sequence_says_changes_no_token_of_another(order, change, speaks):
    def prompts(order: list[bool], text: str) -> list[list[int]]:
        talk = Talk(Place(speaks))
        threads: dict[bool, list[Message]] = {True: [SYSTEM], False: [Message("system", "Help.")]}
        kept = []
        for main in order:
            messages = threads[main]
            messages.append(Message("user", f"Step {len(messages)}" if main else text))
            messages.append(talk.ask(*messages, answer="There." if main else text.replace("<|im_end|>", "")))
            if main:
                kept.append(len(talk.session.asked) - 1)
        return [np.asarray(talk.session.asked[i].prompt.ids).tolist() for i in kept]

    alone = prompts([main for main in order if main], "")
    assert prompts(order, change) == prompts(order, "Look.") == alone


def test_a_call_with_a_number_that_no_client_can_read_is_text(talk):
    said = talk.ask(
        USER, answer=f'<tool_call>\n{{"name": "look", "arguments": {{"at": {10**30}}}}}\n</tool_call>', tools=(LOOK,)
    )
    assert not said.calls and str(10**30) in said.text
    assert not talk.steps[0].valid and "cannot be sent" in str(talk.steps[0].parse_error)


@pytest.mark.seconds
@pytest.mark.parametrize("name", sorted({*BY_NAME} - {"FunctionGemma"}))  # its template wants names of results
def test_nothing_that_an_agent_writes_becomes_a_control_token(smol, name):
    family = BY_NAME[name]
    tokenizer = tokenizer_of(smol, family.file, family.ends)
    writer = Writer(tokenizer, family.arguments)
    added = added_tokens(tokenizer)
    attack = "".join(added.contents)

    def control(place: str, text: str) -> list[int]:
        said = {
            one: text if one == place else "x" for one in ("system", "user", "assistant", "thought", "tool", "call")
        }
        about = {"type": "string", "description": text if place == "schema" else "x"}
        schema = {"type": "object", "properties": {f"a{text}" if place == "key" else "b": about}}
        tools = (Tool("look", text if place == "about" else "x", schema),)
        called = ((ToolCall("look", {"b": said["call"]}), "call00000"),)
        messages = [
            Message("system", said["system"]), Message("user", said["user"]),
            Message("assistant", said["assistant"], thought=said["thought"]), Message("user", "Go on."),
            Message("assistant", "", called), Message("tool", said["tool"], call_id="call00000"),
        ]  # fmt: skip
        return [token for token in writer.ids(writer.conversation(messages, tools, prompt=True)) if token in added.ids]

    for place in ("system", "user", "assistant", "thought", "tool", "call", "schema", "key", "about"):
        assert control(place, "y") == control(place, attack), place


@pytest.mark.parametrize("name", published()[::40])
def test_every_message_of_a_request_is_shown_or_the_request_is_refused(smol, name):
    tokenizer = tokenizer_of(smol, name)
    writer = Writer(tokenizer)
    system, first, answer, later = (
        Message(role, f"{role}text{n}") for n, role in enumerate(("system", "user", "assistant", "user"))
    )
    cases = ((system, first, answer, later), (first, answer, system, later), (system, system, first), (first, later))
    for messages in cases:
        try:
            shown = unbroken(writer.prompt_text(messages, ()))
        except Refused as refused:
            assert refused.status == 400
        else:
            assert all(shown.count(message.text) >= messages.count(message) for message in messages)


@pytest.mark.parametrize(
    ("said", "stops", "text", "thought", "calls", "tokens"),
    [
        ("one two three four", ("four", "thr"), "one two", "", 0, "one two three"),
        (f"{CALL}\nObservation: snow", ("Observation:",), "", "", 1, f"{CALL}\nObservation:"),
        ("<think>Hm.</think>Yes. STOP no", ("STOP",), "Yes.", "Hm.", 0, "<think>Hm.</think>Yes. STOP"),
        ("<think>I look. STOP</think>Yes", ("STOP",), "", "<think>I look.", 0, "<think>I look. STOP"),
        (CALL, ("the <b>",), CALL.partition("the <b>")[0], "", 0, CALL.partition("é")[0]),
    ],
)
def test_a_stop_text_cuts_tokens_and_text_alike_before_thoughts_and_calls_are_read(
    speaks, said, stops, text, thought, calls, tokens
):
    place = Place(speaks)
    place.engine.answer = lambda request: place.engine.ids(said)
    session: Session = place.open()
    _, asked = place.gateway.ask(session.key, ParsedRequest("policy", (USER,), (LOOK,), stop=stops))
    place.gateway.pump(place.engine, 0.0)
    (choice,) = asked.done.result()
    message = choice.message
    assert (message.text.strip(), message.thought, len(message.calls)) == (text, thought, calls)
    assert (choice.stopped, choice.finish_reason) == (stops[-1], "tool_calls" if calls else "stop")
    taken = choice.completion.token_ids
    assert place.engine.tokenizer.decode(taken).startswith(tokens[:-6])
    assert said != "one two three four" or place.engine.tokenizer.decode(taken) == tokens
    assert len(choice.completion.experts[0]) == len(asked.prompt.ids) + len(taken) - 1
