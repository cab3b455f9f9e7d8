"""Requests and faults of the engine vllm, with a stand-in for vLLM's server that can have these faults."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from policies import change, check_sampled, drained
from protocol_server import ProtocolServer
from tiny_runs import BOTH, model, save_model, tokenizer, train, weights, without_times, write_settings
from transformers import AutoModelForCausalLM
from vllm_interpreters import vllm_interpreter

from envsuite.core.errors import UnknownName, UsageError
from envsuite.playing.engine import EngineFailed, Request, Sampling
from trainers.policy.config import ModelConfig
from trainers.rollout.engine import Engine, EngineSetup
from trainers.rollout.engines import check_machine, make_engine
from trainers.rollout.vllm.child import first_error
from trainers.rollout.vllm.inside import InProcessHost
from trainers.rollout.vllm.options import VLLMOptions, share_of
from trainers.rollout.vllm.server.envsuite_weights import fingerprints
from trainers.rollout.vllm.starting import arguments_for
from trainers.settings import ConfigError

GIB = 1 << 30
Made = Callable[..., Engine]


# -- requests ----------------------------------------------------------------------------------------------------------


@pytest.mark.seconds
@pytest.mark.parametrize("temperature", [1.0, 0.4])
def test_tokens_come_with_their_logprobs_at_the_temperature_they_were_sampled_at(policy, engine, temperature):
    change(policy)
    engine.sync(policy.named_parameters(), 5)
    answers = check_sampled(engine, policy, temperature, 5, 1e-4)
    assert {answer.finish_reason for answer in answers} == {"stop", "length"}


def test_every_setting_of_the_distribution_is_said_so_that_none_is_the_models_own(server, make):
    make(server).generate([[5, 6]], Sampling(0.5, 0.9, 7, 4, (2, 3)), seed=1)
    (body,) = server.asked
    said = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "max_tokens": 4, "stop_token_ids": [2, 3], "min_p": 0.0}
    said |= {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "ignore_eos": True}
    assert said.items() <= body.items() and body["model"] == "served" and body["prompt"] == [[5, 6]]


def test_prompts_that_cannot_be_served_are_answered_without_asking(server, engine):
    vocabulary = len(tokenizer())
    answers = engine.generate([[], [4] * 512, [vocabulary], [4] * 500], Sampling(max_tokens=20, ignore_eos=True))
    assert [a.finish_reason for a in answers] == ["error", "context", "error", "length"]
    assert "empty" in str(answers[0].error) and "no room" in str(answers[1].error)
    assert f"outside 0..{vocabulary - 1}" in str(answers[2].error)
    assert len(answers[3].token_ids) == 12 and len(server.asked) == 1


def test_a_session_stays_with_its_server_and_new_ones_go_where_the_fewest_are(policy, make):
    with ProtocolServer(policy) as one, ProtocolServer(policy) as two:
        engine = make(one, two)

        def ask(*sessions: int) -> None:
            engine.submit([Request(s, [9, s + 10], Sampling(max_tokens=2), s, s) for s in sessions])
            drained(engine)

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


def test_a_server_that_left_a_request_unanswered_gets_no_new_session_while_others_have_left_none(policy, make):
    with ProtocolServer(policy) as one, ProtocolServer(policy) as two:
        engine = make(one, two)
        assert engine.background
        places = []
        for session in (0, 0, 1, 2):
            engine.submit([Request(len(places), [5, 6], Sampling(max_tokens=1), session)])
            places.append(engine.where(session))
            drained(engine)
            if len(places) == 1:
                engine.abandon(0, 0)
                engine.release(0)
        assert places[0] not in places[1:] and len({*places[1:]}) == 1


def test_nothing_is_asked_of_a_server_before_it_has_the_policys_weights(policy, server):
    engine = make_engine("vllm", EngineSetup(policy, tokenizer(), ModelConfig(), 4), {"urls": server.url})
    with pytest.raises(UsageError, match="call sync first"):
        engine.submit([Request(0, [5, 6], Sampling(max_tokens=2))])
    engine.close()


# -- faults ------------------------------------------------------------------------------------------------------------


def test_a_server_that_fails_for_a_moment_is_asked_again(server, make):
    engine = make(server, patience=60.0)
    sampling = Sampling(max_tokens=5)
    expected = engine.generate([[5, 6]], sampling, seed=1)[0].token_ids.tolist()
    server.faults["/v1/completions"] = [lambda: (500, b"out of order"), lambda: (0, None), lambda: (503, {})]
    assert engine.generate([[5, 6]], sampling, seed=1)[0].token_ids.tolist() == expected
    assert not server.faults["/v1/completions"]


def test_what_the_server_refuses_is_an_error_of_that_request_alone(server, engine):
    server.faults["/v1/completions"] = [lambda: (400, {"error": {"message": "no such token"}})]
    answers = engine.generate([[5, 6], [5, 7]], Sampling(max_tokens=3))
    failed = [a for a in answers if a.error is not None]
    assert len(failed) == 1 and "no such token" in str(failed[0].error) and failed[0].finish_reason == "error"


PLAIN = {"index": 0, "token_ids": [4, 5], "logprobs": {"token_logprobs": [-1.0, -2.0]}, "finish_reason": "length"}


@pytest.mark.seconds
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
def test_an_answer_that_is_not_vllms_ends_the_run(answer, said, server, engine):
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
        ({"protocol": "1"}, "another version of envsuite_worker.py"),
        ({"balances_elsewhere": True}, "start each without --data-parallel-rank, -external-lb and -hybrid-lb"),
        (
            {"config": model("qwen2", len(tokenizer())).config.to_dict()},
            "serves another model: model_type is 'qwen2' there and 'llama' in model.path",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_server_that_computes_otherwise_is_refused(about, said, server, make):
    server.about |= about
    with pytest.raises(ConfigError, match=said):
        make(server)


def test_a_server_without_the_trainers_extension_is_refused_with_the_remedy(server, make):
    server.faults["/collective_rpc"] = [lambda: (404, {"detail": "Not Found"})]
    with pytest.raises(EngineFailed, match=r"VLLM_SERVER_DEV_MODE=1 and --worker-extension-cls"):
        make(server)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"urls": "127.0.0.1:8000"}, "must be like http://127.0.0.1:8000"),
        ({"urls": []}, "must be like"),
        ({"urls": 8000}, "must be like http://127.0.0.1:8000"),
        ({"urls": ["http://x", "http://me:hush@h:8000"]}, "urls of h has a password or a query in it"),
        ({"urls": "http://x", "python": "python3"}, "urls names servers that run, and python is for one that"),
        ({"urls": "http://x", "arguments": {}}, "urls names servers that run, and arguments is for one that"),
        ({"python": "/no/such/python"}, "there is no interpreter /no/such/python"),
        ({"python": sys.executable, "arguments": ["--x"]}, "arguments is ['--x']; it must be a section of settings"),
        ({"urls": "http://x", "weights_folder": "/no/such"}, "there is no folder /no/such"),
        ({"urls": "http://x", "sleep": True}, "sleep is for one that is started"),
        ({"urls": "http://x", "memory": 0.4}, "memory is for one that is started"),
        ({"urls": "http://x", "place": "process"}, "urls names servers, and place is process"),
        ({"place": "process", "python": "python3"}, "place is process, and python is for servers"),
        ({"place": "thread"}, "unknown place 'thread'"),
        ({"python": sys.executable, "memory": 4}, "memory is 4; it must be less than 1"),
        ({"memory": 0.4, "arguments": {"gpu_memory_utilization": 0.4}}, "are the same; leave one out"),
        ({"urls": "http://x", "patience": 0}, "patience is 0; it must be greater than 0"),
        ({"urls": "http://x", "timeout": "long"}, "timeout is 'long'"),
        ({"url": "http://x"}, "unknown setting 'url'. Nearest: 'urls'"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_settings_that_cannot_work_are_refused_before_a_model_is_loaded(options, said):
    with pytest.raises((ConfigError, UnknownName)) as raised:
        check_machine("vllm", options)
    assert said in str(raised.value) and "rollout.engine_options" in str(raised.value)
    assert "hush" not in str(raised.value)


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
def test_vllm_in_a_process_that_has_none_is_refused_with_the_remedy():
    with pytest.raises(ConfigError, match=r"has no vLLM; place is process, so start the trainer with one that has"):
        check_machine("vllm", {"place": "process"})


@pytest.mark.parametrize(
    ("vllm", "torch", "said"),
    [
        ("0.32.0", "2.13.0+cpu", None),
        ("0.33.0", "2.14.0+cu130", None),
        ("0.33.0", "2.13.0", "vLLM 0.33.0 wants torch==2.14.0, and .* has 2.13.0; give it one of its own: python -m"),
        ("0.32.0", "2.14.0", "vLLM 0.32.0 wants torch==2.13.0, and .* has 2.14.0; give it one of its own: python -m"),
        (None, "2.13.0", "has no vLLM; name one that has with rollout.engine_options.python or ENVSUITE_VLLM_PYTHON"),
    ],
)
def test_each_pairing_of_vllm_and_torch_that_cannot_be_is_refused_in_a_line(vllm, torch, said, tmp_path, monkeypatch):
    monkeypatch.setenv("ENVSUITE_VLLM_PYTHON", vllm_interpreter(tmp_path, vllm, torch))
    if said is None:
        check_machine("vllm", {})
        return
    with pytest.raises(ConfigError, match=said) as raised:
        check_machine("vllm", {})
    assert "\n" not in str(raised.value)


def test_the_start_names_the_vllm_and_warns_of_one_that_was_not_tested(tmp_path, caplog):
    caplog.set_level("INFO")
    for version in ("0.33.0", "0.40.0"):
        check_machine("vllm", {"python": vllm_interpreter(tmp_path / version, version, "2.14.0")})
    tested, other = caplog.records
    assert (tested.levelname, other.levelname) == ("INFO", "WARNING")
    assert tested.message.startswith("vLLM 0.33.0 with torch 2.14.0 in ")
    assert other.message.endswith("; tested were 0.32 and 0.33")


@pytest.mark.parametrize(
    ("arguments", "length", "batched"),
    [({}, "auto", "8192"), ({"max_model_len": 9000}, "9000", "9000"), ({"max-model-len": "auto"}, "auto", "8192"),
     ({"max-model-len": None}, None, "8192")],
)  # fmt: skip
def test_vllm_fits_its_longest_sequence_to_its_memory_unless_the_user_names_it(arguments, length, batched, policy):
    words = arguments_for(policy, "float32", on_cpu=True, memory=None, arguments=arguments)
    options = dict(pairwise(words))
    assert options.get("--max-model-len") == length and options["--max-num-batched-tokens"] == batched


# -- memory of a GPU ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["server", "process"])
def test_what_is_started_on_a_gpu_takes_a_share_of_what_is_free_and_sleeps_while_the_model_trains(
    place, policy, monkeypatch
):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (60 * GIB, 80 * GIB))
    options, gpu = VLLMOptions(place=place), torch.device("cuda", 0)
    assert options.sleeps(gpu) and options.share(policy, gpu, torch.bfloat16) == 0.64  # under 60 / 80 less a tenth
    assert replace(options, sleep=False).share(policy, gpu, torch.bfloat16) == 0.3
    assert replace(options, memory=0.5).share(policy, gpu, torch.bfloat16) == 0.5
    running = VLLMOptions(urls="http://127.0.0.1:8000")
    assert not running.sleeps(gpu) and running.share(policy, gpu, torch.bfloat16) is None
    cpu = torch.device("cpu")
    assert not options.sleeps(cpu) and options.share(policy, cpu, torch.bfloat16) is None
    words = arguments_for(
        policy, "bfloat16", on_cpu=False, memory=options.share(policy, gpu, torch.bfloat16),
        arguments={"enable-sleep-mode": options.sleeps(gpu)},
    )  # fmt: skip
    assert words[words.index("--gpu-memory-utilization") + 1] == "0.64" and "--enable-sleep-mode" in words


@given(st.integers(1, 200), st.floats(0, 1), st.floats(0, 1), st.floats(0, 0.5), st.sampled_from([0.3, 0.9]))
def test_vllm_and_what_the_trainer_has_yet_to_allocate_fit_into_what_is_free(gib, free, coming, weights, most):
    total = gib * GIB
    sizes = [int(part * total) for part in (free, coming, weights)]
    try:
        share = share_of(sizes[0], total, sizes[1], sizes[2], most)
    except ConfigError as error:
        assert "set rollout.engine: hf" in str(error) and "\n" not in str(error)
        assert (sizes[0] - sizes[1]) / total - 0.1 < (sizes[2] + GIB) / total or most < (sizes[2] + GIB) / total
        return
    assert share * total + sizes[1] <= sizes[0] and 0 < share <= most


class OutOfMemory:
    """Stands in for vLLM's engine on a device without memory: whatever it is asked raises an error of torch."""

    def __getattr__(self, name: str) -> Any:
        def out_of_memory(*_: Any, **__: Any) -> Any:
            raise torch.OutOfMemoryError("CUDA out of memory")

        return out_of_memory


