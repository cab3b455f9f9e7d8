"""The training loop: roll out, credit, update, evaluate, save."""

from __future__ import annotations

from contextlib import closing

import numpy as np

from envsuite.playing.activity import ACTIVITY
from envsuite.playing.engine import EngineFailed
from envsuite.remote.places import listening
from trainers.credit.crediting import Credit
from trainers.policy.accumulation import Batch
from trainers.policy.guard import DivergenceError
from trainers.processes.distributed import peers
from trainers.processes.memory import ran_out
from trainers.report.stats import EvalResult
from trainers.run.activity_file import ActivityFile
from trainers.run.assembly import Run
from trainers.run.features.alarms.actions import apply_alarm_actions
from trainers.run.iteration_metrics import Clock, iteration_metrics
from trainers.run.records import evaluate, evaluation_is_due, record
from trainers.run.saving import open_run, save
from trainers.run.shortage import OutOfMemory, describe_shortage, remedies
from trainers.run.stopping import Abandoned, Interrupted


def train(run: Run, resume: str | None = None) -> list[EvalResult]:
    """Train from the beginning, or on from a checkpoint, and return all evaluations.

    Args:
        run: The run.
        resume: ``"auto"`` or the folder of a checkpoint to go on from; ``None`` starts anew.

    Raises:
        Interrupted: A signal or an alarm stopped the run; a checkpoint has been written.
        EngineFailed: The engine failed; a checkpoint has been written.
        OutOfMemory: Memory ran out; a checkpoint has been written where the state is that of the end of an iteration.
        DivergenceError: Numbers that are not finite stopped the run; a checkpoint of good weights has been written.
        CheckpointError: There is nothing to resume from, it does not fit, or a checkpoint cannot be written.
        ConfigError: The run's folder holds a run already.
    """
    with run.stop, closing(run.rollouts), closing(run.engine), closing(run.folder), run.trackers:
        open_run(run, resume)
        file = ActivityFile(run.folder.path if run.accelerator.is_main_process else None, run.progress, peers())
        with file, listening(lambda news: run.tell.note(news, run.counters.iteration)):
            _to_the_end(run)
    return run.counters.evaluations


def _to_the_end(run: Run) -> None:
    """Runs the loop; what stops it early leaves a checkpoint."""
    try:
        _loop(run)
    except Abandoned:
        raise Interrupted(run.stop.number, save(run)) from None
    except EngineFailed as error:
        raise type(error)(f"{error}\nGo on with --resume (checkpoint {save(run)})") from None
    except DivergenceError as error:
        if not error.weights_good:
            raise
        message = f"{error}. The weights before these steps are in {save(run)}"
        raise DivergenceError(message, weights_good=True) from None
    except OutOfMemory as error:  # of all processes, while episodes were played
        message, playing, whole = str(error), True, True
    except (RuntimeError, MemoryError) as error:
        if not ran_out(error):
            raise
        message, playing, whole = describe_shortage(ACTIVITY.now().phase, error), False, run.boundary.undo()
    else:
        return
    # The error has gone, and with it the tensors of what it broke off.
    go_on = f"and go on with --resume (checkpoint {save(run)})" if whole else last_checkpoint(run)
    raise OutOfMemory(f"{message}. {remedies(run.config, playing, run.slots)}, {go_on}")


def last_checkpoint(run: Run) -> str:
    """Says from where a run goes on whose present state is not that of the end of an iteration."""
    folder = max(run.folder.checkpoints.glob("iteration-*"), default=None)
    if folder is None:
        return f"and start again: there is no checkpoint yet, as checkpoint_every is {run.config.checkpoint_every}"
    return f"and go on with --resume (the last checkpoint, {folder}: the present state is amid an iteration)"


def _loop(run: Run) -> None:
    config, counters = run.config, run.counters
    if not counters.iteration:
        evaluate(run, "before")
    elif evaluation_is_due(run):
        evaluate(run, f"iteration {counters.iteration}")
    while counters.iteration < config.iterations:
        apply_alarm_actions(run)
        iterate(run)
        if evaluation_is_due(run):
            evaluate(run, f"iteration {counters.iteration}")
        run.stop.point()
        if counters.iteration % config.checkpoint_every == 0:
            save(run)
    evaluate(run, "after")
    save(run)


def iterate(run: Run) -> None:
    """Runs one iteration: rolls out, credits, updates, and records the results.

    Raises:
        Abandoned: A signal came before the update; the tasks of the iteration have been put back.
    """
    clock, seed, iteration = Clock(), run.config.seed, run.counters.iteration + 1

    run.boundary.begin()
    rollout = run.rollouts(iteration)
    run.engine.rest()
    clock.book("rollout")

    credit = run.crediting(rollout.episodes, iteration, rollout.continued)
    critic = run.config.method.critic
    warming_up = critic is not None and iteration <= critic.warmup
    batch = training_batch(credit, warming_up)
    imitation, replay_metrics = (None, {}) if run.replay is None or warming_up else run.replay.advance(
        credit, iteration, run.updater.logprobs
    )  # fmt: skip
    clock.book("estimator")

    run.progress.stage("update")
    rng = np.random.default_rng([seed, iteration])
    update = run.updater.update(batch, rng, imitation, iteration=iteration, sampled=credit.table)
    run.boundary.drop()
    learnt = run.crediting.learn(credit, np.random.default_rng([seed, iteration, 1]))
    clock.book("update")

    run.progress.stage("writing")
    prompt = run.config.prompt
    figures = iteration_metrics(
        run.accelerator, rollout.episodes, credit, update, learnt, run.counters.tokens,
        timing=rollout.timing,
        pruned_tokens=rollout.pruned_tokens,
        episode_tokens=run.config.rollout.episode_tokens,
        prompt_tokens=prompt.max_tokens if prompt.truncate == "left" else None,
    )  # fmt: skip
    run.counters.iteration = iteration
    run.counters.tokens += figures.sampled
    run.boundary.commit()
    if run.config.episodes_every and iteration % run.config.episodes_every == 0:
        run.folder.write_episodes(f"iteration-{iteration:05d}", rollout.episodes, credit)
    times = clock.metrics(rollout.timing, figures, rollout.seconds, rollout.covered)
    metrics = {**figures.values, **rollout.metrics, **run.engine.metrics(), **replay_metrics, **times}
    record(run, metrics)
    run.progress.iteration(iteration, metrics)


def training_batch(credit: Credit, critic_warmup: bool) -> Batch:
    """The rows that the policy is trained on: those that every filter keeps; none in the critic's warm-up."""
    rows = np.flatnonzero(credit.keep & (not critic_warmup))
    return Batch(credit.table, credit.advantage.tokens(credit.table)).take(rows)
