import inspect
from typing import Any, Literal

import gymnasium
import pytest
from transformers.utils import get_json_schema

from envsuite.core import Tool, ToolCall, ToolEnv
from envsuite.core.methods import as_method
from envsuite.core.registration import ENVIRONMENTS

SEARCH = Tool(
    "search",
    "Searches the library.",
    {
        "type": "object",
        "properties": {
            "limit": {"type": "integer", "description": "How many."},
            "query": {"type": "string", "description": "What for.\nAny words."},
            "fields": {"type": "array", "items": {"type": "string"}, "description": "Where."},
            "order": {"enum": ["new", "old"], "description": "Which first."},
            "self_made": {"anyOf": [{"type": "string"}, {"type": "number"}], "description": "Anything."},
        },
        "required": ["query", "fields"],
    },
)


class Library:
    def __init__(self) -> None:
        self.calls: list[ToolCall] = []

    def act(self, call: ToolCall) -> str:
        self.calls.append(call)
        return f"{len(self.calls)} calls"

    search = as_method(SEARCH, act)


@pytest.mark.parametrize("spec", ENVIRONMENTS.values(), ids=lambda spec: spec.id)
def test_what_transformers_reads_off_the_methods_of_an_environment_is_its_tools(spec: Any) -> None:
    env = gymnasium.make(spec.id).unwrapped
    assert isinstance(env, ToolEnv)
    for tool in env.tools:
        wanted = tool.as_openai()
        wanted["function"]["parameters"].pop("additionalProperties", None)
        for form in wanted["function"]["parameters"]["properties"].values():  # limits that types do not have
            for limit in ("minimum", "maximum", "pattern"):
                form.pop(limit, None)
        read = get_json_schema(as_method(tool, lambda owner, call: ""))
        assert read["function"].pop("return", {"type": "string"}) == {"type": "string"}
        assert read == wanted
    env.close()


def test_the_parameters_are_typed_and_those_that_are_required_come_first() -> None:
    library = Library()
    signature = str(inspect.signature(library.search))
    assert signature.startswith("(query: str, fields: list[str], limit: int | None = None")
    assert signature.endswith("-> str")
    hints = {name: parameter.annotation for name, parameter in inspect.signature(library.search).parameters.items()}
    assert hints["order"] == Literal["new", "old"] | None
    assert inspect.getdoc(library.search) == (
        "Searches the library.\n\nArgs:\n    query: What for.\n        Any words.\n    fields: Where.\n"
        "    limit: How many.\n    order: Which first.\n    self_made: Anything."
    )


def test_a_call_of_the_method_is_a_call_of_the_tool() -> None:
    library = Library()
    assert library.search("cats", ["title"], order="new") == "1 calls"
    assert library.search(fields=[], query="dogs", limit=None) == "2 calls"
    assert library.calls == [
        ToolCall("search", {"query": "cats", "fields": ["title"], "order": "new"}),
        ToolCall("search", {"query": "dogs", "fields": []}),
    ]
    with pytest.raises(TypeError, match="unexpected keyword argument 'author'"):
        library.search("cats", [], author="me")
