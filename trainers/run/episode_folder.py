"""Episodes in a folder, written as they end, so that none has to be played, and paid for, a second time."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from envsuite.core.errors import DataError
from envsuite.data.files import write_atomically
from envsuite.playing.episode import EpisodeCost, EpisodePlan
from envsuite.playing.step import Episode
from trainers.rollout.config import EnvConfig, SamplingConfig
from trainers.run.config import TrainConfig
from trainers.settings import ConfigError
from trainers.steps.parquet import read_episodes, write_episodes

_SETTINGS = "settings.json"
PASSING = ("key_variable", "concurrency", "patience", "timeout", "budget", "prices")
"""Options of an engine that change no answer."""
_AGENT = ("run", "test", "environment", "masking", "requests", "tokens", "seconds")
"""Settings of an agent that change its episodes."""


class EpisodeFolder:
    """A folder of episodes, one file each.

    Args:
        folder: Where they are; made if need be.
        settings: What the episodes follow from; those of a folder that exists must be the same.
        text: Returns the text of an answer's tokens, for those who imitate it; ``None`` where answers are texts.

    Raises:
        ConfigError: The folder has episodes of other settings.
        DataError: It cannot be read or written.
    """

    def __init__(
        self, folder: Path, settings: Mapping[str, Any], text: Callable[[Sequence[int]], str] | None = None
    ) -> None:
        self.folder, self.text = folder, text
        content = json.dumps(settings, indent=2, sort_keys=True, default=str)
        file = folder / _SETTINGS
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if file.exists():
                self._compare(json.loads(file.read_text(encoding="utf-8")), json.loads(content))
            else:
                write_atomically(file, content.encode())
        except (OSError, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            raise DataError(f"{folder}: episodes cannot be kept there ({error})") from error

    def split(self, plans: Sequence[EpisodePlan]) -> tuple[list[Episode], list[EpisodePlan]]:
        """Returns the episodes of ``plans`` that are there, and the plans that are left to play.

        Raises:
            DataError: A file is damaged, or has the episode of another task.
        """
        episodes: list[Episode] = []
        open_plans: list[EpisodePlan] = []
        for plan in plans:
            file = self._file(plan.episode_id)
            if not file.exists():
                open_plans.append(plan)
                continue
            (episode,) = read_episodes(file)
            if (episode.episode_id, episode.task_id) != (plan.episode_id, plan.task_id):
                raise DataError(f"{file}: has task {episode.task_id!r}, not {plan.task_id!r}; name another folder")
            episodes.append(episode)
        return episodes, open_plans

    def add(self, plan: EpisodePlan, episode: Episode, effort: EpisodeCost) -> None:
        """Writes an episode; one that failed is left out, to be played another time."""
        if episode.error is not None:
            return
        if (text := self.text) is not None:
            steps = tuple(
                step
                if step.response_text is not None
                else replace(step, response_text=text(step.response_ids.tolist()))
                for step in episode.steps
            )
            episode = replace(episode, steps=steps)
        write_episodes(self._file(episode.episode_id), [episode])

    def _file(self, episode_id: int) -> Path:
        return self.folder / f"{episode_id:06}.parquet"

    def _compare(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        for name in sorted({*old, *new}):
            if old.get(name) != new.get(name):
                raise ConfigError(
                    f"{self.folder} has episodes with {name} {json.dumps(old.get(name))}, and now it is "
                    f"{json.dumps(new.get(name))}; set it back, or name another folder"
                )


def played_with(config: TrainConfig, env: EnvConfig, sampling: SamplingConfig, tasks: str) -> dict[str, Any]:
    """Returns the settings that episodes follow from.

    Args:
        config: The run's settings.
        env: The environment.
        sampling: How tokens are drawn.
        tasks: Content hash of the task set.
    """
    options = {name: value for name, value in config.rollout.engine_options.items() if name not in PASSING}
    agent = config.rollout.agent
    return {
        **({} if agent is None else {"agent": {name: vars(agent)[name] for name in _AGENT}}),
        "engine": config.rollout.engine,
        "engine_options": options,
        "model": config.model.path if "model" not in options or agent is not None else None,
        "env": asdict(env),
        "tasks": tasks,
        "prompt": asdict(config.prompt),
        "sampling": asdict(sampling),
        "episode_tokens": config.rollout.episode_tokens,
        "seed": config.seed,
    }
