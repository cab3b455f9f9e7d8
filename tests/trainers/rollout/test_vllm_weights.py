"""Updates of the weights of vLLM servers, with a stand-in for the server that can leave parts out."""

from __future__ import annotations

import copy
import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from policies import PROMPTS, ask_all, change, check_update_in_flight
from protocol_server import ProtocolServer
from tiny_runs import model, tokenizer
from waiting import until

from envsuite.playing.engine import EngineFailed, Request, Sampling
from trainers.policy.config import ModelConfig
from trainers.rollout.engine import Engine, EngineSetup
from trainers.rollout.engines import make_engine
from trainers.rollout.vllm import room
from trainers.rollout.vllm.calls import ServerRows
from trainers.rollout.vllm.connection import VLLMConnection
from trainers.rollout.vllm.engine import VLLMEngine
from trainers.rollout.vllm.files import FileUpdate
from trainers.rollout.vllm.proof import Gap, ProbeLimit
from trainers.rollout.vllm.server.envsuite_weights import fingerprint, fingerprints, layer_group
from trainers.settings import ConfigError

Made = Callable[..., Engine]


def test_a_request_in_flight_goes_on_under_new_weights_with_the_version_of_each_token(policy, server, engine):
    engine.sync(policy.named_parameters(), 1)
    before = copy.deepcopy(policy)
    server.halt_at = 5
    ask_all(engine, 60)
    until(lambda: server.halted == len(PROMPTS))
    assert engine.poll(0.0) == []
    change(policy)
    server.halt_at = None
    engine.sync(policy.named_parameters(), 2)
    assert check_update_in_flight(engine, before, policy, 60, 1e-4) == [5] * len(PROMPTS)
    continued = [body for body in server.asked if len(body["prompt"][0]) > 4]
    assert {body["seed"] for body in continued}.isdisjoint({b["seed"] for b in server.asked if b not in continued})


def test_what_is_submitted_while_weights_change_is_sampled_with_the_new_ones(policy, server, engine):
    pausing, go_on = threading.Event(), threading.Event()

    def pause() -> tuple[int, Any]:
        pausing.set()
        assert go_on.wait(60)
        return server.answer("/pause", {})

    server.faults["/pause"] = [pause]
    syncing = threading.Thread(target=engine.sync, args=([*policy.named_parameters()], 3))
    syncing.start()
    assert pausing.wait(60), "what is submitted is held up before the server is told to pause"
    engine.submit([Request(0, [5, 6], Sampling(max_tokens=4, ignore_eos=True))])
    time.sleep(0.1)  # long enough for an answer, were it sent
    go_on.set()
    syncing.join(60)
    assert not syncing.is_alive()
    assert engine.poll(60)[0].policy_version.tolist() == [3] * 4


def test_an_update_that_changes_nothing_stops_the_run(policy, server, engine):
    engine.sync(policy.named_parameters(), 1)
    server.loads = False
    engine.sync(policy.named_parameters(), 2)  # nothing had to change
    change(policy, "model.layers", by=1e-6)
    with pytest.raises(
        EngineFailed, match=r"version 3 its weights are not the trainer's in layers\.0, layers\.1: they"
    ):
        engine.sync(policy.named_parameters(), 3)
    engine.submit([Request(0, [5, 6], Sampling(max_tokens=4))])
    assert engine.poll(0.2) == [] and not server.asked, "nothing is sampled with stale weights"


def test_each_replica_of_a_server_proves_its_weights_and_is_probed(policy, server, make):
    server.replicas = 3
    engine = make(server)
    assert server.asked_replicas == ["0", "1", "2"]
    change(policy, "model.layers.1", by=1e-6)  # far below what a probe sees
    server.stale = 2
    with pytest.raises(
        EngineFailed, match=r"version 1 those of replica 2 are not the trainer's in layers\.1: they are"
    ):
        engine.sync(policy.named_parameters(), 1)


def test_a_replica_that_does_not_say_which_weights_it_has_stops_the_run(policy, server, engine):
    engine._hosts[0].replicas = 2  # and the server has one
    with pytest.raises(EngineFailed, match=r"not all of its 2 replicas say which weights they have \(.*/1-0\.json\)"):
        engine.sync(policy.named_parameters(), 1)


