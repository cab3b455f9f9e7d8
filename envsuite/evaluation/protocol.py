"""The protocol of an evaluation: what is played, by whom, how often, and under which conditions."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import gymnasium
import orjson

from envsuite.core.env import ToolEnv
from envsuite.core.errors import DataError, UsageError
from envsuite.core.naming import spec_of
from envsuite.core.tools import Tool
from envsuite.evaluation.panels import Panel, panel_of
from envsuite.evaluation.prompting import Prompting
from envsuite.evaluation.results import Conditions
from envsuite.playing.player import RANDOM
from envsuite.remote.making import horizon_of, unknown_player
from envsuite.vector import EnvFactory

SEEDS = 5
"""Episodes of each task, of a policy that samples."""
ENDPOINT = "endpoint"
_ELSEWHERE = ("train", "validation")
"""Splits that are not measured by default."""
_SECRETS = ("key_variable", "concurrency", "patience", "timeout", "budget", "prices", "prefix")
"""Settings of an endpoint that change no answer."""


@dataclass(frozen=True)
class ProtocolSetting:
    """One evaluation: an environment, a split and a policy. Its results are in one file."""

    env_id: str
    split: str
    policy: str
    """``"random"``, ``"endpoint"``, or a player of the environment: ``"expert"``, ``"lexical"``."""
    source: str | None = None
    """Source of the tasks; ``None``: the environment's own choice."""
    env_options: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of ``gymnasium.make``."""
    sample: int | None = None
    """Number of tasks; ``None``: all of the split."""
    seeds: int = 1
    """Episodes of each task."""
    steps: int | None = None
    """Most steps of an episode; ``None``: the environment's own horizon."""
    name: str | None = None
    """Name of an endpoint's model in tables."""
    prompting: Prompting | None = None
    endpoint: Mapping[str, Any] | None = None
    """Settings of an endpoint (:class:`~envsuite.prompting.endpoints.EndpointOptions`), without the key itself."""

    def __post_init__(self) -> None:
        for name in ("seeds", "sample", "steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"--{name} is {value}; give 1 or more")
        if (self.policy == ENDPOINT) != (self.endpoint is not None and self.prompting is not None):
            raise UsageError("the policy endpoint needs --url and --model; other policies take neither")
        if self.name is not None and self.policy != ENDPOINT:
            raise UsageError("--name is for the model of --policy endpoint; players have their own")

    @property
    def label(self) -> str:
        """Returns the name of the policy."""
        if self.endpoint is None or self.prompting is None:
            return self.policy
        return f"{self.name or str(self.endpoint['model']).rpartition('/')[2]}, {self.prompting.label}"

    @property
    def stem(self) -> str:
        """Returns the name of the evaluation's files, without their ending."""
        return stem_of(self.env_id, self.split, self.label)

    @property
    def factory(self) -> EnvFactory:
        """Returns what makes the environment."""
        options = {"split": self.split, **self.env_options}
        options |= {} if self.source is None else {"source": self.source}
        options |= {} if self.steps is None else {"max_episode_steps": self.steps}
        return EnvFactory(self.env_id, options)

    def to_json(self) -> bytes:
        """Returns the setting as JSON, for :meth:`from_json`."""
        return orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)

    @classmethod
    def from_json(cls, path: Path) -> ProtocolSetting:
        """Reads the file of a setting.

        Raises:
            DataError: It is missing or has something else; the message names it.
        """
        try:
            body = orjson.loads(path.read_bytes())
            values = {f.name: body[f.name] for f in fields(cls)}
            if values["prompting"] is not None:
                values["prompting"] = Prompting(**values["prompting"])
            return cls(**values)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, UsageError) as error:
            raise DataError(f"{path}: not the settings of an evaluation ({type(error).__name__}: {error})") from error


@dataclass(frozen=True)
class EvaluatedEnv:
    """Facts of an environment that an evaluation follows from."""

    panel: Panel
    versions: Mapping[str, str]
    tools: tuple[Tool, ...]
    max_calls: int
    budget: int

    @property
    def strata(self) -> Mapping[str, str]:
        """Returns the stratum of each task."""
        return {task.task_id: task.stratum for task in self.panel.tasks}


