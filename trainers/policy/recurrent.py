"""Recurrent layers and convolutions along the tokens of a tree: each token goes on from the state of its parent.

transformers' models call these by functions of their modules, which get the plan of the tree among their arguments.
Convolutions read the last tokens of each path. A scan computes runs of tokens without a branch, those of one level of
the tree together: a run begins with the last state of the run that it goes on from, and gradients of its children add
up there.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from trainers.policy.tree import Ints, TokenTree
from trainers.policy.tree_plan import TreePlan

_MIXES = ("conv1d_fn", "chunk", "scan", "_rule", "inner_fn")
"""Parts of names of functions that mix tokens ..."""
_CACHED = ("update", "recurrent")
"""... and of those that are called for a single token after a cache alone."""


@dataclass(frozen=True)
class _Runs:
    """Runs of about equally many tokens, which are computed together."""

    tokens: Tensor
    """(runs, length): indices of tokens; a shorter run is filled up with the number of tokens of the tree."""
    parents: Tensor
    """(runs,): place of the run that each goes on from, among those of the level before; of no use in the first."""
    real: Tensor
    """Places in (runs * length) that are tokens."""


@dataclass(frozen=True)
class Levels:
    """A tree cut into runs without a branch, by the number of runs before them on their path."""

    levels: Sequence[Sequence[_Runs]]
    order: Tensor
    """(tokens,): where each token of the tree stands among those of all runs."""

    @classmethod
    def of(cls, tree: TokenTree, device: torch.device) -> Levels:
        """Cuts a tree."""
        children = np.bincount(tree.parent[tree.parent >= 0], minlength=len(tree))
        begins = (tree.parent != np.arange(-1, len(tree) - 1)) | (tree.parent < 0)
        begins[1:] |= children[:-1] > 1
        starts = np.flatnonzero(begins)
        ends = np.append(starts[1:], len(tree))
        own = np.cumsum(begins) - 1  # the run of each token
        level = np.zeros(len(starts), np.int64)
        for run, start in enumerate(starts.tolist()):
            level[run] = 0 if tree.parent[start] < 0 else level[own[tree.parent[start]]] + 1
        levels, seen, place = [], list[Ints](), np.zeros(len(starts), np.int64)
        for depth in range(int(level.max()) + 1):
            together, count = [], 0
            for runs in _alike(np.flatnonzero(level == depth), ends - starts):
                length = int((ends - starts)[runs].max())
                tokens = starts[runs][:, None] + np.arange(length)
                real = tokens < ends[runs][:, None]
                before = tree.parent[starts[runs]]
                parents = place[own[before]]
                place[runs] = count + np.arange(len(runs))
                count += len(runs)
                seen.append(tokens[real])
                arrays = (np.where(real, tokens, len(tree)), parents, np.flatnonzero(real.ravel()))
                together.append(_Runs(*(torch.from_numpy(array).to(device) for array in arrays)))
            levels.append(together)
        return cls(levels, torch.from_numpy(np.argsort(np.concatenate(seen))).to(device))


def _alike(runs: Ints, lengths: Ints) -> Iterator[Ints]:
    """Yields runs in groups whose shortest has half as many tokens as the longest, or more."""
    runs = runs[np.argsort(-lengths[runs], kind="stable")]
    while len(runs):
        count = int((lengths[runs] * 2 >= lengths[runs[0]]).sum())
        yield runs[:count]
        runs = runs[count:]


def _along(plan: TreePlan, tensors: Sequence[Tensor], scan: Callable[..., tuple[Tensor, Tensor]]) -> Tensor:
    """Computes ``scan`` along the paths of the tree.

    Args:
        plan: The tree.
        tensors: Of shape (1, tokens, …); zeros at a token must leave the state as it is.
        scan: Gets them as (runs, length, …), the states before, or ``None``, and the length; returns outputs of this
            shape, and the states after.
    """
    levels = plan.once("levels", lambda: Levels.of(plan.tree, plan.device))
    padded = [torch.cat([tensor[0], tensor.new_zeros(1, *tensor.shape[2:])]) for tensor in tensors]
    outputs, states = [], None
    for level in levels.levels:
        after = []
        for runs in level:
            given = [tensor[runs.tokens] for tensor in padded]
            before: Tensor | None = None if states is None else states.index_select(0, runs.parents)
            found, last = scan(given, before, runs.tokens.shape[1])
            outputs.append(found.flatten(0, 1).index_select(0, runs.real))
            after.append(last)
        states = torch.cat(after)
    return torch.cat(outputs).index_select(0, levels.order)[None]


def chunk_of(length: int, most: int) -> int:
    """Chunks as long as runs are: what fills a chunk up is computed, too."""
    return min(most, max(16, 1 << (length - 1).bit_length()))


def _conv(
    own: Callable[..., Tensor], plan: TreePlan, states: Tensor, weight: Tensor, bias: Tensor | None = None,
    activation: str | None = None, **_: Any,
) -> Tensor:  # fmt: skip
    """A causal convolution by channels of ``states``, (1, channels, tokens)."""
    width = weight.shape[-1]

    def ancestors() -> list[Tensor]:
        """The token itself, its parent, …; the number of tokens where there is none."""
        parent = np.append(np.where(plan.tree.parent < 0, len(plan.tree), plan.tree.parent), len(plan.tree))
        found = [np.arange(len(plan.tree))]
        for _ in range(width - 1):
            found.append(parent[found[-1]])
        return [torch.from_numpy(one).to(plan.device) for one in found]

    exact = torch.promote_types(weight.dtype, torch.float32)  # sums are rounded once, as in the model's own function
    padded, weight = F.pad(states[0].to(exact), (0, 1)), weight.to(exact)
    out = padded.new_zeros(1) if bias is None else bias[:, None].to(exact)
    for back, tokens in enumerate(plan.once(("ancestors", width), ancestors)):
        out = out + weight[:, width - 1 - back, None] * padded.index_select(1, tokens)
    return (out if activation is None else ACT2FN[activation](out)).to(states.dtype)[None]


def _delta_rule(
    own: Callable[..., Any], plan: TreePlan, query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor,
    initial_state: None = None, output_final_state: bool = False, chunk_size: int = 64, **more: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """The gated delta rule, also where each channel decays by itself; all tensors (1, tokens, heads, …)."""

    def scan(given: Sequence[Tensor], before: Tensor | None, length: int) -> tuple[Tensor, Tensor]:
        q, k, v, decay, rate = given
        found: tuple[Tensor, Tensor] = own(
            q, k, v, g=decay, beta=rate, initial_state=before, output_final_state=True,
            chunk_size=chunk_of(length, chunk_size), **more,
        )  # fmt: skip
        return found

    return _along(plan, (query, key, value, g, beta), scan), None


def _state_space(
    own: Callable[..., Any], plan: TreePlan, states: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor,
    chunk_size: int, dt_bias: Tensor | None = None, dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")), initial_states: None = None,
    return_final_states: bool = False, **more: Any,
) -> Tensor:  # fmt: skip
    """Mamba-2's scan; all tensors but ``A`` (1, tokens, heads, …)."""
    steps = dt if dt_bias is None else dt + dt_bias.to(dt.dtype)
    steps = (F.softplus(steps) if dt_softplus else steps).clamp(*dt_limit)  # here: what fills a run up has none

    def scan(given: Sequence[Tensor], before: Tensor | None, length: int) -> tuple[Tensor, Tensor]:
        x, step, b, c = given
        found: tuple[Tensor, Tensor] = own(
            x, step, A, b, c, chunk_size=chunk_of(length, chunk_size), initial_states=before, return_final_states=True,
            **more,
        )  # fmt: skip
        return found

    return _along(plan, (states, steps, B, C), scan)


