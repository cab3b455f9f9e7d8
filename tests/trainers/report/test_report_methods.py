"""Advantages of saved steps under any method: those of training, and those of the estimators."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from accelerate import Accelerator
from synthetic_run import make_episodes

from envsuite.core.errors import UnknownName, UsageError
from envsuite.playing.step import Episode
from trainers.credit.config import MethodConfig
from trainers.credit.crediting import Credit, Crediting
from trainers.credit.crediting import Method as TrainingMethod
from trainers.credit.estimators import ESTIMATORS
from trainers.credit.providers import GreedyReturn
from trainers.credit.recipes import recipes
from trainers.programs.report import main
from trainers.report.methods import DEFAULT, Advantages, MethodDescription, step_means
from trainers.report.pack import pack, pack_advantages
from trainers.report.run import RunData
from trainers.settings import ConfigError, checked
from trainers.steps.parquet import write_episodes

GROUPS, SIZE = 3, 4
Runs = Callable[..., RunData]


def episodes_of(iteration: int, greedy: bool = False) -> list[Episode]:
    rng = np.random.default_rng(iteration)
    found, _, _ = make_episodes(rng, iteration, GROUPS, SIZE, 6, 0.5)
    if greedy:
        for group in range(GROUPS):
            like = next(one for one in found if one.group_id == group)
            found.append(Episode(**{**vars(like), "episode_id": 1000 + group, "greedy": True, "error": None}))
    return found


def crediting_of(method: dict[str, Any]) -> Crediting:
    """What training computes advantages with."""
    config = checked(MethodConfig, method)
    providers = [GreedyReturn()] if config.plays_greedily else []
    return Crediting(TrainingMethod.of(config), Accelerator(cpu=True), providers)


def saved_as(credit: Credit) -> dict[tuple[int, int], float]:
    """One number per step, also of a method that has one per token."""
    table = credit.table
    values = step_means(table, credit.advantage)
    return dict(zip(zip(table.episode_id.tolist(), table.t.tolist(), strict=True), values.tolist(), strict=True))


@pytest.fixture
def run_of(tmp_path: Path) -> Runs:
    """Makes a run folder of a method with two iterations, as training would leave it."""

    def make_run(method: dict[str, Any], shards: int = 1) -> RunData:
        folder = tmp_path / "run"
        (folder / "episodes").mkdir(parents=True)
        body = {"name": "run", "rollout": {"group_size": SIZE, "tasks": GROUPS}, "method": method}
        (folder / "config.yaml").write_text(yaml.safe_dump(body))
        lines, crediting = [], crediting_of(method)
        for i in (1, 2):
            episodes = episodes_of(i, method["estimator"] == "remax")
            credit = crediting(episodes, i)
            saved = saved_as(credit) if credit.advantage.per_step is not None else None
            for shard in range(shards):
                own = [episode for episode in episodes if episode.group_id % shards == shard]
                name = f"iteration-{i:05d}" + (f".{shard}-of-{shards}" if shards > 1 else "")
                write_episodes(folder / "episodes" / f"{name}.parquet", own, saved)
            lines.append(json.dumps({"iteration": i, "train/episodes": GROUPS * SIZE}))
        (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
        return RunData.load(folder)

    return make_run


@pytest.fixture
def run(run_of: Runs) -> RunData:
    """A run of GRPO."""
    return run_of({"estimator": "grpo"})


SHAPED = {"scale": {"factor": 10.0}, "invalid_action_penalty": {"coef": 0.1, "reach": "row"}}
LACKING = {"ppo", "steppo", "vetta", "hiper", "remax", "bipace", "empg", "hcapo", "oracle_mc", "opd"}
METHODS: dict[str, dict[str, Any]] = {
    **{name: {"estimator": name} for name in ESTIMATORS if name not in LACKING},
    "remax": {"estimator": "remax"},
    "bipace": {"estimator": "bipace", "options": {"embedder": "ngram_hash", "radius": None}},
    "scpo": {"estimator": "gigpo", "shapers": {"scpo": {}, **SHAPED}},
    "spear": {"estimator": "hgpo", "shapers": {"spear": {"decay": 10}, "scale": {"factor": 1.0}}},
}


@pytest.mark.parametrize(
    ("name", "shards"), [*((name, 1) for name in METHODS), ("gigpo", 2), ("reinforce_pp", 3), ("remax", 2)]
)
def test_the_runs_own_method_gives_the_advantages_of_training(run_of, name, shards):
    method = {"shapers": SHAPED, **METHODS[name]}
    run, crediting = run_of(method, shards), crediting_of(method)
    for i, (_, path) in enumerate(run.episode_files(), start=1):
        wanted = saved_as(crediting(episodes_of(i, method["estimator"] == "remax"), i))
        (computed,) = Advantages(run, ["own"]).of_file(path)
        assert computed.lacks == "" and computed.values is not None
        assert computed.values.keys() == wanted.keys()
        assert max(abs(computed.values[key] - value) for key, value in wanted.items()) <= 1e-6
        assert any(abs(value) > 1e-3 for value in wanted.values())


def test_other_methods_give_what_their_estimators_give_on_the_same_rewards(run_of):
    run = run_of({"estimator": "grpo", "shapers": SHAPED})
    names = ["gigpo", "gigpo/webshop", "hgpo:{depth: 4}", "reinforce_pp", "rloo", "gigpo+scpo"]
    for computed in Advantages(run, names).of_file(run.episode_files()[1][1]):
        name = computed.method.name
        base, _, text = name.partition(":")
        own = {**recipes()["scpo"].method["shapers"], **recipes()["gigpo"].method["shapers"]}
        table = crediting_of({"estimator": "grpo", "shapers": own if "+" in base else SHAPED})(episodes_of(2), 2).table
        estimator = base.partition("/")[0].partition("+")[0]
        options = dict(recipes()[estimator].method.get("options", {})) | (yaml.safe_load(text) if text else {})
        if name == "gigpo/webshop":
            options["compare"] = {"normalise": "mean"}
        wanted = step_means(table, checked(ESTIMATORS[estimator], options, "option")(table))
        keys = zip(table.episode_id.tolist(), table.t.tolist(), strict=True)
        assert computed.values is not None, computed.lacks
        assert [computed.values[key] for key in keys] == pytest.approx(wanted.tolist(), abs=1e-9)


def test_methods_without_their_columns_say_what_they_lack(run):
    found = {one.method.name: one for one in Advantages(run).of_file(run.episode_files()[0][1])}
    lacking = {name for name, one in found.items() if one.values is None}
    assert lacking == LACKING
    assert "'entropy'" in found["empg"].lacks and "'hindsight_logprob'" in found["hcapo"].lacks
    assert "'value'" in found["ppo"].lacks and "method.critic" in found["ppo"].lacks
    assert "'greedy_return'" in found["remax"].lacks and "'embedding'" in found["bipace"].lacks


def test_a_shaper_that_needs_the_reference_is_no_reason_for_other_rewards(run):
    run.config["method"]["shapers"] = {"kl_penalty": {"coef": 0.1}}
    own, gigpo, composed = Advantages(run, ["own", "gigpo", "gigpo+scpo"]).of_file(run.episode_files()[0][1])
    assert own.values is None and "kl_penalty" in own.lacks and gigpo.values is None
    assert composed.values is not None  # it brings rewards of its own


def test_default_methods_are_not_shown_twice(run):
    names = [method.name for method in Advantages(run, DEFAULT).methods]
    assert names[0] == "own" and "grpo" not in names and len(names) == len(set(names))


def rewritten(run: RunData, change: Callable[[list[Episode]], list[Episode]]) -> str:
    """What is said of the first iteration's file after a change of its episodes."""
    path = run.episode_files()[0][1]
    write_episodes(path, change(episodes_of(1)))
    found = Advantages(run, ["own", "gigpo"]).of_file(path)
    assert all(one.values is None for one in found)
    (lacks,) = {one.lacks for one in found}
    return lacks


