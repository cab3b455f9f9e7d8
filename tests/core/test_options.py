"""Options: types, limits and errors come from one declaration."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import pytest
from gymnasium.envs.registration import load_env_creator
from hypothesis import given
from hypothesis import strategies as st

from docs.options import page
from envsuite.core.errors import EnvsuiteError, UnknownName, UsageError
from envsuite.core.options import PATH, SEED, EnvOptions, option, source, values_of
from envsuite.core.registration import ENVIRONMENTS
from envsuite.core.tools import Tool


@dataclass(frozen=True, kw_only=True)
class Some(EnvOptions):
    env_id: ClassVar[str] = "Some-v0"
    source: str | Path = source()
    seed: int = option(0, "a seed", **SEED)
    rooms: int = option(3, "how many", minimum=1, clients={"maximum": 9})
    share: float = option(0.5, "how much", exclusiveMinimum=0, maximum=1)
    kinds: Iterable[str] = option(("a", "b"), "which", items={"enum": ("a", "b", "c")}, minItems=1)
    pair: Sequence[int] = option((1, 2), "two", minItems=2, maxItems=2)
    style: str | None = option(None, "how", enum=("plain", "loud", None))
    sizes: Mapping[str, int] | None = option(None, "by name")
    judge: str | Callable[[str], float] = option("words", "who", clients={"enum": ("words",)})
    loud: bool = option(False, "whether", offered=False)


def test_a_schema_is_that_of_the_annotation_with_its_limits():
    forms = Some.schema()
    assert list(forms)[:4] == ["split", "tasks", "render_mode", "source"]
    assert forms["source"]["type"] == "string" and forms["source"]["format"] == PATH
    assert forms["rooms"] == {"minimum": 1, "type": "integer"}
    assert forms["kinds"] == {"items": {"type": "string", "enum": ["a", "b", "c"]}, "minItems": 1, "type": "array"}
    assert forms["style"]["type"] == ["string", "null"]
    assert forms["sizes"] == {"additionalProperties": {"type": "integer"}, "type": ["object", "null"]}
    assert forms["judge"] == {"type": "string"}
    offered = Some.schema(client=True)
    assert set(forms) - set(offered) == {"render_mode", "loud"}
    assert offered["rooms"]["maximum"] == 9 and offered["judge"]["enum"] == ["words"]
    json.dumps(forms)


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"roms": 1}, UnknownName, "unknown argument of Some-v0 'roms'. Nearest: 'rooms'"),
        ({"rooms": 0}, UsageError, "rooms=0: expected whole number from 1"),
        ({"rooms": True}, UsageError, "rooms=True"),
        ({"share": float("inf")}, UsageError, "share=inf: expected number above 0 to 1"),
        ({"seed": 2**63}, UsageError, "seed=9223372036854775808: expected whole number"),
        ({"kinds": ["a", "e"]}, UnknownName, "unknown kinds of Some-v0 'e'"),
        ({"kinds": ()}, UsageError, r"kinds=\(\): expected 1 or more of: a, b, c"),
        ({"pair": range(100_000)}, UsageError, "pair="),
        ({"style": "quiet"}, UnknownName, "unknown style of Some-v0 'quiet'.*plain"),
        ({"sizes": {"a": 1.0}}, UsageError, "expected mapping to whole number or null"),
        ({"judge": 3}, UsageError, "judge=3: expected text"),
        ({"source": "\ud800"}, UsageError, "source"),
    ],
)
def test_a_wrong_value_is_refused_in_one_line(values, error, message):
    with pytest.raises(error, match=message) as caught:
        Some.of(values)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1000


def test_values_that_only_python_knows_are_taken_as_they_are():
    made = Some.of({"judge": len, "source": Path("x"), "kinds": iter("ab"), "tasks": {"one"}, "style": "loud"})
    assert made.judge is len and made.source == Path("x")
    assert made.kinds == ("a", "b") and made.tasks == ("one",), "what can be read once is kept"


def test_clients_have_narrower_limits():
    assert Some.of({"rooms": 10, "judge": "model", "loud": True}).rooms == 10
    for values in ({"rooms": 10}, {"judge": "model"}, {"loud": True}, {"judge": len}):
        with pytest.raises(EnvsuiteError):
            Some.check(values, client=True)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@given(st.sampled_from(sorted(Some.schema(client=True))), json_values)
def test_anything_is_either_taken_or_refused_in_one_line(name, value):
    try:
        Some.check({name: value}, client=True)
    except EnvsuiteError as error:
        assert "\n" not in str(error).replace(repr(value), "")
    else:
        assert Tool("", "", {"type": "object", "properties": Some.schema(client=True)}).problem({name: value}) is None


@pytest.mark.parametrize("env_id", list(ENVIRONMENTS))
def test_every_option_of_every_environment_says_what_it_means_and_its_default_may_be_given(env_id):
    kind: Any = load_env_creator(ENVIRONMENTS[env_id].entry_point)
    for one in fields(kind.takes):
        assert one.metadata["about"] and "\n" not in one.metadata["about"], one.name
        assert values_of(kind.takes.schema()[one.name])
    default = kind.takes()
    assert kind.takes.of({one.name: getattr(default, one.name) for one in fields(default)}) == default
    for name in kind.argument_schemas():
        kind.takes.check({name: getattr(default, name)}, client=True)


def test_the_page_of_options_is_the_options():
    file = Path(__file__).resolve().parents[2] / "docs/environments/options.md"
    assert file.read_text(encoding="utf-8") == page()
