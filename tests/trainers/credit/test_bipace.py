"""Methods that compare the steps of alike states: BiPACE and HGPO.

The command that chooses BiPACE's layer, pooling and radius.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from step_tables import step_tables, table_of
from tiny_runs import trained

from benchmarks import plain_python
from envsuite.core.errors import DataError
from trainers.credit.calibration import Candidate, choose, layers_of, probe_accuracy
from trainers.credit.estimators.bipace import LEAVE_ONE_OUT, PACE, SINGLETON, BiPACE, credit_diff, credit_q
from trainers.credit.estimators.clustering import adaptive_radius, greedy_clusters, ngram_vectors
from trainers.credit.estimators.comparison import CENTRED, StateComparison
from trainers.credit.estimators.gigpo import GiGPO
from trainers.credit.estimators.hgpo import HGPO
from trainers.credit.estimators.returns import discounted_returns
from trainers.policy.hidden import Fingerprint
from trainers.programs.calibrate import main
from trainers.steps import StepTable

normalisations = st.sampled_from(["std", "mean"])


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@st.composite
def clouds(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors around a few directions, some of them repeated, in up to two groups."""
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    centres = rng.normal(size=(draw(st.integers(1, 4)), draw(st.integers(2, 6))))
    count = draw(st.integers(1, 30))
    vectors = centres[rng.integers(0, len(centres), count)] + draw(st.sampled_from([0.0, 0.2, 1.0])) * rng.normal(
        size=(count, centres.shape[1])
    )
    return unit(vectors), rng.integers(0, draw(st.integers(1, 2)), count)


@given(clouds(), st.sampled_from([0.0, 0.05, 0.25, 1.0]))
def test_clusters_are_those_of_the_algorithm_as_it_is_written(cloud, radius):
    vectors, group = cloud
    codes = greedy_clusters(vectors, group, radius)
    for code in np.unique(group):
        mine = codes[group == code]
        theirs = np.array(plain_python.greedy_clusters(vectors[group == code], [code] * len(mine), radius))
        assert ((mine[:, None] == mine) == (theirs[:, None] == theirs)).all()
    assert (codes[group == 0][:, None] != codes[group == 1]).all()


@given(clouds(), st.sampled_from([0.05, 0.25]))
def test_clusters_do_not_depend_on_how_many_rows_are_taken_at_a_time(cloud, radius):
    vectors, group = cloud
    expected = greedy_clusters(vectors, group, radius)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainers.credit.estimators.clustering.BLOCK", 3)
        assert_array_equal(greedy_clusters(vectors, group, radius), expected)


@given(step_tables(), normalisations, st.sampled_from(["episode", "step"]))
def test_with_exact_states_and_credit_by_mean_it_is_gigpo_bit_for_bit(steps, normalise, weigh):
    steps = steps.with_columns(embedding=np.eye(3)[["abc".index(key) for key in steps.state_key]])
    compare = StateComparison(normalise, weigh)
    for embedder in ({"embedder": "identity"}, {}):  # of equal states, or of fingerprints that are one-hot
        ours = BiPACE(**embedder, radius=0.0, credit="mean", compare=compare)(steps)
        assert_array_equal(ours.per_step, GiGPO(compare=compare)(steps).per_step)


@given(step_tables(), st.sampled_from(["q", "diff"]))
def test_credit_is_that_of_the_equations(steps, credit):
    estimator = BiPACE(embedder="identity", credit=credit)
    cluster, key = estimator.clusters(steps), estimator.action_keys(steps)
    returns = discounted_returns(steps, 0.95)
    values, branch = {"q": credit_q, "diff": credit_diff}[credit](returns, cluster, key)
    for row in range(len(steps)):
        members = cluster == cluster[row]
        alike, unlike = members & (key == key[row]), members & (key != key[row])
        rest = members.copy()
        rest[row] = False
        if not rest.any():
            expected, via = 0.0, SINGLETON
        elif credit == "q" and alike.sum() > 1:
            expected, via = returns[alike].mean() - returns[members].mean(), PACE
        elif credit == "diff" and unlike.any():
            expected, via = returns[row] - returns[unlike].mean(), PACE
        else:
            expected, via = returns[row] - returns[rest].mean(), LEAVE_ONE_OUT
        assert values[row] == pytest.approx(expected, abs=1e-8) and branch[row] == via


