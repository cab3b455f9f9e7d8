"""Measures of credit assignment, and the command that takes them."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import rich.console
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.tables import Table
from research.lab import __main__ as program
from research.lab import claims, experiments, learning
from research.lab.mdp import Exact, policy_gradient, softmax, solve, start_logits
from research.lab.measures import batch_gradients, bootstrap, gradient_cosines, peers, quality, sign_agreement, spearman
from research.lab.methods import Method, advantages, furnish, methods
from research.lab.rollout import Plan, Play, play, table
from research.lab.tables import all_tables, cell
from research.lab.worlds import aliased, delayed, graded, renamed
from trainers.credit.estimators import ESTIMATORS


def scene(world_length: int = 2, group_size: int = 8, batches: int = 100) -> tuple[Play, np.ndarray, Exact]:
    world, rng = delayed(world_length), np.random.default_rng(0)
    policy = softmax(start_logits(world, 0.4, rng))[world.row]
    return play(world, policy, Plan(batches, 4, group_size), rng), policy, solve(world, policy)


def truth(played: Play, exact: Exact) -> np.ndarray:
    return exact.advantage[played.t, played.state, played.action]


def test_the_exact_advantage_is_without_fault():
    played, policy, exact = scene()
    found = quality(played, policy, exact, 3.0 * truth(played, exact))
    assert found.scale == pytest.approx(1 / 3)
    assert (found.bias, found.action_bias, found.variance) == pytest.approx((0.0, 0.0, 0.0), abs=1e-12)
    assert (found.sign, found.rank, found.coverage) == pytest.approx((1.0, 1.0, 1.0))
    assert found.cosine > 0.9  # what is left is which states a batch happens to visit


def test_what_says_nothing_has_all_the_bias_and_no_variance():
    played, policy, exact = scene()
    found = quality(played, policy, exact, np.zeros(len(played)))
    assert (found.scale, found.variance, found.sign, found.rank, found.cosine) == (0, 0, 0.5, 0, 0)
    assert found.bias == pytest.approx(1.0)
    wrong = quality(played, policy, exact, -truth(played, exact))
    assert (wrong.scale, wrong.sign) == (0.0, 0.0)
    assert wrong.bias == pytest.approx(1.0)
    assert wrong.rank == pytest.approx(-1.0)


def test_a_baseline_that_is_off_biases_the_advantage_and_not_the_gradient():
    played, policy, exact = scene()
    found = quality(played, policy, exact, truth(played, exact) + 0.5 * played.state, scale=1.0)
    energy = (exact.visits[..., None] * policy * exact.advantage**2).sum()
    off = (exact.visits * (0.5 * np.arange(played.world.states)) ** 2).sum()
    assert found.bias == pytest.approx(off / energy, rel=0.05)
    assert found.action_bias == pytest.approx(0.0, abs=1e-9)


def test_noise_is_variance_and_no_bias():
    played, policy, exact = scene(batches=400)
    noise = np.random.default_rng(1).normal(0.0, 0.3, len(played))
    found = quality(played, policy, exact, truth(played, exact) + noise, scale=1.0)
    energy = (exact.visits[..., None] * policy * exact.advantage**2).sum() / exact.visits.sum()
    assert found.bias == pytest.approx(0.0, abs=0.01)
    assert found.variance == pytest.approx(0.09 / energy, rel=0.05)


def test_leave_one_out_is_unbiased_where_an_episode_is_a_step():
    played, policy, exact = scene(world_length=1, group_size=32, batches=300)
    advantage = ESTIMATORS["rloo"]()(table(played, np.random.default_rng(0))).per_step
    found = quality(played, policy, exact, advantage, scale=1.0)
    assert found.bias == pytest.approx(0.0, abs=0.02)
    assert found.action_bias == pytest.approx(0.0, abs=0.02)


def test_a_group_mean_that_counts_oneself_shrinks_the_advantage_by_its_share():
    played, policy, exact = scene(world_length=1, group_size=4, batches=300)
    advantage = ESTIMATORS["dr_grpo"]()(table(played, np.random.default_rng(0))).per_step
    assert quality(played, policy, exact, advantage).scale == pytest.approx(4 / 3, rel=0.05)


@pytest.mark.parametrize("world", [delayed(3), aliased(2)], ids=lambda world: world.name)
@pytest.mark.parametrize("name", ["steppo", "ppo"])
def test_an_exact_critic_leaves_no_bias(name, world):
    rng = np.random.default_rng(0)
    policy = softmax(start_logits(world, 0.4, rng))[world.row]
    exact, played = solve(world, policy), play(world, policy, Plan(200, 4, 8), rng)
    method = Method(name, name, {"gamma": 1.0})
    found, _ = advantages(method, method.build(), furnish(method, played, policy, rng, 0), played)
    assert quality(played, policy, exact, found, scale=1.0).bias == pytest.approx(0.0, abs=0.05)


def test_whole_episode_advantages_are_biased_by_their_baseline_only():
    played, policy, exact = scene(world_length=4, batches=300)
    found = quality(played, policy, exact, ESTIMATORS["dr_grpo"]()(table(played, np.random.default_rng(0))).per_step)
    assert found.bias > 0.3
    assert found.action_bias < 0.02


def test_batch_gradients_are_the_sum_of_scores():
    world, rng = graded(2), np.random.default_rng(0)
    policy = softmax(start_logits(world, 0.5 * world.optimum, rng))[world.row]
    played = play(world, policy, Plan(3, 1, 2), rng)
    advantage = rng.standard_normal(len(played))
    wanted = np.zeros((3, world.rows, len(world.actions)))
    for i in range(len(played)):
        score = np.eye(len(world.actions))[played.action[i]] - policy[played.state[i]]
        wanted[played.run[i], world.row[played.state[i]]] += advantage[i] * score
    np.testing.assert_allclose(batch_gradients(played, policy, advantage), wanted, atol=1e-12)


def test_the_mean_gradient_points_where_the_exact_one_does():
    played, policy, exact = scene(world_length=3, batches=1000)
    exactly = policy_gradient(played.world, policy, exact)
    mean = batch_gradients(played, policy, truth(played, exact)).mean(0)
    cosine = (mean * exactly).sum() / np.linalg.norm(mean) / np.linalg.norm(exactly)
    assert cosine > 0.999
    assert gradient_cosines(played, policy, np.zeros(len(played)), exactly).tolist() == [0.0] * 1000


def test_ranks_and_signs_by_hand():
    one = np.array([1.0, 2.0, 3.0, 4.0])
    assert spearman(one, one**3) == pytest.approx(1.0)
    assert spearman(one, np.array([1.0, 2.0, 4.0, 3.0])) == pytest.approx(0.8)
    assert spearman(np.array([1.0, 1.0, 2.0]), np.array([1.0, 2.0, 3.0])) == pytest.approx(np.sqrt(3) / 2)
    assert spearman(one, np.ones(4)) == 0.0
    assert sign_agreement(np.array([1.0, -1.0, 0.0, 5.0]), np.array([2.0, 2.0, -1.0, 0.0])) == pytest.approx(0.5)
    assert sign_agreement(one, np.zeros(4)) == 0.5


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=12))
def test_an_interval_holds_its_mean_and_lies_among_the_values(values):
    found = bootstrap(np.array(values), draws=200)
    assert min(values) - 1e-9 <= found.low <= found.high <= max(values) + 1e-9
    assert found.mean == pytest.approx(np.mean(values))


def test_an_interval_covers_the_mean_as_often_as_it_says():
    rng = np.random.default_rng(0)
    found = [bootstrap(rng.normal(size=20), draws=400) for _ in range(300)]
    assert 0.87 < np.mean([one.low <= 0.0 <= one.high for one in found]) < 0.99


def test_peers_are_those_of_the_steps_where_a_method_has_them():
    groups = {"group/singleton_rate": 0.0, "group/size_mean": 8.0}
    assert peers({**groups, "cluster/singleton_rate": 0.5, "cluster/size_mean": 2.0}) == (0.5, 2.0)
    assert np.isnan(peers({})).all()


def test_every_registered_estimator_without_a_teacher_is_measured():
    measured = {name for method in methods("delayed") for name in method.name.split(", ")}
    assert set(ESTIMATORS) - measured == {"opd"}


def test_measures_do_not_depend_on_names_of_actions():
    played, policy, exact = scene()
    turned = replace(played, action=2 - played.action)
    flipped = Exact(exact.q[..., ::-1], exact.v, exact.visits)
    advantage = np.random.default_rng(0).standard_normal(len(played))
    one = quality(played, policy, exact, advantage)
    other = quality(turned, policy[:, ::-1], flipped, advantage)
    assert one.bias == pytest.approx(other.bias)
    assert one.rank == pytest.approx(other.rank)


def without_times(records: list[dict[str, str | float]]) -> list[dict[str, str | float]]:
    # nan equals nothing, itself included: compare as text
    return [{k: str(v) for k, v in record.items() if k != "ms_per_1000"} for record in records]


@pytest.mark.seconds
@pytest.mark.parametrize("make", experiments.WORLDS.values(), ids=experiments.WORLDS)
def test_the_same_seed_measures_the_same(make):
    setting = experiments.Setting("worlds", make(), 0.0)
    one, other = (experiments.measure(setting, 3, 2) for _ in range(2))
    assert without_times(one) == without_times(other)
    assert without_times(one) != without_times(experiments.measure(setting, 4, 2))
    assert [record["method"] for record in one] == [method.name for method in methods(setting.world.name)]


@pytest.mark.parametrize("name", claims.CLAIMS)
def test_a_claim_is_tried_the_same_with_the_same_seed(name):
    one, other = (claims.CLAIMS[name](1, 2) for _ in range(2))
    assert one
    assert without_times(one) == without_times(other)


def test_the_exact_advantage_learns_the_best_actions():
    curves = learning.train(delayed(), learning.ORACLE, np.full(3, 30.0), range(3), 20)
    assert curves[:, 0] == pytest.approx(learning.START["delayed"])
    assert (curves[:, -1] > 0.95).all()


def test_all_methods_start_from_the_same_policies():
    first = [
        learning.train(aliased(1), method, np.full(2, 1.0), range(2), 2)[:, 0]
        for method in methods("aliased")
        if method.estimator in ("grpo", "steppo", "bipace")
    ]
    np.testing.assert_array_equal(first, np.broadcast_to(first[0], np.shape(first)))


def test_names_hide_a_state_from_exact_keys_and_not_from_its_fingerprint():
    records = experiments.measure(experiments.Setting("names", renamed(names=16), 16.0), 0, 8)
    alone = {str(record["method"]): float(record["singletons"]) for record in records}
    assert alone["bipace"] < 0.05 < 0.5 < alone["gigpo"]


def test_history_tells_look_alikes_apart_as_far_as_it_reaches():
    records = [r for seed in range(3) for r in claims.hgpo(seed, 24)]
    bias = {
        name: np.mean([float(r["bias"]) for r in records if r["method"] == name and r["x"] == 64.0 and "bias" in r])
        for name in ("episode", "level 0", "level 2", "level 4")
    }
    assert bias["episode"] > bias["level 0"] > bias["level 2"] > bias["level 4"]


def test_a_step_table_of_the_lab_is_what_a_rollout_makes():
    played = play(aliased(2), np.full((7, 3), 1 / 3), Plan(2, 2, 3), np.random.default_rng(0))
    steps = table(played, np.random.default_rng(0))
    assert len(np.unique(steps.group_id)) == 4
    assert len(np.unique(steps.episode_id)) == 12
    for episode in range(12):
        rows = steps.episode_id == episode
        assert steps.t[rows].tolist() == list(range(rows.sum()))
        assert steps.reward[rows].sum() == played.returns[episode]
        assert steps.extra["step_text"][rows][-1].endswith("success" if played.returns[episode] > 0 else "end")


@pytest.mark.slow
def test_the_command_leaves_tables_figures_and_a_report(tmp_path):
    world = delayed(2)
    setting = experiments.Setting("worlds", world, 0.0)
    records = experiments.measure(setting, 0, 2) + experiments.measure(setting, 1, 2)
    few = [method for method in methods("delayed") if method.estimator in ("grpo", "gigpo")]
    for method in few:
        records += learning.learn("learning", world, method, 2, 2)
    for x in (1.0, 2.0):
        records += experiments.measure(experiments.Setting("group size", world, x), 0, 2, few)
    for claim in claims.CLAIMS.values():
        records += claim(0, 2)
    files = program.write(records, tmp_path, quick=True)
    assert all(file.stat().st_size > 0 for file in files)
    assert {file.name for file in files if file.suffix == ".png"} == {
        "quality.png", "sweeps.png", "learning.png", "claims.png",
    }  # fmt: skip
    report = (tmp_path / "report.md").read_text()
    assert "--quick" in report
    assert all(table.title in report for table in all_tables(records, {}))
    assert sum(1 for _ in (tmp_path / "records.jsonl").open()) == len(records)
    assert json.loads((tmp_path / "records.jsonl").open().readline())["world"] == "delayed"


@pytest.mark.seconds
def test_jobs_come_back_in_their_order_whoever_is_faster(monkeypatch):
    setting = experiments.Setting("worlds", delayed(2), 0.0)
    work = [program.Job(f"seed {seed}", experiments.measure, (setting, seed, 2)) for seed in range(3)]
    monkeypatch.setattr(program, "jobs", lambda config: work)
    alone, together = (program.run(program.LabConfig(processes=n), rich.console.Console(quiet=True)) for n in (1, 2))
    assert without_times(alone) == without_times(together)


def test_everything_the_full_run_does_is_named_once():
    names = [job.what for job in program.jobs(program.LabConfig())]
    assert len(names) == len(set(names))


def test_a_wrong_option_or_folder_is_an_error_that_says_which_before_the_work(tmp_path, console):
    (tmp_path / "file").touch()
    for line, said in (
        (f"--out {tmp_path}/file/lab", "cannot be written to"),
        ("--proceses 1", "--processes"),
        ("--processes 0", "processes is 0"),
    ):
        assert said in console(line, 2, program.main)[1]


def test_tables_are_markdown_and_latex():
    made = Table("name", "A title", "A note.", ("method", "bias²"), (("a_b", "0.1 ±0.0"), ("c, d", cell(None))))
    assert "| a_b | 0.1 ±0.0 |" in made.markdown()
    assert r"a\_b & 0.1 $\pm$0.0 \\" in made.latex()
    assert r"c, d & -- \\" in made.latex()
