"""Task sets and their manifests; options, whose types, limits and errors come from one declaration."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from gymnasium.envs.registration import load_env_creator
from hypothesis import given
from hypothesis import strategies as st
from lamps import TASKS

from docs.options import page
from envsuite.core import DataError, TaskSet, UnknownTask
from envsuite.core.errors import EnvsuiteError, UnknownName, UsageError
from envsuite.core.options import PATH, SEED, EnvOptions, option, source, values_of
from envsuite.core.registration import ENVIRONMENTS
from envsuite.core.tools import Tool

HASH = "a57cb34483ce9c29246641f4928d17d734bccfce6f51c45b5c8ef2f758985476"

HASH_IN_A_SHELL = """
from envsuite.core import TaskSet
types = {"two": "small", "three": "small", "four": "large", "five": "large", "six": "large"}
ids = {"test": ("four", "five", "six"), "empty": (), "train": ("two", "three")}
print(TaskSet("Lamps-v0", "builtin", "1", ids, {k: types[k] for k in set(types)}).hash)
"""


@pytest.mark.parametrize("hash_seed", ["0", "1", "4711"])
def test_the_hash_is_the_stored_one_in_every_process(hash_seed):
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", HASH_IN_A_SHELL], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == HASH == TASKS.hash


@pytest.mark.parametrize(
    "other",
    [
        replace(TASKS, source="official"),
        replace(TASKS, version="2"),
        replace(TASKS, splits={**TASKS.splits, "train": ("three", "two")}),
        replace(TASKS, splits={**TASKS.splits, "train": ("two",)}),
        replace(TASKS, types={**TASKS.types, "two": "large"}),
    ],
    ids=["source", "version", "order", "ids", "types"],
)
def test_the_hash_covers_everything_that_results_depend_on(other):
    assert other.hash != TASKS.hash


@pytest.mark.parametrize(
    ("use", "error", "said"),
    [
        (lambda: TASKS.split_of("thre"), UnknownTask, f"(?s){HASH[:8]}.*'thre'.*\"three\" .train.*envs tasks Lamps-v0"),
        (lambda: TASKS.ids("trian"), UnknownTask, "'trian'.*Nearest: 'train'.*Known: train, empty, test"),
        (lambda: TASKS.select(["lareg"]), UnknownTask, "large"),
        (lambda: TASKS.select(["fiv"]), UnknownTask, "five"),
    ],
)
def test_what_does_not_exist_is_named_with_the_nearest(use, error, said):
    with pytest.raises(error, match=said):
        use()


def test_a_task_in_two_splits_is_refused():
    with pytest.raises(DataError, match="'a' is in split 'train' and in 'test'"):
        TaskSet("Any-v0", "builtin", "1", {"train": ("a", "b"), "test": ("c", "a")}, dict.fromkeys("abc", "kind"))


def test_select_takes_ids_types_and_both_and_keeps_the_order():
    assert TASKS.select(None) is TASKS
    assert TASKS.select(["five", "two"]).splits == {"train": ("two",), "test": ("five",), "empty": ()}
    assert TASKS.select(["large"]).splits == {"train": (), "test": ("four", "five", "six"), "empty": ()}
    assert TASKS.select("large").splits == TASKS.select(["large"]).splits
    assert TASKS.select(["three", "large"]).splits == {**TASKS.splits, "train": ("three",)}
    assert set(TASKS.select(["small"]).types) == {"two", "three"}
    assert TASKS.select(["small"]).hash != TASKS.hash


def test_the_summary_says_which_tasks_a_result_came_from():
    assert TASKS.summary() == {
        "env_id": "Lamps-v0",
        "source": "builtin",
        "version": "1",
        "hash": HASH,
        "splits": {"train": 2, "test": 3, "empty": 0},
    }


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
