"""Runs, some at a time, each in a process that goes on with the next; every run that ends is a line of the results."""

from __future__ import annotations

import logging
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import yaml

from envsuite.core.errors import DataError
from envsuite.playing.step import Episode
from research.credit.arms import Trial, settings
from research.credit.cells import ROOT, Cell
from research.credit.results import Result, append
from trainers.policy.guard import DivergenceError


def command(words: Sequence[str], failed: str) -> None:
    """Runs a command of ``envsuite`` on one thread: several that wait for cores are many times slower.

    Raises:
        DataError: It failed; ``failed`` says what that means.
    """
    line, environment = [sys.executable, "-m", "envsuite.cli", *words], {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(line, check=False, env=environment, cwd=ROOT, capture_output=True, text=True)
    if ended.returncode:
        raise DataError(f"{failed}: {ended.stderr[-2000:]}")


def imitate(cell: Cell) -> None:
    """Trains the base model of a cell, unless it is there.

    Raises:
        DataError: The training failed.
    """
    if cell.base.exists():
        return
    cell.base.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cell.base.parent) as folder:
        file, made = Path(folder) / "imitate.yaml", Path(folder) / "base"
        file.write_text(yaml.safe_dump({**cell.imitation(), "output": str(made)}))
        command(["imitate", "--config", str(file)], f"the base model of {cell.name} was not trained")
        try:
            made.rename(cell.base)
        except OSError:
            if not cell.base.exists():  # where it is, another program was faster
                raise


def play(trial: Trial, commit: str) -> Result:
    """Runs a trial in this process; one whose numbers are no longer finite has a result, too."""
    began = resource.getrusage(resource.RUSAGE_SELF)
    own: dict[str, Any] = {"key": trial.key, "stage": trial.stage, "cell": trial.cell.name, "arm": trial.arm}
    own |= {"seed": trial.seed, "rate": trial.rate, "option": trial.option, "guard": trial.guard}
    own |= {"base": trial.cell.base.name, "commit": commit}
    try:
        with tempfile.TemporaryDirectory() as folder:
            found = _play(trial, folder)
    except DivergenceError as error:
        found = {"error": str(error)}
    now = resource.getrusage(resource.RUSAGE_SELF)
    seconds = now.ru_utime + now.ru_stime - began.ru_utime - began.ru_stime
    return Result(**own, **found, seconds=round(seconds, 2))


def _play(trial: Trial, folder: str) -> dict[str, Any]:
    import gymnasium
    from rich.console import Console

    import envsuite  # noqa: F401  # registers the environments
    from research.credit.exact import ExactCredit, Shown, Walks
    from trainers.policy.model import Policy
    from trainers.processes.distributed import make_accelerator
    from trainers.report.metrics import read_metrics
    from trainers.run.assembly import Run
    from trainers.run.cli import parse
    from trainers.run.config import TrainConfig
    from trainers.run.features.alarms.actions import apply_alarm_actions
    from trainers.run.loop import iterate
    from trainers.run.progress import RunProgress
    from trainers.run.saving import open_run, save

    file = Path(folder) / "run.yaml"
    file.write_text(yaml.safe_dump(settings(trial, folder)))
    config: TrainConfig = parse(["--config", str(file)]).config
    cell = trial.cell
    run = Run(
        config, make_accelerator(config.process_timeout), RunProgress(cell.iterations, console=Console(quiet=True))
    )
    if cell.exact:
        policy = Policy(run.model, temperature=1.0, compute_dtype="float32")
        env: Any = gymnasium.make(cell.env, disable_env_checker=True, **cell.kwargs).unwrapped
        ids = cell.panel(trial.seed), cell.held_out()
        walks, test = (Walks(env, tasks, cell.steps, config.prompt, run.tokenizer) for tasks in ids)
        credit = ExactCredit(walks, policy, config.optim, trial.arm == "exact")
        run.crediting.providers = (*run.crediting.providers, credit)
        run.rollouts = Shown(run.rollouts, credit)  # type: ignore[assignment]

    def held_out() -> float:
        if cell.exact:
            return test.expected(test.values(policy, config.optim))
        run.sync()
        return _solved(run.evaluator.play(0))

    with run.stop, closing(run.rollouts), closing(run.engine), closing(run.folder), run.trackers:
        open_run(run, None)
        before = held_out()
        for _ in range(cell.iterations):
            apply_alarm_actions(run)
            iterate(run)
            if config.alarms.goes_back:
                save(run)
        after = held_out()
        records = read_metrics(run.folder.path / "metrics.jsonl")
        if cell.exact:
            success = [*credit.success, walks.expected(walks.values(policy, config.optim))]
        else:
            last = run.rollouts(cell.iterations + 1)
            success = [*(record["train/success"] for record in records), _solved(last.episodes)]
    kept = ("train/success", "train/valid_actions", "train/zero_variance_groups", "train/grad_norm")
    return {
        "success": tuple(round(value, 5) for value in success),
        "held_out": (round(before, 5), round(after, 5)),
        "tokens": records[-1]["train/tokens_total"],
        "metrics": {name: round(records[0][name], 5) for name in kept},
    }


def _solved(episodes: Sequence[Episode]) -> float:
    return sum(episode.success for episode in episodes) / len(episodes)


def _prepare() -> None:
    import torch

    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)


def _commit() -> str:
    """Returns the commit, marked where what runs differs from it."""
    of = partial(subprocess.run, cwd=ROOT, capture_output=True, text=True, check=False)
    sources = ("envsuite", "trainers", "configs", "benchmarks", "research/credit/*.py")
    changed = of(["git", "diff", "--quiet", "HEAD", "--", *sources])
    return of(["git", "rev-parse", "--short=12", "HEAD"]).stdout.strip() + "-changed" * bool(changed.returncode)


def run_all(trials: Sequence[Trial], path: Path, jobs: int) -> Iterator[Result]:
    """Trains the base models, then runs the trials; yields each result as it comes, after it is written.

    Args:
        trials: The runs.
        path: File of the results.
        jobs: Runs at a time.

    Raises:
        DataError: A base model was not trained, or a process was killed.
    """
    commit = _commit()
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["TRANSFORMERS_VERBOSITY"], os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "error", "1"
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), _prepare)
    try:
        list(pool.map(imitate, {trial.cell.base: trial.cell for trial in trials}.values()))
        for ended in as_completed([pool.submit(play, trial, commit) for trial in trials]):
            append(ended.result(), path)
            yield ended.result()
    except BrokenProcessPool:
        raise DataError("a process was killed, for memory perhaps; the same command goes on, with --jobs 1") from None
    finally:
        pool.shutdown(cancel_futures=True)  # those that run end; they are run again