def one_state(rewards: list[float], actions: list[str | None]) -> StepTable:
    rows = [(0, episode, 0, reward, "s", True) for episode, reward in enumerate(rewards)]
    column = np.empty(len(rows), object)
    column[:] = actions
    return table_of(rows).with_columns(action=column)


def test_a_table_small_enough_to_work_out_by_hand():
    steps = one_state([4.0, 2.0, 0.0], ["left", "left", "right"])
    q = BiPACE(embedder="identity", compare=CENTRED)(steps)
    assert_allclose(q.per_step, [2.0 + 1.0, 0.0 + 1.0, -2.0 + -3.0])
    assert q.diagnostics["action_keys_per_cluster"] == 2.0
    shares = [q.diagnostics[f"branch/{name}"] for name in ("singleton", "leave_one_out", "pace")]
    assert shares == pytest.approx([0.0, 1 / 3, 2 / 3]) and q.diagnostics["cluster/singleton_rate"] == 0.0
    assert q.diagnostics["matched_pairs"] == 3.0 and q.diagnostics["matched_pairs_same_action"] == 1.0
    diff = BiPACE(embedder="identity", compare=CENTRED, credit="diff")(steps)
    assert_allclose(diff.per_step, [2.0 + 4.0, 0.0 + 2.0, -2.0 + -3.0])


def test_a_response_without_an_action_is_known_by_its_first_tokens():
    steps = one_state([1.0, 0.0, 0.0], [None, None, "left"])
    estimator = BiPACE(embedder="identity")
    assert estimator.action_keys(steps).tolist() == [0, 0, 1]
    assert estimator(steps).diagnostics["action_parse_rate"] == pytest.approx(1 / 3)


def test_first_tokens_looks_at_so_many_and_needs_no_column():
    steps = table_of([(0, 0, 0, 1.0, "s", True), (0, 1, 0, 0.0, "s", True)], [3, 5])
    bare = replace(steps, extra={})
    short = BiPACE(embedder="identity", action_key="first_tokens", action_tokens=3)
    assert short.action_keys(bare).tolist() == [0, 0]
    assert replace(short, action_tokens=4).action_keys(bare).tolist() == [0, 1]


def test_equal_returns_give_exactly_nothing():
    steps = one_state([0.1] * 9, ["left", "right", "left"] * 3)
    assert (BiPACE(embedder="identity", credit="diff")(steps).per_step == 0.0).all()


def test_n_grams_know_equal_texts_and_put_alike_ones_nearer():
    texts = ["you are at shelf 1", "you are at shelf 2", "the drawer is closed", "you are at shelf 1", ""]
    steps = table_of([(0, row, 0, 0.0, text, True) for row, text in enumerate(texts)])
    vectors = ngram_vectors(steps)
    near = vectors @ vectors.T
    assert_allclose(np.diag(near), 1.0, rtol=1e-6)
    assert near[0, 3] == pytest.approx(1.0) and near[0, 1] > 0.7 > near[0, 2]
    clusters = BiPACE(embedder="ngram_hash", radius=0.25).clusters(steps)
    assert clusters.tolist() == [0, 0, 1, 0, 2]


