"""Evaluates one policy on one environment and split, into one file of results."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from envsuite import __version__
from envsuite.core.env import Observation
from envsuite.core.errors import EnvsuiteError, UsageError
from envsuite.data.files import write_atomically
from envsuite.evaluation.examples import SPLIT, demonstrations, expert_turns
from envsuite.evaluation.progress import EvaluationDisplay
from envsuite.evaluation.protocol import ENDPOINT, EvaluatedEnv, ProtocolSetting, conditions_of, sample_of
from envsuite.evaluation.results import EpisodeResult, ResultFile
from envsuite.evaluation.runner import EpisodeRunner
from envsuite.playing.player import PlayedFactory
from envsuite.vector import EnvFactory, Vector, make_vector

if TYPE_CHECKING:
    from envsuite.prompting.endpoints.pool import RequestPool


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
    def broken_count(self) -> int:
        """Returns the number of episodes that the infrastructure broke."""
        return len(self.results) - len(self.sound)

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
    world: EvaluatedEnv,
    folder: Path,
    machinery: Machinery,
    pool: RequestPool | None,
    display: EvaluationDisplay,
    *,
    broken_only: bool = False,
) -> EvaluationOutcome:
    """Plays the episodes of a setting that have no sound result in ``folder`` yet.

    Args:
        setting: What is played, and by whom.
        world: Its environment.
        folder: Has the results, and the setting as JSON beside them.
        machinery: Where episodes are played.
        pool: The endpoint, for a policy that is one.
        display: Shows the progress.
        broken_only: Play only those that have a broken result.

    Raises:
        EnvsuiteError: The settings contradict each other, or the folder has results of other conditions.
    """
    tasks = sample_of([task.task_id for task in world.panel.tasks], setting.sample)
    examples = _examples(setting)
    conditions = conditions_of(setting, world, __version__, _system(setting, world, examples))
    episodes = [(task, seed) for seed in range(setting.seeds) for task in tasks]
    with ResultFile(folder / f"{setting.stem}.jsonl", conditions) as file:
        write_atomically(folder / f"{setting.stem}.json", setting.to_json())
        keys = file.missing(tasks, range(setting.seeds))
        if broken_only:
            keys = [key for key in keys if key in file.results]
        display.begin(f"{setting.env_id} {setting.split}, {setting.label}", len(episodes), len(episodes) - len(keys))
        if keys:
            with _vector(setting, machinery, pool, len(keys)) as vector:
                EpisodeRunner(setting, world, conditions, file, vector, pool, examples, display).play(keys)
        display.end()
        return EvaluationOutcome(
            setting, len(episodes), tuple(file.results[key] for key in episodes if key in file.results)
        )


@contextmanager
def _vector(
    setting: ProtocolSetting, machinery: Machinery, pool: RequestPool | None, episodes: int
) -> Iterator[Vector]:
    """Makes what plays the environment: with the endpoint's concurrency, or with a player in each worker."""
    factory: EnvFactory = setting.factory
    slots = max(1, machinery.workers) if pool is None else pool.most
    if pool is None:
        factory = PlayedFactory(factory.env_id, factory.kwargs, setting.policy)
    slots = min(slots, episodes)
    with make_vector([factory], slots, min(machinery.workers, slots), machinery.deadline) as vector:
        yield vector


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


def _system(setting: ProtocolSetting, world: EvaluatedEnv, examples: str) -> str:
    """Returns the system message of the first prompt; empty for a policy that is not prompted."""
    if setting.policy != ENDPOINT or setting.prompting is None:
        return ""
    chat = setting.prompting.chat(world.tools, world.max_calls, examples)
    chat.start(Observation(task="", text="", commands=()))
    first = chat.messages()[0]
    return str(first["content"]) if first["role"] == "system" else ""