def test_a_request_that_reaches_a_paused_server_which_refuses_it_goes_on_after_the_update(policy, server, engine):
    """As vLLM does from 0.33; earlier ones hold it up and cut it off."""
    arrived = threading.Event()

    def refuse() -> tuple[int, Any]:
        arrived.set()
        until(lambda: server._paused)
        return 503, {"error": {"message": "Generation is paused. Please retry after it resumes.", "code": 503}}

    server.faults["/v1/completions"] = [refuse]
    engine.submit([Request(0, [5, 6], Sampling(max_tokens=4, ignore_eos=True))])
    assert arrived.wait(60)
    engine.sync(policy.named_parameters(), 1)
    assert engine.poll(60)[0].policy_version.tolist() == [1] * 4 and len(engine._hosts) == 1


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("model.layers.1.mlp.down_proj.weight", "layers.1"),
        ("model.layers.0.self_attn.k_proj.weight", "layers.0"),
        ("lm_head.weight", "lm_head"),
        ("model.norm.weight", "norm"),
    ],
)
def test_an_update_that_leaves_out_a_layer_stops_the_run_and_names_it(name, group, policy, server, engine):
    server.corrupted = name
    change(policy, by=1e-5)  # far below what a probe sees
    with pytest.raises(EngineFailed, match=rf"not the trainer's in {group}: they are stale, loaded in part"):
        engine.sync(policy.named_parameters(), 1)


@pytest.mark.parametrize("separate", [False, True])
def test_tied_embeddings_hold_whether_or_not_the_server_keeps_two_copies(tmp_path, separate):
    policy = copy.deepcopy(model("qwen2", len(tokenizer())))
    assert policy.lm_head.weight is policy.model.embed_tokens.weight
    with ProtocolServer(policy) as server:
        if separate:
            server.model.lm_head.weight = torch.nn.Parameter(policy.lm_head.weight.detach().clone())
        options = {"urls": server.url, "weights_folder": str(tmp_path)}
        engine = make_engine("vllm", EngineSetup(policy, tokenizer(), ModelConfig(), 4), options)
        engine.sync(policy.named_parameters(), 1)
        change(policy)
        if separate:
            with pytest.raises(EngineFailed, match="not the trainer's in lm_head"):
                engine.sync(policy.named_parameters(), 2)
        else:
            engine.sync(policy.named_parameters(), 2)
        engine.close()


def test_a_server_with_the_weights_that_computes_something_else_stops_the_run(policy, server, engine):
    server.temperature = 1.0
    with pytest.raises(EngineFailed, match=r"log-probabilities of a probe differ .*though it holds the weights"):
        engine.sync(policy.named_parameters(), 1)


@pytest.mark.seconds
def test_in_bfloat16_the_probe_only_warns_until_its_own_gaps_show_what_rounding_is(policy, make, caplog):
    with ProtocolServer(copy.deepcopy(policy).to(torch.bfloat16), dtype="bfloat16") as server:
        engine = make(server, compute_dtype="bfloat16")
        server.temperature = 0.3  # a gap far above what rounding explains for this model
        for version in (1, 2, 3):
            engine.sync(policy.named_parameters(), version)
        assert caplog.text.count("log-probabilities of a probe differ from the trainer's by") == 2
        server.temperature = 0.02
        with pytest.raises(EngineFailed, match=r"though it holds the weights of version 4 in all layer groups"):
            engine.sync(policy.named_parameters(), 4)


def test_the_probe_stops_at_once_where_no_number_comes_or_nothing_else_proves_the_weights():
    allowed, above = Gap(0.01, 0.1), Gap(0.02, 0.1)
    assert ProbeLimit("bfloat16", proven=True).judge(above, allowed) == "warns"
    assert ProbeLimit("bfloat16", proven=True).judge(Gap(float("nan"), float("nan")), allowed) == "stops"
    assert ProbeLimit("bfloat16", proven=False).judge(above, allowed) == "stops"
    assert ProbeLimit("float32", proven=True).judge(above, allowed) == "stops"


