"""Any two features of a run go together, or the one table says why not."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import save_model, trained, weights, without_times, write_settings

from trainers.run.config import TrainConfig
from trainers.run.features.table import EXCLUSIONS, FEATURES
from trainers.settings import ConfigError, checked
from trainers.settings.words import merge
from trainers.train import main

ON: dict[str, dict[str, Any]] = {
    "rollout.tree": {"rollout": {"tree": {}}},
    "rollout.staleness": {"rollout": {"staleness": 1}},
    "rollout.curriculum.success": {"rollout": {"curriculum": {"success": {}}}},
    "rollout.curriculum.horizon": {"rollout": {"curriculum": {"horizon": {"steps": [1, 2], "every": 1}}}},
    "rollout.agent": {"rollout": {"agent": {"run": "agent.py:play"}}},
    "pool": {"pool": {}},
    "pool.take": {"pool": {"take": {}}},
    "alarms.action: return": {"alarms": {"action": "return"}},
    "a method with continuations (oracle_mc)": {"method": {"estimator": "oracle_mc"}},
    "a method with milestones (beacon)": {"method": {"estimator": "beacon"}},
    "method.replay": {"method": {"replay": {}}},
    "method.filters.zero_variance.refill_rounds": {"method": {"filters": {"zero_variance": {"refill_rounds": 1}}}},
    "a method with greedy episodes (remax)": {"method": {"estimator": "remax"}},
    "model.shard": {"model": {"shard": "full"}},
    "optim.state: 8bit": {"optim": {"state": "8bit"}},
    "prompt.examples": {"prompt": {"examples": 1}},
}
"""What switches each feature of the table on."""
RECIPES = {
    "a method with continuations (oracle_mc)": "oracle_mc", "a method with milestones (beacon)": "beacon",
    "method.replay": "spear",
    "method.filters.zero_variance.refill_rounds": "dapo", "a method with greedy episodes (remax)": "remax",
    "critic": "ppo", "embedding": "bipace", "hindsight": "hcapo", "plan": "hiper", "steps": "gigpo",
}  # fmt: skip
"""The methods of features, of which a run has one, and further methods that read what others do not."""
MORE: dict[str, dict[str, Any]] = {
    "adapter": {"model": {"adapter": {"rank": 2}, "gradient_checkpointing": True}},
    "divergence": {"method": {"objective": {"kl": "k3", "kl_coef": 0.01}}},
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


def test_the_table_refuses_its_pairs_and_no_others():
    assert ON.keys() == FEATURES.keys() and {*sum(EXCLUSIONS, ())} <= FEATURES.keys()
    for first, second in combinations(ON, 2):
        if first.startswith("a method") and second.startswith("a method"):
            continue  # a run has one
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


def _dotted(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of sections by their dotted names, as ``trained`` takes them."""
    sections = {key: value for key, value in settings.items() if key != "pool"}
    changes = {f"{key}.{name}": value for key, section in sections.items() for name, value in section.items()}
    return {**changes, **({"pool": settings["pool"]} if "pool" in settings else {})}


@pytest.mark.slow
@pytest.mark.parametrize("pair", _pairs(), ids=" and ".join)
def test_two_features_train_together_and_go_on_from_a_checkpoint_to_the_same_end(pair, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent.py").write_text(AGENT)
    recipe = next((RECIPES[name] for name in pair if name in RECIPES), "grpo")
    settings = _dotted(merge(*({**ON, **MORE}.get(name, {}) if name not in RECIPES else {} for name in pair)))
    settings |= {"recipe": recipe, "prompt.plan": recipe == "hiper", "model.path": str(model), "evaluation.envs": []}
    settings |= {"optim.schedule": "constant", "checkpoint_every": 1, "keep_checkpoints": 3}
    whole = trained(tmp_path, iterations=2, **settings)
    assert whole[-1]["iteration"] == 2
    ends = [tmp_path / folder / "tiny" for folder in ("runs", "other")]
    if "pool" in settings:
        shutil.rmtree(tmp_path / "pool")
    settings["output"] = str(ends[1].parent)
    for iterations, more in ((1, ()), (2, ("--resume",))):
        assert main(["--config", str(write_settings(tmp_path, iterations=iterations, **settings)), *more]) == 0
    # What is computed together depends on the moment.
    if not {"rollout.staleness", "rollout.agent", "workers"} & {*pair}:
        assert without_times(ends[1]) == whole
        assert weights(ends[0] / "checkpoints/iteration-00002") == weights(ends[1] / "checkpoints/iteration-00002")
