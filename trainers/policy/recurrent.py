"""Recurrent layers and convolutions along the tokens of a tree: each token goes on from the state of its parent.

transformers' models call these by functions of their modules, which get the plan of the tree among their arguments.
Convolutions read the last tokens of each path. A scan computes runs of tokens without a branch, those of one level of
the tree together: a run begins with the last state of the run that it goes on from, and gradients of its children add
up there. In the ``hf`` engine the trees of one pass go on from states that are kept, and leave some for later passes.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from trainers.policy.transfer import to_device
from trainers.policy.tree import Ints

_MIXES = ("conv1d_fn", "chunk", "scan", "_rule", "inner_fn")
"""Parts of names of functions that mix tokens ..."""
_CACHED = ("update", "recurrent")
"""... and of those that are called for a single token after a cache alone."""

T = TypeVar("T")


class TreePaths(Protocol):
    """The tokens of a row as one tree, or several."""

    @property
    def parent(self) -> Ints:
        """(tokens,): the token before each on its path; -1 for the first one of a tree."""

    @property
    def depth(self) -> Ints:
        """(tokens,): number of tokens before each on its path."""


class StateCarry(Protocol):
    """States from before a row of tokens, and those of some of its tokens for rows that come later."""

    kept: Ints
    """(kept,): the tokens after which a state is kept."""

    def before(self, call: int) -> Tensor | None:
        """States that the first tokens of the trees go on from, (trees, …); ``None``: all of them are zero.

        Args:
            call: Number of the function's call in a pass over the model.
        """

    def after(self, call: int, states: Tensor) -> None:
        """Keeps the states after the tokens :attr:`kept`, (kept, …)."""

    def next_call(self) -> int:
        """Counts the calls of a pass."""


class RecurrentPlan(Protocol):
    """A row of tokens, as a pass over the model gets it among its arguments."""

    device: torch.device

    @property
    def tree(self) -> TreePaths:
        """The tokens."""

    @property
    def carried(self) -> StateCarry | None:
        """States of other rows, if any."""

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Returns ``make()`` of the first call with ``key``, for all layers."""


@dataclass(frozen=True)
class _Runs:
    """Runs of about equally many tokens, which are computed together."""

    tokens: Tensor
    """(runs, length): indices of tokens; a shorter run is filled up with the number of tokens of the tree."""
    parents: Tensor
    """(runs,): place of the run that each goes on from, among those of the level before; in the first that of its tree
    among all trees."""
    real: Tensor
    """Places in (runs * length) that are tokens."""


@dataclass(frozen=True)
class TreeLevels:
    """Trees cut into runs without a branch, by the number of runs before them on their path."""

    levels: Sequence[Sequence[_Runs]]
    order: Tensor
    """(tokens,): where each token of the row stands among those of all runs."""
    kept: Tensor | None
    """(kept,): place of the run, among all, that ends with each token after which a state is kept; ``None``: these are
    the ends of all runs in order."""

    @classmethod
    def of(cls, tree: TreePaths, device: torch.device, kept: Ints | None = None) -> TreeLevels:
        """Cuts trees; a run ends with each token after which a state is kept, too."""
        kept = np.empty(0, np.int64) if kept is None else kept
        parent, depth, count = tree.parent, tree.depth, len(tree.parent)
        children = np.bincount(parent[parent >= 0], minlength=count)
        begins = (parent != np.arange(-1, count - 1)) | (parent < 0)
        begins[1:] |= children[:-1] > 1
        begins[kept[kept + 1 < count] + 1] = True
        starts = np.flatnonzero(begins)
        ends = np.append(starts[1:], count)
        own = np.cumsum(begins) - 1  # the run of each token
        before = parent[starts]
        level = np.zeros(len(starts), np.int64)
        for run in np.argsort(depth[starts], kind="stable").tolist() if (before >= 0).any() else ():
            if before[run] >= 0:
                level[run] = level[own[before[run]]] + 1
        levels, run_tokens, place, first = [], list[Ints](), np.zeros(len(starts), np.int64), 0
        roots = np.cumsum(before < 0) - 1
        number = np.zeros(len(starts), np.int64)
        for current in range(int(level.max()) + 1):
            together, among = [], 0
            for runs in _alike(np.flatnonzero(level == current), ends - starts):
                length = int((ends - starts)[runs].max())
                tokens = starts[runs][:, None] + np.arange(length)
                real = tokens < ends[runs][:, None]
                parents = place[own[before[runs]]] if current else roots[runs]
                place[runs] = among + np.arange(len(runs))
                among += len(runs)
                run_tokens.append(tokens[real])
                arrays = (np.where(real, tokens, count), parents, np.flatnonzero(real.ravel()))
                together.append(_Runs(*(to_device(array, device) for array in arrays)))
            number[level == current] = first + place[level == current]
            first += among
            levels.append(together)
        order = np.argsort(np.concatenate(run_tokens))
        kept_runs = number[own[kept]]
        is_every = len(kept_runs) == len(starts) and (np.diff(kept_runs, prepend=-1) == 1).all()
        last = None if is_every else to_device(kept_runs, device)
        return cls(levels, to_device(order, device), last)


