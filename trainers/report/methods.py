"""Advantages of saved steps under any method, computed again from the columns of an episodes file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from envsuite.core.errors import EnvsuiteError, UsageError
from envsuite.playing.step import Episode
from trainers.credit import SHAPERS
from trainers.credit.estimators import ESTIMATORS, Advantage, Calibrating, Estimator
from trainers.credit.recipes import recipe, recipes
from trainers.credit.rows import as_played, estimation_order, unshaped_steps, with_greedy_return
from trainers.credit.shapers import Shaper
from trainers.report.run import RunData, iteration_of
from trainers.rollout.config import TreeConfig
from trainers.settings import checked
from trainers.steps import StepTable
from trainers.steps.columns import GREEDY, SUPPLIERS
from trainers.steps.parquet import StepKey, read_episodes, read_table

TOLERANCE = 1e-6
"""How far the run's own method, computed again, may be from the advantages that were saved (relative where above 1)."""
OWN = "own"
"""The run's own method."""
DEFAULT = (OWN, *dict.fromkeys(("grpo", *ESTIMATORS)), "bipace:{embedder: ngram_hash, radius: 0.25}", "gigpo+scpo")
"""The methods of a report, unless others are asked for."""


class NotComputable(UsageError):
    """Advantages that saved episodes do not give; the message says what is missing."""


@dataclass(frozen=True)
class MethodDescription:
    """An estimator with its settings, and the shapers that make its rewards."""

    name: str
    """As it was asked for."""
    estimator: str
    options: Mapping[str, Any] = field(default_factory=dict)
    shapers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    rewards: str = "those of the run"
    """Where the shapers come from."""

    @classmethod
    def of_run(cls, run: RunData) -> MethodDescription:
        """The method that the run was trained with.

        Raises:
            NotComputable: The run's settings do not name it.
        """
        section = run.config.get("method")
        if not isinstance(section, Mapping) or not isinstance(section.get("estimator"), str):
            raise NotComputable(f"{run.folder / 'config.yaml'} has no method.estimator")
        options, shapers = section.get("options") or {}, section.get("shapers") or {}
        return cls(OWN, section["estimator"], options, {name: settings or {} for name, settings in shapers.items()})

    @classmethod
    def from_name(cls, name: str, own: MethodDescription) -> MethodDescription:
        """The method of that name.

        Args:
            name: ``own``; an estimator or a recipe, with the recipe's settings (``gigpo``, ``gigpo/webshop``); or a
                composition, which brings its own rewards (``gigpo+scpo``); each with settings on top where they follow
                (``gigpo:{gamma: 1.0}``).
            own: The run's.

        Raises:
            UnknownName: There is no such estimator or recipe.
            UsageError: The settings are not a YAML mapping.
        """
        base, _, text = name.partition(":")
        settings = _settings(name, text) if text else {}
        if base == OWN:
            return replace(own, name=name, options={**own.options, **settings})
        part = base.partition("/")[0]
        if "+" not in base and part not in recipes():
            return cls(name, base, settings, own.shapers)
        method = recipe(base).method
        options = {**method.get("options", {}), **settings}
        if "+" in base or recipes()[part].over is not None:
            return cls(name, method["estimator"], options, method.get("shapers", {}), "those of the recipe")
        return cls(name, method["estimator"], options, own.shapers)

    @cached_property
    def components(self) -> tuple[Estimator, list[Shaper]]:
        """Estimator and shapers.

        Raises:
            UnknownName: A name or an option does not exist.
            ConfigError: A setting has no such value.
        """
        estimator = checked(ESTIMATORS[self.estimator], self.options, f"option of estimator {self.estimator}")
        return estimator, [checked(SHAPERS[key], own, f"option of shaper {key}") for key, own in self.shapers.items()]

    def same_as(self, other: MethodDescription) -> bool:
        """Whether both compute the same: equal estimators, with every default filled in, and equal shapers."""
        return type(self.components[0]) is type(other.components[0]) and self.components == other.components

    def rows(self, table: StepTable) -> StepTable:
        """The shaped steps of sampled episodes, in the order in which the estimator gets them.

        Args:
            table: From :func:`~trainers.credit.rows.unshaped_steps`, steps of all groups of an iteration.

        Raises:
            NotComputable: A column is missing.
        """
        estimator, shapers = self.components
        for key, shaper in zip(self.shapers, shapers, strict=True):
            _check(f"the shaper {key}", shaper.needs, table)
            table = shaper(table)
        if table.extra[GREEDY].any():
            table = with_greedy_return(table)
        _check(self.estimator, estimator.needs, table)
        table = table.take(np.flatnonzero(~table.extra[GREEDY]))
        return table.take(estimation_order(table))

    def per_step(self, table: StepTable) -> dict[StepKey, float]:
        """One advantage per step, by (episode id, t); of a method with one per token, the mean over the step's tokens.

        Raises:
            NotComputable: A column is missing.
            UsageError: The method refuses the columns.
        """
        rows = self.rows(table)
        return dict(zip(as_played(rows), step_means(rows, self.components[0](rows)).tolist(), strict=True))

    def summary(self) -> dict[str, Any]:
        """Name and settings, for people."""
        options = "" if not self.options else _inline(self.options)
        shapers = ", ".join(f"{key} {_inline(settings)}" if settings else key for key, settings in self.shapers.items())
        rewards = f"{self.rewards} ({shapers or 'unshaped'})"
        summary = {"name": self.name, "estimator": self.estimator, "options": options, "rewards": rewards}
        return {**summary, "per": self.components[0].per}


