"""Exact credit: the policy's chances, Q - V in a run, and what exact and permuted advantages are."""

from __future__ import annotations

import copy
import importlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import episodes as made
import gymnasium
import numpy as np
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from step_tables import step_tables, table_of
from tiny_models import plain_logprobs
from transformers import AutoTokenizer, PreTrainedModel

from envsuite.bifurcation.world import DoorState, Walk
from envsuite.core import ToolCall
from envsuite.playing.step import Episode, Step
from envsuite.remote.making import practice_of
from research.credit import arms, cells, runs
from research.credit.cells import PROMPT, Cell
from trainers.credit.estimators import ESTIMATORS, Estimator
from trainers.credit.estimators.gigpo import GiGPO
from trainers.credit.estimators.grpo import GRPO
from trainers.imitation.config import Architecture, ImitateConfig
from trainers.imitation.training import new_model
from trainers.imitation.vocabulary import word_tokenizer
from trainers.policy.config import OptimConfig
from trainers.policy.model import Policy
from trainers.programs.imitate import main as imitate
from trainers.rollout.config import PromptConfig
from trainers.settings import checked
from trainers.steps import StepTable
from trainers.steps.columns import ITERATION, ROW_SCORE

TASKS, GROUP = 4, 128
DOORS = ("red", "blue", "green")


@pytest.fixture(scope="module")
def exact() -> Iterator[ModuleType]:
    """The module, whose methods other tests must not find among the registered ones."""
    module = importlib.import_module("research.credit.exact")
    names = {"exact": module.Exact, "permuted": module.Permuted}
    with pytest.MonkeyPatch.context() as patch:
        for name, kind in names.items():
            patch.setitem(ESTIMATORS._entries, name, kind)
        yield module
    for name in names:
        ESTIMATORS._entries.pop(name, None)


@dataclass
class Played:
    """A run's first iteration."""

    cell: Cell
    result: runs.Result
    steps: StepTable
    episodes: Sequence[Episode]
    model: PreTrainedModel
    """The policy that sampled, before the update."""
    chances: np.ndarray
    """Of the walks' doors, by task."""
    expected: float

    def moments(self) -> Iterator[tuple[Episode, Step, DoorState, int]]:
        """Each step with its state and the number of the door, -1 for none."""
        for episode in self.episodes:
            state = DoorState(0)
            for step in episode.steps:
                said = step.action[0].arguments["command"] if step.valid and step.action else ""
                yield episode, step, state, DOORS.index(said) if said else -1
                metrics = step.info["metrics"]
                state = DoorState(int(metrics["place"]), int(metrics["astray"])) if metrics else state