def _alike(runs: Ints, lengths: Ints) -> Iterator[Ints]:
    """Yields runs in groups whose shortest has half as many tokens as the longest, or more."""
    runs = runs[np.argsort(-lengths[runs], kind="stable")]
    while len(runs):
        count = int((lengths[runs] * 2 >= lengths[runs[0]]).sum())
        yield runs[:count]
        runs = runs[count:]


def _along(plan: RecurrentPlan, tensors: Sequence[Tensor], scan: Callable[..., tuple[Tensor, Tensor]]) -> Tensor:
    """Computes ``scan`` along the paths of the trees.

    Args:
        plan: The trees.
        tensors: Of shape (1, tokens, …); zeros at a token must leave the state as it is.
        scan: Gets them as (runs, length, …), the states before, or ``None``, and the length; returns outputs of this
            shape, and the states after.
    """
    carry = plan.carried
    levels = plan.once("levels", lambda: TreeLevels.of(plan.tree, plan.device, None if carry is None else carry.kept))
    padded_inputs = [torch.cat([tensor[0], tensor.new_zeros(1, *tensor.shape[2:])]) for tensor in tensors]
    call = 0 if carry is None else carry.next_call()
    states = None if carry is None else carry.before(call)
    outputs, level_states = [], []
    for level in levels.levels:
        after = []
        for runs in level:
            run_inputs = [tensor[runs.tokens] for tensor in padded_inputs]
            before: Tensor | None = None if states is None else states.index_select(0, runs.parents)
            output, last = scan(run_inputs, before, runs.tokens.shape[1])
            outputs.append(output.flatten(0, 1).index_select(0, runs.real))
            after.append(last)
        states = concatenate(after)
        level_states.append(states)
    if carry is not None:
        last = concatenate(level_states)
        carry.after(call, last if levels.kept is None else last.index_select(0, levels.kept))
    return concatenate(outputs).index_select(0, levels.order)[None]


def concatenate(parts: list[Tensor]) -> Tensor:
    """The parts behind one another; one alone is not copied."""
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def chunk_of(length: int, most: int, device: torch.device) -> int:
    """Chunks as long as runs are: what fills a chunk up is computed, too. Kernels of GPUs want 16 tokens or more."""
    return min(most, max(1 if device.type == "cpu" else 16, 1 << (length - 1).bit_length()))


def _paths_back(plan: RecurrentPlan, width: int) -> list[Tensor]:
    """For each token itself, its parent, …, ``width`` of them, as places in the inputs of a convolution.

    These are the row's, the ``width - 1`` from before each tree, and zeros.
    """
    parent = plan.tree.parent
    count, roots = len(parent), np.flatnonzero(parent < 0)
    trees = 0 if plan.carried is None else len(roots)
    earlier = count + np.arange(trees * (width - 1)).reshape(trees, width - 1)
    zero = count + earlier.size
    back = np.concatenate([parent, earlier.ravel() - 1, [zero]])
    back[roots] = earlier[:, -1] if trees else zero
    back[earlier[:, :1]] = zero
    ancestors = [np.arange(count)]
    for _ in range(width - 1):
        ancestors.append(back[ancestors[-1]])
    return [to_device(places, plan.device) for places in ancestors]


