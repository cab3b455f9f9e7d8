"""Recordings with observation tokens between response tokens, made here by the recursions of verl and verl-agent."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.golden import run

MASK = np.array([[1, 1, 0, 0, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0], [1, 0, 1, 0, 1, 0, 0]], bool)


def whitened(values: np.ndarray) -> np.ndarray:
    kept = values[MASK]
    return np.where(MASK, (values - kept.mean()) / np.sqrt(kept.var(ddof=1) + 1e-8), 0.0)


def recorded(peer: str, estimator: str) -> tuple[dict[str, Any], dict[str, Any]]:
    rng = np.random.default_rng(3)
    rewards, values = rng.normal(size=MASK.shape) * MASK, rng.normal(size=MASK.shape)
    values *= np.cumsum(MASK[:, ::-1], axis=1)[:, ::-1] > 0  # nothing after the last token
    gamma, lam = 0.9, 0.8
    advantages, returns = np.zeros(MASK.shape), np.zeros(MASK.shape)
    running, following, carried = np.zeros(3), np.zeros(3), np.zeros(3)
    skips = peer == "verl"
    for t in reversed(range(MASK.shape[1])):
        here = MASK[:, t]
        if estimator == "gae_token":
            new = rewards[:, t] + gamma * following - values[:, t] + gamma * lam * carried
            carried = np.where(here, new, carried) if skips else new
            following = np.where(here, values[:, t], following) if skips else values[:, t]
            advantages[:, t], returns[:, t] = carried, carried + values[:, t]
        else:
            new = rewards[:, t] + gamma * running
            returns[:, t] = advantages[:, t] = new
            running = np.where(here, new, running) if skips else new * here
    data = {
        "schema": "golden-tokens/1",
        "group_id": ["a", "a", "b"],
        "response_mask": MASK.astype(int).tolist(),
        "token_level_rewards_dense": rewards.tolist(),
        "values": values.tolist(),
    }
    lambdas = {"lam": lam} if estimator == "gae_token" else {}
    case = {
        "id": "holes",
        "estimator": estimator,
        "function": "compute_gae_advantage_return" if lambdas else "compute_reinforce_plus_plus_outcome_advantage",
        "params": {"gamma": gamma, **lambdas, **({"rewards": "token_level_rewards_dense"} if skips else {})},
        "dtype": "float64",
        "tolerance": {"rtol": 1e-7, "atol": 1e-8},
        "expect": {"advantage": whitened(advantages).tolist(), "returns": returns.tolist()},
    }
    return data, case


@pytest.mark.parametrize("estimator", ["gae_token", "reinforce_plus_plus"])
@pytest.mark.parametrize("peer", ["verl", "verl-agent"])
def test_observation_tokens_inside_a_row_are_treated_as_each_original_does(
    tmp_path: Path, peer: str, estimator: str
) -> None:
    data, case = recorded(peer, estimator)
    (tmp_path / "holes.json").write_text(json.dumps(data))
    document = {"schema": "golden-expected/1", "input": "holes", "peer": {"name": peer}, "cases": [case]}
    (tmp_path / "expected_holes.json").write_text(json.dumps(document))
    (result,) = run(tmp_path).results
    assert [c.key for c in result.comparisons] == ["advantage", "returns"], result.not_covered
    assert result.agrees, result.comparisons
