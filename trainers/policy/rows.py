"""Models that a token tree cannot compute: each path of the tree, from its root to a leaf, is a row of its own.

Positions that are added to scores, and recurrent states that :mod:`trainers.policy.recurrent` does not follow, run
along a row of tokens, where a tree has branches. Rows are padded at their ends, and need no mask: in a causal model no
token sees a later one, so that padding changes nothing before it. A token that several rows begin with is computed in
each of them, and read from the first.
"""

from __future__ import annotations

import weakref

import numpy as np
from torch import nn
from transformers import PreTrainedModel

from trainers.policy.attention import unsupported_reason
from trainers.policy.tree import Ints, TokenTree

ALWAYS = "model.rows is always"
"""The reason of a model that could be computed in a tree, for all that is known."""
_REASONS: weakref.WeakKeyDictionary[PreTrainedModel, str | None] = weakref.WeakKeyDictionary()


def rows_reason(model: PreTrainedModel) -> str | None:
    """Returns why ``model`` is computed by rows; ``None`` where it is computed in a tree."""
    if model not in _REASONS:
        _REASONS[model] = unsupported_reason(model)
    return _REASONS[model]


def use_rows(model: PreTrainedModel, reason: str) -> None:
    """Computes ``model`` by rows from now on."""
    _REASONS[model] = reason


def by_rows(module: nn.Module) -> bool:
    """Whether the model in ``module``, a policy or a critic for example, is computed by rows."""
    model = next((part for part in module.modules() if isinstance(part, PreTrainedModel)), None)
    return model is not None and rows_reason(model) is not None


def padded_rows(tree: TokenTree) -> tuple[Ints, Ints]:
    """Lays the paths of ``tree`` out in rows of equal length.

    Returns:
        Indices of tokens of the tree, shape (rows, length), -1 where a row is padded; and where each token of the tree
        stands, as an index into the rows one after the other.
    """
    leaves = np.flatnonzero(tree.end == np.arange(1, len(tree) + 1))
    rows = np.full((len(leaves), int(tree.depth.max()) + 1), -1)
    for row, leaf in zip(rows, leaves.tolist(), strict=True):
        row[: tree.depth[leaf] + 1] = tree.path(leaf)
    first = np.searchsorted(leaves, np.arange(len(tree)))  # depth first: the next leaf is below the token
    return rows, first * rows.shape[1] + tree.depth
