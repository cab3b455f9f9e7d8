"""Entropies and log-probabilities in hindsight, as providers compute them, against each row by itself."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from numpy.testing import assert_allclose
from ranks import on_ranks
from row_by_row import Largest
from tiny_runs import model, step_table, tokenizer, trained, write_settings
from torch import nn

from envsuite.core.errors import UsageError
from envsuite.prompting import TagsCodec, TemplateRenderer
from trainers.credit.hindsight import Hindsight, HindsightPrompts
from trainers.credit.providers import Entropy
from trainers.policy.adapter import add_adapter
from trainers.policy.config import AdapterConfig, ModelConfig, OptimConfig
from trainers.policy.model import Policy
from trainers.policy.sharding import shard
from trainers.settings import ConfigError
from trainers.steps import Ragged, StepTable
from trainers.steps.columns import ENTROPY, HINDSIGHT, LAST, SUCCESS
from trainers.steps.parquet import read_episodes
from trainers.train import main

OPTIM = OptimConfig(tokens_per_microbatch=60)
TEXT = "\nThe end : {observation}"
SIZE = len(tokenizer())


def told(most_tokens: int = 12, longest: int | None = None) -> HindsightPrompts:
    prompts = HindsightPrompts.of(TemplateRenderer(tokenizer()), TagsCodec(), longest)
    return replace(prompts, text=TEXT, most_tokens=most_tokens)


def table(seed: int = 4, prompts: int | None = None) -> StepTable:
    """Steps whose prompts end as the template says, some of them of successful episodes."""
    steps = step_table(np.random.default_rng(seed), SIZE)
    end = tokenizer().encode("<|end|><|assistant|>", add_special_tokens=False)
    rows = [[*np.resize(steps.prompt[row], prompts or len(steps.prompt[row])), *end] for row in range(len(steps))]
    last = np.array([f"Crafting goal {e} <|end|>" for e in steps.episode_id.tolist()], object)
    steps = replace(steps, prompt=Ragged.of(rows, np.int32))
    return steps.with_columns(**{SUCCESS: steps.episode_id % 2 == 0, LAST: last})


def naive(policy: nn.Module, prompt: Any, response: Any, temperature: float) -> tuple[np.ndarray, np.ndarray]:
    """Log-probability and entropy of each token of one response: a pass for each token, the whole vocabulary."""
    logprob, entropy = [], []
    for place, token in enumerate(response.tolist()):
        ids = torch.tensor([[*prompt.tolist(), *response[:place].tolist()]])
        with torch.no_grad():
            scores = (policy(ids).logits[0, -1].double() / temperature).log_softmax(-1)
        logprob.append(float(scores[token]))
        entropy.append(float(-(scores.exp() * scores).sum()))
    return np.array(logprob), np.array(entropy)


@pytest.mark.parametrize(("temperature", "compute_dtype", "near"), [
    (1.0, "float32", 2e-5), (0.4, "float32", 5e-5), (0.4, "bfloat16", 0.25),
])  # fmt: skip
def test_the_columns_are_those_of_each_token_by_itself(temperature, compute_dtype, near):
    own, steps = model("qwen2", SIZE), table()
    policy = Policy(own, temperature=temperature, compute_dtype=compute_dtype)
    entropy = Entropy(policy, OPTIM).columns(steps).token_extra[ENTROPY]
    provider = Hindsight(policy, told(), OPTIM)
    hindsight = provider.columns(steps).token_extra[HINDSIGHT]
    end = tokenizer().encode("<|end|><|assistant|>", add_special_tokens=False)
    assert steps.extra[SUCCESS].any() and not steps.extra[SUCCESS].all()
    for row in range(len(steps)):
        prompt, response = steps.prompt[row], steps.response[row]
        assert_allclose(entropy[row], naive(own, prompt, response, temperature)[1], atol=near)
        if not steps.extra[SUCCESS][row]:
            assert not hindsight[row].any()
            continue
        said = tokenizer().encode(
            TEXT.replace("{observation}", steps.extra[LAST][row]),
            add_special_tokens=False,
            split_special_tokens=True,
        )[:12]
        whole = np.array([*prompt[: -len(end)], *said, *end])
        assert_allclose(hindsight[row], naive(own, whole, response, temperature)[0], atol=near)


def test_an_observation_cannot_end_the_message_and_a_long_one_is_cut():
    steps = table()
    ids = told()(steps).prompt
    end = tokenizer().convert_tokens_to_ids("<|end|>")
    for row in range(len(steps)):
        added = len(ids[row]) - len(steps.prompt[row])
        assert 0 < added <= 12
        assert (ids[row] == end).sum() == (steps.prompt[row] == end).sum(), "the text has no control token"
    assert len(told(2).ids("anything")) == 2


def test_no_prompt_outgrows_the_context(caplog):
    steps = table()
    longest = int((steps.prompt.lengths + steps.response.lengths).max()) + 3
    found = told(longest=longest)(steps)
    assert (found.prompt.lengths + found.response.lengths).max() <= longest
    assert "the text was cut in" in caplog.text


def test_a_prompt_that_ends_in_another_way_is_refused():
    steps = table()
    other = replace(
        steps, prompt=Ragged.of([row[:-1] for row in map(steps.prompt.__getitem__, range(len(steps)))], np.int32)
    )
    with pytest.raises(UsageError, match=r"episode \d+, step \d+ does not end as the model's chat template"):
        told()(other)


def test_a_table_without_a_success_or_without_rows_is_scored():
    policy = Policy(model("qwen2", SIZE))
    lost = table().with_columns(**{SUCCESS: np.zeros(len(table()), np.bool_)})
    assert not Hindsight(policy, told(), OPTIM).columns(lost).token_extra[HINDSIGHT].values.any()
    empty = table().take(np.zeros(0, np.int64))
    for provider in (Hindsight(policy, told(), OPTIM), Entropy(policy, OPTIM)):
        assert len(provider.columns(empty)) == 0


def test_a_template_that_ends_a_message_with_plain_text_is_refused():
    plain = deepcopy(tokenizer())
    plain.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}ASSISTANT:"
    with pytest.raises(ConfigError, match=r"the method puts a text .*plain text, ' ASSISTANT:'.*model\.chat_template"):
        HindsightPrompts.of(TemplateRenderer(plain), TagsCodec(), None)


def spread(accelerator: Accelerator, adapted: bool) -> tuple[np.ndarray, np.ndarray]:
    """Both columns of this process's rows, of a policy that is sharded: the last process has no success."""
    base = model("qwen2", SIZE)
    if adapted:
        add_adapter(base, AdapterConfig(rank=4), "owner/base")
    policy = Policy(base)
    if accelerator.num_processes > 1:
        shard(policy, ModelConfig(shard="full"), accelerator)
    steps = table()
    own = steps.episode_id < 4 if accelerator.is_main_process else steps.episode_id == 5
    own = np.ones(len(steps), np.bool_) if accelerator.num_processes == 1 else own
    steps = steps.take(np.flatnonzero(own))
    found = (Entropy(policy, OPTIM), ENTROPY), (Hindsight(policy, told(), OPTIM), HINDSIGHT)
    entropy, hindsight = (provider.columns(steps).token_extra[name].values for provider, name in found)
    return entropy, hindsight


