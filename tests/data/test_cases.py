"""Data files as people bring them: each is played, or refused in one line that names file and reason.

A file from which nothing can be played is refused, whatever the environment.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import envsuite  # noqa: F401  # registers the ids
from envsuite.core import DataError, ToolCall, ToolEnv

ENV_IDS = {
    "mathfiles": "PythonMath-v0", "searchqa": "SearchQA-v0", "sokoban": "Sokoban-v0", "textcraft": "TextCraft-v0",
    "webshop": "WebShop-v0",
}  # fmt: skip
CASES: dict[str, int | str] = {
    "mathfiles/test-aime.jsonl": 1, "mathfiles/test-array.jsonl": "a problem is a JSON object",
    "mathfiles/test-bigmath.jsonl": 1, "mathfiles/test-boxed-gold.jsonl": 1, "mathfiles/test-crlf.jsonl": "not JSON",
    "mathfiles/test-dapo.jsonl": 1, "mathfiles/test-dup.jsonl": 1, "mathfiles/test-empty-answer.jsonl": "no answer",
    "mathfiles/test-good.jsonl": 3, "mathfiles/test-gsm8k.jsonl": 2, "mathfiles/test-json.json": "a JSON object",
    "mathfiles/test-list.jsonl": "no answer", "mathfiles/test-long.jsonl": "1,001 characters",
    "mathfiles/test-nan.jsonl": "not JSON", "mathfiles/test-one-null.jsonl": "no answer",
    "mathfiles/test-proof.jsonl": 2, "mathfiles/test-sentence-gold.jsonl": 1, "mathfiles/test-solution-only.jsonl": 1,
    "mathfiles/test-surrogate.jsonl": "not JSON", "mathfiles/test-svamp.jsonl": 1, "mathfiles/test-utf16.jsonl": "JSON",
    "mathfiles/train-verl-system-100.jsonl": 100,
    "searchqa/empty-gold": 8, "searchqa/hotpot-fullwiki": 2, "searchqa/musique-hf": 1, "searchqa/musique-same-title": 2,
    "searchqa/nfd": 1, "searchqa/odd-encoding": "neither JSON nor JSON lines", "searchqa/search-r1": 2,
    "sokoban/blank-inside": "has 0 players", "sokoban/box-on-target-start": 1, "sokoban/cr": 1, "sokoban/crlf": 1,
    "sokoban/crlf-title": 1, "sokoban/dash-floor": "'-' in row 2", "sokoban/dash-outside": "there is no wall",
    "sokoban/lowercase": "no level files", "sokoban/more-targets": "1 boxes and 2 targets", "sokoban/nofloor-right": 1,
    "sokoban/open": "there is no wall", "sokoban/plain": 2, "sokoban/ragged": 1, "sokoban/rle": "no level files",
    "sokoban/solved": "on a target already", "sokoban/tabs": "no level files", "sokoban/title-with-hash": 2,
    "sokoban/underscore": "'_' in row 2", "sokoban/unsolvable": 1, "sokoban-mix": 5,
    "textcraft/count": "one or more", "textcraft/cycle": 2, "textcraft/family": 4,
    "textcraft/mod-namespace": "'toolmod:ruby_wand' is not in the namespace", "textcraft/modern": "Minecraft 1.21",
    "textcraft/no-item": "not a Minecraft recipe", "textcraft/unused-key": 1,
    "webshop/attr-missing-product": 2, "webshop/attr-not-in-text": 2, "webshop/dup-asin": 12,
    "webshop/empty-options": 10, "webshop/html-title": 12, "webshop/human-missing-product": 12,
    "webshop/int-asin": "asin is int", "webshop/long-asin": 10, "webshop/name-null": 12, "webshop/no-pricing-key": 12,
    "webshop/option-brackets": 15, "webshop/option-duplicate": 14, "webshop/option-no-value": "without a value",
    "webshop/plain": 12, "webshop/pricing-empty": 12, "webshop/pricing-euro": "names no price",
    "webshop/pricing-free": "names no price", "webshop/pricing-list": "names no price", "webshop/pricing-null": 12,
    "webshop/pricing-number": "names no price", "webshop/pricing-range": 12, "webshop/pricing-thousands": 12,
    "webshop/pricing-trailing": 12, "webshop/unicode-title": 13,
}  # fmt: skip
"""Number of tasks, or what the refusal says."""
EMPTY: dict[str, tuple[str, bytes]] = {
    "ALFWorld-v0": ("json_2.1.1/valid_seen/readme.txt", b""),
    "PaperSearch-v0": ("papers.jsonl", b""),
    "PythonMath-v0": ("test.jsonl", b"\n\n"),
    "SearchQA-v0": ("hotpot_dev.json", b"[]"),
    "Sokoban-v0": ("test.txt", b"; only a title\n"),
    "TextCraft-v0": (
        "recipes/a.json",
        b'{"type": "minecraft:crafting_shapeless", "ingredients": [{"item": "minecraft:stone"}], '
        b'"result": {"item": "minecraft:rod"}}',
    ),
    "WebShop-v0": ("items_shuffle_1000.json", b"[]"),
}
"""A file of each environment that reads files, from which there is nothing to play."""


@pytest.fixture(scope="session")
def cases(shared: Path) -> Path:
    folder = shared / "cases" / "environments"
    if not folder.is_dir():
        pytest.skip(f"needs the cases in {folder}")
    return folder


def make(env_id: str, source: Path, **options: Any) -> ToolEnv:
    env = gymnasium.make(env_id, split=None, source=str(source), disable_env_checker=True, **options).unwrapped
    assert isinstance(env, ToolEnv)
    return env


def test_every_case_is_listed(cases):
    folders = {path for path in cases.iterdir() if path.is_dir()}
    there = {f"{folder.name}/{path.name}" for folder in folders for path in folder.iterdir()}
    assert there - {f"sokoban-mix/test_{x}.txt" for x in "abcd"} == {*CASES} - {"sokoban-mix"}


@pytest.mark.parametrize("name", CASES)
def test_a_case_is_played_or_refused_in_one_line_that_names_the_file(name, cases):
    env_id, expected, source = ENV_IDS[name.partition("/")[0].partition("-")[0]], CASES[name], cases / name
    if isinstance(expected, str):
        with pytest.raises(DataError) as raised:
            make(env_id, source)
        said = str(raised.value)
        assert expected in said and name in said and "\n" not in said
        return
    env = make(env_id, source)
    ids = [task_id for some in env.tasks.splits.values() for task_id in some]
    assert len(ids) == expected
    for task_id in ids:
        env.reset(options={"task_id": task_id})
    env.close()


@pytest.mark.parametrize("env_id", EMPTY)
def test_a_source_without_a_task_is_refused_by_name(env_id, tmp_path):
    name, content = EMPTY[env_id]
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    if env_id == "WebShop-v0":
        (tmp_path / "items_ins_v2_1000.json").write_bytes(b"{}")
    with pytest.raises(DataError) as raised:
        make(env_id, tmp_path)
    assert tmp_path.name in str(raised.value) or path.name in str(raised.value)


def right(env: ToolEnv, task_id: str, text: str) -> float:
    env.reset(options={"task_id": task_id})
    return float(env.step((ToolCall("answer", {"text": text}),))[1])


@pytest.mark.parametrize(
    ("name", "answer"),
    [("bigmath", "2^{2005} + 1"), ("boxed-gold", "42"), ("sentence-gold", "42"), ("svamp", "145"), ("aime", "25"),
     ("solution-only", r"\boxed{42}")],
)  # fmt: skip
def test_golds_of_these_layouts_are_right_in_other_words(name, answer, cases):
    env = make("PythonMath-v0", cases / "mathfiles" / f"test-{name}.jsonl")
    assert right(env, f"test-{name}#1", answer) == 1.0 and right(env, f"test-{name}#1", "7") == 0.0
    env.close()


def test_the_system_message_of_verl_is_no_question(cases):
    env = make("PythonMath-v0", cases / "mathfiles" / "train-verl-system-100.jsonl")
    assert env.goal("train-verl-system-100#1") == "What is 0+1?"


@pytest.mark.parametrize("reward", ["em", "f1"])
def test_only_a_gold_answer_that_normalises_to_nothing_is_right_for_it(reward, cases):
    env = make("SearchQA-v0", cases / "searchqa" / "empty-gold", reward=reward)
    golds = {"empty-1": "The The", "empty-2": "A", "empty-3": "!!!"}
    for task_id in golds:
        assert {gold for gold in golds.values() if right(env, task_id, gold) == 1.0} == {golds[task_id]}
        assert right(env, task_id, "The band.") == 0.0
    env.close()


def test_a_bad_level_is_counted_in_what_results_are_made_with(cases):
    assert make("Sokoban-v0", cases / "sokoban-mix").versions["data_problems"].startswith("1 board")


def test_options_called_like_buttons_can_be_chosen_and_the_buttons_still_work(cases):
    env: Any = make("WebShop-v0", cases / "webshop" / "option-brackets")
    task = next(task_id for task_id in env.tasks.types if task_id.startswith("B000000006"))
    env.reset(options={"task_id": task})
    env.step((ToolCall("search", {"query": "red linen shirt"}),))
    env.step((ToolCall("click", {"element": "B000000006"}),))
    elements = ("size: buy now", "size: < prev", "size: description", "size: back to search", "[l]")
    assert {*elements} < {*env.observation["commands"]}
    for element in elements:
        env.step((ToolCall("click", {"element": element}),))
        assert env.session.state.options == (("size", element.removeprefix("size: ")),)
    assert env.step((ToolCall("click", {"element": "buy now"}),))[2]
    env.close()


def test_questions_packed_by_gzip_without_passages_name_the_corpus_that_is_missing(tmp_path):
    with gzip.open(tmp_path / "test.jsonl.gz", "wt") as file:
        file.write(json.dumps({"id": "1", "question": "who", "golden_answers": ["he"]}))
    with pytest.raises(DataError, match="without passages, and no corpus is given"):
        make("SearchQA-v0", tmp_path)