def test_weights_that_find_no_room_stop_the_run_with_the_setting(policy, engine, tmp_path):
    tmp_path.rename(tmp_path.with_name("gone"))
    with pytest.raises(EngineFailed, match=r"rollout\.engine_options\.weights_folder: .*No such file"):
        engine.sync(policy.named_parameters(), 1)


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory with room for 64 KiB, less than the policy's weights."""
    folder = tmp_path / "full"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip(f"a small tmpfs cannot be mounted here: {made.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_folder_in_memory_that_is_too_small_is_refused_before_anything_is_started(server, make, full):
    with pytest.raises(ConfigError, match=rf"{full} has 0\.1 MiB free, and the weights take [0-9.]+ MiB there; set"):
        make(server, weights_folder=str(full))


def test_a_folder_in_memory_that_is_full_stops_the_run_with_what_is_needed_and_free(policy, engine, full):
    engine._update.folder = full  # filled by others since the start
    with pytest.raises(EngineFailed, match=r"No space left on device.*has 0\.. MiB free, and the weights take .* MiB"):
        engine.sync(policy.named_parameters(), 1)
    assert not [*full.iterdir()], "what was written of them is removed"


def test_the_remedy_for_shared_memory_is_the_option_of_containers(monkeypatch):
    monkeypatch.setattr(room.shutil, "disk_usage", lambda folder: SimpleNamespace(free=64 << 20))
    with pytest.raises(ConfigError) as raised:
        room.check_room(Path("/dev/shm"), 160 << 20)
    assert str(raised.value) == (
        "rollout.engine_options.weights_folder: /dev/shm has 64.0 MiB free, and the weights take 160.0 MiB there; "
        "start the container with --shm-size 264m, or set rollout.engine_options.weights_folder to a folder with "
        "room that the servers see, too"
    )


def test_servers_sleep_while_the_model_trains_and_wake_for_its_weights(policy, server, tmp_path):
    setup = EngineSetup(policy, tokenizer(), ModelConfig(), 4)
    connection = VLLMConnection(server.url, patience=1.0, timeout=60.0)
    update = FileUpdate([connection], setup, own=True, folder=tmp_path)
    engine = VLLMEngine(setup, ServerRows([connection], 4), update, sleeps=True)
    engine.sync(policy.named_parameters(), 1)
    engine.rest()
    assert server.asleep
    engine.sync(policy.named_parameters(), 2)
    assert server.asleep_while_loading == [set(), {"kv_cache"}], "keys and values take their memory after the weights"
    assert not server.asleep and len(engine.generate([[5, 6]], Sampling(max_tokens=3))[0].token_ids)
    server.faults["/sleep"] = [lambda: (400, {"error": "no sleep mode"})]
    engine.rest()  # it keeps its memory, and the run goes on
    engine.sync(policy.named_parameters(), 3)
    engine.close()


def test_nothing_is_left_of_weights_on_their_way(policy, engine, tmp_path):
    engine.sync(policy.named_parameters(), 1)
    assert not [*tmp_path.iterdir()]


# -- fingerprints ------------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**32), st.sampled_from([torch.float32, torch.bfloat16, torch.float64]), st.integers(0, 59))
def test_a_fingerprint_holds_for_joined_transposed_and_padded_weights_and_for_no_other(seed, dtype, place):
    weights = torch.randn(60, generator=torch.Generator().manual_seed(seed)).to(dtype)
    whole = fingerprint(weights)
    assert fingerprint(weights.view(6, 10).T) == fingerprint(torch.cat([weights, torch.zeros(7, dtype=dtype)])) == whole
    assert (fingerprint(weights[:23]) + fingerprint(weights[23:])) % 2**64 == whole
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[weights.element_size()]
    other = weights.clone()
    other.view(bits)[place] ^= 1
    assert fingerprint(other) != whole


def test_parameters_belong_to_the_same_group_whatever_a_server_joins():
    names = {
        "model.layers.3.self_attn.q_proj.weight": "layers.3",
        "model.layers.3.self_attn.qkv_proj.weight": "layers.3",
        "language_model.model.layers.12.mlp.gate_up_proj.weight": "layers.12",
        "transformer.h.0.attn.c_attn.bias": "layers.0",
        "model.embed_tokens.weight": "embed_tokens",
        "lm_head.weight": "lm_head",
        "lm_head.base_layer.weight": "lm_head",
        "model.norm.weight": "norm",
    }
    assert {name: layer_group(name) for name in names} == names
    first, second = torch.ones(2), torch.ones(3)
    found = fingerprints([("model.layers.3.a.weight", first), ("model.layers.3.b.weight", second)])
    assert found == {"layers.3": fingerprint(torch.ones(5))} and json.dumps(found)
