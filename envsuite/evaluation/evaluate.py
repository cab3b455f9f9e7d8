"""Evaluates one policy on one environment and split, into one file of results."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from envsuite import __version__
from envsuite.core.env import Observation
from envsuite.core.errors import EnvsuiteError, UsageError
from envsuite.core.tools import Tool
from envsuite.data.files import write_atomically
from envsuite.evaluation.examples import SPLIT, demonstrations, expert_turns
from envsuite.evaluation.progress import EvaluationDisplay
from envsuite.evaluation.prompting import ONE_AGENT, BaselineDialog
from envsuite.evaluation.protocol import ENDPOINT, EvaluatedEnv, ProtocolSetting, conditions_of, sample_of
from envsuite.evaluation.recorder import EpisodeRecorder
from envsuite.evaluation.results import EpisodeResult
from envsuite.playing.dialog import Dialog
from envsuite.playing.engine import Sampling
from envsuite.playing.episode import EpisodeCost, EpisodePlan
from envsuite.playing.manager import RolloutManager
from envsuite.playing.player import PlayedFactory, PlayerDialog, PlayerEngine
from envsuite.playing.step import Episode
from envsuite.vector import EnvFactory, Wait, make_vector

if TYPE_CHECKING:
    from envsuite.playing.endpoint import EndpointEngine

_SLOW = 1.0  # seconds of a wait before it is named


@dataclass(frozen=True)
class EvaluationOutcome:
    """An evaluation after it was run: its results, and how many are missing."""

    setting: ProtocolSetting
    wanted: int
    """Number of its episodes."""
    results: tuple[EpisodeResult, ...]
    """Those that there are, broken ones included."""

    @property
    def sound(self) -> tuple[EpisodeResult, ...]:
        """Returns the results that count."""
        return tuple(result for result in self.results if result.broken is None)

    @property
    def broken_results(self) -> tuple[EpisodeResult, ...]:
        """Returns the results of episodes that the infrastructure broke."""
        return tuple(result for result in self.results if result.broken is not None)

    @property
    def missing(self) -> int:
        """Returns the number of episodes that were not played."""
        return self.wanted - len(self.results)


@dataclass(frozen=True)
class Machinery:
    """Settings that change no result: where and how fast episodes are played."""

    workers: int = 1
    """Worker processes; 0 plays in this one, where a hang is not noticed."""
    deadline: float = 60.0
    """Seconds that a call of an environment, or of its player, may take."""


def evaluate(
    setting: ProtocolSetting,
    env: EvaluatedEnv,
    folder: Path,
    machinery: Machinery,
    engine: EndpointEngine | None,
    display: EvaluationDisplay,
    *,
    broken_only: bool = False,
) -> EvaluationOutcome:
    """Plays the episodes of a setting that have no sound result in ``folder`` yet.

    When the endpoint cannot be used any more, the rest is left out, and episodes on their way with it: they say
    nothing, and are played when this is called again.

    Args:
        setting: What is played, and by whom.
        env: Its environment.
        folder: Has the results, and the setting as JSON beside them.
        machinery: Where episodes are played.
        engine: The endpoint, for a policy that is one.
        display: Shows the progress.
        broken_only: Play only those that have a broken result.

    Raises:
        EnvsuiteError: The settings contradict each other, or the folder has results of other conditions.
    """
    tasks = sample_of([task.task_id for task in env.panel.tasks], setting.sample)
    examples = _examples(setting)
    conditions = conditions_of(setting, env, __version__, _system(setting, env, examples))
    strata = {task: env.strata[task] for task in tasks}
    episodes = [(task, seed) for seed in range(setting.seeds) for task in tasks]
    plans = [EpisodePlan(i, i, 0, task, seed=seed) for i, (task, seed) in enumerate(episodes)]
    prices = None if engine is None else engine.options.prices
    with closing(EpisodeRecorder(folder, conditions, strata, setting.seeds, prices)) as recorder:
        write_atomically(folder / f"{setting.stem}.json", setting.to_json())
        open_plans = [
            plan for plan in recorder.open_plans(plans) if not broken_only or recorder.result(plan) is not None
        ]
        display.begin(f"{setting.env_id} {setting.split}, {setting.label}", len(plans), len(plans) - len(open_plans))

        def keep(plan: EpisodePlan, episode: Episode, cost: EpisodeCost) -> None:
            if not (episode.unanswered and engine is not None and engine.stopped is not None):
                display.add_result(recorder.add(plan, episode, cost))

        if open_plans:
            with _manager(setting, machinery, engine, len(open_plans), examples) as manager:
                sampling = Sampling() if setting.prompting is None else Sampling(**setting.prompting.sampling())
                for _ in manager.stream(open_plans, sampling, 0, partial(_show_wait, display), keep):
                    pass  # an episode is a group of its own, and is on disk when it has ended
        display.end()
        results = (recorder.result(plan) for plan in plans)
        return EvaluationOutcome(setting, len(plans), tuple(result for result in results if result is not None))


def _show_wait(display: EvaluationDisplay, ended: int, oldest: Wait | None) -> None:
    """Shows the progress, and what has been waited for longer than a moment."""
    display.waits(str(oldest) if oldest is not None and time.monotonic() - oldest.since > _SLOW else None)


@contextmanager
def _manager(
    setting: ProtocolSetting, machinery: Machinery, engine: EndpointEngine | None, episodes: int, examples: str
) -> Iterator[RolloutManager]:
    """Makes what plays the environment: with the endpoint's concurrency, or with a player in each worker."""
    factory = setting.factory
    if engine is None:
        factory = PlayedFactory(factory.env_id, factory.kwargs, setting.policy)
    slots = min(episodes, max(1, machinery.workers) if engine is None else engine.most)

    def make_dialog(plan: EpisodePlan, tools: tuple[Tool, ...], max_calls: int) -> Dialog:
        if setting.prompting is None:
            return PlayerDialog()
        return BaselineDialog(setting.prompting, tools, max_calls, examples, f"{plan.seed}/{plan.task_id}")

    with make_vector([factory], slots, min(machinery.workers, slots), machinery.deadline) as vector:
        if vector.agents(0) and setting.prompting is not None and setting.prompting.baseline in ONE_AGENT:
            raise UsageError(
                f"--baseline {setting.prompting.baseline} is for environments of one agent, and {setting.env_id} has "
                f"{len(vector.agents(0))}; take direct or react"
            )
        yield RolloutManager(
            engine or PlayerEngine(slots), vector, [setting.env_id], make_dialog, attempts=1, engine_deadline=math.inf
        )  # fmt: skip


def _examples(setting: ProtocolSetting) -> str:
    """Returns the demonstrations in the prompts; empty for none."""
    prompting = setting.prompting
    if prompting is None or not prompting.examples:
        return ""
    options = {**setting.factory.kwargs, "split": SPLIT}
    options.pop("max_episode_steps", None)  # a short horizon does not cut them
    options.pop("tasks", None)
    try:
        return demonstrations(
            EnvFactory(setting.env_id, options), expert_turns(setting.env_id), prompting.codec(), prompting.examples,
            thoughts=False,
        )  # fmt: skip
    except EnvsuiteError as error:
        raise UsageError(f"{prompting.label}, but {setting.env_id}: {error}") from error


def _system(setting: ProtocolSetting, env: EvaluatedEnv, examples: str) -> str:
    """Returns the system message of the first prompt; empty for a policy that is not prompted."""
    if setting.policy != ENDPOINT or setting.prompting is None:
        return ""
    chat = setting.prompting.chat(env.tools, env.max_calls, examples)
    chat.start(Observation(task="", text="", commands=()))
    first = chat.messages()[0]
    return str(first["content"]) if first["role"] == "system" else ""
