"""Steps as columns: what estimators and objectives see."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envsuite.core import Action
from envsuite.core.errors import UsageError
from envsuite.core.images import ImageTable, Pixels
from envsuite.playing.step import Episode
from trainers.steps.columns import AGENT, LAST, MILESTONE, NEXT_STATE, SUCCESS, TREE, TRUNCATED, MissingColumn

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Ragged:
    """Rows of different lengths in one flat array: row ``i`` is ``values[offsets[i]:offsets[i + 1]]``."""

    values: NDArray[Any]
    offsets: Ints
    """Shape (rows + 1,), from 0 to ``len(values)``."""

    @classmethod
    def of(cls, rows: Iterable[Sequence[Any] | NDArray[Any]], dtype: type[np.generic]) -> Ragged:
        """Flatten ``rows``."""
        arrays = [np.asarray(row, dtype) for row in rows]
        offsets = np.zeros(len(arrays) + 1, np.int64)
        np.cumsum([len(row) for row in arrays], out=offsets[1:])
        return cls(np.concatenate([np.empty(0, dtype), *arrays]), offsets)

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> NDArray[Any]:
        """One row, as a view."""
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    @property
    def lengths(self) -> Ints:
        """Length of each row."""
        return np.diff(self.offsets)

    @property
    def row_of(self) -> Ints:
        """Row index of each value."""
        return np.repeat(np.arange(len(self)), self.lengths)

    def take(self, rows: Ints) -> Ragged:
        """The given rows, in the given order."""
        lengths = self.lengths[rows]
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        index = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths) + np.repeat(self.offsets[:-1][rows], lengths)
        return Ragged(self.values[index], offsets)


@dataclass(frozen=True)
class StepTable:
    """Step rows as NumPy columns; one row per step, in any order.

    Every column has shape (N,); the token columns are :class:`Ragged` with N rows.
    """

    group_id: Ints
    episode_id: Ints
    t: Ints
    """Index of the step in its episode."""
    reward: Floats
    """Reward of the step, after shaping."""
    state_key: NDArray[np.object_]
    """Identity of the observation that the step answers (str); equal keys are equal states."""
    valid: NDArray[np.bool_]
    prompt: Ragged
    """Token ids of the prompts, int32."""
    response: Ragged
    """Token ids of the responses, int32."""
    logprob: Ragged
    """Log-probabilities of the response tokens as the engine sampled them, float32."""
    policy_version: Ragged = field(default_factory=lambda: Ragged.of([], np.int64))
    """Number of optimiser steps that the weights had seen which sampled each response token, int64; 0 where the column
    is not given. Most rows have one version throughout."""
    images: NDArray[np.object_] = field(default_factory=lambda: np.empty(0, object))
    """Images of each prompt, a tuple of arrays of pixels (:attr:`.Step.images`); empty ones where it is not given."""
    experts: NDArray[np.object_] = field(default_factory=lambda: np.empty(0, object))
    """Experts of each row's tokens (:attr:`.Step.experts`); none where it is not given."""
    extra: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Further columns that some methods need (``action``, ``value``, ``embedding``, …), each with N rows."""
    token_extra: Mapping[str, Ragged] = field(default_factory=dict)
    """Further columns with one number per response token (``value``, ``reward``)."""

    def __post_init__(self) -> None:
        n = len(self.reward)
        if not len(self.policy_version):
            zeros = np.zeros(len(self.response.values), np.int64)
            object.__setattr__(self, "policy_version", Ragged(zeros, self.response.offsets))
        for name in ("images", "experts"):
            if not len(getattr(self, name)):
                object.__setattr__(self, name, _objects([()] * n))
        for name, column in {**vars(self), **self.extra}.items():
            if name not in ("extra", "token_extra") and len(column) != n:
                raise UsageError(f"column {name!r} has {len(column)} rows, 'reward' has {n}")
        bad = np.flatnonzero(~np.isfinite(self.reward))
        if len(bad):
            row = int(bad[0])
            raise UsageError(
                f"column 'reward' is {self.reward[row]} in row {row} "
                f"(episode {self.episode_id[row]}, step {self.t[row]}); every reward must be finite"
            )
        for name, tokens in self.token_extra.items():
            if not np.array_equal(tokens.offsets, self.response.offsets) or len(tokens.values) != tokens.offsets[-1]:
                raise UsageError(f"token column {name!r} must have one value for each response token of each row")

    def __len__(self) -> int:
        """Number of steps."""
        return len(self.reward)

    @cached_property
    def pool(self) -> tuple[list[Pixels], list[list[int]]]:
        """The images of all prompts, each once; and for each row the numbers of its images among them."""
        pool = ImageTable()
        numbers = [pool.numbers(images) for images in self.images.tolist()]
        return pool.images, numbers

    def staleness(self, version: int) -> float:
        """Mean number of optimiser steps from the weights that sampled a response token to ``version``; 0 of none."""
        versions = self.policy_version.values
        return version - float(versions.mean()) if len(versions) else 0.0

    def column(self, name: str, method: str, supplied_by: str) -> NDArray[Any]:
        """The extra column ``name``.

        Raises:
            MissingColumn: It is not there; the message names the method and what would supply the column.
        """
        if name not in self.extra:
            raise MissingColumn(f"{method} needs the column {name!r}, which {supplied_by} supplies")
        return self.extra[name]

    def token_column(self, name: str, method: str, supplied_by: str) -> NDArray[Any]:
        """The extra token column ``name``, in the order of ``response.values``.

        Raises:
            MissingColumn: It is not there; the message names the method and what would supply the column.
        """
        if name not in self.token_extra:
            raise MissingColumn(f"{method} needs the token column {name!r}, which {supplied_by} supplies")
        return self.token_extra[name].values

    def with_reward(self, reward: Floats) -> StepTable:
        """The same steps with another reward column."""
        return replace(self, reward=reward)

    def with_columns(self, **columns: NDArray[Any]) -> StepTable:
        """The same steps with further extra columns."""
        return replace(self, extra={**self.extra, **columns})

    def with_token_columns(self, **columns: NDArray[Any]) -> StepTable:
        """The same steps with further columns of one number per response token, each flat."""
        ragged_columns = {name: Ragged(values, self.response.offsets) for name, values in columns.items()}
        return replace(self, token_extra={**self.token_extra, **ragged_columns})

    def without_experts(self) -> StepTable:
        """The same steps without the experts of their tokens, which others than the policy do not follow."""
        return replace(self, experts=np.empty(0, object))

    def take(self, rows: Ints) -> StepTable:
        """The given rows, in the given order."""
        rows = np.asarray(rows, np.int64)
        return StepTable(**{column.name: _take(getattr(self, column.name), rows) for column in fields(self)})

    @classmethod
    def join(cls, tables: Sequence[StepTable]) -> StepTable:
        """The rows of all tables, one after the other; each has the same columns, or no row.

        Raises:
            UsageError: There is no table.
        """
        parts = [table for table in tables if len(table)] or list(tables[:1])
        if not parts:
            raise UsageError("StepTable.join needs at least one table")
        names = [column.name for column in fields(cls)]
        return cls(**{name: _concatenate([getattr(part, name) for part in parts]) for name in names})

    @classmethod
    def from_episodes(cls, episodes: Iterable[Episode]) -> StepTable:
        """One row per step, in episode order; episodes that failed, and greedy ones, are left out.

        The extra column ``action`` is the parsed action as text, None where the completion did not parse;
        ``step_text`` is the action and the observation that it led to, None where the action was invalid or changed
        nothing (the state key stayed the same); ``cut`` says whether the response reached the token limit, ``success``
        whether the episode solved its task, ``truncated`` whether it was cut off, ``next_state_key`` which state the
        step led to ("" where its info does not say), ``tree`` which episode its tree was grown from, ``agent`` which
        agent's step it is, and ``last_observation`` the text that the episode ended with. ``milestone`` is there where
        every info says whether the step reached one.
        """
        episodes = [episode for episode in episodes if episode.error is None and not episode.greedy]
        pairs = [(episode, step) for episode in episodes for step in episode.steps]
        keys = _objects([step.state_key for _, step in pairs])
        actions = _objects([action_text(step.action) for _, step in pairs])
        milestones = [step.info.get(MILESTONE) for _, step in pairs]
        flags = {} if None in milestones else {MILESTONE: np.array(milestones, np.bool_)}
        texts = _objects([text for episode in episodes for text in _step_texts(episode)])
        return cls(
            group_id=np.array([episode.group_id for episode, _ in pairs], np.int64),
            episode_id=np.array([episode.episode_id for episode, _ in pairs], np.int64),
            t=np.array([step.t for _, step in pairs], np.int64),
            reward=np.array([reward for episode in episodes for reward in episode.own_rewards], np.float64),
            state_key=keys,
            valid=np.array([step.valid for _, step in pairs], np.bool_),
            prompt=Ragged.of((step.prompt_ids for _, step in pairs), np.int32),
            response=Ragged.of((step.response_ids for _, step in pairs), np.int32),
            logprob=Ragged.of((step.response_logprobs for _, step in pairs), np.float32),
            policy_version=Ragged.of((step.policy_version for _, step in pairs), np.int64),
            images=_objects([step.images for _, step in pairs]),
            experts=_objects([step.experts for _, step in pairs]),
            extra={
                "action": actions,
                "step_text": texts,
                "cut": np.array([step.finish_reason == "length" for _, step in pairs], np.bool_),
                SUCCESS: np.array([episode.success for episode, _ in pairs], np.bool_),
                TRUNCATED: np.array([episode.truncated for episode, _ in pairs], np.bool_),
                NEXT_STATE: _objects([step.info.get("state_key", "") for _, step in pairs]),
                **flags,
                LAST: _objects([episode.last_observation for episode, _ in pairs]),
                AGENT: _objects([step.agent for _, step in pairs]),
                TREE: np.array([e.episode_id if e.tree < 0 else e.tree for e, _ in pairs], np.int64),
            },
        )


def _objects(values: Sequence[Any]) -> NDArray[np.object_]:
    """Returns a column of objects, which NumPy would take apart if they were sequences."""
    column = np.empty(len(values), object)
    for number, value in enumerate(values):
        column[number] = value
    return column


def _take(column: Any, rows: Ints) -> Any:
    if isinstance(column, Mapping):
        return {name: _take(part, rows) for name, part in column.items()}
    return column.take(rows) if isinstance(column, Ragged) else column[rows]


def _concatenate(columns: Sequence[Any]) -> Any:
    if isinstance(columns[0], Mapping):
        return {name: _concatenate([column[name] for column in columns]) for name in columns[0]}
    if not isinstance(columns[0], Ragged):
        return np.concatenate(columns)
    lengths = np.concatenate([column.lengths for column in columns])
    return Ragged(np.concatenate([column.values for column in columns]), np.concatenate([[0], np.cumsum(lengths)]))


def action_text(action: Action | None) -> str | None:
    """Equal exactly where the calls are."""
    if action is None:
        return None
    return json.dumps([[call.name, call.arguments] for call in action], sort_keys=True, default=dict)


def _step_texts(episode: Episode) -> list[str | None]:
    """Action and the next observation; of the last step, whose observation nobody answered, how the episode ended."""
    observations = [*(step.observation for step in episode.steps[1:]), "success" if episode.success else "end"]
    keys = [*(step.state_key for step in episode.steps[1:]), None]
    return [
        f"{_spoken_text(step.action)}\n{after}"
        if step.valid and step.action is not None and key != step.state_key
        else None
        for step, after, key in zip(episode.steps, observations, keys, strict=False)
    ]


def _spoken_text(action: Action) -> str:
    """The action as an agent would say it: a call's only text as it is, else the name with its arguments."""
    return "; ".join(
        next(iter(call.arguments.values()))
        if len(call.arguments) == 1 and isinstance(next(iter(call.arguments.values())), str)
        else f"{call.name}({', '.join(f'{name}={value}' for name, value in call.arguments.items())})"
        for call in action
    )
