"""The engine vllm against a stand-in for vLLM's server, which has the faults that vLLM does not have when asked."""

from __future__ import annotations

import copy
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from protocol_server import ProtocolServer
from transformers import AutoModelForCausalLM, PreTrainedModel

sys.path.insert(0, str(Path(__file__).parents[1] / "trainers"))
from tiny_runs import ROOT, model, save_model, tokenizer, train, weights, without_times, write_settings

from envsuite.core.errors import UsageError
from trainers.policy.config import ModelConfig
from trainers.rollout.engine import Engine, EngineFailed, EngineSetup, Request, Sampling
from trainers.rollout.engines import engine_class, make_engine
from trainers.rollout.vllm.calls import Calls
from trainers.rollout.vllm.child import first_error
from trainers.rollout.vllm.connection import Connection
from trainers.rollout.vllm.engine import VLLMEngine
from trainers.rollout.vllm.files import FileUpdate
from trainers.rollout.vllm.server.envsuite_weights import fingerprint, fingerprints, layer_group
from trainers.settings import ConfigError

STOPS = tuple(range(3, 23))


@pytest.fixture
def policy() -> PreTrainedModel:
    """The trainer's; untied."""
    return copy.deepcopy(model("llama", len(tokenizer())))


@pytest.fixture
def server(policy: PreTrainedModel) -> Iterator[ProtocolServer]:
    with ProtocolServer(policy) as running:
        yield running


Made = Callable[..., Engine]


@pytest.fixture
def make(policy: PreTrainedModel, tmp_path: Path) -> Iterator[Made]:
    made: list[Engine] = []

    def engine(*servers: ProtocolServer, **options: Any) -> Engine:
        setup = EngineSetup(policy, tokenizer(), ModelConfig(path="unread"), 16)
        plain = {"urls": [s.url for s in servers], "weights_folder": str(tmp_path), "patience": 1.0}
        made.append(make_engine("vllm", setup, {**plain, **options}))
        made[-1].sync(policy.named_parameters(), 0)
        return made[-1]

    yield engine
    for one in made:
        one.close()


def _change(policy: PreTrainedModel, name: str = "", by: float = 0.05) -> None:
    with torch.no_grad():
        for key, parameter in policy.named_parameters():
            if key.startswith(name):
                parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * by)


def _logprobs(policy: PreTrainedModel, prompt: list[int], response: list[int], temperature: float) -> np.ndarray:
    with torch.no_grad():
        logits = policy(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1] / temperature
    return logits.log_softmax(-1).gather(1, torch.tensor(response)[:, None])[:, 0].numpy()


# -- requests ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 0.4])
def test_tokens_come_with_their_logprobs_at_the_temperature_they_were_sampled_at(
    policy: PreTrainedModel, server: ProtocolServer, make: Made, temperature: float
) -> None:
    engine = make(server)
    _change(policy)
    engine.sync(policy.named_parameters(), 5)
    prompts = [[7, 8, 9, 10 + i] for i in range(6)]
    sampling = Sampling(temperature=temperature, max_tokens=40, stop_ids=STOPS)
    answers = engine.generate(prompts, sampling, seed=1)
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = answer.token_ids.tolist()
        np.testing.assert_allclose(answer.logprobs, _logprobs(policy, prompt, ids, temperature), atol=1e-4)
        assert answer.finish_reason == ("stop" if ids[-1] in STOPS else "length") and not {*ids[:-1]} & {*STOPS}
        assert answer.policy_version.tolist() == [5] * len(ids)
    assert {answer.finish_reason for answer in answers} == {"stop", "length"}
    again = engine.generate(prompts, sampling, seed=1)
    assert [a.token_ids.tolist() for a in again] == [a.token_ids.tolist() for a in answers]


def test_every_setting_of_the_distribution_is_said_so_that_none_is_the_models_own(
    server: ProtocolServer, make: Made
) -> None:
    make(server).generate([[5, 6]], Sampling(0.5, 0.9, 7, 4, (2, 3)), seed=1)
    (body,) = server.asked
    said = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "max_tokens": 4, "stop_token_ids": [2, 3], "min_p": 0.0}
    said |= {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "ignore_eos": True}
    assert said.items() <= body.items() and body["model"] == "served" and body["prompt"] == [[5, 6]]


