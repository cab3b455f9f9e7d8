"""Cases of ``test_vllm_in_process.py``, run by an interpreter that has vLLM: ``python in_process_cases.py SETUP``.

Prints for each case of the setup its name and what went wrong, empty if nothing did, as one line of JSON.
"""

from __future__ import annotations

import copy
import json
import os
import random
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import policies
import torch
from policies import PROMPTS, change, logprobs, wide_llama
from tiny_runs import tokenizer
from torch import Tensor
from transformers import PreTrainedModel

from envsuite.core.errors import UsageError
from envsuite.playing.engine import EngineFailed, Request, Sampling
from trainers.policy.adapter import add_adapter, merged_weights
from trainers.policy.config import AdapterConfig, ModelConfig
from trainers.rollout.engine import EngineSetup
from trainers.rollout.engines import make_engine
from trainers.rollout.vllm import engine as direct
from trainers.rollout.vllm.transfer import round_weights, write_adapter
from trainers.settings import ConfigError

CASES: dict[str, list[Callable[[Any, PreTrainedModel], None]]] = {}
WEIGHTS = Iterable[tuple[str, Tensor]]


def case(*setups: str) -> Callable[[Callable[[Any, PreTrainedModel], None]], None]:
    """Enters a case in setups; it gets an engine, and its policy with weights that the engine does not have."""

    def enter(function: Callable[[Any, PreTrainedModel], None]) -> None:
        for setup in setups:
            CASES.setdefault(setup, []).append(function)

    return enter


def policy_for(setup: str) -> PreTrainedModel:
    """The policy of ``setup``."""
    model = wide_llama(tied=setup != "untied")
    if setup == "adapter":
        add_adapter(model, AdapterConfig(rank=4, alpha=12), "base")
    return model


def raised(kind: type[Exception], pattern: str, work: Callable[[], object]) -> None:
    try:
        work()
    except kind as error:
        assert re.search(pattern, str(error)), str(error)
    else:
        raise AssertionError(f"no {kind.__name__}")


@case("tied", "untied")
def logprobs_are_the_trainers_after_an_update(engine: Any, policy: PreTrainedModel) -> None:
    for version, temperature in ((1, 1.0), (2, 0.4)):
        change(policy, by=0.02)
        engine.sync(policy.named_parameters(), version)
        policies.check_sampled(engine, policy, temperature, version)


@case("tied", "untied")
def greedy_decoding_is_transformers(engine: Any, policy: PreTrainedModel) -> None:
    engine.sync(policy.named_parameters(), 1)
    policies.check_greedy(engine, policy)


@case("tied", "untied")
def a_request_in_flight_goes_on_with_the_version_of_each_token(engine: Any, policy: PreTrainedModel) -> None:
    engine.sync(policy.named_parameters(), 1)
    before = copy.deepcopy(policy)
    policies.ask_all(engine)
    assert engine.poll(0.3) == []
    change(policy, by=0.02)
    engine._sleeps = True  # as on a GPU; a CPU takes the calls, and keeps its memory
    engine.rest()
    raised(UsageError, "call sync first", lambda: engine.poll(0.1))
    engine.sync(policy.named_parameters(), 2)
    policies.check_update_in_flight(engine, before, policy)


@case("tied", "untied")
def an_optimiser_step_reaches_nothing_before_the_next_sync(engine: Any, policy: PreTrainedModel) -> None:
    engine.sync(policy.named_parameters(), 1)
    before = copy.deepcopy(policy)
    change(policy, by=0.02)
    (answer,) = engine.generate([[5, 6, 7]], Sampling(max_tokens=30, ignore_eos=True), seed=1)
    np.testing.assert_allclose(answer.logprobs, logprobs(before, [5, 6, 7], answer.token_ids.tolist()), atol=2e-4)


@case("tied", "untied")
def an_update_that_does_not_arrive_stops_the_run(engine: Any, policy: PreTrainedModel) -> None:
    engine.sync(policy.named_parameters(), 1)
    old = [(name, parameter.detach().clone()) for name, parameter in policy.named_parameters()]
    change(policy, by=0.02)

    def disabled(weights: WEIGHTS, dtype: torch.dtype, found: dict[str, int]) -> Iterator[tuple[str, Tensor]]:
        for _ in round_weights(weights, dtype, found):
            pass
        yield from old

    direct.round_weights = disabled
    engine.submit([Request(0, [5, 6], Sampling(max_tokens=4))])
    groups = r"embed_tokens, layers\.0, layers\.1, layers\.2, norm"
    raised(EngineFailed, f"not the trainer's in {groups}", lambda: engine.sync(policy.named_parameters(), 2))
    raised(UsageError, "an update failed", lambda: engine.poll(0.1))
    direct.round_weights = round_weights
    engine.sync(policy.named_parameters(), 2)
    assert engine.poll()[0].policy_version.tolist() == [2] * 4


@case("tied", "untied")
def a_layer_that_arrives_otherwise_is_named(engine: Any, policy: PreTrainedModel) -> None:
    def corrupted(weights: WEIGHTS, dtype: torch.dtype, found: dict[str, int]) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in round_weights(weights, dtype, found):
            if name == "model.layers.1.self_attn.v_proj.weight":
                tensor = tensor.clone()
                tensor[0, 0] += 1e-6
            yield name, tensor

    direct.round_weights = corrupted
    said = r"vLLM in this process: .* not the trainer's in layers\.1: they are stale"
    raised(EngineFailed, said, lambda: engine.sync(policy.named_parameters(), 3))
    direct.round_weights = round_weights
    engine.sync(policy.named_parameters(), 3)