@pytest.fixture(scope="module")
def played(exact: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    """A run of one iteration with exact credit, from a base model that has seen a few games and speaks badly."""
    folder, kept = tmp_path_factory.mktemp("credit"), list[Any]()
    columns = exact.ExactCredit.columns

    def keeping(self: Any, steps: StepTable) -> StepTable:
        found = columns(self, steps)
        chances = self.walks.chances(self.policy, self.optim)
        model = copy.deepcopy(self.policy.model)
        kept.append((found, self.episodes, model, chances, self.success[-1]))
        return found  # type: ignore[no-any-return]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cells, "BASES", folder / "bases")
        patch.setattr(exact.ExactCredit, "columns", keeping)
        cell = Cell("tiny", 3, 2, 0.3, {"mistake": "recoverable"}, slack=1, tasks=TASKS, group=GROUP, iterations=1)
        (stage,) = (settings := cell.imitation())["stages"]
        settings |= {"output": str(cell.base), "batch": 16, "warmup": 5, "stages": [{**stage, "steps": 70}]}
        (folder / "imitate.yaml").write_text(yaml.safe_dump(settings))
        assert imitate(["--config", str(folder / "imitate.yaml")]) == 0
        result = runs.play(arms.Trial("map", cell, "exact", 0, 4e-4, 0), "")
        assert not result.error, result.error
        ((steps, episodes, model, chances, expected),) = kept
        yield Played(cell, result, steps, episodes, model.train(False), chances, expected)


def plain_chances(model: PreTrainedModel, tokenizer: Any, text: str) -> list[float]:
    """Chances of the doors after a place, token by token of the whole conversation."""
    said = [{"role": "user", "content": text}]
    prompt = tokenizer.apply_chat_template(said, add_generation_prompt=True, return_dict=False)
    answers = [tokenizer.encode(f"<action>{door}</action><|end|>") for door in DOORS]
    return [float(np.exp(sum(plain_logprobs(model, prompt, answer)))) for answer in answers]


def random_policy(tokenizer: Any) -> Policy:
    """A tiny random model, whose chances of texts and doors differ by more than noise."""
    torch.manual_seed(0)
    shape = Architecture(layers=1, width=32, heads=2, key_heads=2, head_width=16, feed_forward=32, look_back=[])
    model = new_model(ImitateConfig(architecture=shape), tokenizer).train(False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
    return Policy(model, temperature=1.0, compute_dtype="float32")


@pytest.mark.parametrize("dials", [{}, {"aliasing": "different"}, {"aliasing": "alike", "mistake": "recoverable"}])
def test_the_policy_s_chances_are_those_of_a_plain_forward_pass(exact, dials):
    tokenizer = word_tokenizer(practice_of("Bifurcation-v0").texts(), 128)
    policy = random_policy(tokenizer)
    env: Any = gymnasium.make("Bifurcation-v0", horizon=3, decisions=2, **dials).unwrapped
    walks = exact.Walks(env, ["train-3", "test-0"], 5, PromptConfig(**PROMPT), tokenizer)
    chances = walks.chances(policy, OptimConfig())
    assert chances.shape == (2, 3, 2, env.kind.names, 3)
    for number, task in enumerate(("train-3", "test-0")):
        for place, astray, name in np.ndindex(*chances.shape[1:4]):
            text = Walk(env.kind, task).text(DoorState(place, astray), name)
            plain = plain_chances(policy.model, tokenizer, text)
            np.testing.assert_allclose(chances[number, place, astray, name], plain, rtol=1e-3, atol=1e-12)
    assert np.ptp(np.log(chances)) > 0.1


@pytest.mark.parametrize("aliasing", ["alike", "different"])
def test_steps_are_credited_at_the_state_and_the_name_that_were_shown(exact, aliasing):
    tokenizer, rng = word_tokenizer(practice_of("Bifurcation-v0").texts(), 128), np.random.default_rng(0)
    dials = {"horizon": 4, "decisions": 2, "mistake": "recoverable", "aliasing": aliasing, "slip": 0.3}
    env: Any = gymnasium.make("Bifurcation-v0", **dials).unwrapped
    tasks, policy = ["train-3", "test-0"], random_policy(tokenizer)
    walks = exact.Walks(env, tasks, 9, PromptConfig(**PROMPT), tokenizer)
    uneven = rng.dirichlet(np.ones(4), (2, 4, 2, env.kind.names))[..., :-1]
    walks.chances = lambda policy, optim: uneven  # a random model says so little that Q - V is nearly Q
    credit, expected = exact.ExactCredit(walks, policy, OptimConfig(), True), list[float]()
    values = {task: walks.walks[task].values(uneven[number], 9) for number, task in enumerate(tasks)}
    for number in range(30):
        task, steps = tasks[number % 2], list[Step]()
        seen, _ = env.reset(options={"task_id": task})
        while not env.done and len(steps) < 9:
            t, state, name, door = len(steps), env.state, env.name, int(rng.integers(-1, 3))
            action = None if door < 0 else (ToolCall("take", {"command": DOORS[door]}),)
            shown, (seen, reward, *_, info) = seen["text"], env.step(action) if action else env.refuse("nothing")
            valid, info = bool(info["valid"]), dict(info)
            steps.append(made.step(t, observation=shown, action=action, valid=valid, reward=reward, info=info))
            q, v = values[task]
            expected.append(q[(t, *state, name, door)] - v[(t, *state, name)])
        credit.episodes = (*credit.episodes, made.episode(number, *steps, task_id=task))
    found = credit.columns(StepTable.from_episodes(credit.episodes)).extra[ROW_SCORE]
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert len({*np.round(expected, 9)}) > 30
    assert credit.success == [pytest.approx(np.mean([v[0, 0, 0].mean() for _, v in values.values()]))]


def test_the_settings_that_ship_show_the_policy_what_the_experiment_shows(root):
    base, run = (yaml.safe_load((root / f"configs/bifurcation{name}.yaml").read_text()) for name in ("-base", ""))
    assert Path(PROMPT["template"]) == root / "configs/bifurcation.jinja"
    assert base["prompt"] == run["prompt"] == {**PROMPT, "template": "configs/bifurcation.jinja"}
    assert {**base, "output": "", "stages": ""} == {**Cell("", 10, 3, 0.3).imitation(), "output": "", "stages": ""} | {
        "prompt": base["prompt"]
    }


@pytest.mark.seconds
def test_chances_in_a_run_are_those_of_its_answers(played):
    tokenizer = AutoTokenizer.from_pretrained(played.cell.base)
    written = [tokenizer.encode(f"<action>{door}</action><|end|>") for door in DOORS]
    seen, said = dict[Any, Step](), defaultdict[Any, list[int]](list)
    for episode, step, state, _ in played.moments():
        number = played.cell.panel(0).index(episode.task_id)
        seen.setdefault((number, *state), step)
        answer = step.response_ids.tolist()
        said[number, *state].append(written.index(answer) if answer in written else -1)
    assert {door for doors in said.values() for door in doors} == {-1, 0, 1, 2}
    for state, step in seen.items():
        plain = plain_chances(played.model, tokenizer, step.observation.split("\n")[-1])
        np.testing.assert_allclose(played.chances[*state, 0], plain, atol=1e-6)
        doors = np.array(said[state])
        for door, chance in enumerate(plain):
            error = np.sqrt(chance * (1.0 - chance) / len(doors))
            assert abs((doors == door).mean() - chance) < 4.5 * error + 1.0 / len(doors)
    everywhere = np.array([played.chances[*state, 0] for state, doors in said.items() for _ in doors])
    doors = np.array([door for doors in said.values() for door in doors])
    error = np.sqrt((everywhere * (1.0 - everywhere)).sum(0))
    assert (np.abs((doors[:, None] == range(3)).sum(0) - everywhere.sum(0)) < 4.0 * error).all()


@pytest.mark.seconds
def test_the_column_of_a_run_is_q_minus_v_by_hand(played):
    kind: Any = gymnasium.make("Bifurcation-v0", **played.cell.kwargs).unwrapped.kind  # type: ignore[attr-defined]

    def v(walk: Walk, chances: np.ndarray, state: DoorState, t: int) -> float:
        if walk.over(state) or t == played.cell.steps:
            return 0.0
        doors = [chances[*state, 0, door] * q(walk, chances, state, t, door) for door in range(3)]
        return float(sum(doors) + (1.0 - chances[*state, 0].sum()) * v(walk, chances, state, t + 1))

    def q(walk: Walk, chances: np.ndarray, state: DoorState, t: int, door: int) -> float:
        after, reward = walk.after(state, door) if door >= 0 else (state, 0.0)
        return reward + v(walk, chances, after, t + 1)

    rows = zip(played.steps.episode_id.tolist(), played.steps.t.tolist(), strict=True)
    column, panel = dict(zip(rows, played.steps.extra[ROW_SCORE].tolist(), strict=True)), played.cell.panel(0)
    by_hand = dict[Any, float]()
    for episode, step, state, door in played.moments():
        moment = (episode.task_id, state, step.t, door)
        if moment not in by_hand:
            walk, chances = Walk(kind, episode.task_id), played.chances[panel.index(episode.task_id)]
            by_hand[moment] = q(walk, chances, state, step.t, door) - v(walk, chances, state, step.t)
        assert column[episode.episode_id, step.t] == pytest.approx(by_hand[moment], abs=1e-12)
    assert len(column) == sum(len(episode.steps) for episode in played.episodes) and np.ptp([*column.values()]) > 0.3
    starts = [
        v(Walk(kind, task), chances, DoorState(0), 0) for task, chances in zip(panel, played.chances, strict=True)
    ]
    assert played.expected == pytest.approx(np.mean(starts), abs=1e-12)
    assert played.result.success[0] == round(played.expected, 5) and len(played.result.success) == 2


@pytest.mark.seconds
def test_the_exact_advantage_has_the_mean_zero_at_each_state_and_success_is_as_expected(played):
    rows = zip(played.steps.episode_id.tolist(), played.steps.t.tolist(), strict=True)
    column = dict(zip(rows, played.steps.extra[ROW_SCORE].tolist(), strict=True))
    found = defaultdict[Any, list[float]](list)
    for episode, step, state, _ in played.moments():
        found[episode.task_id, step.t, state].append(column[episode.episode_id, step.t])
    often = [np.array(values) for values in found.values() if len(values) >= 50]
    assert len(often) >= 2 * TASKS
    assert all(abs(values.mean()) <= 4.5 * values.std() / np.sqrt(len(values)) + 1e-12 for values in often)
    solved = np.array([episode.steps[-1].info["success"] for episode in played.episodes])
    assert len(solved) == TASKS * GROUP and 0.02 < solved.mean() < 0.98
    assert abs(solved.mean() - played.expected) < 4.0 * solved.std() / np.sqrt(len(solved))


@pytest.mark.seconds
def test_success_in_the_world_that_is_not_ours_is_that_of_played_episodes(exact, tmp_path, monkeypatch):
    monkeypatch.setattr(cells, "BASES", tmp_path / "bases")
    cell = replace(cells.BABYAI, dials={"level": "GoToObjS4"}, horizon=8, tasks=2, iterations=2)
    stage, _ = (settings := cell.imitation())["stages"]
    settings |= {"output": str(cell.base), "batch": 16, "warmup": 5, "stages": [{**stage, "steps": 60}]}
    (tmp_path / "imitate.yaml").write_text(yaml.safe_dump(settings))
    assert imitate(["--config", str(tmp_path / "imitate.yaml")]) == 0
    result = runs.play(arms.Trial("tune", cell, "gigpo", 900, 4e-4, 0), "")
    assert not result.error, result.error
    success, held_out = np.array(result.success) * 2 * cell.group, np.array(result.held_out) * 2 * cells.HELD_OUT
    assert success.shape == (3,) and 0 < success.mean() < 2 * cell.group
    for counted in (success, held_out):
        np.testing.assert_allclose(counted, np.round(counted), atol=1e-3)
    assert result.success[0] == result.metrics["train/success"]
    assert result.base == cell.base.name != cells.BABYAI.base.name


@given(step_tables(max_episodes=5), st.integers(0, 99))
def test_permuted_terms_stay_in_their_groups(exact, steps, iteration):
    steps = steps.with_columns(**{ITERATION: np.full(len(steps), iteration)})
    own: Any = GiGPO(step_weight=2.0)(steps)
    method: Estimator = checked(ESTIMATORS["permuted"], {"of": "gigpo", "options": {"step_weight": 2.0}}, "option")
    assert ITERATION in method.needs
    found = method(steps)
    np.testing.assert_array_equal(found.terms["episode"], own.terms["episode"])
    np.testing.assert_allclose(found.per_step, found.terms["episode"] + found.terms["step"])
    for group in np.unique(own.groups["step"]):
        rows = own.groups["step"] == group
        np.testing.assert_array_equal(np.sort(found.terms["step"][rows]), np.sort(own.terms["step"][rows]))
    np.testing.assert_array_equal(method(steps).per_step, found.per_step, "the same for the same iteration")


def test_terms_are_permuted_anew_in_each_iteration(exact):
    rows = [(0, episode, 0, float(episode), "a", True) for episode in range(30)]
    steps = [table_of(rows).with_columns(**{ITERATION: np.full(30, number)}) for number in range(2)]
    own, (one, other) = GiGPO()(steps[0]), (exact.Permuted()(table) for table in steps)
    moved = [(a.terms["step"] != b.terms["step"]).sum() for a, b in ((own, one), (own, other), (one, other))]
    assert min(moved) > 20


@given(step_tables())
def test_a_group_of_one_is_the_method_itself_and_one_without_step_terms_too(exact, steps):
    steps = steps.with_columns(**{ITERATION: np.zeros(len(steps), np.int64)})
    for number in range(len(steps)):
        steps.state_key[number] = f"place {number}"
    np.testing.assert_array_equal(exact.Permuted()(steps).per_step, GiGPO()(steps).per_step)
    for options in ({"of": "gigpo", "options": {"step_weight": 0.0}}, {"of": "grpo"}):
        np.testing.assert_allclose(exact.Permuted(**options)(steps).per_step, GRPO()(steps).per_step)


@given(st.lists(st.floats(-1.0, 1.0), min_size=1, max_size=12))
def test_the_exact_advantage_is_the_column_or_has_the_mean_square_one(exact, scores):
    rows = [(0, 0, t, 0.0, "a", True) for t in range(len(scores))]
    steps = table_of(rows).with_columns(**{ROW_SCORE: np.array(scores)})
    np.testing.assert_array_equal(exact.Exact()(steps).per_step, scores)
    scaled = exact.Exact(scale="batch")(steps).per_step
    size = np.sqrt(np.mean(np.square(scores)))
    if size > 1e-8:
        np.testing.assert_allclose(scaled, np.array(scores) / size)
        assert np.mean(scaled**2) == pytest.approx(1.0)
    assert np.isfinite(scaled).all()
