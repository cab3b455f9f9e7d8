"""Recorded inputs in the schemas ``golden-steps/1`` and ``golden-tokens/1``, as this project's tables and tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trainers.credit.estimators.groups import group_codes
from trainers.steps import Ragged, StepTable
from trainers.steps.columns import MILESTONE, NEXT_STATE, SUCCESS

Json = dict[str, Any]


class NotCovered(Exception):
    """A case that this project does not (or cannot) reproduce; the message is the reason."""


def _codes(values: Sequence[Any]) -> NDArray[np.int64]:
    return group_codes(np.array(values, object))


def _table(
    group: NDArray[np.int64],
    episode: NDArray[np.int64],
    t: NDArray[np.int64],
    reward: NDArray[np.float64],
    keys: Sequence[str],
    valid: NDArray[np.bool_],
    response: Ragged,
) -> StepTable:
    key = np.empty(len(keys), object)
    key[:] = keys
    empty = Ragged(np.zeros(0, np.int64), np.zeros(len(keys) + 1, np.int64))
    logprob = Ragged(np.zeros(len(response.values), np.float32), response.offsets)
    return StepTable(group, episode, t, reward, key, valid, prompt=empty, response=response, logprob=logprob)


def step_table(data: Json, *, row_order: bool = False) -> StepTable:
    """The step rows of a ``golden-steps/1`` or ``golden-steps/2`` file.

    Args:
        data: The file.
        row_order: Number the steps of a trajectory as its rows come instead of by ``step_index``, as verl-agent does.
    """
    if not str(data.get("schema", "")).startswith("golden-steps/"):
        raise NotCovered(f"needs step rows, the input is {data.get('schema')!r}")
    rows = data["steps"]
    episode = _codes([row["traj_id"] for row in rows])
    t = np.array([row["step_index"] for row in rows], np.int64)
    if row_order:
        order = np.argsort(episode, kind="stable")
        starts = np.searchsorted(episode[order], np.arange(int(episode.max(initial=-1)) + 1))
        t = np.empty(len(rows), np.int64)
        t[order] = np.arange(len(rows)) - starts[episode[order]]
    table = _table(
        _codes([row["group_id"] for row in rows]),
        episode,
        t,
        np.array([row["step_reward"] for row in rows], np.float64),
        [row["observation"] for row in rows],
        np.array([row["is_action_valid"] for row in rows], np.bool_),
        Ragged.of([_response(row) for row in rows], np.int64),
    )
    return table.with_columns(**{
        SUCCESS: np.array([row.get("success", False) for row in rows], np.bool_),
        MILESTONE: np.array([row.get("milestone_achieved", False) for row in rows], np.bool_),
        NEXT_STATE: np.array([row.get("next_observation", "") for row in rows], object),
    })  # fmt: skip


def _response(row: Json) -> list[int]:
    """Token ids of a row's response, as many as it says it has; 0 where the file has none."""
    ids = list(row.get("response_token_ids", ()))
    count = int(row.get("n_response_tokens", len(ids)))
    return [*ids[:count], *[0] * (count - len(ids))]


def flat_tokens(data: Json, name: str) -> NDArray[np.float64]:
    """A token column of a ``golden-steps/2`` file, without its padding."""
    if name not in data.get("tokens", {}):
        raise NotCovered(f"the input has no {name!r}")
    rows = zip(data["steps"], data["tokens"][name], strict=True)
    return np.array([value for row, values in rows for value in values[: row["n_response_tokens"]]], np.float64)