@pytest.mark.parametrize(
    "asked",
    [
        InProcessHost.step, InProcessHost.pause, lambda inside: inside.drop(["1"]),
        lambda inside: inside.call("envsuite_held"),
        lambda inside: inside.sleep(1), lambda inside: inside.wake_up("weights"),
    ],
    ids=["step", "pause", "drop", "call", "sleep", "wake_up"],
)  # fmt: skip
def test_what_vllm_raises_in_the_trainers_process_ends_the_run_as_a_failure_of_the_engine(asked):
    inside = InProcessHost.__new__(InProcessHost)
    inside.name, inside._engine = "vLLM in this process", OutOfMemory()
    with pytest.raises(EngineFailed, match=r"vLLM in this process: .*OutOfMemoryError: CUDA out of memory"):
        asked(inside)


@pytest.mark.slow
def test_a_run_whose_server_dies_stops_with_a_checkpoint_and_goes_on_from_it_as_if_nothing_had_happened(
    tmp_path, capsys
):
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
def test_processes_that_share_servers_all_stop_where_an_update_fails(tmp_path):
    policy = AutoModelForCausalLM.from_pretrained(save_model(tmp_path / "model", "llama"))
    with ProtocolServer(policy) as one, ProtocolServer(policy) as two:
        options = {"urls": [one.url, two.url], "weights_folder": str(tmp_path), "patience": 1.0}
        changes = {"rollout.engine": "vllm", "rollout.engine_options": options, "iterations": 2}
        config = write_settings(tmp_path, **changes)
        program = (*BOTH, "-m", "trainers.train")
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


def test_the_first_error_in_a_log_is_told_and_not_what_a_warning_quotes():
    warning = (
        "(APIServer pid=1) WARNING [system_utils.py:255] can cause errors like `OSError: [Errno 24] Too many files`"
    )
    error = "(Worker pid=2) ERROR 11-22 14:26:04 [multiproc_executor.py:1063] RuntimeError: no offset"
    later = "(EngineCore pid=3) ERROR 11-22 14:26:05 [core.py:9] EngineDeadError: see above"
    assert first_error([warning, error, later]) == "RuntimeError: no offset"
    assert first_error(["Traceback:", "ValueError: too few heads"]) == "ValueError: too few heads"
    assert first_error([warning]) == ""
