"""Step rows as arrays: what each way of training gets. Needs NumPy alone, so that another Python can read it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
DENSE_SHARE = 0.5
"""Share of the tokens of the way ``dense`` that are trained on."""


@dataclass(frozen=True)
class TrainedSequence:
    """Tokens that are computed together, with those that are trained on."""

    tokens: Ints
    trained: NDArray[np.bool_]
    """Whether a token is part of a response."""
    prompt: int
    """Length of the first prompt."""
    group: int
    advantage: float


@dataclass(frozen=True)
class Rows:
    """The steps of all episodes, in the order of the episodes and their steps."""

    prompts: Sequence[Ints]
    responses: Sequence[Ints]
    group: Ints
    episode: Ints
    t: Ints
    advantage: Floats
    """One per row, the same for all rows of an episode."""

    @property
    def completion(self) -> int:
        """Number of response tokens."""
        return sum(map(len, self.responses))

    def steps(self) -> list[TrainedSequence]:
        """Each step as a sequence of its own."""
        return [self._sequence([row]) for row in range(len(self.prompts))]

    def episodes(self) -> list[TrainedSequence]:
        """Steps of an episode whose prompts continue the step before, joined."""
        runs: list[list[int]] = []
        so_far = np.zeros(0, np.int64)
        for row, prompt in enumerate(self.prompts):
            follows = row > 0 and self.episode[row] == self.episode[row - 1]
            if not (follows and len(prompt) >= len(so_far) and np.array_equal(prompt[: len(so_far)], so_far)):
                runs.append([])
            runs[-1].append(row)
            so_far = np.concatenate([prompt, self.responses[row]])
        return [self._sequence(run) for run in runs]

    def _sequence(self, run: Sequence[int]) -> TrainedSequence:
        last = run[-1]
        tokens = np.concatenate([self.prompts[last], self.responses[last]])
        trained = np.zeros(len(tokens), np.bool_)
        for row in run:
            start = len(self.prompts[row])
            trained[start : start + len(self.responses[row])] = True
        prompt = len(self.prompts[run[0]])
        return TrainedSequence(tokens, trained, prompt, int(self.group[last]), float(self.advantage[last]))

    def renumbered(self, size: int) -> Rows:
        """The same rows with token ids from 0 to less than ``size``, in their order; what rows share stays as it is.

        Raises:
            ValueError: There are more different tokens.
        """
        known = np.unique(np.concatenate([*self.prompts, *self.responses]))
        if len(known) > size:
            raise ValueError(f"the rows have {len(known)} different tokens, the model {size}")
        prompts, responses = ([np.searchsorted(known, row) for row in rows] for rows in (self.prompts, self.responses))
        return replace(self, prompts=prompts, responses=responses)

    def save(self, path: Path) -> None:
        """Writes an ``.npz`` file."""
        arrays: dict[str, NDArray[Any]] = {name: getattr(self, name) for name in ("group", "episode", "t", "advantage")}
        for name in ("prompts", "responses"):
            rows = getattr(self, name)
            arrays[name] = np.concatenate([np.zeros(0, np.int64), *rows])
            arrays[f"{name}_ends"] = np.cumsum([len(row) for row in rows])
        np.savez_compressed(path, **arrays)

    @classmethod
    def load(cls, path: Path) -> Rows:
        """Reads what :meth:`save` wrote."""
        with np.load(path, allow_pickle=False) as file:
            ragged = [np.split(file[name], file[f"{name}_ends"][:-1]) for name in ("prompts", "responses")]
            return cls(*ragged, *(file[name] for name in ("group", "episode", "t", "advantage")))


def batches(sequences: Sequence[TrainedSequence], budget: int) -> Iterator[list[TrainedSequence]]:
    """Sequences of similar length together, at most ``budget`` tokens with their padding; one alone may be longer."""
    batch: list[TrainedSequence] = []
    for sequence in sorted(sequences, key=lambda one: len(one.tokens)):
        if batch and len(sequence.tokens) * (len(batch) + 1) > budget:
            yield batch
            batch = []
        batch.append(sequence)
    yield batch


def padded(rows: Sequence[NDArray[Any]], fill: int = 0, left: bool = False) -> NDArray[Any]:
    """The rows below each other, of one width."""
    width = max(map(len, rows))
    out = np.full((len(rows), width), fill, rows[0].dtype)
    for number, row in enumerate(rows):
        out[number, width - len(row) if left else 0 :][: len(row)] = row
    return out