def test_prompts_that_cannot_be_served_are_answered_without_asking(server: ProtocolServer, make: Made) -> None:
    engine = make(server)
    vocabulary = len(tokenizer())
    answers = engine.generate([[], [4] * 512, [vocabulary], [4] * 500], Sampling(max_tokens=20, ignore_eos=True))
    assert [a.finish_reason for a in answers] == ["error", "context", "error", "length"]
    assert "empty" in str(answers[0].error) and "no room" in str(answers[1].error)
    assert f"outside 0..{vocabulary - 1}" in str(answers[2].error)
    assert len(answers[3].token_ids) == 12 and len(server.asked) == 1


def test_a_session_stays_with_its_server_and_new_ones_go_where_the_fewest_are(
    policy: PreTrainedModel, make: Made
) -> None:
    with ProtocolServer(policy) as one, ProtocolServer(policy) as two:
        engine = make(one, two)

        def ask(*sessions: int) -> None:
            engine.submit([Request(s, [9, s + 10], Sampling(max_tokens=2), s, s) for s in sessions])
            while engine.pending:
                engine.poll()

        def asked(server: ProtocolServer) -> set[int]:
            found = {body["prompt"][0][1] - 10 for body in server.asked}
            server.asked.clear()
            return found

        ask(*range(6))
        first, second = asked(one), asked(two)
        assert len(first) == len(second) == 3 and first | second == set(range(6))
        ask(*range(6))
        assert (asked(one), asked(two)) == (first, second)
        for session in first:
            engine.release(session)
        ask(20, 21, 22)
        assert asked(one) == {20, 21, 22}, "the others are all on the second server"


def test_nothing_is_asked_of_a_server_before_it_has_the_policys_weights(
    policy: PreTrainedModel, server: ProtocolServer
) -> None:
    engine = make_engine("vllm", EngineSetup(policy, tokenizer(), ModelConfig(), 4), {"urls": server.url})
    with pytest.raises(UsageError, match="call sync first"):
        engine.submit([Request(0, [5, 6], Sampling(max_tokens=2))])
    engine.close()


# -- faults ------------------------------------------------------------------------------------------------------------


def test_a_server_that_fails_for_a_moment_is_asked_again(server: ProtocolServer, make: Made) -> None:
    engine = make(server)
    sampling = Sampling(max_tokens=5)
    expected = engine.generate([[5, 6]], sampling, seed=1)[0].token_ids.tolist()
    server.faults["/v1/completions"] = [lambda: (500, b"out of order"), lambda: (0, None), lambda: (503, {})]
    assert engine.generate([[5, 6]], sampling, seed=1)[0].token_ids.tolist() == expected
    assert not server.faults["/v1/completions"]


def test_a_server_that_is_gone_ends_the_run_with_its_address(policy: PreTrainedModel, make: Made) -> None:
    with ProtocolServer(policy) as server:
        engine = make(server, patience=0.5)
    with pytest.raises(EngineFailed, match=rf"{server.url}: POST /v1/completions: .*Is it running\?"):
        engine.generate([[5, 6]], Sampling(max_tokens=5))


def test_a_server_that_was_restarted_is_not_asked_for_tokens_of_weights_it_has_lost(
    policy: PreTrainedModel, server: ProtocolServer, make: Made
) -> None:
    engine = make(server)
    engine.sync(policy.named_parameters(), 4)

    def restarted() -> tuple[int, Any]:
        server.about["version"] = None
        return 0, None

    server.faults["/v1/completions"] = [restarted]
    with pytest.raises(EngineFailed, match=r"restarted and has lost the weights of version 4; go on with --resume"):
        engine.generate([[5, 6]], Sampling(max_tokens=5))


