"""``envsuite eval model --out``: the results of envsuite, of models, checkpoints and endpoints."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ranks import on_ranks
from scripted_endpoint import NAME, ScriptedEndpoint, completion
from tiny_runs import BOOK, save_model, settings, tokenizer, write_settings

from envsuite.evaluation.results import EpisodeResult, read_results
from trainers.programs import evaluate
from trainers.rollout.scripted import ScriptedEngine
from trainers.run.config import EvalConfig, TrainConfig
from trainers.run.evaluation import Evaluator
from trainers.run.origin import origin_of, weights_of
from trainers.run.results import with_seeds
from trainers.settings import ConfigError, checked
from trainers.train import main as train


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


def test_each_episode_is_a_line_with_its_conditions_and_five_seeds_where_tokens_are_drawn(
    run: Any, tmp_path: Path
) -> None:
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


def test_what_is_there_is_not_played_again_and_a_cut_line_is(run: Any, tmp_path: Path) -> None:
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


def test_slots_and_workers_change_no_result(run: Any, tmp_path: Path) -> None:
    """The size of a validation batch is how many episodes share the engine: ``rollout.slots``."""
    found = []
    for slots, workers in ((1, 0), (8, 0), (3, 2)):
        folder = tmp_path / f"out-{slots}"
        run("--out", str(folder), "--seeds", "2", "--rollout.slots", str(slots), "--rollout.workers", str(workers))
        found.append(played(folder))
    assert found[0] == found[1] == found[2] and len(found[0]) == 8


def test_other_settings_in_the_same_folder_are_refused_by_what_differs(run: Any, tmp_path: Path) -> None:
    run("--out", str(tmp_path / "out"), "--seeds", "1")
    _, err = run("--out", str(tmp_path / "out"), "--seeds", "1", "--prompt.codec", "brackets", status=1)
    assert "prompt" in err and "name another folder" in err
    assert "evaluation.envs is empty" in run("--evaluation.envs", "[]", status=2)[1]


def test_results_of_a_model_that_was_trained_again_in_its_folder_are_not_continued(run: Any, tmp_path: Path) -> None:
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
def test_a_checkpoint_is_named_by_its_weights_and_other_prompts_are_told(
    run: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
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


def test_a_model_that_is_no_checkpoint_says_nothing_of_its_origin(tmp_path: Path) -> None:
    assert weights_of(str(tmp_path)) is None and weights_of("HuggingFaceTB/none") is None
    assert origin_of(str(tmp_path)) is None and origin_of("HuggingFaceTB/none") is None


def _priced(url: str, **prices: float) -> tuple[str, ...]:
    """Words that play on an endpoint, one request at a time."""
    options = {"url": url, "model": NAME, "concurrency": 1, "prices": prices}
    return ("--rollout.engine", "openai", "--rollout.engine_options", json.dumps(options))


def test_an_endpoints_broken_episodes_are_in_no_rate_and_played_again(run: Any, tmp_path: Path) -> None:
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


def test_cached_tokens_have_a_price_of_their_own_and_answers_without_counts_no_cost(run: Any, tmp_path: Path) -> None:
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
def test_the_number_of_processes_changes_no_result_and_one_goes_on_where_two_stopped(tmp_path: Path) -> None:
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


def test_seeds_are_repeats_and_a_number_of_tasks_is_one_of_each_seed() -> None:
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
