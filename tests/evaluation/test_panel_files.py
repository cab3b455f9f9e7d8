"""Panels as files, exports for other frameworks, and the command.

Panels as environments play them, and as the package has them.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import gymnasium
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from walk_world import Walk

from envsuite.core import DataError, ToolEnv, UnknownName, UnknownTask, UsageError
from envsuite.core.registration import builtin
from envsuite.evaluation.panels import Panel, PanelTask, files, panel_of, read_panel, shipped_panel, write_panel
from envsuite.evaluation.panels.exports import export
from envsuite.evaluation.panels.files import FORMAT, SHIPPED, from_bytes, shipped_file, shipped_splits, to_bytes
from tools import panels
from tools.panels import builtin_panels

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
PANELS = st.builds(
    Panel,
    *(TEXT,) * 4,
    st.lists(st.builds(PanelTask, TEXT, TEXT, TEXT, st.dictionaries(TEXT, JSON, max_size=3)), max_size=4).map(tuple),
)
MESSAGES = r"not a panel|truncated|was changed|format|identity|not a JSON object"


@given(panel=PANELS, gzipped=st.booleans())
def test_a_panel_is_read_as_it_was_written_and_its_hash_is_that_of_all_but_its_version(panel, gzipped):
    content = to_bytes(panel)
    assert from_bytes(gzip.compress(content) if gzipped else content, "x") == panel
    assert json.loads(content)["hash"] == panel.hash and json.loads(content)["format"] == FORMAT
    body = {name: value for name, value in asdict(panel).items() if name != "version"}
    written = json.dumps(body, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    assert hashlib.sha256(written.encode()).hexdigest() == panel.hash


@given(panel=PANELS, place=st.integers(0), mask=st.integers(1, 255), gzipped=st.booleans())
def test_a_changed_file_is_refused_or_says_the_same(panel, place, mask, gzipped):
    content = bytearray(gzip.compress(to_bytes(panel), mtime=0) if gzipped else to_bytes(panel))
    content[place % len(content)] ^= mask
    try:
        read = from_bytes(bytes(content), "x")  # e.g. the time in the head of gzip; the version is not in the hash
        assert replace(read, version="") == replace(panel, version="") and read.hash == panel.hash
    except DataError as error:
        assert str(error).startswith("x: ")


@given(content=st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_other_file_is_refused_with_its_name(content):
    with pytest.raises(DataError, match="x: "):
        from_bytes(content, "x")


@given(panel=PANELS, cut=st.floats(0, 0.999), gzipped=st.booleans())
def test_a_cut_file_is_refused(panel, cut, gzipped):
    content = (gzip.compress(to_bytes(panel), mtime=0) if gzipped else to_bytes(panel)).rstrip(b"\n")
    with pytest.raises(DataError, match=MESSAGES):  # without its last newline a panel is whole
        from_bytes(content[: int(len(content) * cut)], "x")


def test_a_newer_format_and_a_missing_file_are_named(tmp_path):
    body = orjson.loads(to_bytes(shipped_panel("TextCraft-v0", "validation")))
    with pytest.raises(DataError, match="format 2; this version of envsuite reads 1"):
        from_bytes(orjson.dumps(body | {"format": 2}), "x")
    with pytest.raises(DataError, match="cannot be read"):
        read_panel(tmp_path / "none.json")
    with pytest.raises(DataError, match="cannot be written"):
        write_panel(shipped_panel("TextCraft-v0", "validation"), Path("/proc/nowhere/x.json"))


def test_the_command_compares_the_shipped_panels_or_writes_them(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(files, "SHIPPED", tmp_path)
    monkeypatch.setattr(panels, "builtin", lambda: [spec for spec in builtin() if spec.id == "Sokoban-v0"])

    def ended(*arguments: str) -> int | str | None:
        monkeypatch.setattr("sys.argv", ["panels", *arguments])
        with pytest.raises(SystemExit) as end:
            panels.main()
        return end.value.code

    assert ended() == 1 and "differs: run with --write" in capsys.readouterr().out
    assert ended("--write") == 0 and ended() == 0
    assert "Sokoban-v0 test: 400 tasks" in capsys.readouterr().out
    assert (tmp_path / "Sokoban-v0" / "test.json.gz").is_file()


def test_unknown_panels_and_targets_are_named():
    with pytest.raises(UnknownName, match=r"Nearest: 'TextCraft-v0'"):
        shipped_panel("TextCraft", "test")
    with pytest.raises(UnknownTask, match=r"validation"):
        shipped_panel("TextCraft-v0", "valid")
    with pytest.raises(UnknownName, match="verl-agent"):
        export(shipped_panel("Sokoban-v0", "validation"), "verl")


def example(env_id: str, source: str, *identities: dict[str, Any], split: str = "valid_seen") -> Panel:
    tasks = tuple(PanelTask(f"t{n}", "kind", f"do {n}", identity) for n, identity in enumerate(identities))
    return Panel(env_id, source, "1", split, tasks)


GAMES = [{"game": f"json_2.1.1/{split}/task-{n}/trial_{n}/game.tw-pddl", "game_sha256": f"{n}" * 64}
         for n, split in enumerate(("valid_seen", "valid_unseen", "train"))]  # fmt: skip
GOAL = {"goals": "synthetic", "asin": "B0", "products": 1000, "order_seed": 233, "goal_index": 7}


def test_verl_agent_gets_game_files_and_goal_indices():
    games = orjson.loads(export(example("ALFWorld-v0", "official", *GAMES), "verl-agent"))
    assert games["game_files"] == [game["game"] for game in GAMES]
    assert games["eval_dataset"] == "eval_in_distribution" and games["env_name"] == "alfworld/AlfredTWEnv"
    goals = orjson.loads(export(example("WebShop-v0", "official-1k", GOAL, GOAL | {"goal_index": 3}), "verl-agent"))
    assert goals["goal_idxs"] == [7, 3] and goals["seed"] == 233
    assert goals["use_small"] is True and goals["human_goals"] is False
    whole = GOAL | {"products": 10**6, "goals": "human"}
    large = orjson.loads(export(example("WebShop-v0", "official-full", whole), "verl-agent"))
    assert large["use_small"] is False and large["human_goals"] is True


def test_agentgym_gets_item_ids_and_the_server_s_list_of_games():
    rows = orjson.loads(export(example("ALFWorld-v0", "official", *GAMES), "agentgym"))
    for number, (row, game) in enumerate(zip(rows, GAMES, strict=True)):
        # as its server joins them, and its evaluator reads ids
        path = Path("json_2.1.1", "train", row["task_type"], row["task_id"], "game.tw-pddl")
        assert os.path.normpath(path) == game["game"]
        assert int(row["item_id"].split("_")[-1]) == number
    shop = orjson.loads(export(example("WebShop-v0", "official-1k", GOAL), "agentgym"))
    assert shop == [{"item_id": "webshop_7", "asin": "B0", "instruction": "do 0"}]
    craft = export(example("TextCraft-v0", "official", {"item": "minecraft:torch", "data_idx": 12}), "agentgym")
    assert orjson.loads(craft) == [{"item_id": "textcraft_12", "goal": "minecraft:torch"}]


@pytest.mark.parametrize(
    ("panel", "target", "message"),
    [
        (shipped_panel("TextCraft-v0", "validation"), "verl-agent", "it plays ALFWorld-v0 and WebShop-v0"),
        (shipped_panel("Sokoban-v0", "validation"), "verl-agent", "cannot be told to play tasks of Sokoban-v0"),
        (shipped_panel("PythonMath-v0", "validation"), "agentgym", "ALFWorld-v0 and TextCraft-v0 and WebShop-v0"),
        (shipped_panel("WebShop-v0", "dev"), "verl-agent", "give an official --source"),
        (shipped_panel("TextCraft-v0", "test"), "agentgym", "give an official --source"),
        (example("WebShop-v0", "official-1k", GOAL | {"goals": "human"}), "agentgym", "synthetic goals of the shop"),
        (example("WebShop-v0", "official-1k", GOAL | {"products": 5}), "agentgym", "synthetic goals of the shop"),
    ],
)  # fmt: skip
def test_what_a_framework_cannot_play_is_refused(panel, target, message):
    with pytest.raises(UsageError, match=message) as refused:
        export(panel, target)
    assert "--for json" in str(refused.value)
    assert from_bytes(export(panel, "json"), "x") == panel


def test_the_command_lists_and_shows_panels(console):
    lines = console("envs panels list")[0].splitlines()
    assert len(lines) == 1 + sum(map(len, shipped_splits().values()))
    assert lines[0].split()[:3] == ["environment", "split", "tasks"]
    out, err = console("envs panels show TextCraft-v0 validation")
    head, *rows = [line.split("\t") for line in out.splitlines()]
    panel = shipped_panel("TextCraft-v0", "validation")
    assert head == ["task_id", "stratum", "goal", "identity"] and panel.hash in err
    for row, task in zip(rows, panel.tasks, strict=True):
        assert row[:2] == [task.task_id, task.stratum] and json.loads(row[3]) == task.identity
        assert row[2].replace("\\n", "\n") == task.goal


def test_a_panel_that_was_exported_is_verified(tmp_path, console):
    path = tmp_path / "part.json.gz"
    console(f"envs panels export Sokoban-v0 validation --option 'tasks=[\"boxes-1\"]' --for json --out {path}")
    panel = read_panel(path)
    assert {task.stratum for task in panel.tasks} == {"boxes-1"} and len(panel.tasks) == 100
    said, _ = console(f"envs panels verify {path}")
    assert "all 100 tasks are the same here" in said and "a part of the split" in said
    assert "the same panel" in console(f"envs panels verify {path} --option tasks=boxes-1")[0]


def test_what_differs_is_named(tmp_path, console):
    panel = shipped_panel("Sokoban-v0", "validation")
    first, second, third, *rest = panel.tasks
    identity = {**first.identity, "board": "#####", "index": 7}
    changed = replace(first, identity=identity), replace(second, goal=f"{second.goal}!"), replace(third, task_id="gone")
    write_panel(replace(panel, tasks=(*changed, *rest)), path := tmp_path / "changed.json")
    out, err = console(f"envs panels verify {path}", 1)
    assert [line.split(": ")[0] for line in out.splitlines()] == [first.task_id, second.task_id, "gone"]
    assert "index: 7 in the panel, 0 here" in out and "goal: …" in out and "gone: missing" in out
    assert "3 of 200 tasks differ here" in err
    write_panel(replace(panel, split="test"), path)
    assert "split: 'test' in the panel, 'validation' here" in console(f"envs panels verify {path}", 1)[0]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("show TextCraft-v0 nowhere", "unknown split"),
        ("show Craft-v0 test", "unknown environment"),
        ("show TextCraft-v0 test --source /nowhere", "there is no folder"),
        ("show TextCraft-v0 test --option distractors", "must be like NAME=VALUE"),
        ("show TextCraft-v0 test --option speed=7", "unknown argument of TextCraft-v0"),
        ("export TextCraft-v0 test --for json --out /proc/x/y.json", "cannot be written"),
        ("verify /nowhere/x.json", "cannot be read"),
    ],
)
def test_mistakes_are_answered_with_a_message(line, message, console):
    assert message in console(f"envs panels {line}", 2)[1]


IDS = [spec.id for spec in builtin()]
BIGGEST = 2_000_000
"""Bytes of all shipped panels together."""


def made(env_id: str, **arguments: Any) -> ToolEnv:
    arguments = {"source": "builtin", "split": None} | arguments
    env = gymnasium.make(env_id, disable_env_checker=True, **arguments).unwrapped
    assert isinstance(env, ToolEnv)
    return env


def some_split(env_id: str) -> str:
    """The smallest split."""
    return min(shipped_splits()[env_id], key=lambda split: shipped_file(env_id, split).stat().st_size)


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("env_id", IDS)
def test_the_shipped_panels_are_what_the_environment_plays(env_id, every):
    splits = [split for split in shipped_splits()[env_id] if every or split != "train"]
    computed = {panel.split: panel for panel in builtin_panels(env_id, None if every else splits)}
    assert set(computed) == set(splits), "python -m tools.panels --write"
    assert {split: shipped_panel(env_id, split) for split in computed} == computed


@pytest.mark.parametrize("env_id", IDS)
def test_a_panel_disturbs_no_episode(env_id):
    env, other = made(env_id, split=some_split(env_id)), made(env_id, split=some_split(env_id))
    seen, _ = env.reset(seed=3)
    other.reset(seed=3)
    panel_of(env, some_split(env_id))
    assert env.observation == seen and not env.done
    env.action_space.seed(0)
    action = env.action_space.sample()
    assert env.step(action)[:4] == other.step(action)[:4]


@pytest.mark.parametrize("env_id", IDS)
def test_a_filtered_panel_has_its_own_hash(env_id):
    split = some_split(env_id)
    whole = shipped_panel(env_id, split)
    kept = [task.task_id for task in whole.tasks[:3]]
    part = panel_of(made(env_id, tasks=kept), split)
    assert part.tasks == whole.tasks[:3] and part.hash != whole.hash
    with pytest.raises(UnknownTask, match="nowhere"):
        panel_of(made(env_id, tasks=kept), "nowhere")


def test_what_lies_beside_a_split_changes_no_panel(tmp_path):
    problems = {"test": [{"problem": f"What is {n} + 1?", "answer": n + 1} for n in range(5)]}
    more = problems | {"train": [{"problem": "What is 2 * 3?", "answer": 6}]}
    found = []
    for name, contents in (("one", problems), ("two", more)):
        (tmp_path / name).mkdir()
        for file, rows in contents.items():
            (tmp_path / name / f"{file}.jsonl").write_bytes(b"\n".join(map(orjson.dumps, rows)))
        found.append(panel_of(made("PythonMath-v0", source=str(tmp_path / name)), "test"))
    assert found[0].version != found[1].version and found[0].hash == found[1].hash
    (tmp_path / "two" / "test.jsonl").write_bytes(b'{"problem": "What is 0 + 1?", "answer": 2}')
    changed = made("PythonMath-v0", source=str(tmp_path / "two" / "test.jsonl"))
    assert panel_of(changed, "test").tasks[0].goal == found[0].tasks[0].goal
    assert panel_of(changed, "test").tasks[0].identity["sha256"] != found[0].tasks[0].identity["sha256"]


def test_another_shop_is_another_panel():
    larger = made("WebShop-v0", products=1010)
    ids = [task.task_id for task in shipped_panel("WebShop-v0", "dev").tasks]
    kept = [task_id for task_id in ids if task_id in larger.tasks.types][:5]
    assert len(kept) == 5
    here, there = (panel_of(made("WebShop-v0", tasks=kept, products=n), "dev") for n in (1000, 1010))
    assert {t.goal for t in here.tasks} == {t.goal for t in there.tasks}
    assert not {t.identity["shop"] for t in here.tasks} & {t.identity["shop"] for t in there.tasks}


def test_how_tasks_are_shown_changes_no_panel_and_what_is_shown_does():
    shown = panel_of(made("Sokoban-v0", style="coordinates", max_calls=5), "validation")
    assert shown.hash == shipped_panel("Sokoban-v0", "validation").hash
    fewer = panel_of(made("TextCraft-v0", max_distractors=5), "validation")
    assert fewer.hash != shipped_panel("TextCraft-v0", "validation").hash
    assert [task.task_id for task in fewer.tasks] == [
        t.task_id for t in shipped_panel("TextCraft-v0", "validation").tasks
    ]


def test_identities_name_nothing_of_this_machine():
    home, folder = str(Path.home()), str(SHIPPED)
    for env_id in IDS:
        for split in shipped_splits()[env_id]:
            for task in shipped_panel(env_id, split).tasks:
                text = orjson.dumps(task.identity).decode()
                assert home not in text and folder not in text and "/tmp" not in text
                assert json.loads(json.dumps(task.identity)) == task.identity, "plain JSON"


def test_the_shipped_panels_are_small():
    assert sum(path.stat().st_size for path in SHIPPED.rglob("*.gz")) < BIGGEST


def test_a_generated_source_says_what_it_was_drawn_from():
    sokoban = panel_of(made("Sokoban-v0", source="generated", level_seed=7, levels=20), "test")
    assert {task.identity["generated"] for task in sokoban.tasks} == {"6x6-2-2-30-7/test"}
    problems = panel_of(made("PythonMath-v0", source="generated", problem_seed=7, problems=20), "test")
    assert all(task.identity["generated"].startswith("7/") for task in problems.tasks)
    crafting = panel_of(made("TextCraft-v0", source="generated", book_seed=7, goals=50), "test")
    assert all("data_idx" not in task.identity for task in crafting.tasks)


def test_the_answer_to_a_problem_is_not_in_its_panel():
    env = made("PythonMath-v0")
    for task in shipped_panel("PythonMath-v0", "validation").tasks[:50]:
        problem = env.problems.problem(task.task_id)  # type: ignore[attr-defined]
        assert task.goal == problem.text and set(task.identity) == {"generated", "index", "sha256"}
        assert hashlib.sha256(f"{problem.text}\n{problem.answer}".encode()).hexdigest() == task.identity["sha256"]


def test_other_environments_have_panels_before_their_first_episode():
    env = Walk()
    panel = panel_of(env, "train")
    assert [task.goal for task in panel.tasks] == [f"Task {i}" for i in env.tasks.ids("train")]
    assert all(task.identity == {} for task in panel.tasks)
    env.reset(seed=0)
    with pytest.raises(UsageError, match="before reset"):
        panel_of(env, "train")
    with pytest.raises(UsageError, match="not a ToolEnv"):
        panel_of(gymnasium.make("CartPole-v1"), "test")


def test_a_panel_is_the_same_in_any_wrapper():
    env = gymnasium.wrappers.TimeLimit(made("Sokoban-v0"), 3)
    assert panel_of(env, "validation") == shipped_panel("Sokoban-v0", "validation")


@pytest.mark.parametrize("env_id", IDS)
def test_a_panel_is_the_same_on_a_server(env_id, server):
    env, split = made(env_id, url=server), some_split(env_id)
    assert panel_of(env, split) == shipped_panel(env_id, split)
    seen, _ = env.reset(options={"task_id": env.tasks.ids(split)[0]})
    assert panel_of(env, split) == shipped_panel(env_id, split) and env.observation == seen
    with pytest.raises(UnknownTask, match="nothing"):
        env.identity("nothing")
    env.close()
