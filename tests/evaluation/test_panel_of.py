"""Panels as environments play them, and as the package has them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import gymnasium
import orjson
import pytest
from walk_world import Walk

from envsuite.core import ToolEnv, UnknownTask, UsageError
from envsuite.core.registration import builtin
from envsuite.evaluation.panels import panel_of, shipped_panel
from envsuite.evaluation.panels.files import SHIPPED, shipped_file, shipped_splits
from tools.panels import builtin_panels

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
def test_the_shipped_panels_are_what_the_environment_plays(env_id: str, every: bool) -> None:
    splits = [split for split in shipped_splits()[env_id] if every or split != "train"]
    computed = {panel.split: panel for panel in builtin_panels(env_id, None if every else splits)}
    assert set(computed) == set(splits), "python -m tools.panels --write"
    assert {split: shipped_panel(env_id, split) for split in computed} == computed


@pytest.mark.parametrize("env_id", IDS)
def test_a_panel_disturbs_no_episode(env_id: str) -> None:
    env, other = made(env_id, split=some_split(env_id)), made(env_id, split=some_split(env_id))
    seen, _ = env.reset(seed=3)
    other.reset(seed=3)
    panel_of(env, some_split(env_id))
    assert env.observation == seen and not env.done
    env.action_space.seed(0)
    action = env.action_space.sample()
    assert env.step(action)[:4] == other.step(action)[:4]


@pytest.mark.parametrize("env_id", IDS)
def test_a_filtered_panel_has_its_own_hash(env_id: str) -> None:
    split = some_split(env_id)
    whole = shipped_panel(env_id, split)
    kept = [task.task_id for task in whole.tasks[:3]]
    part = panel_of(made(env_id, tasks=kept), split)
    assert part.tasks == whole.tasks[:3] and part.hash != whole.hash
    with pytest.raises(UnknownTask, match="nowhere"):
        panel_of(made(env_id, tasks=kept), "nowhere")


def test_what_lies_beside_a_split_changes_no_panel(tmp_path: Path) -> None:
    problems = {"test": [{"problem": f"What is {n} + 1?", "answer": n + 1} for n in range(5)]}
    more = problems | {"train": [{"problem": "What is 2 * 3?", "answer": 6}]}
    found = []
    for name, files in (("one", problems), ("two", more)):
        (tmp_path / name).mkdir()
        for file, rows in files.items():
            (tmp_path / name / f"{file}.jsonl").write_bytes(b"\n".join(map(orjson.dumps, rows)))
        found.append(panel_of(made("PythonMath-v0", source=str(tmp_path / name)), "test"))
    assert found[0].version != found[1].version and found[0].hash == found[1].hash
    (tmp_path / "two" / "test.jsonl").write_bytes(b'{"problem": "What is 0 + 1?", "answer": 2}')
    changed = made("PythonMath-v0", source=str(tmp_path / "two" / "test.jsonl"))
    assert panel_of(changed, "test").tasks[0].goal == found[0].tasks[0].goal
    assert panel_of(changed, "test").tasks[0].identity["sha256"] != found[0].tasks[0].identity["sha256"]


def test_another_shop_is_another_panel() -> None:
    larger = made("WebShop-v0", products=1010)
    ids = [task.task_id for task in shipped_panel("WebShop-v0", "dev").tasks]
    kept = [task_id for task_id in ids if task_id in larger.tasks.types][:5]
    assert len(kept) == 5
    here, there = (panel_of(made("WebShop-v0", tasks=kept, products=n), "dev") for n in (1000, 1010))
    assert {t.goal for t in here.tasks} == {t.goal for t in there.tasks}
    assert not {t.identity["shop"] for t in here.tasks} & {t.identity["shop"] for t in there.tasks}


def test_how_tasks_are_shown_changes_no_panel_and_what_is_shown_does() -> None:
    shown = panel_of(made("Sokoban-v0", style="coordinates", max_calls=5), "validation")
    assert shown.hash == shipped_panel("Sokoban-v0", "validation").hash
    fewer = panel_of(made("TextCraft-v0", max_distractors=5), "validation")
    assert fewer.hash != shipped_panel("TextCraft-v0", "validation").hash
    assert [task.task_id for task in fewer.tasks] == [
        t.task_id for t in shipped_panel("TextCraft-v0", "validation").tasks
    ]


def test_identities_name_nothing_of_this_machine() -> None:
    home, folder = str(Path.home()), str(SHIPPED)
    for env_id in IDS:
        for split in shipped_splits()[env_id]:
            for task in shipped_panel(env_id, split).tasks:
                text = orjson.dumps(task.identity).decode()
                assert home not in text and folder not in text and "/tmp" not in text
                assert json.loads(json.dumps(task.identity)) == task.identity, "plain JSON"


def test_the_shipped_panels_are_small() -> None:
    assert sum(path.stat().st_size for path in SHIPPED.rglob("*.gz")) < BIGGEST


def test_a_generated_source_says_what_it_was_drawn_from() -> None:
    sokoban = panel_of(made("Sokoban-v0", source="generated", level_seed=7, levels=20), "test")
    assert {task.identity["generated"] for task in sokoban.tasks} == {"6x6-2-2-30-7/test"}
    problems = panel_of(made("PythonMath-v0", source="generated", problem_seed=7, problems=20), "test")
    assert all(task.identity["generated"].startswith("7/") for task in problems.tasks)
    crafting = panel_of(made("TextCraft-v0", source="generated", book_seed=7, goals=50), "test")
    assert all("data_idx" not in task.identity for task in crafting.tasks)


def test_the_answer_to_a_problem_is_not_in_its_panel() -> None:
    env = made("PythonMath-v0")
    for task in shipped_panel("PythonMath-v0", "validation").tasks[:50]:
        problem = env.problems.problem(task.task_id)  # type: ignore[attr-defined]
        assert task.goal == problem.text and set(task.identity) == {"generated", "index", "sha256"}
        assert hashlib.sha256(f"{problem.text}\n{problem.answer}".encode()).hexdigest() == task.identity["sha256"]


def test_other_environments_have_panels_before_their_first_episode() -> None:
    env = Walk()
    panel = panel_of(env, "train")
    assert [task.goal for task in panel.tasks] == [f"Task {i}" for i in env.tasks.ids("train")]
    assert all(task.identity == {} for task in panel.tasks)
    env.reset(seed=0)
    with pytest.raises(UsageError, match="before reset"):
        panel_of(env, "train")
    with pytest.raises(UsageError, match="not a ToolEnv"):
        panel_of(gymnasium.make("CartPole-v1"), "test")


def test_a_panel_is_the_same_in_any_wrapper() -> None:
    env = gymnasium.wrappers.TimeLimit(made("Sokoban-v0"), 3)
    assert panel_of(env, "validation") == shipped_panel("Sokoban-v0", "validation")


@pytest.mark.parametrize("env_id", IDS)
def test_a_panel_is_the_same_on_a_server(env_id: str, server: str) -> None:
    env, split = made(env_id, url=server), some_split(env_id)
    assert panel_of(env, split) == shipped_panel(env_id, split)
    seen, _ = env.reset(options={"task_id": env.tasks.ids(split)[0]})
    assert panel_of(env, split) == shipped_panel(env_id, split) and env.observation == seen
    with pytest.raises(UnknownTask, match="nothing"):
        env.identity("nothing")
    env.close()
