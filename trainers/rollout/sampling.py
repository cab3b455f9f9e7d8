"""Drawing tokens for a batch of rows, each with its own settings and its own random numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from envsuite.playing.engine import Sampling
from trainers.policy.guard import DivergenceError
from trainers.policy.transfer import to_device

_MASK = (1 << 64) - 1
_BLOCK = 256  # the vocabulary is summed in blocks of this many tokens


def mix(seed: int, counter: int) -> int:
    """A 64-bit hash of two integers (the finaliser of SplitMix64, applied to each in turn)."""
    value = np.array([seed & _MASK], np.uint64)
    return int(_finalise(_finalise(value) + np.uint64(counter & _MASK))[0])


def uniforms(seeds: NDArray[np.uint64], positions: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Numbers in [0, 1), one for each pair of a row's seed and a position in its response; shape as given.

    Counter-based: a number depends on its own seed and position only, never on what else is drawn.
    """
    return (_finalise(_finalise(seeds) + positions) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _finalise(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators"."""
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def sample(
    logits: Tensor, settings: Sequence[Sampling], draws: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """One token for each row, read from the device at once.

    Args:
        logits: Shape (rows, vocabulary), any floating type.
        settings: Temperature, top-p and top-k of each row.
        draws: Shape (rows,), uniform in [0, 1).

    Returns:
        Token ids, shape (rows,), and their log-probabilities at the temperature of their row, before top-k and top-p
        cut the distribution, float32, shape (rows,). Greedy rows have those at temperature 1.

    Raises:
        DivergenceError: Logits are not finite.
    """
    logits = logits.float()
    first = settings[0]
    if any(s.temperature not in (0, 1) for s in settings):
        divisors = np.array([s.temperature or 1.0 for s in settings], np.float32)
        logits = logits / to_device(divisors, logits.device)[:, None]
    normaliser = logits.logsumexp(-1)
    uniform = to_device(draws, logits.device)
    if all(s is first or _shape(s) == _shape(first) for s in settings):
        ids = _draw(logits, normaliser, first, uniform)
    else:
        ids = torch.empty(len(settings), dtype=torch.long, device=logits.device)
        kinds: dict[tuple[float, float, int], list[int]] = {}
        for row, s in enumerate(settings):
            kinds.setdefault(_shape(s), []).append(row)
        for rows in kinds.values():
            index = to_device(np.array(rows), logits.device)
            ids[index] = _draw(logits[index], normaliser[index], settings[rows[0]], uniform[index])
    logprobs = logits.gather(1, ids.clamp_max(logits.shape[1] - 1)[:, None])[:, 0] - normaliser
    values = torch.stack((ids.double(), logprobs.double())).cpu().numpy()
    if not np.isfinite(values[1]).all():  # as those of the rows whose logits are not
        raise DivergenceError(
            "sampling: the model's logits are not finite, so its weights are not, or are so large that they overflow; "
            "a run that came to this goes on from an earlier checkpoint with a lower optim.lr",
            weights_good=False,
        )
    return values[0].astype(np.int64), values[1].astype(np.float32)


def _shape(sampling: Sampling) -> tuple[float, float, int]:
    return sampling.temperature, sampling.top_p, sampling.top_k


def _draw(logits: Tensor, normaliser: Tensor, sampling: Sampling, uniform: Tensor) -> Tensor:
    """Tokens of rows that share their settings: the inverse of the cumulative distribution at ``uniform``.

    ``logits`` are divided by the temperature already.
    """
    if sampling.temperature == 0:
        return logits.argmax(-1)
    probabilities = (logits - normaliser[:, None]).exp_()
    vocabulary = logits.shape[1]
    if 0 < sampling.top_k < vocabulary:
        probabilities, order = probabilities.topk(sampling.top_k)
    elif sampling.top_p < 1:
        probabilities, order = probabilities.sort(-1, descending=True)
    else:
        return _invert(probabilities, uniform)
    if sampling.top_p < 1:
        probabilities = probabilities / probabilities.sum(-1, keepdim=True)
        before = probabilities.cumsum(-1, dtype=torch.float64) - probabilities
        probabilities = probabilities.masked_fill(before >= sampling.top_p, 0.0)
    return order.gather(1, _invert(probabilities, uniform)[:, None])[:, 0]


def _invert(weights: Tensor, uniform: Tensor) -> Tensor:
    """Index at which the running sum of ``weights`` (rows, n) first exceeds ``uniform`` times the whole.

    In two levels, blocks first, so that only one block a row is summed in double precision token by token.
    """
    rows, width = weights.shape
    if width > 4 * _BLOCK:
        blocks = torch.nn.functional.pad(weights, (0, -width % _BLOCK)).view(rows, -1, _BLOCK)
        running = blocks.sum(-1, dtype=torch.float64).cumsum(-1)
        target = uniform * running[:, -1]
        block = _first_above(running, target)
        row_blocks = blocks[torch.arange(rows, device=weights.device), block]
        past = running.gather(1, block[:, None])[:, 0] - row_blocks.sum(-1, dtype=torch.float64)
        inside = row_blocks.cumsum(-1, dtype=torch.float64)
        return block * _BLOCK + _first_above(inside, target - past)
    running = weights.cumsum(-1, dtype=torch.float64)
    return _first_above(running, uniform * running[:, -1])


def _first_above(running: Tensor, target: Tensor) -> Tensor:
    """First index whose running sum is above ``target``; rounding never selects an index of weight zero.

    The last index where sums are not numbers.
    """
    last = torch.nextafter(running[:, -1], torch.zeros_like(target))
    index = torch.searchsorted(running, torch.minimum(target, last)[:, None], right=True)[:, 0]
    return index.clamp_max(running.shape[1] - 1)