def test_groups_that_were_saved_in_part_are_refused(run):
    assert "group 2 has 3 of its 4 episodes" in rewritten(run, lambda episodes: episodes[:-1])
    assert "8 of the 12 episodes of iteration 1" in rewritten(run, lambda episodes: episodes[:-4])


def test_other_advantages_than_the_saved_ones_are_refused(run_of):
    run = run_of({"estimator": "gigpo", "options": {"step_weight": 0.5}})
    run.config["method"]["options"]["step_weight"] = 0.7
    (grpo,) = Advantages(run, ["grpo"]).of_file(run.episode_files()[0][1])
    assert grpo.values is None and "differs from the saved advantages" in grpo.lacks


def test_without_settings_or_metrics_nothing_is_computed(run):
    path = run.episode_files()[0][1]
    run.metrics.clear()
    assert "how many episodes iteration 1 had" in Advantages(run, ["own"]).of_file(path)[0].lacks
    del run.config["rollout"]
    assert "rollout.group_size" in Advantages(run, ["own"]).of_file(path)[0].lacks
    for method, problem in ((None, "no method.estimator"), ({"estimator": "grpo", "options": {"omega": 1.0}}, "omega")):
        run.config["method"] = method
        advantages = Advantages(run, ["own"])
        assert advantages.of_file(path) == [] and problem in advantages.problem