def test_the_radius_is_searched_for_clusters_of_four_to_eight():
    rng = np.random.default_rng(0)
    centres = unit(rng.normal(size=(10, 40)))
    vectors = unit(np.repeat(centres, 6, axis=0) + 0.05 * rng.normal(size=(60, 40)))
    found = adaptive_radius(vectors, np.zeros(60, np.int64))
    assert 4 <= np.median(np.bincount(greedy_clusters(vectors, np.zeros(60, np.int64), found))) <= 8
    assert 0.02 <= found <= 0.40 and 0.39 < adaptive_radius(vectors, np.arange(60)) < 0.40
    steps = table_of([(0, row, 0, 0.0, "s", True) for row in range(60)]).with_columns(embedding=vectors)
    assert BiPACE().calibrate(steps).radius == found
    assert BiPACE(embedder="identity").calibrate(steps) == BiPACE(embedder="identity")


# -- hgpo


def context(steps: StepTable, row: int, k: int) -> tuple[object, ...]:
    """C_k of Eq. 3: the task, the last k states of the episode and this one."""
    here = np.flatnonzero(
        (steps.group_id == steps.group_id[row])
        & (steps.episode_id == steps.episode_id[row])
        & (steps.t <= steps.t[row])
    )
    states = steps.state_key[here[np.argsort(steps.t[here])]].tolist()
    return (int(steps.group_id[row]), *states[-(k + 1) :])


@given(step_tables(), normalisations, st.sampled_from([0, 1]))
def test_with_depth_zero_hgpo_is_the_step_term_of_gigpo(steps, normalise, ddof):
    compare = StateComparison(normalise, ddof=ddof)
    gigpo, values = GiGPO(compare=compare), HGPO(depth=0, compare=compare)(steps).per_step
    term = gigpo.step_term(discounted_returns(steps, gigpo.gamma), gigpo.step_groups(steps))
    assert_allclose(values, term, rtol=1e-14, atol=0.0)


@given(step_tables(), st.integers(0, 3), st.sampled_from([0.0, 1.0, 2.0]), st.booleans())
def test_the_advantage_is_the_weighted_mean_over_its_groups(steps, depth, alpha, omit):
    returns = discounted_returns(steps, 0.9)
    values = HGPO(depth=depth, alpha=alpha, gamma=0.9, compare=CENTRED, omit_zero=omit)(steps).per_step
    contexts = [[context(steps, row, k) for row in range(len(steps))] for k in range(depth + 1)]
    for row in range(len(steps)):
        parts = []
        for k in range(depth + 1):
            peers = [other for other in range(len(steps)) if contexts[k][other] == contexts[k][row]]
            item = returns[row] - returns[peers].mean()
            if not omit or abs(item) > 1e-9:
                parts.append(((k + 1) ** alpha, item))
        expected = sum(w * a for w, a in parts) / sum(w for w, _ in parts) if parts else 0.0
        assert values[row] == pytest.approx(expected, abs=1e-8)


def items_of(estimator: HGPO, steps: StepTable) -> NDArray[np.float64]:
    return estimator.items(steps, discounted_returns(steps, estimator.gamma), *estimator.levels(steps))


def two_ways_to_the_shelf() -> StepTable:
    """Four episodes meet the state "shelf"; two come from "drawer", two from "desk"."""
    rows = []
    for episode, (before, reward) in enumerate([("drawer", 4.0), ("drawer", 0.0), ("desk", 1.0), ("desk", 1.0)]):
        rows += [(0, episode, 0, 0.0, before, True), (0, episode, 1, reward, "shelf", True)]
    return table_of(rows)


def test_hgpo_on_a_table_small_enough_to_work_out_by_hand():
    result = HGPO(depth=1, gamma=0.0, compare=CENTRED)(two_ways_to_the_shelf())
    # At "shelf": returns 4, 0, 1, 1 with mean 1.5; after "drawer" 4, 0 with mean 2; after "desk" 1, 1: nothing.
    expected = [(1 * 2.5 + 2 * 2.0) / 3, (1 * -1.5 + 2 * -2.0) / 3, -0.5, -0.5]
    assert_allclose(result.per_step[1::2], expected)
    assert result.diagnostics["level_0/step_utilisation"] == 0.5
    assert result.diagnostics["level_1/step_utilisation"] == 0.25
    assert result.diagnostics["level_1/size_mean"] == 2.0


