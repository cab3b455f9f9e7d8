"""Rejection sampling and imitation: what is accepted, the gradient beside the way by hand, earlier rounds, runs.

Supervised fine-tuning: a step beside the way by hand, runs from every kind of stored episodes, what is refused.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from step_tables import step_tables
from test_replay import played
from tiny_runs import BOTH, model, save_model, step_table, train, trained, weights, without_times, write_settings
from torch import Tensor
from transformers import PreTrainedModel

import trainers
from envsuite.cli import main as envsuite
from envsuite.core.errors import DataError, EnvsuiteError
from envsuite.playing.dialog import NO_TOKENS
from envsuite.playing.step import Episode
from trainers.credit.config import MethodConfig
from trainers.credit.crediting import Credit
from trainers.credit.estimators import Advantage
from trainers.credit.estimators.rft import RFT
from trainers.credit.filters import Accepted
from trainers.credit.rounds import EarlierRounds
from trainers.credit.spear.replay import ReplayConfig
from trainers.imitation.demonstrations import episodes_in
from trainers.policy.accumulation import Batch
from trainers.policy.config import OptimConfig
from trainers.policy.loading import load_tokenizer
from trainers.policy.loss import Objective
from trainers.policy.model import Policy
from trainers.policy.update import Updater
from trainers.pool import PoolWriter
from trainers.programs import evaluate
from trainers.run.cli import parse
from trainers.run.config import TrainConfig
from trainers.run.counters import Counters
from trainers.run.features.pool.files import StoredEpisodes, open_stored
from trainers.run.features.pool.rollouts import PooledRollouts
from trainers.settings import ConfigError, checked
from trainers.steps import StepTable
from trainers.steps.parquet import episode_files, read_episodes, write_episodes
from trainers.train import main

SIZE = 61


@given(step_tables(), st.data())
def test_the_best_of_the_accepted_episodes_of_each_task_stay(steps, data):
    score = data.draw(st.none() | st.integers(-2, 3).map(float))
    most = data.draw(st.none() | st.integers(1, 3))
    episodes = {episode: float(steps.reward[steps.episode_id == episode].sum()) for episode in set(steps.episode_id)}
    solved = {episode: data.draw(st.booleans()) for episode in episodes}
    steps = steps.with_columns(success=np.array([solved[episode] for episode in steps.episode_id], np.bool_))
    groups = defaultdict(list)
    for episode, value in sorted(episodes.items(), key=lambda pair: (-pair[1], pair[0])):
        if solved[episode] if score is None else value >= score:
            groups[int(steps.group_id[steps.episode_id == episode][0])].append(episode)
    stay = {episode for accepted in groups.values() for episode in accepted[:most]}
    wanted = [episode in stay for episode in steps.episode_id]
    assert_array_equal(Accepted(score, most)(steps), np.array(wanted, np.bool_))


def imitation_loss(plain: PreTrainedModel, table: StepTable, weight: str) -> Tensor:
    """The mean over all response tokens of -w log p, a step at a time."""
    losses = []
    returns = {episode: table.reward[table.episode_id == episode].sum() for episode in set(table.episode_id)}
    for row in range(len(table)):
        prompt, response = (column[row].tolist() for column in (table.prompt, table.response))
        logits = plain(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
        picked = logits.log_softmax(-1)[torch.arange(len(response)), torch.tensor(response, dtype=torch.long)]
        losses.append(-picked.sum() * (1.0 if weight == "one" else float(returns[table.episode_id[row]])))
    return torch.stack(losses).sum() / len(table.response.values)


@pytest.mark.parametrize("weight", ["one", "score"])
def test_the_gradient_is_that_of_imitation_by_hand(weight):
    table = step_table(np.random.default_rng(0), SIZE, groups=4)
    rng = np.random.default_rng(1)
    table = table.with_reward(rng.integers(0, 3, len(table)).astype(float))
    keep = Accepted(score=1.0)(table)
    assert keep.any() and not keep.all()
    table = table.take(np.flatnonzero(keep))
    policy = Policy(model("qwen2", SIZE))
    objective = Objective(loss="gpg", aggregation="token-mean")
    optimizer = torch.optim.SGD(policy.parameters(), lr=1.0)
    updater = Updater(Accelerator(cpu=True), policy, optimizer, OptimConfig(tokens_per_microbatch=100), objective)
    advantage = RFT(weight)(table)  # type: ignore[arg-type]
    computed = updater.gradient(table, advantage.tokens(table))

    plain = model("qwen2", SIZE)
    imitation_loss(plain, table, weight).backward()
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(computed[f"model.{name}"], parameter.grad, rtol=1e-4, atol=1e-6)


def test_what_the_last_rounds_accepted_is_imitated_again_and_is_in_the_checkpoint():
    rounds = EarlierRounds(ReplayConfig("rounds", size=2), Accelerator(cpu=True), seed=0)
    for number in range(1, 5):
        steps = played(number, [[0, 1, 1], [2, 0, 0]])
        keep = np.repeat([False, True, True, True, False, False], 2)
        credit = Credit(steps, Advantage(np.full(len(steps), 0.5)), keep)
        batch, metrics = rounds.advance(credit, number, lambda _: np.zeros(0))
        seen = [] if batch is None else sorted({*batch.table.extra["iteration"].tolist()})
        assert seen == [age for age in (number - 2, number - 1) if age > 0]
        assert metrics["replay/admitted"] == 3.0
        assert batch is None or (batch.advantage == 0.5).all()
        again = EarlierRounds(ReplayConfig("rounds", size=2), Accelerator(cpu=True), seed=0)
        again.load(rounds.state())
        assert_array_equal(again.buffer.table.response.values, rounds.buffer.table.response.values)
        rounds = again


@pytest.mark.seconds
def test_a_run_learns_from_rounds_and_goes_on_from_a_checkpoint_to_the_same_end(place):
    settings = {
        "recipe": "rft", "method.filters": {"accepted": {"score": 0.0, "most": 3}}, "optim.epochs": 2,
        "method.replay": {"rules": "rounds", "size": 2}, "evaluation.envs": [], "checkpoint_every": 1,
        "optim.schedule": "constant",
    }  # fmt: skip
    whole = trained(place, iterations=2, **settings)
    assert whole[-1]["replay/rows"] > 0 and np.isfinite(whole[-1]["train/loss"])
    settings["output"] = str(place / "other")
    for iterations, more in ((1, ()), (2, ("--resume",))):
        assert main(["--config", str(write_settings(place, iterations=iterations, **settings)), *more]) == 0
    ends = [place / folder / "tiny" for folder in ("runs", "other")]
    assert without_times(ends[1]) == whole
    assert weights(ends[0] / "checkpoints/iteration-00002") == weights(ends[1] / "checkpoints/iteration-00002")


def test_rounds_are_for_rft_alone_which_needs_a_filter():
    with pytest.raises(ConfigError, match="rft would imitate every episode"):
        checked(TrainConfig, {"method": {"estimator": "rft"}})
    for estimator, rules in (("grpo", "rounds"), ("rft", "paper")):
        with pytest.raises(ConfigError, match="rft takes rounds, other methods paper or code"):
            checked(MethodConfig, {"estimator": estimator, "replay": {"rules": rules}})


CRAFT = str(Path(trainers.__file__).parent / "models/craft-1m")
BOOK = {"source": "generated", "goals": 40, "book_seed": 3, "max_distractors": 0}
TASKS = ["fence_fruit", "lily_cat", "quartz_cow", "quartz_ice"]
ENV = {"id": "TextCraft-v0", "split": "train", "max_episode_steps": 6, "kwargs": {**BOOK, "tasks": TASKS}}
SETTINGS: dict[str, Any] = {
    "name": "tiny", "recipe": "sft", "model": {"path": CRAFT}, "envs": [ENV],
    "prompt": {"think": False, "instructions": False, "memory": "compact(1024)"},
    "rollout": {"tasks": 2}, "optim": {"lr": 3e-4}, "evaluation": {"envs": []}, "checkpoint_every": 1,
    "report": False,
}  # fmt: skip


def _words(folder: Path, *words: str, **sections: Any) -> list[str]:
    """A command line whose file has :data:`SETTINGS`, with each of these sections laid over its own."""
    body = {"output": str(folder), **SETTINGS}
    for name, value in sections.items():
        body[name] = {**body.get(name, {}), **value} if isinstance(value, dict) else value
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "settings.json").write_text(json.dumps(body))
    return ["--config", str(folder / "settings.json"), *words]


def _run(folder: Path, source: Path, *words: str, **sections: Any) -> list[dict[str, Any]]:
    """The metrics, without times, of a run on the episodes of ``source``."""
    assert main(_words(folder, "--pool.folder", str(source), *words, **sections)) == 0
    return without_times(folder / "tiny")


def _opened(folder: Path, source: Path, *words: str, **sections: Any) -> Any:
    """What a run of these settings takes its episodes from."""
    config = parse(_words(folder, "--pool.folder", str(source), *words, **sections)).config
    return open_stored(config, source, load_tokenizer(config.model))


def _answers(episodes: Sequence[Episode]) -> list[list[list[int]]]:
    return sorted([step.response_ids.tolist() for step in episode.steps] for episode in episodes)


def _of_run(folder: Path) -> list[Episode]:
    """The episodes of all iterations of a run, in their order."""
    return [episode for file in episode_files(folder / "tiny/episodes") for episode in read_episodes(file)]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Episodes of the model of configs/textcraft.yaml, some of which solve their task."""
    folder = tmp_path_factory.mktemp("kept")
    evaluation = {"envs": [ENV], "repeats": 3, "sampling": {"temperature": 0.5, "max_tokens": 160}}
    words = _words(folder / "settings", recipe="grpo", evaluation=evaluation)
    assert evaluate.main([*words, "--keep", str(folder / "kept")]) == 0
    return folder / "kept"


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Demonstrations of the expert."""
    file = tmp_path_factory.mktemp("demos") / "demos.jsonl"
    options = [word for name, value in BOOK.items() for word in ("--option", f"{name}={value}")]
    assert envsuite(["export", "demos", "TextCraft-v0", "--n", "8", *options, "--out", str(file)]) == 0
    return file


@pytest.mark.parametrize("weight", ["one", "score"])
def test_a_step_is_that_of_imitation_by_hand_whoever_played(weight):
    size, table = 61, step_table(np.random.default_rng(0), 61, groups=4)  # whose log-probabilities are not the model's
    table = table.with_reward(np.random.default_rng(1).integers(0, 3, len(table)).astype(float))
    settings = ["--method.options.weight", weight, "--optim.lr", "1", "--optim.max_grad_norm", "1e9"]
    config = parse(["--recipe", "sft", *settings]).config
    policy, plain = Policy(model("qwen2", size)), model("qwen2", size)
    updater = Updater(
        Accelerator(cpu=True), policy, torch.optim.SGD(policy.parameters(), lr=1.0), config.optim,
        Objective.of(config.method.objective), recompute=config.optim.recomputes("bfloat16", "vllm"),
    )  # fmt: skip
    advantage = config.method.make_estimator()(table)
    figures = updater.update(Batch(table, advantage.tokens(table)), np.random.default_rng(0)).train

    loss = imitation_loss(plain, table, weight)
    loss.backward()
    assert figures["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert figures["approx_kl"] == 0.0 and "engine_weight_mean" not in figures
    for name, parameter in policy.model.named_parameters():
        before = dict(plain.named_parameters())[name]
        torch.testing.assert_close(parameter, before - before.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.seconds
def test_a_run_on_kept_episodes_learns_and_goes_on_from_a_checkpoint_to_the_same_end(kept, tmp_path):
    solved = [episode for episode in episodes_in(kept) if episode.success]
    assert 3 <= len(solved) < 12
    count = len(solved)  # of iterations of two episodes: two passes
    whole = _run(tmp_path / "whole", kept, "--iterations", str(count))
    assert whole[-1]["train/loss"] < 0.8 * whole[0]["train/loss"] and whole[0]["train/success"] == 1.0
    assert all(record["alarms/standing"] == 0.0 for record in whole if "alarms/standing" in record)
    taken = [str(_answers([episode])) for episode in _of_run(tmp_path / "whole")]
    wanted = Counter(str(_answers([episode])) for episode in solved)
    assert Counter(taken[:count]) == Counter(taken[count:]) == wanted and taken[:count] != taken[count:]
    for iterations, more in ((count // 2 + 1, ()), (count, ("--resume",))):
        parts = _run(tmp_path / "parts", kept, "--iterations", str(iterations), *more)
    assert parts == whole
    ends = [tmp_path / name / f"tiny/checkpoints/iteration-{count:05}" for name in ("whole", "parts")]
    assert weights(ends[0]) == weights(ends[1])


@pytest.mark.slow
def test_two_processes_train_on_what_one_does_and_learn_the_same(kept, tmp_path):
    one = _run(tmp_path / "one", kept, "--iterations", "3")
    words = _words(tmp_path / "two", "--pool.folder", str(kept), "--iterations", "3")
    train(*words, program=(*BOTH, "-m", "trainers.train"), timeout=900, status=0)
    two = without_times(tmp_path / "two/tiny")
    for name in ("train/loss", "train/grad_norm", "train/steps", "train/return"):
        assert [record[name] for record in two] == pytest.approx([record[name] for record in one], rel=1e-4), name
    both = [_of_run(tmp_path / name) for name in ("one", "two")]
    assert [(e.episode_id, _answers([e])) for e in both[0]] == [(e.episode_id, _answers([e])) for e in both[1]]


@pytest.mark.seconds
def test_a_run_s_own_episodes_and_a_pool_are_imitated_by_score(kept, tmp_path):
    with PoolWriter(tmp_path / "pool") as pool:
        for number, episode in enumerate(episodes_in(kept)):
            pool.store(f"s{number}", replace(episode, score=0.5 if episode.success else episode.score))
    first = tmp_path / "first"
    _run(first, kept, "--iterations", "1", "--rollout.tasks", "6")
    score = {"filters": {"accepted": {"score": -1.0}}, "options": {"weight": "score"}}
    for source in (first / "tiny", first / "tiny/episodes", tmp_path / "pool"):
        folder = tmp_path / "runs" / source.name
        take = ("--pool.take.success", "null", "--pool.take.min_score", "0.5")
        (record,) = _run(folder, source, "--iterations", "1", "--rollout.tasks", "6", *take, method=score)
        assert record["train/success"] == 1.0 and record["train/episodes"] == 6 and record["train/loss"] > 0
    unsolved = ("--pool.take.success", "false", "--method.filters.accepted.score", "0")
    (record,) = _run(tmp_path / "all", kept, "--iterations", "1", *unsolved)
    assert record["train/success"] == 0.0 and record["train/loss"] > 0


@pytest.mark.seconds
def test_demonstrations_and_answers_as_text_are_played_again_in_the_prompts_of_the_run(kept, demos, tmp_path):
    env = {**ENV, "kwargs": BOOK, "max_episode_steps": 20}
    records = _run(tmp_path, demos, "--iterations", "4", "--rollout.tasks", "8", envs=[env])
    assert records[-1]["train/loss"] < 0.8 * records[0]["train/loss"] and records[0]["train/valid_actions"] == 1.0
    solved = [episode for episode in episodes_in(kept) if episode.success]
    bare = [replace(e, steps=tuple(replace(step, **NO_TOKENS, prompt_text="[]") for step in e.steps)) for e in solved]
    write_episodes(tmp_path / "texts/episodes.parquet", [replace(e, episode_id=i) for i, e in enumerate(bare)])
    again = _opened(tmp_path, tmp_path / "texts")
    tokenizer = load_tokenizer(parse(_words(tmp_path)).config.model)
    texts = [
        sorted("".join(tokenizer.decode(a) for a in said) for said in _answers(e)) for e in (solved, again.episodes)
    ]
    assert texts[0] == texts[1]
    assert all((step.policy_version == -1).all() for episode in again.episodes for step in episode.steps)


def test_what_cannot_be_imitated_is_refused_in_a_line(kept, demos, tmp_path):
    empty, other = tmp_path / "empty", save_model(tmp_path / "other")
    empty.mkdir()
    failed = [replace(episode, success=False) for episode in read_episodes(next(kept.rglob("*.parquet")))]
    write_episodes(tmp_path / "failed/episodes.parquet", failed)
    words = {"other prompts than this run writes", "envs[0] and model.path", "envsuite export episodes"}
    others = {"no episode is of a task of envs", "set envs"}
    cases: list[tuple[Path, set[str], list[str], dict[str, Any]]] = [
        (tmp_path / "nowhere", {"there is no file or folder", "envsuite eval model --keep"}, [], {}),
        (empty, {"0 episodes of TextCraft-v0"}, [], {}),
        (kept, words, ["--model.path", str(other)], {}),
        (kept, words, ["--prompt.memory", "window(1)"], {}),
        (kept, words, [], {"envs": [{**ENV, "kwargs": {**BOOK, "tasks": TASKS, "max_distractors": 3}}]}),
        (kept, others, [], {"envs": [{**ENV, "split": "test", "kwargs": BOOK}]}),
        (kept, others, [], {"envs": [{"id": "Sokoban-v0"}], "model": {"path": str(other)}}),
        (kept, {"not a pool"}, ["--method.estimator", "grpo", "--rollout.group_size", "2"], {}),
        (demos, others, [], {"envs": [{**ENV, "split": "test", "kwargs": BOOK}]}),
        (demos, {"do not solve it again", "set envs"}, [], {"envs": [{**ENV, "kwargs": BOOK, "max_episode_steps": 1}]}),
    ]
    for source, wanted, more, sections in cases:
        with pytest.raises(EnvsuiteError) as caught:
            _opened(tmp_path / "case", source, *more, **sections)
        said = str(caught.value)
        assert "\n" not in said and all(word in said for word in wanted), said


@pytest.mark.seconds
def test_a_folder_without_success_or_with_other_episodes_than_before_ends_the_run_with_a_line(kept, tmp_path, capsys):
    solved = [episode for episode in episodes_in(kept) if episode.success]
    for episodes, words in (
        ([replace(solved[0], success=False)], ["0 whole groups of 1 are left that pool.take finds"]),
        (solved[:2], []),
        (solved[:3], ["has other episodes than when the run began"]),
    ):
        write_episodes(tmp_path / "few/episodes.parquet", [replace(e, episode_id=i) for i, e in enumerate(episodes)])
        resume = ["--resume"] if len(episodes) > 2 else []
        iterations = str(len(episodes) - 1 or 1)
        capsys.readouterr()
        status = main(_words(tmp_path, "--pool.folder", str(tmp_path / "few"), "--iterations", iterations, *resume))
        said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
        assert (status == 0) == (not words) and len(said) == len(words)
        assert all(word in line for word, line in zip(words, said, strict=True))


def test_what_is_too_little_is_not_counted_as_taken(tmp_path):
    config = parse(_words(tmp_path)).config
    assert config.pool is not None and config.pool.take is not None
    common: list[Any] = [config, Accelerator(cpu=True), None, None, Counters(), None]
    rollouts = PooledRollouts(*common, StoredEpisodes(tmp_path, []), config.pool.take)
    with pytest.raises(DataError, match="0 whole groups of 1 are left"):
        rollouts(1)
    assert rollouts.state() == {"taken": None, "passes": 0} and rollouts.counters.groups == 0


def test_the_recipe_takes_and_stores_nothing_in_a_pool():
    config = parse(["--recipe", "sft", "--pool.folder", "kept"]).config
    assert config.pool is not None and config.pool.take is not None and config.pool.take.success is True
    assert config.method == parse(["--recipe", "rft"]).config.method
    spear = parse(["--recipe", "sft", "--method.replay", "{rules: rounds, size: 2}"]).config
    assert spear.pool == parse(["--recipe", "sft"]).config.pool