def evaluated_env(setting: ProtocolSetting) -> EvaluatedEnv:
    """Makes the environment of a setting once, and lists its tasks.

    Raises:
        EnvsuiteError: It cannot be made, has no such split, or no task in it.
    """
    budget = setting.steps or horizon_of(setting.env_id, setting.factory.kwargs)
    if budget is None:
        raise UsageError(f"{setting.env_id} has no horizon; set the most steps of an episode with --steps")
    with open_env(setting.factory) as env:
        panel = panel_of(env, setting.split)
        if not panel.tasks:
            raise UsageError(f"split {setting.split!r} of {setting.env_id} has no task")
        return EvaluatedEnv(panel, dict(env.versions), tuple(env.tools), env.max_calls, budget)


@contextmanager
def open_env(factory: EnvFactory) -> Iterator[ToolEnv]:
    """Makes an environment for the duration of the block.

    Raises:
        UsageError: It cannot be made with these arguments, or is not a :class:`ToolEnv`.
    """
    try:
        env = factory.make()
    except (TypeError, ValueError, gymnasium.error.Error) as error:
        raise UsageError(f"{factory.env_id} cannot be made: {error}") from error
    with closing(env):
        inner = env.unwrapped
        if not isinstance(inner, ToolEnv):
            raise UsageError(f"{factory.env_id} is not a ToolEnv ({type(inner).__name__})")
        yield inner


def measured_splits(env: ToolEnv) -> list[str]:
    """Returns the splits that are measured by default: ``test``, or all that are neither for training nor tuning.

    Raises:
        UsageError: There is none.
    """
    splits = list(env.tasks.splits)
    selection = ["test"] if "test" in splits else [split for split in splits if split not in _ELSEWHERE]
    if not selection:
        names = ", ".join(splits)
        raise UsageError(f"no split is measured by default, as there is only {names}; name one: --split {splits[0]}")
    return selection


def sample_of(ids: Sequence[str], count: int | None) -> list[str]:
    """Returns ``count`` tasks, or all, in the order of ``ids``.

    A sample is a function of the ids alone: those with the smallest SHA-256. So it does not follow the order of the
    split, which may be by difficulty, and a smaller sample is part of a larger one.

    Raises:
        UsageError: There are fewer.
    """
    if count is None:
        return list(ids)
    if count > len(ids):
        raise UsageError(f"a sample of {count} was asked for, but there are {len(ids)} tasks; leave it out for all")
    smallest = sorted(range(len(ids)), key=lambda place: hashlib.sha256(ids[place].encode()).digest())[:count]
    return [ids[place] for place in sorted(smallest)]


def conditions_of(setting: ProtocolSetting, env: EvaluatedEnv, version: str, system: str = "") -> Conditions:
    """Returns the conditions of a setting's results.

    Args:
        setting: The setting.
        env: What :func:`evaluated_env` returned for it.
        version: envsuite's version.
        system: The system message of the first prompt, of a policy that is prompted.
    """
    plain = Conditions(
        policy=setting.label,
        kind="player",
        env_id=setting.env_id,
        source=env.panel.source,
        split=setting.split,
        panel=env.panel.hash,
        panel_size=len(env.panel.tasks),
        sample=None if setting.sample == len(env.panel.tasks) else setting.sample,
        budget=env.budget,
        env_options=dict(setting.env_options),
        versions={"envsuite": version, **env.versions},
    )
    prompting, endpoint = setting.prompting, setting.endpoint
    if prompting is None or endpoint is None:
        return plain
    hidden = (*_SECRETS, "url", "model")
    options = {name: value for name, value in endpoint.items() if name not in hidden and value is not None}
    digest = hashlib.sha256(system.encode()).hexdigest()
    return replace(
        plain,
        kind=ENDPOINT,
        model=str(endpoint["model"]),
        prompt={**prompting.prompt_conditions(), "system_sha256": digest},
        sampling={**prompting.sampling(), **options},
        trials=prompting.trials,
    )


def stem_of(env_id: str, split: str, policy: str) -> str:
    """Returns the name of the files of an evaluation, without their ending."""
    parts = (re.sub(r"[^A-Za-z0-9._]+", "-", part).strip("-.") for part in (env_id, split, policy))
    return "-".join(parts)


def check_policy(name: str, env_id: str) -> None:
    """Refuses a policy that the environment has not.

    Raises:
        UnknownName: There is no such environment, or no such policy for it.
    """
    spec = spec_of(env_id)
    policies = (RANDOM, ENDPOINT, *spec.players)
    if name not in policies:
        raise unknown_player(spec, name, policies)
