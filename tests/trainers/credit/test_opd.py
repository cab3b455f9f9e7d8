"""On-policy distillation: its advantages and gradient beside the way by hand, teachers of all kinds, runs, refusals."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import torch
from accelerate import Accelerator
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from protocol_server import ProtocolServer
from ranks import on_ranks
from step_tables import step_tables
from test_signal_columns import naive
from tiny_runs import (
    BOTH,
    in_float64,
    model,
    save_model,
    step_table,
    tokenizer,
    train,
    trained,
    weights,
    without_times,
    write_settings,
)
from told import lacks
from transformers import AutoModelForCausalLM, PreTrainedModel

from envsuite.playing.step import Step
from trainers.credit.estimators.grpo import GRPO
from trainers.credit.estimators.opd import OPD
from trainers.credit.providers import LocalTeacher, OldLogprobs
from trainers.planning.program import main as plan
from trainers.policy.config import ComputeDtype, ModelConfig, OptimConfig
from trainers.policy.loss import Objective
from trainers.policy.model import Policy
from trainers.policy.sharding import shard
from trainers.policy.update import Updater
from trainers.run import teacher as run_teacher
from trainers.run.teacher import ServedTeacher
from trainers.steps import Ragged, StepTable
from trainers.steps.columns import OLD, TEACHER
from trainers.steps.parquet import read_episodes
from trainers.train import main

SIZE, OPTIM = 61, OptimConfig(tokens_per_microbatch=60)
OPTION = "method.options"
SHORT = {"evaluation.envs": [], "checkpoint_every": 1, "recipe": "opd", "optim.schedule": "constant"}
OBJECTIVE = Objective(aggregation="token-mean", clip_low=None, clip_high=None)
"""The recipe's."""


def wide(number: int) -> PreTrainedModel:
    """A random model in float64."""
    return in_float64(model("qwen2", SIZE, seed=number))


def scored(
    student: PreTrainedModel,
    teacher: PreTrainedModel,
    steps: StepTable,
    dtype: ComputeDtype = "float32",
    temperature: float = 1.0,
) -> StepTable:
    """The steps with the log-probabilities of both."""
    policy, other = (Policy(own, temperature=temperature, compute_dtype=dtype) for own in (student, teacher))
    steps = OldLogprobs(policy, OPTIM).columns(steps)
    return LocalTeacher(other, "device", torch.device("cpu"), OPTIM).columns(steps)


@pytest.mark.parametrize(("exact", "dtype", "temperature", "near"), [
    (True, "float32", 1.0, 1e-12), (True, "float32", 0.4, 1e-12), (False, "float32", 0.4, 5e-5),
    (False, "bfloat16", 1.0, 0.2),
])  # fmt: skip
def test_the_advantage_of_a_token_is_the_difference_of_two_passes_for_that_token_alone(exact, dtype, temperature, near):
    steps = step_table(np.random.default_rng(0), SIZE, groups=4)
    student, teacher = (wide(number) if exact else model("qwen2", SIZE, number) for number in (0, 1))
    advantage = OPD()(scored(student, teacher, steps, dtype, temperature))
    values, largest = Ragged(advantage.tokens(steps), steps.response.offsets), 0.0
    for row in range(len(steps)):
        prompt, response = steps.prompt[row], steps.response[row]
        own, other = (naive(wide(number), prompt, response, temperature)[0] for number in (0, 1))
        largest = max(largest, np.abs(values[row] - (other - own)).max(initial=0.0))
    assert largest <= near
    assert np.abs(values.values).mean() > 0.5 and (largest > 1e-3) == (dtype == "bfloat16")
    assert advantage.diagnostics["reverse_kl"] == pytest.approx(-values.values.mean())


def test_a_teacher_that_is_the_student_gives_no_advantage_in_any_number_format():
    steps = step_table(np.random.default_rng(1), SIZE)
    for dtype in ("float32", "bfloat16"):
        own = model("qwen2", SIZE)
        advantage = OPD()(scored(own, copy.deepcopy(own), steps, dtype))  # type: ignore[arg-type]
        assert_array_equal(advantage.whole, 0.0)


