"""Plans of models that are no Llamas: mixtures, and hybrids whose states the engine keeps."""

from __future__ import annotations

import numpy as np
import pytest
from transformers import PreTrainedConfig

from benchmarks.families import VOCABULARY, built, shrunk
from envsuite.core.errors import DataError
from envsuite.playing.engine import Request, Sampling
from trainers.planning.dry_run import DryRun, DryRunRows, MemoryTrial
from trainers.policy.config import ModelConfig, OptimConfig
from trainers.rollout.hf_engine import HFEngine


def dry(shape: PreTrainedConfig, checkpointing: bool = True) -> DryRun:
    model = ModelConfig(gradient_checkpointing=checkpointing)
    return MemoryTrial(shape, model, OptimConfig(), 1, 1, DryRunRows(2, 12, 8)).run()


@pytest.mark.parametrize("name", ["llama", "qwen3_5_text", "lfm2", "bamba"])
def test_keys_and_states_of_a_token_are_those_that_the_engine_keeps(name):
    engine, sizes = HFEngine(built(name), max_batch=2), dry(shrunk(name)).sizes
    prompt = np.random.default_rng(0).integers(0, VOCABULARY, 9).tolist()
    engine.submit([Request(0, prompt, Sampling(max_tokens=2), seed=0)])
    while engine.pending:
        engine.poll()
    assert engine._cache.token_bytes == 4 * sizes.keys
    states = 0 if engine._cache.states is None else engine._cache.states.slot_bytes
    assert states == 4 * sizes.states


@pytest.mark.parametrize("name", ["qwen3_moe", "mixtral"])
def test_a_mixture_computes_the_experts_of_each_token_and_no_others(name):
    few, more = shrunk(name), shrunk(name)
    field = next(f for f in ("num_local_experts", "num_experts", "n_routed_experts") if f in more.to_dict())
    setattr(more, field, 2 * getattr(few, field))
    one, two = (dry(s, checkpointing=False) for s in (few, more))
    assert two.sizes.parameters > 1.2 * one.sizes.parameters
    assert one.scoring.products <= two.scoring.products < 1.1 * one.scoring.products, "the router's are more"
    recomputed = dry(shrunk(name)).update.products / one.update.products
    assert 1.2 < recomputed < 1.4, "a forward pass more"


def test_a_model_whose_passes_depend_on_values_is_refused_in_a_line():
    with pytest.raises(DataError, match="longcat_flash cannot be planned: how much its layers compute"):
        dry(shrunk("longcat_flash"))