def test_what_the_server_refuses_is_an_error_of_that_request_alone(server: ProtocolServer, make: Made) -> None:
    engine = make(server)
    server.faults["/v1/completions"] = [lambda: (400, {"error": {"message": "no such token"}})]
    answers = engine.generate([[5, 6], [5, 7]], Sampling(max_tokens=3))
    failed = [a for a in answers if a.error is not None]
    assert len(failed) == 1 and "no such token" in str(failed[0].error) and failed[0].finish_reason == "error"


PLAIN = {"index": 0, "token_ids": [4, 5], "logprobs": {"token_logprobs": [-1.0, -2.0]}, "finish_reason": "length"}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"<html>", "is no JSON"),
        ({"choices": [{key: PLAIN[key] for key in PLAIN if key != "token_ids"}]}, "answered without 'token_ids'"),
        ({"choices": [{**PLAIN, "logprobs": {"token_logprobs": [-1.0]}}]}, "1 log-probabilities for 2 tokens"),
        ({"choices": [{**PLAIN, "logprobs": None}]}, "answered without"),
        ({"choices": []}, "0 answers to 1 prompts"),
        ([], "answered without"),
    ],
    ids=["html", "no ids", "too few", "none", "no choice", "list"],
)
def test_an_answer_that_is_not_vllms_ends_the_run(answer: Any, said: str, server: ProtocolServer, make: Made) -> None:
    engine = make(server)
    server.faults["/v1/completions"] = [lambda: (200, answer)]
    with pytest.raises(EngineFailed, match=said):
        engine.generate([[5, 6]], Sampling(max_tokens=2))


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({"dtype": "bfloat16"}, "computes in bfloat16, and model.compute_dtype is float32: start it with --dtype"),
        ({"logprobs_mode": "raw_logprobs"}, "start it with --logprobs-mode processed_logprobs"),
        ({"quantization": "fp8"}, "quantised weights"),
        ({"cuts_prompts": True}, "start it with --no-enable-chunked-prefill"),
        ({"protocol": "0"}, "another version of envsuite_worker.py"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_server_that_computes_otherwise_is_refused(
    about: dict[str, Any], said: str, server: ProtocolServer, make: Made
) -> None:
    server.about |= about
    with pytest.raises(ConfigError, match=said):
        make(server)


def test_a_server_with_another_model_is_refused_and_told_from_this_one(make: Made) -> None:
    with ProtocolServer(model("qwen2", len(tokenizer()))) as other, pytest.raises(ConfigError) as raised:
        make(other)
    assert "serves another model: model_type is 'qwen2' there and 'llama' in model.path" in str(raised.value)


def test_a_server_without_the_trainers_extension_is_refused_with_the_remedy(server: ProtocolServer, make: Made) -> None:
    server.faults["/collective_rpc"] = [lambda: (404, {"detail": "Not Found"})]
    with pytest.raises(EngineFailed, match=r"VLLM_SERVER_DEV_MODE=1 and --worker-extension-cls"):
        make(server)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"urls": "127.0.0.1:8000"}, "must be like http://127.0.0.1:8000"),
        ({"urls": []}, "must be like"),
        ({"urls": "http://x", "python": "python3"}, "urls names servers that run, and python is for one that"),
        ({"urls": "http://x", "arguments": {}}, "urls names servers that run, and arguments is for one that"),
        ({"python": "/no/such/python"}, "there is no interpreter /no/such/python"),
        ({"python": sys.executable, "arguments": ["--x"]}, "must be like {max-model-len: 4096}"),
        ({"urls": "http://x", "weights_folder": "/no/such"}, "there is no folder /no/such"),
        ({"urls": "http://x", "sleep": True}, "sleep is for one that is started"),
        ({"urls": "http://x", "patience": 0}, "patience is 0; it must be seconds, above 0"),
        ({"urls": "http://x", "timeout": "long"}, "timeout is 'long'"),
        ({"url": "http://x"}, "unexpected keyword argument 'url'"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_settings_that_cannot_work_are_refused_before_a_model_is_loaded(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        engine_class("vllm", options)
    assert said in str(raised.value) and "rollout.engine_options" in str(raised.value)


@pytest.mark.slow
def test_a_run_whose_server_dies_stops_with_a_checkpoint_and_goes_on_from_it_as_if_nothing_had_happened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from trainers.train import main

    policy = AutoModelForCausalLM.from_pretrained(save_model(tmp_path / "model", "llama"))
    runs = []
    for name, left in (("whole", 1 << 60), ("struck", 40)):
        with ProtocolServer(policy) as server:
            options = {"urls": server.url, "weights_folder": str(tmp_path), "patience": 0.3}
            changes = {"name": name, "rollout.engine": "vllm", "rollout.engine_options": options, "iterations": 2}
            config = write_settings(tmp_path, **changes)
            server.completions_left = left
            code = main(["--config", str(config)])
            runs.append(tmp_path / "runs" / name)
            told = capsys.readouterr().err
            if name == "whole":
                assert code == 0
                continue
            assert code == 1 and f"vLLM server {server.url}" in told
            assert "Go on with --resume (checkpoint" in told and [*(runs[-1] / "checkpoints").iterdir()]
        with ProtocolServer(policy, port=server.port) as server:
            assert main(["--config", str(config), "--resume"]) == 0
    assert without_times(runs[0])[-1] == without_times(runs[1])[-1]
    finals = [run / "checkpoints" / "iteration-00002" for run in runs]
    assert weights(finals[0]) == weights(finals[1])


@pytest.mark.slow
def test_processes_that_share_servers_all_stop_where_an_update_fails(tmp_path: Path) -> None:
    policy = AutoModelForCausalLM.from_pretrained(save_model(tmp_path / "model", "llama"))
    with ProtocolServer(policy) as one, ProtocolServer(policy) as two:
        options = {"urls": [one.url, two.url], "weights_folder": str(tmp_path), "patience": 1.0}
        changes = {"rollout.engine": "vllm", "rollout.engine_options": options, "iterations": 2}
        config = write_settings(tmp_path, **changes)
        launch = (sys.executable, "-m", "accelerate.commands.launch", "--config_file")
        program = (*launch, str(ROOT / "configs/accelerate/cpu2.yaml"), "-m", "trainers.train")
        run = train("--config", str(config), program=program, timeout=300)
        assert run.returncode == 0, run.stderr
        final = [AutoModelForCausalLM.from_pretrained(tmp_path / "runs/tiny/checkpoints/iteration-00002")]
        for server in (one, two):
            assert server.asked, "both are asked"
            assert fingerprints(server.model.named_parameters()) == fingerprints(final[0].named_parameters())
        two.loads = False
        run = train("--config", str(config), "--name", "stale", program=program, timeout=300)
        assert run.returncode != 0 and run.stderr.count(f"vLLM server {two.url}: after the update") == 1
        assert "not the trainer's in" in run.stderr and [*(tmp_path / "runs/stale/checkpoints").iterdir()]


# -- weights -----------------------------------------------------------------------------------------------------------


def test_a_request_in_flight_goes_on_under_new_weights_with_the_version_of_each_token(
    policy: PreTrainedModel, server: ProtocolServer, make: Made
) -> None:
    engine = make(server)
    engine.sync(policy.named_parameters(), 1)
    before = copy.deepcopy(policy)
    server.token_seconds = 0.01
    prompts = [[7, 8, 9, 10 + i] for i in range(4)]
    sampling = Sampling(max_tokens=60, ignore_eos=True)
    engine.submit([Request(i, prompt, sampling, i, i) for i, prompt in enumerate(prompts)])
    assert engine.poll(0.25) == []
    _change(policy)
    engine.sync(policy.named_parameters(), 2)
    server.token_seconds = 0.0
    answers = []
    while engine.pending:
        answers += engine.poll()
    for answer in answers:
        ids, versions = answer.token_ids.tolist(), answer.policy_version
        assert len(ids) == 60 and set(versions.tolist()) == {1, 2} and (np.diff(versions) >= 0).all()
        old = int((versions == 1).sum())
        prompt = prompts[answer.request_id]
        np.testing.assert_allclose(answer.logprobs[:old], _logprobs(before, prompt, ids[:old], 1.0), atol=1e-4)
        under_new = _logprobs(policy, prompt, ids, 1.0)
        np.testing.assert_allclose(answer.logprobs[old:], under_new[old:], atol=1e-4)
        assert np.abs(answer.logprobs[:old] - under_new[:old]).max() > 0.01, "the weights did change"
    continued = [body for body in server.asked if len(body["prompt"][0]) > 4]
    assert {body["seed"] for body in continued}.isdisjoint({b["seed"] for b in server.asked if b not in continued})


def test_what_is_submitted_while_weights_change_is_sampled_with_the_new_ones(
    policy: PreTrainedModel, server: ProtocolServer, make: Made
) -> None:
    engine = make(server)
    server.faults["/pause"] = [lambda: (time.sleep(0.3), server.answer("/pause", {}))[1]]  # type: ignore[func-returns-value]
    syncing = threading.Thread(target=engine.sync, args=([*policy.named_parameters()], 3))
    syncing.start()
    time.sleep(0.15)
    engine.submit([Request(0, [5, 6], Sampling(max_tokens=4, ignore_eos=True))])
    syncing.join()
    assert engine.poll()[0].policy_version.tolist() == [3] * 4


def test_an_update_that_changes_nothing_stops_the_run(
    policy: PreTrainedModel, server: ProtocolServer, make: Made
) -> None:
    engine = make(server)
    engine.sync(policy.named_parameters(), 1)
    server.loads = False
    engine.sync(policy.named_parameters(), 2)  # nothing had to change
    _change(policy, "model.layers", by=1e-6)
    with pytest.raises(
        EngineFailed, match=r"version 3 its weights are not the trainer's in layers\.0, layers\.1: they"
    ):
        engine.sync(policy.named_parameters(), 3)
    engine.submit([Request(0, [5, 6], Sampling(max_tokens=4))])
    assert engine.poll(0.2) == [] and not server.asked, "nothing is sampled with stale weights"


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("model.layers.1.mlp.down_proj.weight", "layers.1"),
        ("model.layers.0.self_attn.k_proj.weight", "layers.0"),
        ("lm_head.weight", "lm_head"),
        ("model.norm.weight", "norm"),
    ],
)
def test_an_update_that_leaves_out_a_layer_stops_the_run_and_names_it(
    name: str, group: str, policy: PreTrainedModel, server: ProtocolServer, make: Made
) -> None:
    engine = make(server)
    server.corrupted = name
    _change(policy, by=1e-5)  # far below what a probe sees
    with pytest.raises(EngineFailed, match=rf"not the trainer's in {group}: they are stale, loaded in part"):
        engine.sync(policy.named_parameters(), 1)


