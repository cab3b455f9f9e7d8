"""The clients of OpenAI and of Anthropic, as their packages have them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from talking import CALL, TOOL, Place, body, recorded

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
def test_openais_client_calls_tools_and_goes_on_from_its_answers(place: Place, stream: bool) -> None:
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


def test_openais_client_repeats_what_took_too_long_and_gets_the_answer_that_was_made(place: Place) -> None:
    openai = pytest.importorskip("openai", reason="needs OpenAI's client: pip install openai")
    session = place.open()
    place.engine.going.clear()
    with openai.OpenAI(base_url=f"{place.url}/v1", api_key=session.key, timeout=0.2, max_retries=1) as client:
        with pytest.raises(openai.APITimeoutError):
            client.chat.completions.create(**body())
        place.engine.going.set()
        assert client.with_options(timeout=30).chat.completions.create(**body()).choices[0].message.content
    assert len(place.engine.asked) == 1 == len(recorded(session)) and place.gateway.counts["repeated"] == 2


def test_openais_client_knows_our_errors(made: Made) -> None:
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
def test_anthropics_client_calls_tools_and_goes_on_from_its_answers(place: Place, stream: bool) -> None:
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


def test_a_thought_goes_out_and_comes_back_in_both_interfaces(made: Made) -> None:
    from trainers.gateway import anthropic_api, openai_api

    said = {"role": "assistant", "reasoning_content": "Hm.", "content": "Yes"}
    blocks = [{"type": "thinking", "thinking": "Hm.", "signature": ""}, {"type": "text", "text": "Yes"}]
    user = {"role": "user", "content": "So?"}
    one = openai_api.read(orjson.dumps({"model": "policy", "messages": [said, user]}), {})
    sent = {"model": "policy", "max_tokens": 1, "messages": [{"role": "assistant", "content": blocks}, user]}
    assert one.messages == anthropic_api.read(orjson.dumps(sent), {}).messages and one.messages[0].thought == "Hm."
