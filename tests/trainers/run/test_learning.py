"""The whole loop learns: what is rewarded becomes more probable, whichever method gives the credit.

Every run of the papers' tables trains: two iterations with a tiny model on built-in tasks.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from bandit_world import ARMS
from small_papers import ANSWERS, arguments, save_model
from tiny_runs import model, write_settings

from benchmarks.papers.plans import config_of
from trainers.imitation.vocabulary import word_tokenizer
from trainers.papers.index import published_rows
from trainers.report.metrics import read_metrics
from trainers.run.cli import parse
from trainers.train import main


def _indifferent(folder: Path) -> None:
    """A model that names each arm with about the same probability, made by a few steps of imitation."""
    tokenizer = word_tokenizer([*ARMS, "Task one two ready"], 64)
    policy = model("qwen2", len(tokenizer))
    policy.generation_config.eos_token_id = tokenizer.eos_token_id
    rows = []
    for task in ("one", "two"):
        text = {"role": "user", "content": f"Task {task}\n\nready"}
        prompt = tokenizer.apply_chat_template([text], add_generation_prompt=True)["input_ids"]
        for arm in ARMS:
            answer = tokenizer.encode(f"<action>{arm}</action>", add_special_tokens=False)
            rows.append((prompt, [*answer, tokenizer.eos_token_id]))
    ids = torch.tensor([prompt + answer for prompt, answer in rows])
    labels = torch.tensor([[-100] * len(prompt) + answer for prompt, answer in rows])
    optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-3)
    for _ in range(80):
        policy(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    policy.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["gigpo", "grpo", "dr_grpo", "rloo"])
def test_a_bandit_learns_to_pull_the_rewarded_arm(tmp_path, recipe):
    _indifferent(tmp_path / "model")
    bandit = [{"id": "bandit_world:Bandit-v0"}]
    changes = {"recipe": recipe, "envs": bandit, "evaluation.envs": bandit, "iterations": 12, "optim.lr": 5e-3}
    changes |= {"optim.minibatches": 1, "optim.schedule": "constant", "episodes_every": 0, "rollout.group_size": 16}
    changes |= {"evaluation.episodes": None, "evaluation.repeats": 20, "evaluation.every": 0, "checkpoint_every": 50}
    assert main(["--config", str(write_settings(tmp_path, **changes))]) == 0
    records = read_metrics(tmp_path / "runs/tiny/metrics.jsonl")
    before, after = records[0]["eval/success"], records[-1]["eval/success"]
    assert before < 0.5, "indifferent"
    assert after > 0.9, records[-1]
    assert records[1]["env/pulls"] == 1.0
    assert all(record["train/logprob_gap"] < 1e-4 for record in records[1:-1]), "engine and trainer agree"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny model for each environment."""
    return {env: save_model(tmp_path_factory.mktemp("models") / env, actions) for env, actions in ANSWERS.items()}


@pytest.mark.slow
@pytest.mark.parametrize("run", published_rows(), ids=lambda run: run.name)
def test_a_published_setting_runs(run, models, tmp_path):
    published = config_of(run)
    words = arguments(run, models[published.envs[0].id], tmp_path)
    small = parse(words).config
    assert small.method.estimator == published.method.estimator and small.method.options == published.method.options
    assert small.method.objective == published.method.objective and small.method.filters == published.method.filters
    assert list(small.method.shapers) == list(published.method.shapers) and small.optim.lr == published.optim.lr
    assert main(words) == 0
    records = read_metrics(tmp_path / published.name / "metrics.jsonl")
    trained = [record for record in records if "train/success" in record]
    assert [record["iteration"] for record in trained] == [1, 2]
    episodes = small.rollout.tasks * small.rollout.group_size
    assert all(record["train/episodes"] == episodes and record["train/failed"] == 0 for record in trained)
    for record in trained:
        assert all(math.isfinite(value) for value in record.values() if isinstance(value, float))
    assert sum(record["train/valid_actions"] for record in trained) > 0.0, "the tiny model acts"
    assert any("eval/success" in record for record in records)
    assert (tmp_path / published.name / "checkpoints/iteration-00002/manifest.json").is_file()
