"""Updates of vLLM servers through sockets, with a stand-in for the server that can leave the transfer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from policies import change
from protocol_server import ProtocolServer
from tiny_runs import tokenizer
from torch.distributed import ProcessGroupGloo, TCPStore
from transformers import PreTrainedModel

from envsuite.playing.engine import EngineFailed
from trainers.policy.adapter import add_adapter
from trainers.policy.config import AdapterConfig, ModelConfig
from trainers.rollout.engine import Engine, EngineSetup
from trainers.rollout.engines import make_engine
from trainers.rollout.vllm.server import envsuite_stream
from trainers.settings import ConfigError

Made = Callable[..., Engine]


@pytest.fixture
def engine(make: Made, server: ProtocolServer) -> Engine:
    """An engine of one server, whose weights come through sockets; no folder is there for files."""
    return make(server, transfer="gloo", weights_folder="/proc")


def test_each_update_arrives_and_is_proven_without_a_file(
    policy: PreTrainedModel, server: ProtocolServer, engine: Engine
) -> None:
    for version in (1, 2):
        change(policy)
        engine.sync(policy.named_parameters(), version)
        assert all(torch.equal(own, server.model.state_dict()[name]) for name, own in policy.state_dict().items())


def test_two_servers_get_the_same_update_and_parts_may_be_small(
    policy: PreTrainedModel, make: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(envsuite_stream, "PART_BYTES", 4096)
    with ProtocolServer(policy) as one, ProtocolServer(policy) as two:
        change(policy)
        make(one, two, transfer="gloo")
        for server in (one, two):
            assert torch.equal(server.model.lm_head.weight, policy.lm_head.weight)


def test_an_update_that_the_server_does_not_load_stops_the_run(
    policy: PreTrainedModel, server: ProtocolServer, engine: Engine
) -> None:
    server.loads = False
    change(policy, by=1e-6)
    with pytest.raises(EngineFailed, match=r"version 1 its weights are not the trainer's in .*: they are stale"):
        engine.sync(policy.named_parameters(), 1)


def test_an_update_that_the_server_was_never_told_to_receive_stops_the_run(
    policy: PreTrainedModel, server: ProtocolServer, engine: Engine
) -> None:
    server.faults["/update_weights"] = [lambda: (200, {})]
    with pytest.raises(EngineFailed, match="its update has not come"):
        engine.sync(policy.named_parameters(), 1)


def test_a_server_that_leaves_the_transfer_says_why_and_nobody_waits(
    policy: PreTrainedModel, server: ProtocolServer, make: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(envsuite_stream, "PART_BYTES", 4096)
    engine = make(server, transfer="gloo", patience=30.0)
    server.parts_left = 2
    began = time.monotonic()
    with pytest.raises(EngineFailed, match="envsuite_taken: no memory is left"):
        engine.sync(policy.named_parameters(), 1)
    assert time.monotonic() - began < 15


@pytest.mark.seconds
def test_a_server_that_stops_receiving_is_given_up_after_patience(
    policy: PreTrainedModel, server: ProtocolServer, engine: Engine
) -> None:
    resting = threading.Event()
    server.faults["/update_weights"] = [lambda: (resting.wait(60), (200, {}))[1]]
    began = time.monotonic()
    with pytest.raises(EngineFailed, match=r"the transfer of weights broke off \(.*[Tt]imed out"):
        engine.sync(policy.named_parameters(), 1)
    assert 1.0 <= time.monotonic() - began < 20
    resting.set()


def test_a_server_that_was_started_for_files_is_refused_with_the_argument(server: ProtocolServer, make: Made) -> None:
    server.about["transfer"] = None
    with pytest.raises(EngineFailed, match=r"add to its arguments --weight-transfer-config '\{\"backend\": \"envsuite"):
        make(server, transfer="gloo")


@pytest.mark.parametrize("fault", ["started for files", "/init_weight_transfer_engine", "/get_world_size"])
def test_a_server_that_cannot_join_the_transfer_is_left_out_and_says_why(
    fault: str, policy: PreTrainedModel, make: Made, caplog: pytest.LogCaptureFixture
) -> None:
    with ProtocolServer(policy) as one, ProtocolServer(policy) as two:
        if fault == "started for files":
            two.about["transfer"] = None
        two.faults[fault] = [lambda: (400, {"error": {"message": "no such engine"}})]
        engine = make(one, two, transfer="gloo")
        assert [host.url for host in engine._hosts] == [one.url]  # type: ignore[attr-defined]
        assert two.url in caplog.text
        assert ("for files" in fault and "add to its arguments" in caplog.text) or "no such engine" in caplog.text
        two.about["transfer"] = None
        change(policy)
        engine.sync(policy.named_parameters(), 1)
        assert torch.equal(one.model.lm_head.weight, policy.lm_head.weight)
        assert [*engine._update._groups] == engine._hosts  # type: ignore[attr-defined]


def test_what_sockets_cannot_do_is_refused(policy: PreTrainedModel, server: ProtocolServer) -> None:
    setup = EngineSetup(policy, tokenizer(), ModelConfig(), 4)
    for options, said in (
        ({"urls": server.url, "transfer": "nccl"}, "it must be files or gloo"),
        ({"place": "process", "transfer": "gloo"}, "transfer is for servers"),
    ):
        with pytest.raises(ConfigError, match=said):
            make_engine("vllm", setup, options)
    add_adapter(policy, AdapterConfig(rank=4), "base")
    with pytest.raises(ConfigError, match=r"reads an adapter .* from files"):
        make_engine("vllm", setup, {"urls": server.url, "transfer": "gloo"})


@cache
def _pair() -> tuple[ProcessGroupGloo, ProcessGroupGloo]:
    """The sender and the receiver of a group."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=20))
    other = TCPStore("127.0.0.1", store.port, wait_for_workers=False)
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(envsuite_stream.join_group, other, 1, 2, "127.0.0.1", 20.0)
        return envsuite_stream.join_group(store, 0, 2, "127.0.0.1", 20.0), second.result()


FORMATS = [torch.float32, torch.bfloat16, torch.int8, torch.float64]
SHAPES = st.lists(
    st.tuples(st.lists(st.integers(0, 5), max_size=3), st.sampled_from(FORMATS), st.booleans()), max_size=6
)


@given(SHAPES, st.integers(1, 300))
def test_tensors_of_any_format_and_shape_arrive_as_they_are(
    shapes: list[tuple[list[int], torch.dtype, bool]], part: int
) -> None:
    first, second = _pair()
    weights = {
        f"weight.{i}": tensor.mT if turned and len(shape) > 1 else tensor
        for i, (shape, dtype, turned) in enumerate(shapes)
        for tensor in [(torch.randn(shape) * 50).to(dtype)]
    }
    with pytest.MonkeyPatch.context() as patched, ThreadPoolExecutor(1) as pool:
        patched.setattr(envsuite_stream, "PART_BYTES", part)
        receiving = pool.submit(lambda: dict(envsuite_stream.receive(second)))
        assert len([*envsuite_stream.send(weights.items(), [first])]) <= len(weights) + 1
        got = receiving.result(20)
    assert [*got] == [*weights]
    for name, tensor in weights.items():
        assert got[name].dtype == tensor.dtype and torch.equal(got[name], tensor)