def test_skipping_short_histories_leaves_the_first_steps_their_own_state_only():
    steps = two_ways_to_the_shelf()
    _, exists = HGPO(depth=2, short_history="skip").levels(steps)
    assert exists.sum(axis=0).tolist() == [1, 2] * 4


def test_the_episode_term_is_one_more_item():
    steps = replace(two_ways_to_the_shelf(), state_key=np.array([f"state {row}" for row in range(8)], object))
    values = HGPO(depth=1, compare=CENTRED, episode_term=True)(steps).per_step
    assert_allclose(values[::2], [2.5, -1.5, -0.5, -0.5])


@pytest.mark.parametrize("offset", [0.0, 0.03, 0.1, 1.8])
def test_a_step_that_only_rounding_takes_off_the_mean_is_still_left_out(offset):
    steps = table_of([(0, episode, 0, offset + 0.01 * episode * 7, "a", True) for episode in (1, 2, 3)])
    assert (items_of(HGPO(), steps)[:, 1] == 0.0).all()


def test_the_probe_names_tasks_that_a_line_separates_and_no_others():
    rng = np.random.default_rng(0)
    task = np.repeat([0, 1, 2], 40)
    held_out = np.arange(120) % 2 == 1
    noise = rng.normal(size=(120, 200)).astype(np.float32)
    assert probe_accuracy(noise, task, held_out) < 0.6
    telling = noise + 3.0 * rng.normal(size=(3, 200)).astype(np.float32)[task]
    assert probe_accuracy(telling, task, held_out) > 0.95
    assert probe_accuracy(telling[:, :8], task, held_out) > 0.8, "also with fewer columns than rows"


def test_the_best_probe_wins_among_the_partitions_that_resolve_something():
    coarse = Candidate(Fingerprint(-1), 0.05, clusters=4, singletons=0.1, accuracy=0.812)
    alone = Candidate(Fingerprint(-4), 0.05, clusters=90, singletons=1.0, accuracy=0.9)
    good = Candidate(Fingerprint(-12), 0.05, clusters=12, singletons=0.1, accuracy=0.808)
    assert choose([coarse, alone, good], 5) == good, "as in the paper's appendix H"
    mean = Candidate(Fingerprint(-2, "mean"), 0.05, clusters=12, singletons=0.1, accuracy=0.808)
    assert choose([mean, good], 5) == good, "of equals, the last token"
    with pytest.raises(DataError, match=r"at least 5 clusters .* --radii \(clusters found: \[4, 90\]\)"):
        choose([coarse, alone], 5)


def test_the_layers_tried_are_the_papers_for_its_depth():
    assert [28 + layer for layer in layers_of(28)] == [4, 8, 12, 16, 20, 24, 27]
    assert layers_of(3) == [-3, -2, -1]


@pytest.mark.slow
def test_a_run_is_calibrated_to_settings_that_a_run_takes(place, capfd):
    trained(place, iterations=2, **{"evaluation.envs": []})
    capfd.readouterr()
    assert main([str(place / "runs" / "tiny"), "--radii", "0.01", "0.1", "--steps", "30"]) == 0
    said = capfd.readouterr().out
    assert said.count("\n| -") == 8, "two layers, two poolings, two radii"
    settings = yaml.safe_load(said.partition("Settings:")[2])
    assert settings["method"]["options"]["layer"] in (-1, -2) and 0.02 < settings["method"]["options"]["radius"] < 0.4
    trained(place, **{"name": "next", "recipe": "bipace", "iterations": 1, "evaluation.envs": [], **settings})


def test_a_folder_without_a_run_is_refused(tmp_path, capfd):
    assert main([str(tmp_path)]) == 2
    assert "give the folder of a run" in capfd.readouterr().err
    (tmp_path / "config.yaml").write_text("model: {path: x}")
    assert main([str(tmp_path)]) == 1
    assert "no episodes of training there" in capfd.readouterr().err