def test_a_radius_that_the_first_iteration_decides_needs_it(run_of):
    run = run_of({"estimator": "bipace", "options": {"embedder": "ngram_hash", "radius": None}})
    first, second = (path for _, path in run.episode_files())
    first.unlink()
    (own,) = Advantages(run, ["own"]).of_file(second)
    assert own.values is None and "first iteration's steps, which are not saved" in own.lacks


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("grpoo", UnknownName, "grpo"),
        ("gigpo:{gamma: 2}", ConfigError, "gamma"),
        ("gigpo:{gama: 1}", UnknownName, "gamma"),
        ("gigpo:1", UsageError, "mapping"),
        ("gigpo:{", UsageError, "YAML"),
        ("gigpo/nowhere", UnknownName, "webshop"),
        ("scpo+gigpo", UsageError, "method of its own"),
    ],
)
def test_a_method_that_does_not_exist_is_named(run, capsys, name, error, message):
    with pytest.raises(error, match=message):
        Advantages(run, [name])
    assert main([str(run.folder), "--advantages", name]) == 2
    assert message in capsys.readouterr().err


def test_settings_are_laid_over_those_of_the_run(run_of):
    own = MethodDescription.of_run(run_of({"estimator": "gigpo", "options": {"gamma": 0.9}, "shapers": SHAPED}))
    changed = MethodDescription.from_name("own:{step_weight: 0.5}", own)
    assert changed.options == {"gamma": 0.9, "step_weight": 0.5} and changed.shapers == own.shapers


def test_an_estimator_of_a_package_that_is_broken_leaves_the_others(run, monkeypatch):
    monkeypatch.setattr("trainers.report.methods.DEFAULT", ("own", "foreign", "rloo"))
    advantages = Advantages(run, ["own", "foreign", "rloo"])
    assert [method.name for method in advantages.methods] == ["own", "rloo"] and "foreign" in advantages.problem


def test_an_addition_alone_is_put_over_its_method(run_of):
    own = MethodDescription.of_run(run_of({"estimator": "grpo"}))
    assert MethodDescription.from_name("scpo", own).same_as(MethodDescription.from_name("gigpo+scpo", own))


def test_the_command_prints_an_episode_in_80_columns(run, capsys):
    assert main([str(run.folder), "--episode", "5"]) == 0
    said = capsys.readouterr()
    computed = [one.values for one in Advantages(run).of_file(run.episode_files()[0][1]) if one.values is not None]
    assert len(computed) > 9 and all(f"{values[5, 0]:.4f}" in said.out for values in computed)
    assert max(map(len, said.out.splitlines())) <= 80
    assert "ppo: not computed" in said.err and not (run.folder / "report.html").exists()
    assert main([str(run.folder), "--episode", "777"]) == 2
    assert "no training episode has the id 777" in capsys.readouterr().err


def test_packed_advantages_have_the_order_of_the_packed_episodes(run):
    path = run.episode_files()[0][1]
    packed, computed = pack(path), Advantages(run, ["own", "ppo"]).of_file(path)
    own, ppo = json.loads(zlib.decompress(base64.b64decode(pack_advantages(packed, computed))))
    assert list(ppo) == ["lacks"] and computed[0].values is not None
    wanted = [[computed[0].values.get((number, t)) for t in ts] for number, ts in packed.steps]
    assert [len(row) for row in own["values"]] == [len(row) for row in wanted]
    for found, values in zip(own["values"], wanted, strict=True):
        assert found == pytest.approx(values, rel=1e-5)
