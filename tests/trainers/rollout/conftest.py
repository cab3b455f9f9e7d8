"""A policy, a stand-in for vLLM's server, and engines of the two."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from protocol_server import ProtocolServer
from tiny_runs import model, tokenizer
from transformers import PreTrainedModel

from trainers.policy.config import ComputeDtype, ModelConfig
from trainers.rollout.engine import Engine, EngineSetup
from trainers.rollout.engines import make_engine


@pytest.fixture
def policy() -> PreTrainedModel:
    """The trainer's; untied."""
    return copy.deepcopy(model("llama", len(tokenizer())))


@pytest.fixture
def server(policy: PreTrainedModel) -> Iterator[ProtocolServer]:
    """Stands in for a vLLM server with the policy's model."""
    with ProtocolServer(policy) as running:
        yield running


@pytest.fixture
def make(policy: PreTrainedModel, tmp_path: Path) -> Iterator[Callable[..., Engine]]:
    """Makes an engine of servers, with options, which has the policy's weights as version 0."""
    made: list[Engine] = []

    def engine(*servers: ProtocolServer, compute_dtype: ComputeDtype = "float32", **options: Any) -> Engine:
        setup = EngineSetup(policy, tokenizer(), ModelConfig(path="unread", compute_dtype=compute_dtype), 16)
        plain = {"urls": [s.url for s in servers], "weights_folder": str(tmp_path), "patience": 1.0}
        made.append(make_engine("vllm", setup, {**plain, **options}))
        made[-1].sync(policy.named_parameters(), 0)
        return made[-1]

    yield engine
    for one in made:
        one.close()


@pytest.fixture
def engine(make: Callable[..., Engine], server: ProtocolServer) -> Engine:
    """An engine of one server, with plain options."""
    return make(server)