def test_embeddings_that_the_server_ties_and_the_trainer_does_not_are_named(
    policy: PreTrainedModel, server: ProtocolServer, make: Made
) -> None:
    engine = make(server)
    server.model.lm_head.weight = server.model.model.embed_tokens.weight
    server.model.lm_head.register_parameter("extra", None)
    server.loads = False
    with pytest.raises(EngineFailed, match=r"not the trainer's in lm_head"):
        engine.sync(policy.named_parameters(), 1)


@pytest.mark.parametrize("separate", [False, True])
def test_tied_embeddings_hold_whether_or_not_the_server_keeps_two_copies(tmp_path: Path, separate: bool) -> None:
    policy = copy.deepcopy(model("qwen2", len(tokenizer())))
    assert policy.lm_head.weight is policy.model.embed_tokens.weight
    with ProtocolServer(policy) as server:
        if separate:
            server.model.lm_head.weight = torch.nn.Parameter(policy.lm_head.weight.detach().clone())
        options = {"urls": server.url, "weights_folder": str(tmp_path)}
        engine = make_engine("vllm", EngineSetup(policy, tokenizer(), ModelConfig(), 4), options)
        engine.sync(policy.named_parameters(), 1)
        _change(policy)
        if separate:
            with pytest.raises(EngineFailed, match="not the trainer's in lm_head"):
                engine.sync(policy.named_parameters(), 2)
        else:
            engine.sync(policy.named_parameters(), 2)
        engine.close()


