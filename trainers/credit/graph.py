"""The graph of the states that the episodes of a group met: what methods of credit over states read.

Episodes of one task merge where they meet: a state that several of them reached is one node. Everything is vectorised
over steps. Nodes and distances take time linear in their number, edges that of a sort, and strongly connected parts as
many rounds as the longest chain of their numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trainers.credit.estimators.groups import Floats, Ints, group_codes, similar_codes
from trainers.credit.estimators.returns import episode_totals, steps_in_order
from trainers.steps import StepTable
from trainers.steps.columns import NEXT_STATE, SUCCESS, SUPPLIERS

Solved = Literal["success", "return"]


@dataclass(frozen=True)
class StateGraph:
    """Nodes are the states of each group, edges the steps between them; N steps, M nodes.

    Every group has one more node, its goal, where the last step of a successful episode leads. The last step of another
    episode leads to the state in which it ended.
    """

    node: Ints
    """Node of the state that each step answers, shape (N,)."""
    following: Ints
    """Node that each step leads to, shape (N,)."""
    last: NDArray[np.bool_]
    """Whether a step is the last one of its episode, shape (N,)."""
    solved: NDArray[np.bool_]
    """Whether its episode is successful, shape (N,)."""
    group: Ints
    """Group of each node, shape (M,)."""
    goal: Ints
    """Node of each group's goal, shape (groups,)."""

    @classmethod
    def of(cls, steps: StepTable, solved: Solved | None = None, similarity: float | None = None) -> StateGraph:
        """Returns the graph of ``steps``.

        Args:
            steps: Rows of whole episodes, in any order.
            solved: Which episodes are successful: those that solved their task, or whose return is above 0; ``None``:
                all of them lead to the goal, and no further column is read.
            similarity: Join states whose keys are at least this similar, greedily in row order (``difflib`` ratio).

        Raises:
            MissingColumn: There is no column ``next_state_key``, or no column ``success``.
            UsageError: A step is there twice; or keys are compared by similarity and are no text.
        """
        count = len(steps)
        order, lengths = steps_in_order(steps)
        last = np.zeros(count, np.bool_)
        last[order[(np.cumsum(lengths) - 1)[lengths > 0]]] = True
        if solved == "success":
            won = np.asarray(steps.column(SUCCESS, "a state graph", SUPPLIERS[SUCCESS]), np.bool_)
        else:
            won = episode_totals(steps) > 0.0 if solved == "return" else np.ones(count, np.bool_)
        ends = np.flatnonzero(last & ~won)
        after = steps.state_key[:0]
        if solved is not None:
            after = steps.column(NEXT_STATE, "a state graph", SUPPLIERS[NEXT_STATE])[ends]
        of_group = group_codes(steps.group_id)
        groups = int(of_group.max(initial=-1)) + 1
        owner = np.concatenate([of_group, of_group[ends]])
        keys = np.concatenate([steps.state_key, after])
        if similarity is None:
            codes = group_codes(owner, keys)
        else:  # a row's state, then where its episode ended
            turns = np.argsort(np.concatenate([2 * np.arange(count), 2 * ends + 1]))
            codes = np.empty(len(keys), np.int64)
            codes[turns] = similar_codes(owner[turns], keys[turns], similarity)
        nodes = int(codes.max(initial=-1)) + 1
        following = np.empty(count, np.int64)
        following[order[:-1]] = codes[:count][order[1:]]
        following[ends] = codes[count:]
        following[last & won] = (nodes + of_group)[last & won]
        group = np.arange(nodes + groups) - nodes
        group[codes] = owner
        return cls(codes[:count], following, last, won, group, nodes + np.arange(groups))

    @cached_property
    def visits(self) -> Ints:
        """Number of steps that answer each node, shape (M,)."""
        return np.bincount(self.node, minlength=len(self.group))

    def mean(self, values: Floats) -> Floats:
        """Returns the mean of ``values``, one for each step, over the visits of each node, shape (M,); 0 of none."""
        sums = np.bincount(self.node, values, minlength=len(self.group))
        return np.asarray(sums / np.maximum(self.visits, 1), np.float64)

    @cached_property
    def reachable(self) -> NDArray[np.bool_]:
        """Whether the goal can be reached from each node over edges that were walked, shape (M,)."""
        return self._hops >= 0

    @cached_property
    def distance(self) -> Ints:
        """Fewest edges from each node to its group's goal, shape (M,).

        Where there is no way, it is the longest distance in the group plus one.
        """
        longest = np.zeros(len(self.goal), np.int64)
        np.maximum.at(longest, self.group, self._hops)
        return np.where(self.reachable, self._hops, longest[self.group] + 1)

    @cached_property
    def _edges(self) -> Ints:
        """The first step of each edge, in the order of the steps."""
        return self._distinct(np.arange(len(self.node)))

    def _distinct(self, rows: Ints) -> Ints:
        """The first of ``rows`` on each edge, in their order."""
        _, first = np.unique(self.node[rows] * len(self.group) + self.following[rows], return_index=True)
        return np.asarray(rows[np.sort(first)], np.int64)

    @cached_property
    def _hops(self) -> Ints:
        """The distance, -1 where there is no way: breadth first from all goals at once, against the edges."""
        source, target = self.node[self._edges], self.following[self._edges]
        order = np.argsort(target, kind="stable")
        source = source[order]
        starts = np.searchsorted(target[order], np.arange(len(self.group) + 1))
        hops = np.full(len(self.group), -1)
        front, far = self.goal, 0
        while len(front):
            hops[front] = far
            lengths = starts[front + 1] - starts[front]
            edges = np.arange(lengths.sum()) + np.repeat(starts[front] - np.cumsum(lengths) + lengths, lengths)
            front = np.unique(source[edges])
            front, far = front[hops[front] < 0], far + 1
        return hops

    @cached_property
    def component(self) -> Ints:
        """Strongly connected part of each node, shape (M,): nodes that can be reached from each other have equal codes.

        After Orzan (2004): the greatest number flows along the edges; who has a node's number and leads back to it is
        in its part. Before, what no cycle can pass is peeled off.
        """
        edges = self._edges
        edges = edges[self.node[edges] != self.following[edges]]
        source, target, own = self.node[edges], self.following[edges], np.arange(len(self.group))
        part = own.copy()
        while len(source):
            on_cycle = np.isin(source, target) & np.isin(target, source)
            if not on_cycle.all():
                source, target = source[on_cycle], target[on_cycle]
                continue
            number = own.copy()
            while (less := number[target] < number[source]).any():
                np.maximum.at(number, target[less], number[source[less]])
            in_part = number == own
            while (back := in_part[target] & ~in_part[source] & (number[source] == number[target])).any():
                in_part[source[back]] = True
            part[in_part] = number[in_part]
            open_edges = ~in_part[source] & ~in_part[target]
            source, target = source[open_edges], target[open_edges]
        return group_codes(part)

    @property
    def circling(self) -> NDArray[np.bool_]:
        """Whether a step leads to a state from which the one that it answers can be reached again, shape (N,)."""
        return np.asarray(self.component[self.node] == self.component[self.following], np.bool_)

    def spread(self, values: Floats, decay: float, open_steps: NDArray[np.bool_] | None = None) -> Floats:
        """Returns for each node the greatest of ``values`` that can be reached from it, shape (M,).

        A value counts ``decay`` times as much for each edge on the way to it.

        Args:
            values: Of each node, shape (M,), none negative.
            decay: Less than 1.
            open_steps: Steps whose edges may be walked, shape (N,); all by default.
        """
        edges = self._edges if open_steps is None else self._distinct(np.flatnonzero(open_steps))
        source, target, best = self.node[edges], self.following[edges], values.astype(np.float64)
        while True:
            offer = decay * best[target]
            better = offer > best[source]
            if not better.any():
                return best
            np.maximum.at(best, source[better], offer[better])

    def diagnostics(self) -> dict[str, float]:
        """Returns the number of nodes and edges, the share of lone visits, what part leads to success or in cycles."""
        count = max(len(self.node), 1)
        return {
            "graph/nodes": float((self.visits > 0).sum()),
            "graph/edges": float(len(self._edges)),
            "graph/singleton_rate": float((self.visits == 1).sum() / count),
            "graph/reachable_rate": float(self.reachable[self.node].sum() / count),
            "graph/cycle_rate": float(self.circling.sum() / count),
        }
