"""Any two features of a run go together, or the one table says why not."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import save_model, trained

from trainers.run.config import TrainConfig
from trainers.run.features.table import EXCLUSIONS, FEATURES
from trainers.settings import ConfigError, checked
from trainers.settings.words import merge

ON: dict[str, dict[str, Any]] = {
    "rollout.tree": {"rollout": {"tree": {}}},
    "rollout.staleness": {"rollout": {"staleness": 1}},
    "rollout.agent": {"rollout": {"agent": {"function": "agent.py:play"}}},
    "pool": {"pool": {}},
    "pool.take": {"pool": {"take": {}}},
    "alarms.action: return": {"alarms": {"action": "return"}},
    "method.oracle": {"method": {"oracle": {"continuations": 1}}},
    "method.milestones": {"method": {"milestones": {}}},
    "method.replay": {"method": {"replay": {}}},
    "method.filters.zero_variance.refill_rounds": {"method": {"filters": {"zero_variance": {"refill_rounds": 1}}}},
    "a method with greedy episodes (remax)": {"method": {"estimator": "remax"}},
    "model.shard": {"model": {"shard": "full"}},
    "optim.state: 8bit": {"optim": {"state": "8bit"}},
}
"""What switches each feature of the table on."""
RECIPES = {
    "method.oracle": "oracle_mc", "method.milestones": "beacon", "method.replay": "spear",
    "method.filters.zero_variance.refill_rounds": "dapo", "a method with greedy episodes (remax)": "remax",
    "critic": "ppo", "embedding": "bipace", "hindsight": "hcapo", "plan": "hiper", "steps": "gigpo",
}  # fmt: skip
"""The methods of features, of which a run has one, and further methods that read what others do not."""
MORE: dict[str, dict[str, Any]] = {
    "adapter": {"model": {"adapter": {"rank": 2}}},
    "examples": {"prompt": {"examples": 1}},
    "workers": {"rollout": {"workers": 1}},
    "recomputed": {"optim": {"old_logprobs": "trainer", "epochs": 2}},
}
"""Further features, which exclude none."""
AGENT = """
def play(task, client):
    while not client.env.done:
        client.chat([{"role": "user", "content": "Goal"}], max_tokens=4)
        client.env.call("craft", {})
"""


def _excluded(first: str, second: str) -> bool:
    return (first, second) in EXCLUSIONS or (second, first) in EXCLUSIONS


def test_the_table_refuses_its_pairs_and_no_others() -> None:
    assert ON.keys() == FEATURES.keys() and {*sum(EXCLUSIONS, ())} <= FEATURES.keys()
    for first, second in combinations(ON, 2):
        settings = merge(ON[first], ON[second])
        names = {first, second} | ({"pool"} if "pool.take" in (first, second) else set())
        if any(_excluded(*pair) for pair in combinations(sorted(names), 2)):
            with pytest.raises(ConfigError, match=r"do not go together: .*; leave one of them out"):
                checked(TrainConfig, settings)
        else:
            config = checked(TrainConfig, settings)
            assert {name for name, on in FEATURES.items() if on(config)} == names


def _pairs() -> list[tuple[str, str]]:
    """Pairs that a run can have here: at most one method, and no pair that is refused."""
    alone = {"pool.take", "optim.state: 8bit"}  # their own tests play a pool first, and need torchao
    names = [name for name in (*ON, *RECIPES, *MORE) if name not in alone]
    pairs = combinations(dict.fromkeys(names), 2)
    return [(a, b) for a, b in pairs if not (a in RECIPES and b in RECIPES) and not _excluded(a, b)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("pairs") / "model")


def _changes(settings: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Settings by their dotted names, as ``trained`` takes them; sections of methods come from the recipe."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        name = f"{path}.{key}" if path else key
        if key in ("rollout", "model", "prompt", "optim", "alarms") and not path:
            flat |= _changes(value, name)
        elif key != "method":
            flat[name] = value
    return flat


@pytest.mark.slow
@pytest.mark.parametrize("pair", _pairs(), ids=" and ".join)
def test_two_features_train_together(
    pair: tuple[str, str], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent.py").write_text(AGENT)
    settings = merge(*({**ON, **MORE}.get(name, {}) for name in pair))
    recipe = next((RECIPES[name] for name in pair if name in RECIPES), "grpo")
    options = {"prompt.plan": recipe == "hiper", "prompt.codec": "tags"}
    lines = trained(
        tmp_path, iterations=2, recipe=recipe, **{"model.path": str(model), "evaluation.envs": []}, **options,
        **_changes(settings),
    )  # fmt: skip
    assert lines[-1]["iteration"] == 2 and lines[-1]["train/optimizer_steps"] >= 0
