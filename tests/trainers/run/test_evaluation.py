"""Evaluation: which tasks are played how often, how tokens are drawn, and what the result counts.

``envsuite eval model --out``: the results of envsuite, of models, checkpoints and endpoints.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from accelerate import Accelerator
from ranks import on_ranks
from rich.console import Console
from scripted_endpoint import NAME, ScriptedEndpoint, completion
from tiny_runs import BOOK, model, save_model, settings, tokenizer, write_settings

from envsuite.evaluation.results import EpisodeResult, read_results
from envsuite.evaluation.statistics import clustered_wilson
from envsuite.playing.engine import Request, Sampling
from envsuite.playing.loop import step_seed
from envsuite.textcraft.tasks import load
from trainers.programs import evaluate
from trainers.rollout.engine import Engine, EngineSetup
from trainers.rollout.engines import make_engine
from trainers.rollout.hf_engine import HFEngine
from trainers.rollout.scripted import ScriptedEngine
from trainers.run.assembly import Run
from trainers.run.config import EvalConfig, TrainConfig
from trainers.run.evaluation import Evaluator, chosen_tasks
from trainers.run.origin import origin_of, weights_of
from trainers.run.progress import RunProgress
from trainers.run.results import with_seeds
from trainers.settings import ConfigError, checked
from trainers.train import main as train

_, TASKS = load("generated", BOOK["book_seed"], BOOK["goals"])
ENV = {"id": "TextCraft-v0", "split": "test", "kwargs": dict(BOOK), "max_episode_steps": 2}
SPLIT = TASKS.ids("test")


@dataclass
class Process:
    """Stands for an Accelerator: a rank that asks no other one anything."""

    num_processes: int = 1
    process_index: int = 0


def _evaluator(engine: Engine, process: Process | None = None, **changes: Any) -> Evaluator:
    values = settings(Path("nowhere"), **{"seed": 5, "evaluation.episodes": None})
    values["evaluation"] |= {"envs": [ENV], **changes}
    return Evaluator(checked(TrainConfig, values), process or Process(), engine, tokenizer(), [1, 2])  # type: ignore


class Notes(ScriptedEngine):
    """Notes the requests, and answers nonsense."""

    def __init__(self) -> None:
        self.asked: list[Request] = []
        super().__init__(self._note)

    def _note(self, request: Request) -> Sequence[int]:
        self.asked.append(request)
        return [3, 4, 2]


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("repeats", [1, 3])
def test_every_task_of_the_split_is_played_equally_often_by_default(ranks, repeats):
    evaluators = [_evaluator(Notes(), Process(ranks, rank), repeats=repeats) for rank in range(ranks)]
    plans = [plan for evaluator in evaluators for plan in evaluator.plans[0]]
    assert Counter(plan.task_id for plan in plans) == dict.fromkeys(SPLIT, repeats)
    assert len({plan.episode_id for plan in plans}) == len(plans), "each has seeds of its own"
    assert len({(plan.group_id, plan.task_id) for plan in plans}) == len(SPLIT), "the episodes of a task are a group"
    sizes = [len(evaluator.plans[0]) for evaluator in evaluators]
    assert max(sizes) - min(sizes) <= 1


def test_a_process_without_an_episode_plays_none():
    evaluator = _evaluator(Notes(), Process(6, 5), episodes=4)
    assert evaluator.plans == [[]] and evaluator.play(0) == []


def test_a_sample_has_no_task_twice_and_does_not_depend_on_the_order_of_the_split():
    sample = chosen_tasks(SPLIT, EvalConfig(episodes=3), "x")
    smallest = sorted(SPLIT, key=lambda task: hashlib.sha256(task.encode()).digest())[:3]
    assert sorted(sample) == sorted(smallest) and len(set(sample)) == 3
    assert sample == [task for task in SPLIT if task in smallest], "in the order of the split"
    assert set(chosen_tasks(SPLIT[::-1], EvalConfig(episodes=3), "x")) == set(sample)
    assert set(sample) < set(chosen_tasks(SPLIT, EvalConfig(episodes=4), "x")), "a part of every larger one"
    assert chosen_tasks(SPLIT, EvalConfig(episodes=6, repeats=2), "x") == sample
    assert chosen_tasks(SPLIT, EvalConfig(episodes=len(SPLIT)), "x") == list(SPLIT)


def test_numbers_of_episodes_that_do_not_fit_are_refused_with_those_that_do():
    with pytest.raises(ConfigError, match=rf"evaluation.envs\[0\] \(test\) has {len(SPLIT)} tasks; leave it out"):
        _evaluator(Notes(), episodes=len(SPLIT) + 1)
    with pytest.raises(ConfigError, match="a multiple of 2"):
        _evaluator(Notes(), episodes=3, repeats=2)


def test_tokens_are_drawn_with_the_settings_of_the_evaluation():
    engine = Notes()
    evaluator = _evaluator(engine, sampling={"temperature": 0.4, "top_p": 0.9, "max_tokens": 5})
    assert evaluator.config.rollout.sampling.temperature == 1.0
    episodes = evaluator.play(0)
    assert {request.sampling for request in engine.asked} == {Sampling(0.4, 0.9, 0, 5, (1, 2))}
    seeds = {step_seed(5, episode.episode_id, step.t) for episode in episodes for step in episode.steps}
    assert {request.seed for request in engine.asked} == seeds, "of the run, the episode and the step alone"


def test_all_evaluations_of_a_run_play_the_same_episodes():
    policy = model("qwen2", len(tokenizer()))
    made = []
    for slots in (2, 5):
        setup = EngineSetup(policy, tokenizer(), checked(TrainConfig, settings(Path("x"))).model, slots)
        engine = make_engine("hf", setup, {})
        for _ in range(2):
            engine.sync(policy.named_parameters(), 0)
            made.append(_evaluator(engine, episodes=4).play(0))
    texts = [[[s.response_ids.tolist() for s in e.steps] for e in episodes] for episodes in made]
    assert texts[0] == texts[1] == texts[2] == texts[3]


def test_the_result_is_over_the_episodes_that_were_played_and_clustered_by_task():
    evaluator = _evaluator(Notes(), repeats=2, sampling={"temperature": 0.4})
    evaluator.engine.sync([], 3)
    result = evaluator.result("before", 0, evaluator.play(0), 1.5)
    assert (result.name, result.split, result.temperature, result.wall_s) == ("before", "test", 0.4, 1.5)
    assert result.policy_version == 3
    assert (result.all.n, result.all.tasks, result.all.mean_steps) == (2 * len(SPLIT), len(SPLIT), 2.0)
    assert (result.all.low, result.all.high) == clustered_wilson([(0, 2)] * len(SPLIT))
    assert result.manifest_hash == evaluator.tasks[0].hash


def test_episodes_that_outgrow_the_context_are_counted_and_not_solved():
    policy = model("qwen2", len(tokenizer()))
    setup = EngineSetup(policy, tokenizer(), checked(TrainConfig, settings(Path("x"))).model, 4)
    evaluator = _evaluator(make_engine("hf", setup, {"max_length": 90}), envs=[{**ENV, "max_episode_steps": 9}])
    result = evaluator.result("before", 0, evaluator.play(0), 1.0)
    assert result.context_truncated > 0 == result.all.successes
    assert result.metrics()["eval/context_truncated"] == result.context_truncated <= result.all.n


@pytest.mark.parametrize(("episodes", "rows"), [(4, 6), (8, 8), (30, 16)])
def test_the_engine_of_a_run_has_room_for_the_episodes_that_are_played_at_a_time(place, episodes, rows):
    # 2 tasks of 3 episodes
    changes = {"rollout.slots": 16, "evaluation.episodes": episodes, "evaluation.repeats": episodes // 2}
    with RunProgress(1, console=Console(quiet=True)) as progress:
        run = Run(checked(TrainConfig, settings(place, **changes)), Accelerator(cpu=True), progress)
        with closing(run.rollouts), closing(run.engine):
            assert isinstance(run.engine, HFEngine) and run.engine.max_batch == rows


def played(folder: Path) -> dict[tuple[str, int], EpisodeResult]:
    """Results by task and seed, without durations."""
    return {result.key: replace(result, seconds=0.0) for result in read_results(folder)}


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    save_model(tmp_path / "model")
    config = write_settings(tmp_path)

    def made(*words: str, status: int = 0) -> tuple[Any, str]:
        capsys.readouterr()
        assert evaluate.main(["--config", str(config), *words]) == status
        out, err = capsys.readouterr()
        return (json.loads(out) if out else None), err

    return made


def test_each_episode_is_a_line_with_its_conditions_and_five_seeds_where_tokens_are_drawn(run, tmp_path):
    ((summary,), _) = run("--out", str(tmp_path / "out"), "--evaluation.episodes", "3", "--policy", "mine")
    results = read_results(tmp_path / "out")
    assert len(results) == 15 == summary["strata"][0]["n"] and {r.seed for r in results} == set(range(5))
    assert len({r.task_id for r in results}) == 3 and {r.seeds for r in results} == {5}
    assert summary["strata"][0]["successes"] == sum(r.success for r in results)
    one = results[0].conditions
    assert (one.policy, one.kind, one.model) == ("mine", "model", str(tmp_path / "model"))
    assert (one.budget, one.sample) == (2, 3)
    assert one.sampling["temperature"] == 0.4 and one.prompt["memory"] == "full" and len(one.panel) == 64
    assert {"envsuite", "torch", "transformers", "data"} <= set(one.versions) and one.env_options == {
        name: value for name, value in BOOK.items() if name != "source"
    }
    assert all(r.prompt_tokens > 0 and 0 < r.answer_tokens <= 6 * r.steps and r.cut <= r.steps for r in results)


def test_what_is_there_is_not_played_again_and_a_cut_line_is(run, tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    ((summary,), _) = run("--out", str(whole), "--seeds", "2")
    (file,) = whole.glob("*.jsonl")
    content = file.read_bytes()
    cut.mkdir()
    (cut / file.name).write_bytes(content[: len(content) * 2 // 3])
    ((again,), _) = run("--out", str(cut), "--seeds", "2")
    assert played(cut) == played(whole) and len(played(cut)) == 8 and again["strata"] == summary["strata"]
    ((third,), _) = run("--out", str(whole), "--seeds", "2")
    assert file.read_bytes() == content and third["strata"] == summary["strata"]


def test_slots_and_workers_change_no_result(run, tmp_path):
    """The size of a validation batch is how many episodes share the engine: ``rollout.slots``."""
    found = []
    for slots, workers in ((1, 0), (8, 0), (3, 2)):
        folder = tmp_path / f"out-{slots}"
        run("--out", str(folder), "--seeds", "2", "--rollout.slots", str(slots), "--rollout.workers", str(workers))
        found.append(played(folder))
    assert found[0] == found[1] == found[2] and len(found[0]) == 8


def test_other_settings_in_the_same_folder_are_refused_by_what_differs(run, tmp_path):
    run("--out", str(tmp_path / "out"), "--seeds", "1")
    _, err = run("--out", str(tmp_path / "out"), "--seeds", "1", "--prompt.codec", "brackets", status=1)
    assert "prompt" in err and "name another folder" in err
    assert "evaluation.envs is empty" in run("--evaluation.envs", "[]", status=2)[1]


def test_results_of_a_model_that_was_trained_again_in_its_folder_are_not_continued(run, tmp_path):
    words = ("--out", str(tmp_path / "out"), "--evaluation.episodes", "1", "--seeds", "1")
    run(*words)
    ((summary,), _) = run(*words)
    assert summary["strata"][0]["n"] == 1, "the same weights go on"
    before = weights_of(str(tmp_path / "model"))
    save_model(tmp_path / "model", seed=1)
    assert weights_of(str(tmp_path / "model")) != before
    _, err = run(*words, status=1)
    assert "versions" in err and "name another folder" in err


@pytest.mark.slow
def test_a_checkpoint_is_named_by_its_weights_and_other_prompts_are_told(run, tmp_path, caplog):
    assert train(["--config", str(tmp_path / "config.yaml"), "--iterations", "1"]) == 0
    (folder,) = (tmp_path / "runs" / "tiny" / "checkpoints").glob("iteration-*")
    run("--model.path", str(folder), "--out", str(tmp_path / "out"), "--seeds", "1")
    conditions = read_results(tmp_path / "out")[0].conditions
    assert conditions.kind == "checkpoint" and conditions.policy_version and len(conditions.versions["weights"]) == 16
    assert "other prompts" not in caplog.text
    run("--model.path", str(folder), "--prompt.memory", "window(1)")
    assert "prompt.memory was 'full' and is 'window(1)'" in caplog.text

    (folder / "tokenizer.json").write_text(json.dumps({"another": "tokenizer"}))
    _, err = run("--model.path", str(folder), status=1)
    assert "tokenizer.json: not the tokenizer that the checkpoint was saved with" in err


def test_a_model_that_is_no_checkpoint_says_nothing_of_its_origin(tmp_path):
    assert weights_of(str(tmp_path)) is None and weights_of("HuggingFaceTB/none") is None
    assert origin_of(str(tmp_path)) is None and origin_of("HuggingFaceTB/none") is None


def _priced(url: str, **prices: float) -> tuple[str, ...]:
    """Words that play on an endpoint, one request at a time."""
    options = {"url": url, "model": NAME, "concurrency": 1, "prices": prices}
    return ("--rollout.engine", "openai", "--rollout.engine_options", json.dumps(options))


def test_an_endpoints_broken_episodes_are_in_no_rate_and_played_again(run, tmp_path):
    asked, refuses = 0, True

    def script(_: dict[str, Any]) -> Any:
        nonlocal asked
        asked += 1
        bad = refuses and asked > 2  # after the first episode, which has two steps
        return (422, {"error": {"message": "not this"}}, {}) if bad else completion("<action>inventory</action>")

    with ScriptedEndpoint(script) as server:
        words = "--evaluation.sampling.temperature 0 --evaluation.episodes 3 --prompt.memory window(0)".split()
        words += [*_priced(server.url, input=1, output=2), "--out", str(tmp_path / "o")]
        ((summary,), err) = run(*words, status=3)
        assert "2 failed, and are not counted" in err and summary["strata"][0]["n"] == 1
        refuses = False
        ((summary,), _) = run(*words)
    results = played(tmp_path / "o").values()
    assert len(results) == 3 == summary["strata"][0]["n"] and asked == 2 + 2 * 2 + 2 * 2, "the whole one not again"
    found = {(r.broken, r.prompt_tokens, r.answer_tokens, r.cost, r.conditions.kind) for r in results}
    assert found == {(None, 20, 10, 40e-6, "endpoint")}


def test_cached_tokens_have_a_price_of_their_own_and_answers_without_counts_no_cost(run, tmp_path):
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 8}}
    for name, counts, cost in (("counted", usage, 2 * 14e-6), ("uncounted", None, None)):
        with ScriptedEndpoint(lambda body, told=counts: completion("<action>inventory</action>", usage=told)) as server:
            words = _priced(server.url, input=1, cached=0.25, output=2)
            run(*words, "--out", str(tmp_path / name), "--evaluation.episodes", "1", "--seeds", "1")
        (result,) = played(tmp_path / name).values()
        assert result.steps == 2 and result.cost == (None if cost is None else pytest.approx(cost))


def evaluated(accelerator: Any, folder: str, out: str) -> list[tuple[str, bool]]:
    """Records an evaluation on this process."""
    values = settings(Path(folder), **{"evaluation.episodes": None, "evaluation.repeats": 3})
    config = checked(TrainConfig, values)
    engine = ScriptedEngine(lambda request: [3 + (request.seed or 0) % 7, 4, 2])
    evaluator = Evaluator(config, accelerator, engine, tokenizer(), [1, 2], out=Path(out), name="scripted")
    outcomes = evaluator.record(0)
    return [(outcome.task_id, outcome.success) for outcome in outcomes]


@pytest.mark.slow
def test_the_number_of_processes_changes_no_result_and_one_goes_on_where_two_stopped(tmp_path):
    save_model(tmp_path / "model")
    for ranks in (1, 2):
        on_ranks(evaluated, ranks, str(tmp_path), str(tmp_path / f"out-{ranks}"))
    one, two = played(tmp_path / "out-1"), played(tmp_path / "out-2")
    assert one == two and len(list((tmp_path / "out-2").glob("*.jsonl"))) == 2
    file = next(file for file in (tmp_path / "out-2").glob("*.jsonl") if file.name.endswith(".1.jsonl"))
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    (shares,) = on_ranks(evaluated, 1, str(tmp_path), str(tmp_path / "out-2"))
    assert played(tmp_path / "out-2") == one and len(shares) == len(one)


def test_seeds_are_repeats_and_a_number_of_tasks_is_one_of_each_seed():
    plain = checked(TrainConfig, {"evaluation": {"episodes": 4}})
    assert with_seeds(plain, None, False) is plain
    assert with_seeds(plain, None, True).evaluation == replace(plain.evaluation, repeats=5, episodes=20)
    assert with_seeds(plain, 2, False).evaluation == replace(plain.evaluation, repeats=2, episodes=8)
    greedy = checked(TrainConfig, {"evaluation": {"sampling": {"temperature": 0}}})
    assert with_seeds(greedy, None, True).evaluation.repeats == 1
    set_already = replace(plain, evaluation=EvalConfig(repeats=3))
    assert with_seeds(set_already, None, True) is set_already and with_seeds(set_already, 3, True) is set_already
    with pytest.raises(ConfigError, match=r"--seeds is 2 and evaluation\.repeats 3"):
        with_seeds(set_already, 2, True)
