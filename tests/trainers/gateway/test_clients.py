"""The clients of OpenAI and of Anthropic, as their packages have them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from talking import CALL, TOOL, Place, ask, body, recorded

Made = Callable[..., Place]
FUNCTIONS: Any = [{"type": "function", "function": TOOL}]
INPUTS: Any = [{"name": "look", "description": "Looks.", "input_schema": TOOL["parameters"]}]


def _says(prompt: str) -> str:
    """Looks once, then says what it saw."""
    return f"I look. {CALL}" if "tools" in prompt and "snow" not in prompt else "I see ☃ there."


@pytest.fixture
def place(made: Made) -> Place:
    return made(_says)


@pytest.mark.parametrize("stream", [False, True])
def test_openais_client_calls_tools_and_goes_on_from_its_answers(place, stream):
    openai = pytest.importorskip("openai", reason="needs OpenAI's client: pip install openai")
    session = place.open()
    messages: list[Any] = [
        {"role": "developer", "content": "Look."},
        {"role": "user", "content": [{"type": "text", "text": "Go"}]},
    ]
    with openai.OpenAI(base_url=f"{place.url}/v1", api_key=session.key) as client:

        def completed(**more: Any) -> Any:
            if not stream:
                return client.chat.completions.create(model="policy", messages=messages, **more)
            options = {"include_usage": True}
            with client.chat.completions.stream(
                model="policy", messages=messages, stream_options=options, **more
            ) as events:
                return events.until_done().get_final_completion()

        first = completed(tools=FUNCTIONS, logprobs=True)
        (call,) = first.choices[0].message.tool_calls
        assert first.choices[0].finish_reason == "tool_calls" and first.choices[0].message.content == "I look."
        assert (call.function.name, orjson.loads(call.function.arguments)) == ("look", {"at": "the <b>é</b>"})
        messages += [first.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "snow <|im_end|>"}]
        second = completed(tools=FUNCTIONS, logprobs=True, n=2, seed=3, temperature=0.2)
        assert [choice.finish_reason for choice in second.choices] == ["stop", "stop"]
        said = second.choices[1]
        whole = b"".join(bytes(token.bytes) for token in said.logprobs.content)
        assert whole == b"I see \xe2\x98\x83 there.<|im_end|>" and said.message.content == "I see ☃ there."
        assert {model.id for model in client.models.list()} == {"policy"}
    steps = session.episode().steps
    assert [step.info["gateway"]["parent"] for step in steps] == [None, 0, 0]
    logprobs = [[token.logprob for token in choice.logprobs.content] for choice in (*first.choices, *second.choices)]
    assert recorded(session) == logprobs
    usage = second.usage
    assert usage.prompt_tokens == len(steps[1].prompt_ids) and usage.completion_tokens == sum(map(len, logprobs[1:]))
    assert place.gateway.counts["replaced"] == 1


def test_openais_client_repeats_what_took_too_long_and_gets_the_answer_that_was_made(place):
    openai = pytest.importorskip("openai", reason="needs OpenAI's client: pip install openai")
    session = place.open()
    place.engine.going.clear()
    with openai.OpenAI(base_url=f"{place.url}/v1", api_key=session.key, timeout=0.2, max_retries=1) as client:
        with pytest.raises(openai.APITimeoutError):
            client.chat.completions.create(**body())
        place.engine.going.set()
        assert client.with_options(timeout=30).chat.completions.create(**body()).choices[0].message.content
    assert len(place.engine.asked) == 1 == len(recorded(session)) and place.gateway.counts["repeated"] == 2


def test_openais_client_knows_our_errors(made):
    openai = pytest.importorskip("openai", reason="needs OpenAI's client: pip install openai")
    place = made(most=1)
    place.engine.room = 40
    with openai.OpenAI(base_url=f"{place.url}/v1", api_key=place.open().key, max_retries=0) as client:

        def error(kind: Any, **more: Any) -> Any:
            with pytest.raises(kind) as caught:
                client.chat.completions.create(**{**body(), **more})
            return caught.value

        assert error(openai.BadRequestError, **body("word " * 50)).code == "context_length_exceeded"
        assert error(openai.NotFoundError, model="other").code == "model_not_found"
        assert error(openai.BadRequestError, tool_choice="required").code == "unsupported_parameter"
        assert error(openai.RateLimitError, n=2).response.headers["retry-after"] == "1"
        client.api_key = "agent-other"
        assert error(openai.AuthenticationError).code == "invalid_api_key"


@pytest.mark.parametrize("stream", [False, True])
def test_anthropics_client_calls_tools_and_goes_on_from_its_answers(place, stream):
    anthropic = pytest.importorskip("anthropic", reason="needs Anthropic's client: pip install anthropic")
    session = place.open()
    messages: list[Any] = [{"role": "user", "content": "Go"}]
    with anthropic.Anthropic(base_url=place.url, api_key=session.key) as client:

        def created(**more: Any) -> Any:
            given = {
                "model": "policy",
                "max_tokens": 50,
                "system": "Look.",
                "messages": messages,
                "tools": INPUTS,
                **more,
            }
            if not stream:
                return client.messages.create(**given)
            with client.messages.stream(**given) as events:
                return events.get_final_message()

        first = created()
        text, call = first.content
        assert (text.text, call.name, call.input) == ("I look.", "look", {"at": "the <b>é</b>"})
        assert first.stop_reason == "tool_use"
        result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "snow"}]}
        messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
        count = client.messages.count_tokens(model="policy", system="Look.", messages=messages, tools=INPUTS)
        second = created(stop_sequences=["there", "☃"])
        assert (second.stop_reason, second.stop_sequence, second.content[0].text) == ("stop_sequence", "☃", "I see ")
        assert count.input_tokens == second.usage.input_tokens
        place.engine.room = 10
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
            created(max_tokens=3)
    steps = session.episode().steps
    assert [step.info["gateway"]["parent"] for step in steps] == [None, 0]
    assert second.usage.output_tokens == len(steps[1].response_ids)


def _streamed(text: str) -> dict[str, Any]:
    """The response that a stream's events make, each put together from its pieces."""
    events = [orjson.loads(part.partition("data: ")[2]) for part in text.split("\n\n") if part]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    items: list[Any] = []
    for event in events:
        kind, at = event["type"].removeprefix("response."), event.get("output_index")
        if kind == "output_item.added":
            items.append(event["item"])
        elif kind == "content_part.added":
            items[at]["content"].append(event["part"])
        elif kind == "function_call_arguments.delta":
            items[at]["arguments"] += event["delta"]
        elif kind.endswith(".delta"):
            items[at]["content"][event["content_index"]]["text"] += event["delta"]
        elif kind == "output_item.done":
            assert items[at] == event["item"] | {"status": "in_progress"}
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1]["response"]["output"] == [item | {"status": "completed"} for item in items]
    response: dict[str, Any] = events[-1]["response"]
    return response


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_goes_on_from_the_items_of_the_one_before_it(made, stream):
    place = made(lambda prompt: f"<think>Hm.</think>{_says(prompt)}")
    session = place.open()
    sent: dict[str, Any] = {"model": "policy", "instructions": "Look.", "store": True, "stream": stream}
    sent |= {"tools": [{"type": "function", **TOOL, "strict": True}]}
    items: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": "Go"}]}]

    def response() -> Any:
        reply = ask(place, "/v1/responses", session.key, sent | {"input": items})
        assert reply.status_code == 200, reply.text
        return _streamed(reply.text) if stream else reply.json()

    first = response()
    thought, text, call = first["output"]
    assert (thought["content"][0]["text"], text["content"][0]["text"]) == ("Hm.", "I look.")
    assert (call["name"], orjson.loads(call["arguments"])) == ("look", {"at": "the <b>é</b>"})
    items += [*first["output"], {"type": "function_call_output", "call_id": call["call_id"], "output": "snow"}]
    second = response()
    assert second["output"][-1]["content"][0]["text"] == "I see ☃ there." and second["status"] == "completed"
    steps = session.episode("").steps
    assert [step.info["gateway"]["parent"] for step in steps] == [None, 0]
    assert second["usage"]["input_tokens"] == len(steps[1].prompt_ids)
    short = ask(place, "/v1/responses", session.key, {"model": "policy", "input": "Hi", "max_output_tokens": 2}).json()
    assert (short["status"], short["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})


@pytest.mark.parametrize("field", ["previous_response_id", "conversation", "prompt", "background"])
def test_a_response_that_needs_stored_state_is_refused(place, field):
    for value, status in (("resp_1", 400), (None, 200)):
        reply = ask(place, "/v1/responses", place.open().key, {"model": "policy", "input": "Hi", field: value})
        assert reply.status_code == status and (status == 200 or reply.json()["error"]["param"] == field), reply.text


@pytest.mark.parametrize("stream", [False, True])
def test_openais_client_asks_for_responses(place, stream):
    openai = pytest.importorskip("openai", reason="needs OpenAI's client: pip install openai")
    session = place.open()
    items: list[Any] = [{"role": "user", "content": "Go"}]
    with openai.OpenAI(base_url=f"{place.url}/v1", api_key=session.key) as client:

        def response() -> Any:
            asked = {"model": "policy", "input": items, "tools": [{"type": "function", **TOOL}]}
            if not stream:
                return client.responses.create(**asked)
            with client.responses.stream(**asked) as events:
                return events.until_done().get_final_response()

        first = response()
        assert [item.type for item in first.output] == ["message", "function_call"]
        result = {"type": "function_call_output", "call_id": first.output[1].call_id, "output": "snow"}
        items += [*(item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in first.output), result]
        assert response().output_text == "I see ☃ there."
        assert client.models.retrieve("policy").id == "policy"
    assert [step.info["gateway"]["parent"] for step in session.episode("").steps] == [None, 0]


def test_a_thought_goes_out_and_comes_back_in_every_interface(made):
    from trainers.gateway import anthropic_api, openai_api, responses_api
    from trainers.gateway.reading import Fields

    said = {"role": "assistant", "reasoning_content": "Hm.", "content": "Yes"}
    blocks = [{"type": "thinking", "thinking": "Hm.", "signature": ""}, {"type": "text", "text": "Yes"}]
    user = {"role": "user", "content": "So?"}
    one = openai_api.read(Fields({"model": "policy", "messages": [said, user]}))
    sent = {"model": "policy", "max_tokens": 1, "messages": [{"role": "assistant", "content": blocks}, user]}
    assert one.messages == anthropic_api.read(Fields(sent)).messages and one.messages[0].thought == "Hm."
    summary = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}
    items = [summary, {"type": "message", "role": "assistant", "content": "Yes"}, user]
    assert one.messages == responses_api.read(Fields({"model": "policy", "input": items})).messages