def _conv(
    own: Callable[..., Tensor], plan: RecurrentPlan, states: Tensor, weight: Tensor, bias: Tensor | None = None,
    activation: str | None = None, **_: Any,
) -> Tensor:  # fmt: skip
    """A causal convolution by channels of ``states``, (1, channels, tokens)."""
    width = weight.shape[-1]
    back = plan.once(("back", width), lambda: _paths_back(plan, width))
    exact = torch.promote_types(weight.dtype, torch.float32)  # sums are rounded once, as in the model's own function
    inputs, weight, carry = states[0].to(exact), weight.to(exact), plan.carried
    if carry is not None:
        call = carry.next_call()
        before = carry.before(call)
        room = int((plan.tree.parent < 0).sum()) * (width - 1)
        earlier = inputs.new_zeros(len(inputs), room) if before is None else before.transpose(0, 1).flatten(1)
        inputs = torch.cat([inputs, earlier], 1)
    padded_inputs = F.pad(inputs, (0, 1))
    if carry is not None:
        kept_tokens = plan.once("kept", lambda: to_device(carry.kept, plan.device))
        last = torch.stack([tokens.index_select(0, kept_tokens) for tokens in back[-2::-1]], 1)
        carry.after(call, padded_inputs[:, last].transpose(0, 1))
    out = padded_inputs.new_zeros(1) if bias is None else bias[:, None].to(exact)
    for distance, tokens in enumerate(back):
        out = out + weight[:, width - 1 - distance, None] * padded_inputs.index_select(1, tokens)
    return (out if activation is None else ACT2FN[activation](out)).to(states.dtype)[None]


def _delta_rule(
    own: Callable[..., Any], plan: RecurrentPlan, query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor,
    initial_state: None = None, output_final_state: bool = False, chunk_size: int = 64, **more: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """The gated delta rule, also where each channel decays by itself; all tensors (1, tokens, heads, …)."""

    def scan(inputs: Sequence[Tensor], before: Tensor | None, length: int) -> tuple[Tensor, Tensor]:
        q, k, v, decay, rate = inputs
        outputs: tuple[Tensor, Tensor] = own(
            q, k, v, g=decay, beta=rate, initial_state=before, output_final_state=True,
            chunk_size=chunk_of(length, chunk_size, plan.device), **more,
        )  # fmt: skip
        return outputs

    return _along(plan, (query, key, value, g, beta), scan), None


def _state_space(
    own: Callable[..., Any], plan: RecurrentPlan, states: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor,
    chunk_size: int, dt_bias: Tensor | None = None, dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")), initial_states: None = None,
    return_final_states: bool = False, **more: Any,
) -> Tensor:  # fmt: skip
    """Mamba-2's scan; all tensors but ``A`` (1, tokens, heads, …)."""
    steps = dt if dt_bias is None else dt + dt_bias.to(dt.dtype)
    steps = (F.softplus(steps) if dt_softplus else steps).clamp(*dt_limit)  # here: what fills a run up has none

    def scan(inputs: Sequence[Tensor], before: Tensor | None, length: int) -> tuple[Tensor, Tensor]:
        x, step, b, c = inputs
        outputs: tuple[Tensor, Tensor] = own(
            x, step, A, b, c, chunk_size=chunk_of(length, chunk_size, plan.device), initial_states=before,
            return_final_states=True, **more,
        )  # fmt: skip
        return outputs

    return _along(plan, (states, steps, B, C), scan)


def _nothing(own: Callable[..., Any], plan: RecurrentPlan, *_: Any, **__: Any) -> None:
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
        names = set(inspect.unwrap(kind.forward).__code__.co_names)
        place = vars(sys.modules[kind.__module__])
        mixing = {name for name in names if callable(place.get(name)) and any(part in name for part in _MIXES)}
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
    def function(
        *args: Any, tree_plan: RecurrentPlan | None = None, slot_plan: RecurrentPlan | None = None, **more: Any
    ) -> Any:
        fast = args[0].device.type == "cuda" and args[0].dtype != torch.float32
        used = own if fast else plain
        plan = slot_plan or tree_plan
        return used(*args, **more) if plan is None else in_tree(used, plan, *args, **more)

    function.in_tree = in_tree  # type: ignore[attr-defined]
    return function