def test_a_server_with_the_weights_that_computes_something_else_stops_the_run(
    policy: PreTrainedModel, server: ProtocolServer, make: Made
) -> None:
    engine = make(server)
    server.temperature = 1.0
    with pytest.raises(EngineFailed, match=r"log-probabilities of a probe differ .*though it holds the weights"):
        engine.sync(policy.named_parameters(), 1)


def test_weights_that_find_no_room_stop_the_run_with_the_setting(
    policy: PreTrainedModel, server: ProtocolServer, make: Made, tmp_path: Path
) -> None:
    engine = make(server)
    tmp_path.rename(tmp_path.with_name("gone"))
    with pytest.raises(EngineFailed, match=r"rollout\.engine_options\.weights_folder: .*No such file"):
        engine.sync(policy.named_parameters(), 1)


def test_servers_sleep_while_the_model_trains_and_wake_for_its_weights(
    policy: PreTrainedModel, server: ProtocolServer, tmp_path: Path
) -> None:
    setup = EngineSetup(policy, tokenizer(), ModelConfig(), 4)
    connection = Connection(server.url, patience=1.0, timeout=60.0)
    update = FileUpdate([connection], setup, own=True, folder=tmp_path)
    engine = VLLMEngine(setup, Calls([connection], 4), update, sleeps=True)
    engine.sync(policy.named_parameters(), 1)
    engine.rest()
    assert server.asleep
    engine.sync(policy.named_parameters(), 2)
    assert not server.asleep and len(engine.generate([[5, 6]], Sampling(max_tokens=3))[0].token_ids)
    server.faults["/sleep"] = [lambda: (400, {"error": "no sleep mode"})]
    engine.rest()  # it keeps its memory, and the run goes on
    engine.sync(policy.named_parameters(), 3)
    engine.close()


