"""Token sequences as a tree: what several sequences begin with is in it once.

The steps of an episode, the episodes of a group and the prompts of all tasks begin alike. In a causal model the output
of a token depends only on the tokens before it, so that one computation serves every sequence that begins with them:
log-probabilities, entropies, values and gradients are those of the separate sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from envsuite.core.images import Pixels
from envsuite.playing.step import Experts, Parts
from trainers.steps.experts import cut
from trainers.steps.prefixes import lexicographic

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class TokenSequence:
    """Tokens that are computed, and what some of them predict."""

    tokens: Ints
    place: Ints
    """(T,): indices of the tokens whose output predicts a target; one may predict several."""
    target: Ints
    """(T,): token ids."""
    index: Ints
    """(T,): the caller's number of each target."""
    experts: Parts = ()
    """Experts of each token, where they are known; then those of all sequences of a tree are given."""

    @classmethod
    def of(cls, tokens: Ints, place: Ints, first: int) -> TokenSequence:
        """Returns the sequence in which each token at ``place`` predicts the token after it.

        Args:
            tokens: All tokens; those after the last place are not computed.
            place: Indices in rising order, at least one.
            first: Number of the first target; the others follow.
        """
        return cls(tokens[: int(place[-1]) + 1], place, tokens[place + 1], first + np.arange(len(place)))


@dataclass(frozen=True)
class TokenTree:
    """The prefix tree of token sequences, depth first: a token comes after its parent and before its next sibling.

    A token sees those on its path: token ``j`` is on the path of token ``i`` where ``j <= i < end[j]``.
    """

    tokens: Ints
    """(N,)"""
    depth: Ints
    """(N,): number of tokens before it on its path, which is its position in every sequence that it is part of."""
    parent: Ints
    """(N,): the token before it on its path; -1 for the first one."""
    end: Ints
    """(N,): index after the last token whose path it is on."""
    place: Ints
    """(T,): the token whose output predicts each target."""
    target: Ints
    """(T,): token ids."""
    index: Ints
    """(T,): the caller's number of each target; in training its position in ``table.response.values``."""
    rows: Ints
    """(N,): number of sequences that each token is in."""
    images: Sequence[Pixels] = ()
    """The images that token ids below -1 are parts of."""
    experts: Experts | None = None
    """Experts that the tokens went to when they were sampled, where they are known."""
    balance: NDArray[np.float64] | None = None
    """(experts,): weights of the balance loss (:mod:`trainers.policy.routing`), where it is part of the loss."""
    part: int | None = None
    """Most tokens of a pass, if the tree is to be computed in several (:mod:`trainers.policy.walk`)."""

    def __len__(self) -> int:
        """Number of tokens that are computed."""
        return len(self.tokens)

    def path(self, token: int) -> Ints:
        """Returns the tokens on the path of ``token``, itself included, in order."""
        return np.flatnonzero(self.end[: token + 1] > token)

    @cached_property
    def chains(self) -> list[tuple[int, int]]:
        """Begin and end of each run of tokens in which every one is the parent of the next."""
        starts = np.flatnonzero(np.diff(self.depth, prepend=-2) != 1).tolist()
        return list(zip(starts, [*starts[1:], len(self)], strict=True))


def token_tree(sequences: Sequence[TokenSequence], *, share: bool = True, images: Sequence[Pixels] = ()) -> TokenTree:
    """Returns the tree of all sequences; targets are in the order of the sequences.

    Args:
        sequences: At least one.
        share: Whether equal beginnings are one path; else every sequence has a path of its own.
        images: Those that token ids below -1 are parts of.
    """
    order, common = depth_first(sequences, share)
    return laid_out(sequences, order, common, images)


def depth_first(sequences: Sequence[TokenSequence], share: bool = True) -> tuple[Ints, Ints]:
    """Orders sequences so that those which begin alike are neighbours.

    Returns:
        The sequences' numbers in lexicographic order of their tokens, and how many tokens each of them begins with that
        the one before it in this order begins with, too. Without ``share``, the given order, and 0.
    """
    if not share:
        return np.arange(len(sequences)), np.zeros(len(sequences), np.int64)
    return lexicographic([sequence.tokens for sequence in sequences])


def laid_out(sequences: Sequence[TokenSequence], order: Ints, common: Ints, images: Sequence[Pixels] = ()) -> TokenTree:
    """Returns the tree of some sequences, given :func:`depth_first` of them, or a part of it.

    Args:
        sequences: The sequences that ``order`` has the numbers of.
        order: At least one number. Targets are in the order of the numbers.
        common: Beginnings shared with the sequence before; that of the first is not read.
        images: Those that token ids below -1 are parts of.
    """
    tokens: list[Ints] = []
    depths: list[Ints] = []
    parents: list[Ints] = []
    ends: list[tuple[Ints, int]] = []
    places: dict[int, Ints] = {}
    experts: list[Experts] = []
    last: list[int] = []
    path, count = np.zeros(0, np.int64), 0
    for number, start in zip(order.tolist(), [0, *common[1:].tolist()], strict=True):
        sequence = sequences[number]
        ends.append((path[start:], count))
        depth = np.arange(start, len(sequence.tokens))
        new = count - start + depth
        parents.append(np.concatenate([path[start - 1 : start] if start else [-1], new[:-1]])[: len(new)])
        tokens.append(sequence.tokens[start:])
        experts += cut(sequence.experts, start)
        depths.append(depth)
        path = np.concatenate([path[:start], new])
        count += len(new)
        places[number] = path[sequence.place]
        last.append(int(path[-1]))
    end = np.full(count, count)
    for branch, at in ends:
        end[branch] = at
    ends_before = np.concatenate([[0], np.cumsum(np.bincount(last, minlength=count))])
    numbers = sorted(places)
    return TokenTree(
        np.concatenate(tokens, dtype=np.int64),
        np.concatenate(depths, dtype=np.int64),
        np.concatenate(parents, dtype=np.int64),
        end,
        np.concatenate([places[number] for number in numbers]),
        np.concatenate([sequences[number].target for number in numbers]),
        np.concatenate([sequences[number].index for number in numbers]),
        ends_before[end] - ends_before[:-1],
        images,
        np.concatenate(experts) if experts else None,
    )


def one_token() -> TokenTree:
    """The smallest tree, for a process that has none to compute while another has."""
    zero = np.zeros(1, np.int64)
    return token_tree([TokenSequence(zero, zero, zero, zero)])
