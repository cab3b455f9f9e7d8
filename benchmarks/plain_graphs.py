"""The methods over state graphs in plain Python, row by row; see :mod:`benchmarks.plain_python`."""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any

from benchmarks.plain_python import Numbers, Plain, Rows, dr_grpo, floats, grpo, step_term
from trainers.steps import StepTable

Node = tuple[Any, ...]


def _nodes(rows: Rows, steps: StepTable, by_success: bool) -> tuple[list[Node], list[Node], list[bool]]:
    """Node of each row's state, the one that it leads to, and whether the row is the last of its episode."""
    node: list[Node] = list(zip(rows.group, rows.state, strict=True))
    after: list[Node] = [()] * len(rows)
    last = [False] * len(rows)
    won = steps.extra["success"].tolist()
    ends = steps.extra["next_state_key"].tolist()
    for own in rows.rows.values():
        for row, following in itertools.pairwise(own):
            after[row] = node[following]
        end = own[-1]
        last[end] = True
        reached = won[end] or not by_success
        after[end] = (rows.group[end], None) if reached else (rows.group[end], ends[end])
    return node, after, last


def _distances(rows: Rows, node: Sequence[Node], after: Sequence[Node]) -> dict[Node, float]:
    """Fewest edges to the goal of the node's group; the longest and one more where there is no way."""
    back: dict[Node, set[Node]] = defaultdict(set)
    for here, there in zip(node, after, strict=True):
        back[there].add(here)
    out: dict[Node, float] = {}
    for group in dict.fromkeys(rows.group):
        found: dict[Node, int] = {(group, None): 0}
        queue = deque(found)
        while queue:
            there = queue.popleft()
            for here in back[there]:
                if here not in found:
                    found[here] = found[there] + 1
                    queue.append(here)
        members = {one for one in {*node, *after} if one[0] == group}
        far = max(found.values()) + 1
        out.update({one: found.get(one, far) for one in members})
    return out


def _mean_by(node: Sequence[Node], values: Sequence[Any]) -> dict[Node, Any]:
    visits: dict[Node, list[Any]] = defaultdict(list)
    for one, value in zip(node, values, strict=True):
        visits[one].append(value)
    return {one: sum(found) / len(found) for one, found in visits.items()}


def graphgpo(steps: StepTable, numbers: Numbers = floats) -> list[Any]:
    """A^E + A^G of 10 · 0.1^(d(s') - d(s) + 1)."""
    rows = Rows(steps, numbers)
    node, after, _ = _nodes(rows, steps, by_success=True)
    far = _distances(rows, node, after)
    rewards = [10.0 * 0.1 ** (far[there] - far[here] + 1) for here, there in zip(node, after, strict=True)]
    return [one + other for one, other in zip(grpo(steps, numbers), step_term(rewards, node), strict=True)]


def g2po(steps: StepTable, numbers: Numbers = floats) -> list[Any]:
    """A^E + A^N + A^D of values 0.95^(L - t) R."""
    rows = Rows(steps, numbers)
    node, after, last = _nodes(rows, steps, by_success=False)
    returns = rows.returns()
    total = rows.broadcast(returns)
    left = [0] * len(rows)
    for own in rows.rows.values():
        for place, row in enumerate(own):
            left[row] = len(own) - place
    value = _mean_by(node, [0.95**k * whole for k, whole in zip(left, total, strict=True)])
    following = [total[row] if last[row] else value[after[row]] for row in range(len(rows))]
    change = [there - value[here] for here, there in zip(node, following, strict=True)]
    terms = (grpo(steps, numbers), step_term(following, node), step_term(change, rows.group))
    return [sum(parts) for parts in zip(*terms, strict=True)]


def pgpo(steps: StepTable, numbers: Numbers = floats) -> list[Any]:
    """A^S + (1 - p)² A^φ."""
    rows = Rows(steps, numbers)
    node, after, last = _nodes(rows, steps, by_success=False)
    returns, ahead = rows.returns(), rows.to_go(0.95)
    total, potential = rows.broadcast(returns), _mean_by(node, ahead)
    change = [(total[row] if last[row] else potential[after[row]]) - potential[node[row]] for row in range(len(rows))]
    weight = {}
    for group, episodes in rows.by_group().items():
        weight[group] = (1.0 - sum(returns[episode] > 0 for episode in episodes) / len(episodes)) ** 2
    parts = zip(rows.group, step_term(ahead, node), step_term(change, node), strict=True)
    return [one + weight[group] * other for group, one, other in parts]


def gagpo(steps: StepTable, numbers: Numbers = floats) -> list[Any]:
    """Generalised advantages (λ = 0.8) over the mean returns of states, normalised by task."""
    rows = Rows(steps, numbers)
    value = _mean_by(list(zip(rows.group, rows.state, strict=True)), rows.to_go(0.95))
    raw: list[Any] = [0.0] * len(rows)
    for own in rows.rows.values():
        ahead, advantage = 0.0, 0.0
        for row in reversed(own):
            here = value[rows.group[row], rows.state[row]]
            advantage = rows.reward[row] + 0.95 * ahead - here + 0.95 * 0.8 * advantage
            raw[row], ahead = advantage, here
    return step_term(raw, rows.group)


def rewardflow(steps: StepTable, numbers: Numbers = floats) -> list[Any]:
    """R - mean, and the same of V(s') - V(s) within a state, V = max 0.9^k r."""
    rows = Rows(steps, numbers)
    node, after, _ = _nodes(rows, steps, by_success=True)
    value: dict[Node, Any] = dict.fromkeys([*node, *after], 0.0)
    for there, reward in zip(after, rows.reward, strict=True):
        value[there] = max(value[there], reward)
    changed = True
    while changed:
        changed = False
        for here, there in zip(node, after, strict=True):
            if 0.9 * value[there] > value[here]:
                value[here], changed = 0.9 * value[there], True
    earned = [value[there] - value[here] for here, there in zip(node, after, strict=True)]
    mean = _mean_by(node, earned)
    return [whole + own - mean[here] for whole, here, own in zip(dr_grpo(steps, numbers), node, earned, strict=True)]


def beacon(steps: StepTable, numbers: Numbers = floats) -> list[Any]:
    """R - mean, and the same of 10 · 0.95^n, n steps before a milestone, among steps after as many milestones."""
    rows = Rows(steps, numbers)
    reached = steps.extra["milestone"].tolist()
    segment: list[Node] = [()] * len(rows)
    earned: list[Any] = [0.0] * len(rows)
    for own in rows.rows.values():
        count = 0
        for row in own:
            segment[row] = (rows.group[row], count)
            count += reached[row]
        ahead = 0.0
        for row in reversed(own):
            ahead = 10.0 if reached[row] else 0.95 * ahead
            earned[row] = ahead
    mean = _mean_by(segment, earned)
    return [whole + own - mean[k] for whole, own, k in zip(dr_grpo(steps, numbers), earned, segment, strict=True)]


GRAPHS: dict[str, Plain] = {
    "graphgpo": graphgpo, "g2po": g2po, "pgpo": pgpo, "gagpo": gagpo, "rewardflow": rewardflow,
    "beacon": beacon,
}  # fmt: skip
"""By the estimators' names."""