@case("tied")
def weights_are_loaded_under_vllms_configuration(engine: Any, policy: PreTrainedModel) -> None:
    from vllm.config import get_current_vllm_config_or_none

    seen = []

    def watched(weights: WEIGHTS, dtype: torch.dtype, found: dict[str, int]) -> Iterator[tuple[str, Tensor]]:
        seen.append(get_current_vllm_config_or_none())
        yield from round_weights(weights, dtype, found)

    direct.round_weights = watched
    engine.sync(policy.named_parameters(), 1)
    assert seen and all(config is not None for config in seen)


@case("tied", "adapter")
def what_vllm_raises_ends_the_run_as_a_failure_of_the_engine(engine: Any, policy: PreTrainedModel) -> None:
    (inside,) = engine._hosts

    def out_of_memory(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    for name, asked in (
        ("add_request", lambda: inside.begin("1", [4], Sampling(max_tokens=1), 0)),
        ("add_lora", lambda: inside.put_adapter("other", Path("/nowhere"))),
    ):
        own, adapters = getattr(inside._engine, name), inside._adapters
        setattr(inside._engine, name, out_of_memory)
        raised(EngineFailed, "OutOfMemoryError: CUDA out of memory", asked)
        setattr(inside._engine, name, own)
        inside._adapters = adapters


@case("tied")
def prompts_that_cannot_be_served_are_answered(engine: Any, policy: PreTrainedModel) -> None:
    engine.sync(policy.named_parameters(), 1)
    answers = engine.generate([[], [4] * 512, [9999], [4] * 500], Sampling(max_tokens=20, ignore_eos=True))
    assert [a.finish_reason for a in answers] == ["error", "context", "error", "length"]
    assert len(answers[3].token_ids) == 12


@case("tied")
def the_time_of_an_update(engine: Any, policy: PreTrainedModel) -> None:
    seconds = []
    for version in range(8):
        change(policy, by=0.02)
        began = time.monotonic()
        engine.sync(policy.named_parameters(), version)
        seconds.append(time.monotonic() - began)
    print(f"seconds of updates: {[round(s, 3) for s in seconds]}", file=sys.stderr)


@case("adapter")
def an_adapter_goes_alone(engine: Any, policy: PreTrainedModel) -> None:
    whole = []
    direct.round_weights = lambda *given: whole.append(1) or round_weights(*given)
    engine.sync(merged_weights(policy), 0)
    for version in (1, 2):
        change(policy, by=0.02)
        engine.sync(merged_weights(policy), version)
        policies.check_adapter(engine, policy)
    assert len(whole) == 1, "what is below the adapter is sent once"


@case("adapter")
def a_changed_weight_of_the_adapter_is_named(engine: Any, policy: PreTrainedModel) -> None:
    direct.write_adapter = policies.corrupting(write_adapter)
    said = r"not the trainer's in layers\.1: they are stale"
    raised(EngineFailed, said, lambda: engine.sync(merged_weights(policy), 3))
    direct.write_adapter = write_adapter
    engine.sync(merged_weights(policy), 4)


@case("bfloat16")
def bfloat16_stays_within_its_tolerance(engine: Any, policy: PreTrainedModel) -> None:
    for version in (1, 2):
        change(policy, by=0.02)
        engine.sync(policy.named_parameters(), version)
    answers = engine.generate(PROMPTS, Sampling(max_tokens=40, ignore_eos=True), seed=1)
    own = [logprobs(policy, p, a.token_ids.tolist()) for p, a in zip(PROMPTS, answers, strict=True)]
    gaps = np.abs(np.concatenate(own) - np.concatenate([a.logprobs for a in answers]))
    assert 1e-5 < gaps.mean() < 0.2


def undisturbed(policy: PreTrainedModel, options: dict[str, Any], compute_dtype: Any) -> tuple[Any, str]:
    """The engine, and what of the process its making has changed."""

    def state() -> dict[str, Any]:
        variables = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
        numbers = (random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist())
        return {"variables": variables, "random": numbers, "threads": (torch.get_num_threads(), torch.set_num_threads)}

    before = state()
    setup = EngineSetup(policy, tokenizer(), ModelConfig(compute_dtype=compute_dtype), 16)
    engine = make_engine("vllm", setup, {"place": "process", **options})
    after = state()
    return engine, ", ".join(name for name in before if before[name] != after[name])


def main(setup: str) -> None:
    policy = policy_for(setup)
    results = {}
    if setup == "refused":
        for name, options, said in (
            ("an_unknown_argument", {"arguments": {"no-such-option": 1}}, "unrecognized arguments: --no-such-option"),
            ("sleep_on_a_cpu", {"sleep": True}, "no sleep mode on a CPU"),
            ("several_devices", {"arguments": {"tensor_parallel_size": 2}}, "spreads one over several; leave it out"),
        ):
            CASES.setdefault("refused", [])
            try:
                raised(ConfigError, said, lambda options=options: undisturbed(policy, options, "float32"))
                results[name] = ""
            except Exception:
                results[name] = traceback.format_exc()
    else:
        options = {"memory": 0.25} if setup == "bfloat16" else {}
        engine, changed = undisturbed(policy, options, "bfloat16" if setup == "bfloat16" else "float32")
        results["nothing_of_the_process_is_changed"] = changed
        for function in CASES[setup]:
            try:
                function(engine, policy)
                results[function.__name__] = ""
            except Exception:
                results[function.__name__] = traceback.format_exc()
            finally:
                direct.round_weights, direct.write_adapter = round_weights, write_adapter
        engine.close()
        engine.close()
        results["the_process_group_is_gone"] = "it is there" if torch.distributed.is_initialized() else ""
    print(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1])