@pytest.mark.seconds
@pytest.mark.parametrize("adapted", [pytest.param(False, marks=pytest.mark.slow), True], ids=["whole", "adapter"])
def test_a_sharded_policy_gives_the_columns_of_one_process(adapted):
    (alone,), both = on_ranks(spread, 1, adapted), on_ranks(spread, 2, adapted)
    row_of, episode = table().response.row_of, table().episode_id
    for column in range(2):
        for rank, rows in enumerate((episode < 4, episode == 5)):
            assert_allclose(both[rank][column], alone[column][rows[row_of]], atol=1e-5)
    assert alone[1].any() and not both[1][1].any()


@pytest.mark.slow
def test_long_prompts_and_a_large_vocabulary_take_bounded_memory():
    words, most = 150_000, 20
    own = model("qwen2", words)
    own.config.max_position_embeddings = 8192
    policy = Policy(own)
    assert policy.output is not None
    policy.output = replace(policy.output, elements=most * words)
    steps = table(prompts=4_000).take(np.arange(2))
    steps = steps.with_columns(**{SUCCESS: np.ones(2, np.bool_)})
    response = Ragged.of([np.arange(64) % 40] * 2, np.int32)
    ones = Ragged(np.ones(128), response.offsets)
    steps = replace(steps, response=response, logprob=ones, policy_version=ones, token_extra={})
    budget = OptimConfig(tokens_per_microbatch=1_000)
    with Largest(policy.output.layer.weight) as seen:
        entropy = Entropy(policy, budget).columns(steps).token_extra[ENTROPY]
        hindsight = Hindsight(policy, told(longest=8192), budget).columns(steps).token_extra[HINDSIGHT]
    assert 0 < seen.elements <= most * words
    logprob, expected = naive(own, steps.prompt[1], steps.response[1][:2], 1.0)
    assert_allclose(entropy[1][:2], expected, atol=1e-3)
    assert np.isfinite(hindsight.values).all() and abs(hindsight[1][:2] - logprob).max() > 1e-4


@pytest.mark.seconds
@pytest.mark.parametrize("name", ["hcapo", pytest.param("empg", marks=pytest.mark.slow)])
def test_a_run_trains_on_the_signal_and_reports_it(place, name):
    (record,) = trained(place, recipe=name, iterations=1, **{"evaluation.envs": []})
    wanted = {"empg": ("entropy", "scale_std", "bonus_share"), "hcapo": ("ratio_mean", "ratio_std", "response_length")}
    for key in wanted[name]:
        assert any(found.endswith(f"/{key}") for found in record), sorted(record)
    episodes = read_episodes(place / "runs/tiny/episodes/iteration-00001.parquet")
    assert all(episode.last_observation not in ("", episode.steps[0].observation) for episode in episodes)


def test_a_text_that_does_not_fit_the_context_beside_prompts_is_refused(place, capfd):
    changes = {"recipe": "hcapo", "prompt.max_tokens": 480}
    assert main(["--config", str(write_settings(place, **changes))]) == 2
    assert "max_tokens + 256 of the method's text is 742" in " ".join(capfd.readouterr().err.split())
