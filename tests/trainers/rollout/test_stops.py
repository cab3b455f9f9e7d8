"""Answers end where the model's chat template ends a turn, whatever the codec and the model's own end token."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import orjson
import pytest
from families import FAMILIES, tokenizer_of

import trainers
from envsuite.playing.engine import Request, Sampling
from envsuite.prompting import TemplateRenderer
from envsuite.prompting.template import turn_stops
from trainers.policy.config import ModelConfig
from trainers.policy.loading import load_model, load_tokenizer
from trainers.rollout.config import PromptConfig
from trainers.rollout.engine import EngineSetup
from trainers.rollout.environments import check_prompts, ends_of
from trainers.rollout.hf_engine import HFEngine
from trainers.rollout.plain_engine import PlainEngine


@pytest.mark.parametrize("family", FAMILIES, ids=[family.name for family in FAMILIES])
def test_the_end_of_a_turn_is_found_where_it_ends_only_turns(smol, family):
    tokenizer = tokenizer_of(smol, family.file, family.ends)
    stops = [tokenizer.decode([token]) for token in turn_stops(TemplateRenderer(tokenizer, family.arguments))]
    if family.name in ("Hermes 2 Pro", "gpt-oss"):  # wants tools; has its end of a turn inside turns
        assert not stops
    else:
        assert stops == (["<|user|>"] if family.name.startswith("GLM") else [family.ends[-1]])


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    """A model whose end token is another one than its template's, as base models have it."""
    folder = tmp_path_factory.mktemp("base") / "model"
    shutil.copytree(Path(trainers.__file__).parent / "models/craft-1m", folder)
    for name, key, value in (
        ("tokenizer_config.json", "eos_token", "<pad>"), ("generation_config.json", "eos_token_id", 0),
        ("config.json", "eos_token_id", 0),
    ):  # fmt: skip
        file = folder / name
        file.write_bytes(orjson.dumps({**orjson.loads(file.read_bytes()), key: value}))
    return ModelConfig(path=str(folder))


@pytest.mark.parametrize("engine", [HFEngine, PlainEngine])
@pytest.mark.parametrize("codec", ["tags", "brackets", "tools", "search-r1"])
def test_a_base_model_s_answer_ends_with_its_turn(base, engine, codec):
    tokenizer = load_tokenizer(base)
    prompt = PromptConfig(codec=codec)
    ends = ends_of(prompt, tokenizer, check_prompts(prompt, tokenizer))
    assert [tokenizer.decode([end]) for end in ends] == ["<|end|>"]
    played = engine.from_setup(EngineSetup(load_model(base), tokenizer, base, 1))  # type: ignore[arg-type]
    ids = tokenizer.encode("<|user|>Goal: craft 1 stick.<|end|><|assistant|>", add_special_tokens=False)
    played.submit([Request(0, ids, Sampling(temperature=0.0, max_tokens=60, stop_ids=(0, *ends)))])
    done: list[Any] = []
    while not done:
        done += played.poll(0.0)
    assert done[0].finish_reason == "stop" and tokenizer.decode([int(done[0].token_ids[-1])]) == "<|end|>"