def test_nothing_is_left_of_weights_on_their_way(
    policy: PreTrainedModel, server: ProtocolServer, make: Made, tmp_path: Path
) -> None:
    engine = make(server)
    engine.sync(policy.named_parameters(), 1)
    assert not [*tmp_path.iterdir()]


def test_the_first_error_in_a_log_is_told_and_not_what_a_warning_quotes() -> None:
    warning = (
        "(APIServer pid=1) WARNING [system_utils.py:255] can cause errors like `OSError: [Errno 24] Too many files`"
    )
    error = "(Worker pid=2) ERROR 11-22 14:26:04 [multiproc_executor.py:1063] RuntimeError: no offset"
    later = "(EngineCore pid=3) ERROR 11-22 14:26:05 [core.py:9] EngineDeadError: see above"
    assert first_error([warning, error, later]) == "RuntimeError: no offset"
    assert first_error(["Traceback:", "ValueError: too few heads"]) == "ValueError: too few heads"
    assert first_error([warning]) == ""


# -- fingerprints ------------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**32), st.sampled_from([torch.float32, torch.bfloat16, torch.float64]), st.integers(0, 59))
def test_a_fingerprint_holds_for_joined_transposed_and_padded_weights_and_for_no_other(
    seed: int, dtype: torch.dtype, place: int
) -> None:
    weights = torch.randn(60, generator=torch.Generator().manual_seed(seed)).to(dtype)
    whole = fingerprint(weights)
    assert fingerprint(weights.view(6, 10).T) == fingerprint(torch.cat([weights, torch.zeros(7, dtype=dtype)])) == whole
    assert (fingerprint(weights[:23]) + fingerprint(weights[23:])) % 2**64 == whole
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[weights.element_size()]
    other = weights.clone()
    other.view(bits)[place] ^= 1
    assert fingerprint(other) != whole


def test_parameters_belong_to_the_same_group_whatever_a_server_joins() -> None:
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
