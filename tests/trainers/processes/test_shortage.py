"""Memory that runs out, injected: what is told, what is saved, and that the run goes on with smaller settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny_runs import summary, weights, without_times, write_settings

from trainers.policy.accumulation import Accumulator
from trainers.processes.memory import ran_out
from trainers.rollout.hf_engine import HFEngine
from trainers.run.evaluation import Evaluator
from trainers.train import main

INJECTED = "CUDA out of memory. Tried to allocate 2.00 GiB. (injected)"
SMALLER = ["--optim.tokens_per_microbatch", "150", "--model.gradient_checkpointing", "true"]
CHECKPOINTS = Path("runs/tiny/checkpoints")


@pytest.fixture
def inject(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Lets a method raise at one of its calls, before it does anything or after."""

    def at(owner: type, name: str, call: int, *, after: bool = False) -> None:
        made, calls = getattr(owner, name), 0

        def failing(*given, **named):
            nonlocal calls
            calls += 1
            if calls == call and after:
                made(*given, **named)
            if calls == call:
                raise torch.OutOfMemoryError(INJECTED)
            return made(*given, **named)

        monkeypatch.setattr(owner, name, failing)

    return at


def _failed(config: Path, capfd: pytest.CaptureFixture[str]) -> str:
    assert main(["--config", str(config)]) == 1
    said = capfd.readouterr().err
    assert "Traceback" not in said and INJECTED.rstrip(".") in said and "--resume" in said, said
    return next(line for line in said.splitlines() if line.startswith("error: memory ran out in the "))


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("owner", "name", "call", "phase", "setting", "iteration"),
    [
        (HFEngine, "_forward", 40, "rollout", "rollout.slots below 4", 0),
        (Evaluator, "play", 2, "evaluation on test", "rollout.slots below 4", 2),
        (Accumulator, "__call__", 5, "update", "model.gradient_checkpointing: true (now auto) or optim.", 2),
    ],
)
def test_a_run_that_lacks_memory_leaves_the_end_of_the_last_iteration_and_goes_on_to_the_same_end(
    place, inject, monkeypatch, capfd,
    owner, name, call, phase, setting, iteration
):  # fmt: skip
    config = write_settings(place, checkpoint_every=50)
    assert main(["--config", str(config), "--output", str(place / "whole")]) == 0
    inject(owner, name, call)
    said = _failed(config, capfd)
    assert f"in the {phase} (" in said and setting in said, said
    assert [path.name for path in (place / CHECKPOINTS).iterdir()] == [f"iteration-{iteration:05d}"]
    monkeypatch.undo()
    assert main(["--config", str(config), "--resume"]) == 0
    whole, run = place / "whole/tiny", place / "runs/tiny"
    assert without_times(run) == without_times(whole)
    assert [e["name"] for e in summary(run)["evaluations"]] == ["before", "iteration 2", "after"]
    assert weights(run / "checkpoints/iteration-00004") == weights(whole / "checkpoints/iteration-00004")


def test_after_an_optimiser_step_of_the_iteration_the_last_checkpoint_is_named_and_none_is_written(
    place, inject, monkeypatch, capfd
):
    config = write_settings(place, checkpoint_every=1, **{"evaluation.envs": []})
    inject(Accumulator, "__call__", 4)  # two minibatches an iteration: the second of the second iteration
    said = _failed(config, capfd)
    assert "the present state is amid an iteration" in said and "iteration-00001" in said
    assert [path.name for path in (place / CHECKPOINTS).iterdir()] == ["iteration-00001"]
    monkeypatch.undo()
    assert main(["--config", str(config), "--resume", *SMALLER]) == 0


def test_a_step_that_was_broken_off_is_not_saved(place, inject, capfd):
    config = write_settings(place, checkpoint_every=50, **{"evaluation.envs": []})
    inject(torch.optim.AdamW, "step", 1, after=True)
    assert main(["--config", str(config)]) == 1
    assert "start again: there is no checkpoint yet, as checkpoint_every is 50" in capfd.readouterr().err
    assert not any((place / CHECKPOINTS).iterdir())


def test_a_run_is_resumed_with_settings_that_take_less_memory_and_says_so(place, capfd):
    config = write_settings(place, **{"evaluation.envs": []})
    assert main(["--config", str(config), "--iterations", "2"]) == 0
    capfd.readouterr()
    smaller = [*SMALLER, "--method.reference", "offload", "--rollout.engine_options", "{cache_tokens: 0}"]
    assert main(["--config", str(config), "--resume", *smaller]) == 0
    said = " ".join(capfd.readouterr().out.split())
    assert "changed since that checkpoint, which changes results by rounding" in said
    for change in (
        "optim.tokens_per_microbatch was 300 and is 150", "model.gradient_checkpointing was 'auto' and is True",
        "method.reference was 'device' and is 'offload'", "rollout.engine_options.cache_tokens was None and is 0",
    ):  # fmt: skip
        assert change in said, said
    assert main(["--config", str(config), "--resume", "--rollout.engine_options", "{max_length: 200}"]) == 1
    assert "rollout.engine_options.max_length = None" in capfd.readouterr().err, "it decides where episodes end"


def test_a_model_that_does_not_fit_is_one_line(place, monkeypatch, capfd):
    def failing(*given: object) -> None:
        raise torch.OutOfMemoryError(INJECTED)

    monkeypatch.setattr("trainers.run.policy.load_model", failing)
    assert main(["--config", str(write_settings(place))]) == 1
    said = capfd.readouterr().err
    assert "Traceback" not in said and "error: memory ran out (" in said and "envsuite plan" in said


def test_errors_of_memory_are_told_from_others():
    assert ran_out(torch.OutOfMemoryError(INJECTED)) and ran_out(MemoryError())
    with pytest.raises(RuntimeError) as refused:
        torch.empty(2**60)
    assert ran_out(refused.value), refused.value
    assert not ran_out(RuntimeError("shape mismatch")) and not ran_out(ValueError("can't allocate memory"))