@given(step_tables(), st.floats(0.0, 5.0))
def test_what_the_task_adds_is_grpo(steps, weight):
    added = OPD(task_weight=weight)(steps).whole - OPD()(steps).whole
    assert_allclose(added, weight * GRPO()(steps).tokens(steps), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("number", [1, 2])
def test_the_expected_gradient_is_that_of_the_reverse_divergence_over_the_whole_vocabulary(number, temperature):
    student, teacher, prompt = wide(0), wide(number), [3, 14, 15, 9, 2]
    steps = step_table(np.random.default_rng(0), SIZE, groups=SIZE, members=1)
    steps = steps.take(np.flatnonzero(steps.t == 0))  # every word once, as the response
    words = Ragged.of([[word] for word in range(SIZE)], np.int64)
    steps = replace(steps, prompt=Ragged.of([prompt] * SIZE, np.int64), response=words, logprob=words)
    steps = scored(student, teacher, replace(steps, policy_version=words), temperature=temperature)
    policy = Policy(student, temperature=temperature)
    updater = Updater(Accelerator(cpu=True), policy, torch.optim.SGD(policy.parameters()), OPTIM, OBJECTIVE)
    steps = replace(steps, logprob=Ragged(steps.token_extra[OLD].values, words.offsets))
    chance = np.exp(steps.token_extra[OLD].values)
    assert chance.sum() == pytest.approx(1.0)
    found = updater.gradient(steps, SIZE * chance * OPD()(steps).tokens(steps))

    plain = wide(0)
    logits = (each(torch.tensor([prompt])).logits[0, -1] / temperature for each in (plain, teacher))
    own, other = (row.log_softmax(-1) for row in logits)
    (own.exp() * (own - other.detach())).sum().backward()
    for name, parameter in plain.named_parameters():
        scale = float(parameter.grad.abs().max())
        assert scale > 0.0
        torch.testing.assert_close(found[f"model.{name}"], parameter.grad, rtol=0, atol=1e-10 * scale)


# -- where the teacher is


def test_a_server_gives_what_a_teacher_in_the_trainer_gives():
    student, teacher = (model("qwen2", SIZE, seed) for seed in (0, 1))
    steps = step_table(np.random.default_rng(2), SIZE, groups=4)
    assert (steps.response.lengths == 0).any()
    with ProtocolServer(teacher) as server:
        provider = ServedTeacher.connect(server.url)
        found = provider.columns(steps).token_extra[TEACHER]
        assert len(provider.columns(steps.take(np.zeros(0, np.int64)))) == 0
    assert_allclose(found.values, scored(student, teacher, steps).token_extra[TEACHER].values, atol=1e-5)


def spread(accelerator: Accelerator) -> np.ndarray:
    """The column of this process's rows under a teacher that is sharded; the second process has fewer."""
    other = Policy(model("qwen2", SIZE, seed=1))
    if accelerator.num_processes > 1:
        shard(other, ModelConfig(shard="full"), accelerator)
    steps = step_table(np.random.default_rng(3), SIZE)
    first = steps.episode_id < 4
    mine = first if accelerator.is_main_process else ~first
    steps = steps if accelerator.num_processes == 1 else steps.take(np.flatnonzero(mine))
    return LocalTeacher(other, "device", torch.device("cpu"), OPTIM).columns(steps).token_extra[TEACHER].values


@pytest.mark.seconds
def test_a_sharded_teacher_gives_the_log_probabilities_of_a_whole_one():
    (alone,), both = on_ranks(spread, 1), on_ranks(spread, 2)
    steps = step_table(np.random.default_rng(3), SIZE)
    first = (steps.episode_id < 4)[steps.response.row_of]
    for found, rows in zip(both, (first, ~first), strict=True):
        assert_allclose(found, alone[rows], atol=1e-5)


# -- runs


def other(place: Path) -> str:
    """The folder of a teacher with other weights."""
    return str(save_model(place / "teacher", seed=1))


def sampled(place: Path) -> list[Step]:
    """The steps of the first iteration."""
    episodes = read_episodes(place / "runs/tiny/episodes/iteration-00001.parquet")
    return [step for episode in episodes for step in episode.steps]


def divergence(student: Path, teacher: Path, steps: list[Step]) -> float:
    """The mean divergence of two models at the tokens of steps, over the whole vocabulary."""
    models, found = [AutoModelForCausalLM.from_pretrained(folder) for folder in (student, teacher)], []
    for step in steps:
        ids = torch.tensor([[*step.prompt_ids.tolist(), *step.response_ids.tolist()]])
        with torch.no_grad():
            own, other = (each(ids).logits[0, len(step.prompt_ids) - 1 : -1].log_softmax(-1) for each in models)
        found.append((own.exp() * (own - other)).sum(-1))
    return float(torch.cat(found).mean())


@pytest.mark.seconds
def test_a_run_moves_the_student_to_the_teacher_and_goes_on_from_a_checkpoint_to_the_same_end(place):
    settings = {**SHORT, f"{OPTION}.teacher": other(place), "rollout.tasks": 8, "rollout.group_size": 2}
    settings |= {"optim.lr": 0.003, "optim.minibatches": 4}
    whole = trained(place, iterations=10, **settings)
    kl = [record["diag/reverse_kl"] for record in whole if "diag/reverse_kl" in record]
    last = place / "runs/tiny/checkpoints/iteration-00010"
    ends = [divergence(folder, place / "teacher", sampled(place)) for folder in (place / "model", last)]
    assert kl[-1] < 0.8 * kl[0] and ends[1] < 0.8 * ends[0]
    settings["output"] = str(place / "other")
    for iterations, more in ((3, ()), (10, ("--resume",))):
        assert main(["--config", str(write_settings(place, iterations=iterations, **settings)), *more]) == 0
    assert without_times(place / "other/tiny") == whole
    assert weights(place / "other/tiny/checkpoints/iteration-00010") == weights(last)


@pytest.mark.seconds
@pytest.mark.parametrize(("dtype", "old"), [("float32", "trainer"), ("bfloat16", "auto")])
def test_a_run_whose_teacher_is_the_student_changes_nothing(place, dtype, old):
    settings = {**SHORT, f"{OPTION}.teacher": str(place / "model"), "optim.old_logprobs": old}
    (record,) = trained(place, iterations=1, **settings, **{"model.compute_dtype": dtype})
    assert record["diag/reverse_kl"] == 0.0 and record["term/teacher/touched"] == 0.0
    folders = (place / "runs/tiny/checkpoints/iteration-00001", place / "model")
    after, before = (AutoModelForCausalLM.from_pretrained(folder).state_dict() for folder in folders)
    assert before and all(torch.equal(after[name], tensor) for name, tensor in before.items())


@pytest.mark.seconds
def test_the_engines_log_probabilities_are_near_the_trainers_where_none_are_computed_again(place):
    settings = {**SHORT, f"{OPTION}.teacher": str(place / "model")}
    (record,) = trained(place, iterations=1, **settings)
    assert abs(record["diag/reverse_kl"]) < 1e-5 and record["term/teacher/abs"] < 1e-5


@pytest.mark.seconds
@pytest.mark.parametrize("kept", ["offload", "cpu"])
def test_an_adapter_learns_from_a_teacher_that_is_an_adapter_beside_a_reference(place, kept):
    settings = {"evaluation.envs": [], "checkpoint_every": 1, "model.adapter": {"rank": 4, "alpha": 8}}
    trained(place, iterations=1, seed=1, recipe="rft", **settings, **{"method.filters": {"accepted": {"score": 0.0}}})
    teacher = place / "teacher/checkpoints/iteration-00001"
    (place / "runs/tiny").rename(place / "teacher")
    settings |= {"recipe": "opd", f"{OPTION}.teacher": str(teacher), f"{OPTION}.task_weight": 0.5}
    settings |= {"method.objective": {"kl": "k3", "kl_coef": 0.01}, "method.reference": kept}
    records = trained(place, iterations=2, **settings)
    merged, gaps = AutoModelForCausalLM.from_pretrained(teacher), []
    for step in sampled(place):
        gaps.append(step.response_logprobs - naive(merged, step.prompt_ids, step.response_ids, 1.0)[0])
    assert records[0]["diag/reverse_kl"] == pytest.approx(np.concatenate(gaps).mean(), abs=1e-4)
    assert abs(records[0]["diag/reverse_kl"]) > 0.01 and records[0]["term/teacher/touched"] == 1.0
    assert np.isfinite(records[-1]["train/loss"]) and "train/kl" in records[-1]
    assert "adapter_model.safetensors" in weights(place / "runs/tiny/checkpoints/iteration-00002")


@pytest.mark.slow
def test_two_processes_that_share_policy_and_teacher_see_the_divergence_that_one_sees(place):
    settings = {**SHORT, f"{OPTION}.teacher": other(place), "model.shard": "full", "iterations": 1}
    (one,) = trained(place, **{**settings, "model.shard": "none"})
    settings["output"] = str(place / "other")
    train("--config", str(write_settings(place, **settings)), program=(*BOTH, "-m", "trainers.train"), status=0)
    (both,) = without_times(place / "other/tiny")
    for name in ("diag/reverse_kl", "term/teacher/abs", "train/policy_loss", "train/grad_norm"):
        assert both[name] == pytest.approx(one[name], rel=1e-4), name


@pytest.mark.seconds
def test_a_run_learns_from_a_server_what_it_learns_from_a_folder(place):
    settings: dict[str, Any] = {**SHORT, "iterations": 1}
    (one,) = trained(place, **settings, **{f"{OPTION}.teacher": other(place)})
    settings["output"] = str(place / "other")
    with ProtocolServer(AutoModelForCausalLM.from_pretrained(place / "teacher")) as server:
        server.tokenizer = tokenizer()
        settings[f"{OPTION}.teacher"] = server.url
        assert main(["--config", str(write_settings(place, **settings))]) == 0
    (both,) = without_times(place / "other/tiny")
    for name in ("diag/reverse_kl", "term/teacher/abs", "train/policy_loss", "train/grad_norm"):
        assert both[name] == pytest.approx(one[name], rel=1e-3), name


# -- refusals


@pytest.fixture
def fails(place: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., None]:
    """Expects that a run ends with a status and one line."""

    def ended(code: int, told: str, **changes: Any) -> None:
        capfd.readouterr()
        assert main(["--config", str(write_settings(place, **{**SHORT, **changes}))]) == code
        said = capfd.readouterr().err
        assert "Traceback" not in said and said.count("error: ") == 1, said
        line = said[said.index("error: ") :]
        assert not lacks(" ".join(line.split()), told), line

    return ended


def test_a_teacher_that_cannot_teach_is_named(fails, place):
    fails(2, "opd learns from another model; set method.options.teacher to it")
    fails(1, "method.options.teacher models/nowhere … no such folder", **{f"{OPTION}.teacher": "models/nowhere"})
    (place / "empty").mkdir()
    fails(1, "method.options.teacher … empty: no config.json", **{f"{OPTION}.teacher": str(place / "empty")})
    fails(
        2, "method.options.teacher models/craft-1m has another vocabulary than model.path … the same tokenizer",
        **{f"{OPTION}.teacher": "models/craft-1m"},
    )  # fmt: skip
    smaller = save_model(place / "smaller", seed=1)
    cut = model("qwen2", len(tokenizer()) - 1)
    cut.save_pretrained(smaller)
    fails(2, "smaller has another vocabulary than model.path", **{f"{OPTION}.teacher": str(smaller)})
    fails(
        2, "sampling.temperature is 0.5, but method.options.teacher is a server … set it to 1",
        **{f"{OPTION}.teacher": "http://127.0.0.1:9", "rollout.sampling.temperature": 0.5},
    )  # fmt: skip
    fails(2, "option of estimator opd: task_weight is -1", **{f"{OPTION}.task_weight": -1.0})
    assert not (place / "runs/tiny/config.yaml").exists(), "before the run begins"


@pytest.mark.seconds
def test_a_server_that_does_not_answer_or_has_other_tokens_is_named(fails, place, monkeypatch):
    monkeypatch.setattr(run_teacher, "PATIENCE", 0.3)
    fails(
        1, "method.options.teacher http://127.0.0.1:9: … Is it running?", **{f"{OPTION}.teacher": "http://127.0.0.1:9"}
    )
    shuffled = copy.deepcopy(tokenizer())
    shuffled.decode = lambda ids: "other words"  # type: ignore[method-assign]
    with ProtocolServer(model("qwen2", len(tokenizer()))) as server:
        told = {f"{OPTION}.teacher": server.url}
        server.tokenizer = shuffled
        fails(2, f"{server.url} has another vocabulary than model.path", **told)
        server.faults["/detokenize"] = [lambda: (404, {"error": {"message": "Not Found"}})]
        fails(1, f"method.options.teacher {server.url}: Not Found", **told)
        server.tokenizer = tokenizer()
        server.faults["/v1/completions"] = [lambda: (200, {"choices": [{"index": 0}]})] * 100
        fails(1, "gave no log-probabilities of the prompt ('prompt_logprobs'); vLLM does", **told)
        server.faults["/v1/completions"] = [lambda: (400, {"error": {"message": "too long"}})] * 100
        fails(1, f"method.options.teacher {server.url}: too long", **{**told, "output": str(place / "more")})


def test_a_plan_counts_the_teacher(place, capfd):
    found = {}
    for name, gpus, more in (
        ("grpo", "cpu", ["--recipe", "grpo"]),
        ("opd", "cpu", ["--method.options.teacher", other(place)]),
        ("offload", "H100", ["--method.options.teacher", other(place), "--method.reference", "offload"]),
    ):
        assert plan(["--config", str(write_settings(place, **SHORT)), "--gpus", gpus, "--json", "yes", *more]) == 0
        found[name] = orjson.loads(capfd.readouterr().out)
    assert plan(
        ["--config", str(write_settings(place, **SHORT)), "--gpus", "cpu", "--method.options.teacher", "runs/no"]
    )
    assert "method.options.teacher runs/no: there is no such folder" in capfd.readouterr().err
    size = 4 * model("qwen2", len(tokenizer())).num_parameters()
    assert "teacher" not in found["grpo"]["held"] and found["opd"]["held"]["teacher"] == size
    assert found["opd"]["seconds"]["reference, teacher, critic, hidden states"] > 0.0
    assert "teacher" not in found["offload"]["held"]
    assert found["offload"]["phases"]["scoring"]["teacher, while it scores"] == size