def step_means(table: StepTable, advantage: Advantage) -> NDArray[np.float64]:
    """One advantage per row of ``table``: its own, or the mean over its tokens (0 for none), shape (N,)."""
    if advantage.per_step is not None:
        return advantage.per_step
    sums = np.bincount(table.response.row_of, advantage.tokens(table), len(table))
    return np.asarray(sums / np.maximum(table.response.lengths, 1), np.float64)


@dataclass(frozen=True)
class MethodAdvantages:
    """The advantages of one file of episodes under one method."""

    method: MethodDescription
    values: Mapping[StepKey, float] | None
    """By (episode id, t); ``None`` where they cannot be computed."""
    lacks: str = ""
    """Why they cannot."""


class Advantages:
    """Advantages of a run's saved steps under several methods.

    Args:
        run: The run.
        names: Methods, as :meth:`MethodDescription.from_name` takes them; equal ones are computed once.

    Raises:
        UnknownName: A method does not exist.
        UsageError: Its settings are not a YAML mapping, or an option has no such value.
    """

    def __init__(self, run: RunData, names: Sequence[str] = DEFAULT) -> None:
        self.run = run
        self.methods: list[MethodDescription] = []
        self.problem = ""
        """Why nothing can be computed, or not by every method, if so."""
        self._calibrations: dict[str, MethodDescription | str] = {}
        self._same: dict[str, list[str]] = {}
        if not names:
            return
        try:
            own = MethodDescription.of_run(run)
            own.components  # noqa: B018  (settings of another version may not exist in this one)
        except EnvsuiteError as error:
            self.problem = str(error)
            return
        for name in names:
            try:
                method = MethodDescription.from_name(name, own)
                method.components  # noqa: B018  (wrong settings are told now)
            except EnvsuiteError as error:
                if name not in DEFAULT:
                    raise
                self.problem = f"{name}: {error}"  # of a package that is installed, but cannot be imported
                continue
            same = next((earlier for earlier in self.methods if method.same_as(earlier)), None)
            if same is None:
                self.methods.append(method)
            elif name not in (same.name, *self._same.get(same.name, ())):
                self._same.setdefault(same.name, []).append(name)
        self._own = own

    def summaries(self) -> list[dict[str, Any]]:
        """Name and settings of each method, with the names of the methods that equal it."""
        return [{**method.summary(), "same": self._same.get(method.name, [])} for method in self.methods]

    def of_file(self, path: Path) -> list[MethodAdvantages]:
        """The advantages of the steps of an iteration's file, or why there are none; nothing of an evaluation's.

        Raises:
            DataError: The file is damaged.
        """
        iteration = iteration_of(path)
        if iteration is None or not self.methods:
            return []
        try:
            table = self._table(path, iteration)
        except NotComputable as error:
            return [MethodAdvantages(method, None, str(error)) for method in self.methods]
        return [self._compute(method, table) for method in self.methods]

    def _table(self, path: Path, iteration: int) -> StepTable:
        """The steps of an iteration, if the file has all of its groups and the run's own method gives what it gave.

        Raises:
            NotComputable: Statistics of groups would be wrong.
        """
        episodes = read_episodes(path)
        if missing := incomplete(self.run, episodes, iteration):
            raise NotComputable(missing)
        if any(not len(step.response_ids) for e in episodes if e.error is None for step in e.steps):
            raise NotComputable("the steps have no tokens, so they were not trained on")
        table = unshaped_steps(episodes, iteration)
        if values := saved_advantages(path):
            again = self._compute(self._own, table).values
            if again is not None and (difference := _difference(values, again)) > TOLERANCE:
                raise NotComputable(
                    "computed again, the run's own method differs from the saved advantages by up to "
                    f"{difference:.2g}: its settings, its code or the file have changed since"
                )
        return table

    def _compute(self, method: MethodDescription, table: StepTable) -> MethodAdvantages:
        try:
            return MethodAdvantages(method, self._calibrate(method).per_step(table))
        except EnvsuiteError as error:
            return MethodAdvantages(method, None, str(error))

    def _calibrate(self, method: MethodDescription) -> MethodDescription:
        """The method as the run would have it: a setting left open is decided by the first iteration's steps.

        Raises:
            NotComputable: They are not saved.
        """
        estimator, _ = method.components
        if not isinstance(estimator, Calibrating) or not estimator.open:
            return method
        if method.name not in self._calibrations:
            self._calibrations[method.name] = self._calibration(method, estimator)
        calibration = self._calibrations[method.name]
        if isinstance(calibration, str):
            raise NotComputable(calibration)
        return calibration

    def _calibration(self, method: MethodDescription, estimator: Calibrating) -> MethodDescription | str:
        first = next((path for _, path in self.run.episode_files() if iteration_of(path) == 1), None)
        if first is None:
            return "a setting is decided by the first iteration's steps, which are not saved"
        episodes = read_episodes(first)
        if missing := incomplete(self.run, episodes, 1):
            return f"a setting is decided by the first iteration's steps, and {missing}"
        try:
            fixed: Any = estimator.calibrate(method.rows(unshaped_steps(episodes, 1)))
        except EnvsuiteError as error:
            return str(error)
        return replace(method, options=asdict(fixed))


