"""Which tiny models vLLM loads: how results are judged and recorded; with vLLM itself where there is one."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedModel

from benchmarks.families import alone, built, families, known_states
from benchmarks.families_vllm import fill, known_results, record, result_of

PYTHON = os.environ.get("ENVSUITE_VLLM_PYTHON")


def test_a_result_takes_the_place_of_the_familys_last_one_and_leaves_the_others(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    assert known_results(file) == {}
    for name, result in (("qwen2", "ok"), ("llama", "ok"), ("bloom", "not in vLLM"), ("llama", "differs (2e-01)")):
        record(name, result, file)
    assert known_results(file) == {"qwen2": "ok", "llama": "differs (2e-01)", "bloom": "not in vLLM"}


@pytest.fixture(scope="module")
def llama() -> PreTrainedModel:
    """Tiny, with heads as wide as vLLM wants them."""
    return built("llama", wide=True)


@pytest.mark.parametrize(
    ("off", "by", "result"),
    [
        (0.0, "LlamaForCausalLM", "ok"),
        (5e-4, "TransformersForCausalLM", "ok, by transformers' code"),
        (0.5, "LlamaForCausalLM", "differs (5e-01)"),
    ],
)
def test_answers_are_compared_with_transformers(llama: PreTrainedModel, off: float, by: str, result: str) -> None:
    def ask(asked: dict[str, Any]) -> dict[str, Any]:
        assert (Path(asked["folder"]) / "model.safetensors").exists()
        answers = []
        for prompt in asked["prompts"]:
            own = alone(llama, np.array([*prompt, 3, 4])).tolist()[-2:]
            answers.append(([3, 4], [own[0], own[1] + off]))
        return {"by": by, "answers": answers}

    assert result_of(llama, alone, ask, ["LlamaForCausalLM"]) == result


def test_an_error_is_told_for_what_vllm_knows_and_is_no_news_for_the_rest(llama: PreTrainedModel) -> None:
    def ask(asked: dict[str, Any]) -> dict[str, Any]:
        return {"error": f"ValueError: {asked['folder']} has\n no heads"}

    assert result_of(llama, alone, ask, ["LlamaForCausalLM"]) == "ValueError: the model has no heads"
    assert result_of(llama, alone, ask, []) == "not in vLLM"


def test_recorded_results_are_of_families_that_are_built() -> None:
    states = known_states()
    assert {name for name in known_results() if states[name] == "unbuilt"} == set()
    assert known_results().keys() <= families().keys()


@pytest.mark.slow
@pytest.mark.skipif(PYTHON is None, reason="ENVSUITE_VLLM_PYTHON names no interpreter with vLLM")
def test_vllm_has_the_log_probabilities_of_a_llama(tmp_path: Path) -> None:
    assert PYTHON is not None
    file = tmp_path / "results.json"
    fill(PYTHON, {"llama": partial(built, "llama", wide=True)}, alone, file)
    assert known_results(file) == {"llama": "ok"}