def token_row_table(data: Json, rewards: str, *, dense: bool = False) -> StepTable:
    """The rows of a ``golden-tokens/1`` file as one-step episodes.

    Args:
        data: The file.
        rewards: Name of its token rewards.
        dense: Keep them as token rewards, in place of their sum as the reward of the step.
    """
    if not str(data.get("schema", "")).startswith("golden-tokens/1"):
        raise NotCovered(f"needs token rows, the input is {data.get('schema')!r}")
    if rewards not in data:
        raise NotCovered(f"the input has no {rewards!r}")
    n = len(data["group_id"])
    earned = np.array(data[rewards], np.float64)
    mask = response_mask(data)
    rows, zero = np.arange(n), np.zeros(n, np.int64)
    response = Ragged.of([[0] * int(length) for length in mask.sum(axis=1)], np.int64)
    reward = np.zeros(n) if dense else earned.sum(axis=1)
    names = [str(row) for row in rows]
    table = _table(_codes(data["group_id"]), rows, zero, reward, names, np.ones(n, np.bool_), response)
    return table.with_token_columns(reward=earned[mask]) if dense else table


def response_mask(data: Json) -> NDArray[np.bool_]:
    """Which places of a ``golden-tokens/1`` file hold response tokens, shape [rows][columns]."""
    return np.array(data["response_mask"]).astype(bool)


def token_run_table(data: Json, rewards: str) -> StepTable:
    """As :func:`token_row_table` with token rewards, but each unbroken run of response tokens is a step of its row.

    Only rows with observation tokens between response tokens have more than one.
    """
    table, mask = token_row_table(data, rewards, dense=True), response_mask(data)
    begins = mask & ~np.pad(mask, ((0, 0), (1, 0)))[:, :-1]
    row, _ = np.nonzero(begins)
    run = np.cumsum(begins[mask]) - 1
    lengths = np.bincount(run, minlength=len(row))
    split = table.take(row)
    t = np.arange(len(row)) - np.searchsorted(row, row)
    response = Ragged(np.zeros(int(lengths.sum()), np.int64), np.concatenate([[0], np.cumsum(lengths)]))
    logprob = Ragged(np.zeros(len(response.values), np.float32), response.offsets)
    split = replace(split, t=t, response=response, logprob=logprob, token_extra={})
    return split.with_token_columns(reward=table.token_extra["reward"].values)


@dataclass(frozen=True)
class TokenRows:
    """Token columns of either schema; dense [rows][columns] in the file, flat over the mask here."""

    data: Json
    mask: NDArray[np.bool_]
    dtype: torch.dtype

    @classmethod
    def of(cls, data: Json, dtype: str) -> TokenRows:
        """Read the mask of a file; numbers will be of the case's ``dtype``."""
        if dtype not in ("float32", "float64"):
            raise NotCovered(f"dtype {dtype!r} is not known")
        if str(data.get("schema", "")).startswith("golden-steps/"):
            lengths = np.array([row["n_response_tokens"] for row in data["steps"]])
            mask = np.arange(int(data["max_response_tokens"]))[None, :] < lengths[:, None]
        elif "response_mask" in data:
            mask = np.array(data["response_mask"]).astype(bool)
        else:
            raise NotCovered(f"the input {data.get('schema')!r} has no tokens")
        return cls(data, mask, torch.float64 if dtype == "float64" else torch.float32)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Response tokens of each row."""
        return np.asarray(self.mask.sum(axis=1), np.int64)

    @property
    def row(self) -> torch.Tensor:
        """Row of each flat token."""
        return torch.from_numpy(np.nonzero(self.mask)[0])

    @property
    def width(self) -> int:
        """Columns of the dense arrays."""
        return int(self.mask.shape[1])

    def column(self, name: str) -> torch.Tensor:
        """A recorded column, flat."""
        source = self.data.get("tokens", self.data)
        if name not in source:
            raise NotCovered(f"the input has no column {name!r}")
        return self.flat(np.array(source[name], np.float64))

    def flat(self, values: NDArray[np.float64]) -> torch.Tensor:
        """Values per row or [rows][columns], flat."""
        dense = np.broadcast_to(values[:, None], self.mask.shape) if values.ndim == 1 else values
        return torch.tensor(dense[self.mask], dtype=self.dtype)

    def dense(self, flat: torch.Tensor) -> NDArray[np.float64]:
        """Flat values as [rows][columns], 0 elsewhere."""
        out = np.zeros(self.mask.shape)
        out[self.mask] = flat.detach().double().numpy()
        return out