def saved_advantages(path: Path) -> dict[StepKey, float]:
    """The advantages that the steps of a file were trained with, by (episode id, t); empty where none were saved.

    Raises:
        DataError: The file is damaged.
    """
    columns = read_table(path, ["episode_id", "t", "advantage"]).to_pydict()
    rows = zip(columns["episode_id"], columns["t"], columns["advantage"], strict=True)
    return {(episode, t): value for episode, t, value in rows if value is not None}


def incomplete(run: RunData, episodes: Sequence[Episode], iteration: int) -> str:
    """Why statistics of the groups of ``episodes`` would be wrong; empty where all of them are there.

    Args:
        run: The run, whose settings and metrics say how many episodes were played.
        episodes: Episodes that were saved of an iteration.
        iteration: Its number.
    """
    sizes = Counter(episode.group_id for episode in episodes if not episode.greedy)
    rollout = run.config.get("rollout")
    group_size = rollout.get("group_size") if isinstance(rollout, Mapping) else None
    if isinstance(rollout, Mapping) and rollout.get("tree") is not None:
        group_size = checked(TreeConfig, rollout["tree"], "setting of rollout.tree").kept_episodes
    if not isinstance(group_size, int):
        return "config.yaml does not say how many episodes a group has (rollout.group_size)"
    for group, size in sizes.items():
        if size != group_size:
            return f"group {group} has {size} of its {group_size} episodes, so its statistics would be wrong"
    counts = [r["train/episodes"] for r in run.metrics if r["iteration"] == iteration and "train/episodes" in r]
    if not counts:
        return f"metrics.jsonl does not say how many episodes iteration {iteration} had"
    if counts[0] != sum(sizes.values()):
        return (
            f"{sum(sizes.values())} of the {counts[0]} episodes of iteration {iteration} are saved, "
            "so statistics over them would be wrong"
        )
    return ""


def _difference(saved: Mapping[StepKey, float], again: Mapping[StepKey, float]) -> float:
    """The largest difference, relative to the saved value where that is above 1; infinite where steps differ."""
    if saved.keys() != again.keys():
        return float("inf")
    return max((abs(again[key] - value) / max(1.0, abs(value)) for key, value in saved.items()), default=0.0)


def _check(who: str, needs: Sequence[str], table: StepTable) -> None:
    for name in needs:
        if name in table.extra or name in table.token_extra:
            continue
        raise NotComputable(
            f"{who} needs the column {name!r}, which episodes files do not have: "
            f"{SUPPLIERS.get(name, 'nothing')} supplies it during training"
        )


def _settings(name: str, text: str) -> dict[str, Any]:
    try:
        settings = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"method {name!r}: its settings are not YAML ({error})") from error
    if not isinstance(settings, dict) or not all(isinstance(key, str) for key in settings):
        raise UsageError(f"method {name!r}: give settings as a mapping, e.g. gigpo:{{gamma: 1.0}}")
    return settings


def _inline(settings: Mapping[str, Any]) -> str:
    text: str = yaml.safe_dump(dict(settings), default_flow_style=True, sort_keys=False, width=10**6)
    return text.strip()