def _nothing(own: Callable[..., Any], plan: TreePlan, *_: Any, **__: Any) -> None:
    """No shortcut: the layer goes on with its parts."""


_IN_TREE: dict[str, Callable[..., Any]] = {
    "causal_conv1d_fn": _conv,
    "torch_chunk_gated_delta_rule": _delta_rule,
    "chunk_kimi_delta_attention": _delta_rule,
    "mamba2_chunk_scan": _state_space,
    "mamba2_split_conv1d_scan_combined": _nothing,
}
"""Functions of transformers' modules that mix tokens, each with what computes it in a tree."""


def follow_trees(model: PreTrainedModel) -> bool:
    """Has the recurrent layers and convolutions of ``model`` follow trees; returns whether all of them can.

    Without a plan of a tree among their arguments, its functions do as before.
    """
    mixers = [module for module in model.modules() if any(isinstance(child, nn.Conv1d) for child in module.children())]
    for kind in {type(mixer) for mixer in mixers}:
        called = set(inspect.unwrap(kind.forward).__code__.co_names)
        place = vars(sys.modules[kind.__module__])
        mixing = {name for name in called if callable(place.get(name)) and any(part in name for part in _MIXES)}
        mixing = {name for name in mixing if not any(part in name for part in _CACHED)}
        if not mixing or mixing - _IN_TREE.keys():
            return False
        for name in mixing:
            if not hasattr(place[name], "in_tree"):
                place[name] = _following(place[name], _IN_TREE[name])
    return True


def is_recurrent(model: nn.Module) -> bool:
    """Whether a layer of ``model`` has a convolution along its tokens, as all recurrent ones of transformers have."""
    return any(isinstance(module, nn.Conv1d) for module in model.modules())


def _following(own: Callable[..., Any], in_tree: Callable[..., Any]) -> Callable[..., Any]:
    """Has ``in_tree`` take the place of ``own`` in trees.

    Libraries that transformers takes where they are installed compute on a GPU alone, and not in float32: there its own
    functions do.
    """
    plain = inspect.unwrap(own)

    @functools.wraps(own)
    def function(*args: Any, tree_plan: TreePlan | None = None, **more: Any) -> Any:
        fast = args[0].device.type == "cuda" and args[0].dtype != torch.float32
        used = own if fast else plain
        return used(*args, **more) if tree_plan is None else in_tree(used, tree_plan, *args, **more)

    function.in_tree = in_tree  # type: ignore[attr-defined]
    return function
