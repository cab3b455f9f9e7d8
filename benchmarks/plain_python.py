"""The methods' equations in plain Python, row by row, as the original implementations loop over them.

Written from the equations for comparison of speed and, in the tests, of results. Only BiPACE's vectors are NumPy's: a
loop over 3,584 dimensions would flatter what it is compared with. Every function takes a step table in rollout order
and returns one number per step, or per response token; the settings are the methods' defaults. The numbers that it
loops over are Python's floats, or torch numbers as in the originals.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trainers.steps import StepTable

Numbers = Callable[[NDArray[Any]], list[Any]]
Plain = Callable[..., list[Any]]
"""A step table, and optionally what holds its numbers; one number per step or token."""
EPSILON = 1e-6


def floats(column: NDArray[Any]) -> list[Any]:
    """Python's floats: the fastest that a loop can have."""
    found: list[Any] = column.tolist()
    return found


def tensors(column: NDArray[Any]) -> list[Any]:
    """One torch number per row, as the originals' loops have them."""
    return list(torch.from_numpy(column))


class Rows:
    """The columns of a step table as lists, and the rows of each episode."""

    def __init__(self, steps: StepTable, numbers: Numbers = floats) -> None:
        self.group = steps.group_id.tolist()
        self.episode = list(zip(self.group, steps.episode_id.tolist(), strict=True))
        self.reward = numbers(steps.reward)
        self.state = steps.state_key.tolist()
        self.length = steps.response.lengths.tolist()
        self.rows: dict[tuple[int, int], list[int]] = defaultdict(list)
        for row, episode in enumerate(self.episode):
            self.rows[episode].append(row)
        t = steps.t.tolist()
        for rows in self.rows.values():
            rows.sort(key=t.__getitem__)

    def __len__(self) -> int:
        """Number of steps."""
        return len(self.reward)

    def returns(self) -> dict[tuple[int, int], float]:
        """R of each episode."""
        return {episode: sum(self.reward[row] for row in rows) for episode, rows in self.rows.items()}

    def by_group(self) -> dict[int, list[tuple[int, int]]]:
        """Episodes of each group."""
        out = defaultdict(list)
        for episode in self.rows:
            out[episode[0]].append(episode)
        return out

    def broadcast(self, by_episode: dict[tuple[int, int], float]) -> list[float]:
        """One number per row from one per episode."""
        return [by_episode[episode] for episode in self.episode]

    def to_go(self, gamma: float) -> list[float]:
        """R_t of each row."""
        out = [0.0] * len(self)
        for rows in self.rows.values():
            ahead = 0.0
            for row in reversed(rows):
                ahead = self.reward[row] + gamma * ahead
                out[row] = ahead
        return out


def mean_std(values: Sequence[float], ddof: int = 1) -> tuple[float, float]:
    """Mean and standard deviation; a deviation of 0 where there is nothing to deviate."""
    mean = sum(values) / len(values)
    if len(values) <= ddof or max(values) - min(values) <= 1e-9:
        return mean, 0.0
    return mean, math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - ddof))


def _centred(steps: StepTable, numbers: Numbers, scale: Callable[[list[float], float], float]) -> list[float]:
    """(R - mean) · scale(returns of the group, R) of each row."""
    rows = Rows(steps, numbers)
    returns, out = rows.returns(), {}
    for episodes in rows.by_group().values():
        own = [returns[episode] for episode in episodes]
        mean, _ = mean_std(own)
        for episode in episodes:
            out[episode] = (returns[episode] - mean) * scale(own, returns[episode])
    return rows.broadcast(out)


def grpo(steps: StepTable, numbers: Numbers = floats) -> list[float]:
    """(R - mean) / (std + ε)."""
    return _centred(steps, numbers, lambda own, _: 1.0 / (mean_std(own)[1] + EPSILON))


def dr_grpo(steps: StepTable, numbers: Numbers = floats) -> list[float]:
    """R - mean."""
    return _centred(steps, numbers, lambda own, _: 1.0)


def rft(steps: StepTable, numbers: Numbers = floats) -> list[float]:
    """Every step that is left weighs 1."""
    return [1.0 for _ in range(len(Rows(steps, numbers)))]


def opd(steps: StepTable, numbers: Numbers = floats) -> list[float]:
    """The difference log π_teacher - log π_old of each token."""
    teacher, old = numbers(steps.token_extra["teacher_logprob"].values), numbers(steps.logprob.values)
    return [one - other for one, other in zip(teacher, old, strict=True)]


def gpg(steps: StepTable, numbers: Numbers = floats) -> list[float]:
    """(R - mean) · episodes of the batch / episodes of groups whose returns differ."""
    rows = Rows(steps, numbers)
    returns, informative = rows.returns(), 0
    for episodes in rows.by_group().values():
        own = [returns[episode] for episode in episodes]
        informative += len(episodes) if max(own) > min(own) else 0
    alpha = len(returns) / informative if informative else 1.0
    return [alpha * value for value in dr_grpo(steps, numbers)]


def rloo(steps: StepTable, numbers: Numbers = floats) -> list[float]:
    """R - mean of the others."""
    rows = Rows(steps, numbers)
    returns, out = rows.returns(), {}
    for episodes in rows.by_group().values():
        total = sum(returns[episode] for episode in episodes)
        for episode in episodes:
            rest = len(episodes) - 1
            out[episode] = returns[episode] - (total - returns[episode]) / rest if rest else 0.0
    return rows.broadcast(out)


def opo(steps: StepTable, numbers: Numbers = floats) -> list[float]:
    """R - the mean of the returns weighted by length."""
    rows = Rows(steps, numbers)
    returns, out = rows.returns(), {}
    tokens = {episode: sum(rows.length[row] for row in own) for episode, own in rows.rows.items()}
    for episodes in rows.by_group().values():
        total = sum(tokens[episode] for episode in episodes)
        baseline = sum(tokens[episode] * returns[episode] for episode in episodes) / total
        for episode in episodes:
            out[episode] = returns[episode] - baseline
    return rows.broadcast(out)


def tree_grpo(steps: StepTable, numbers: Numbers = floats) -> list[float]:
    """z-scores of the return among the episodes of the task, and among those of the tree, added."""
    rows = Rows(steps, numbers)
    returns = rows.returns()
    tree = dict(zip(rows.episode, steps.extra["tree"].tolist(), strict=True))
    out = dict.fromkeys(returns, 0.0)
    for grown in (dict.fromkeys(tree), tree):
        groups: dict[Any, list[tuple[int, int]]] = defaultdict(list)
        for episode, number in grown.items():
            groups[episode[0], number].append(episode)
        for members in groups.values():
            mean, std = mean_std([returns[episode] for episode in members])
            for episode in members:
                out[episode] += (returns[episode] - mean) / (std + EPSILON) if len(members) > 1 else 0.0
    return rows.broadcast(out)


def oracle_mc(steps: StepTable, numbers: Numbers = floats) -> list[float]:
    """Reward, plus the value of the next state, minus that of the state."""
    here, after = numbers(steps.extra["mc_value"]), numbers(steps.extra["next_mc_value"])
    return [r + next_value - value for r, next_value, value in zip(numbers(steps.reward), after, here, strict=True)]


def remax(steps: StepTable, numbers: Numbers = floats) -> list[float]:
    """R - R(greedy)."""
    rows = Rows(steps, numbers)
    returns = rows.returns()
    greedy = numbers(steps.extra["greedy_return"])
    return [returns[episode] - greedy[row] for row, episode in enumerate(rows.episode)]


def reinforce_pp_baseline(steps: StepTable, numbers: Numbers = floats) -> list[float]:
    """R - mean, whitened over the episodes of the batch."""
    rows, centred = Rows(steps, numbers), dr_grpo(steps, numbers)
    mean, std = mean_std([centred[own[0]] for own in rows.rows.values()])
    return [(value - mean) / math.sqrt(std**2 + 1e-8) for value in centred]


def _token_rewards(steps: StepTable, rows: Rows) -> tuple[list[float], list[list[int]]]:
    """What each token earns, and the tokens of each episode in their order."""
    offsets = steps.response.offsets.tolist()
    reward = [0.0] * offsets[-1]
    for row in range(len(rows)):
        reward[offsets[row + 1] - 1] = rows.reward[row]
    order = [[i for row in own for i in range(offsets[row], offsets[row + 1])] for own in rows.rows.values()]
    return reward, order


def reinforce_pp(steps: StepTable, numbers: Numbers = floats) -> list[float]:
    """Return to go of each token, whitened over the batch."""
    reward, order = _token_rewards(steps, Rows(steps, numbers))
    out = [0.0] * len(reward)
    for tokens in order:
        ahead = 0.0
        for i in reversed(tokens):
            ahead = reward[i] + ahead
            out[i] = ahead
    mean, std = mean_std(out)
    return [(value - mean) / math.sqrt(std**2 + 1e-8) for value in out]


def ppo(steps: StepTable, numbers: Numbers = floats) -> list[float]:
    """Generalised advantages over tokens, γ 1, λ 0.95."""  # noqa: RUF002
    reward, order = _token_rewards(steps, Rows(steps, numbers))
    value = numbers(steps.token_extra["value"].values)
    out = [0.0] * len(reward)
    for tokens in order:
        ahead = after = 0.0
        for i in reversed(tokens):
            ahead = reward[i] + after - value[i] + 0.95 * ahead
            after, out[i] = value[i], ahead
    return out


def steppo(steps: StepTable, numbers: Numbers = floats) -> list[float]:
    """Generalised advantages over steps, γ 0.99, λ 1."""  # noqa: RUF002
    rows = Rows(steps, numbers)
    value = numbers(steps.extra["value"])
    out = [0.0] * len(rows)
    for own in rows.rows.values():
        ahead = after = 0.0
        for row in reversed(own):
            ahead = rows.reward[row] + 0.99 * after - value[row] + 0.99 * ahead
            after, out[row] = value[row], ahead
    return out


def step_term(returns: list[float], keys: list[Any], ddof: int = 1) -> list[float]:
    """(R_t - mean) / (std + ε) within the rows of equal key; alone: 0."""
    groups = defaultdict(list)
    for row, key in enumerate(keys):
        groups[key].append(row)
    out = [0.0] * len(returns)
    for own in groups.values():
        mean, std = mean_std([returns[row] for row in own], ddof)
        for row in own:
            out[row] = (returns[row] - mean) / (std + EPSILON) if std else 0.0
    return out


def gigpo(steps: StepTable, numbers: Numbers = floats) -> list[float]:
    """A^E + A^S."""
    rows = Rows(steps, numbers)
    step = step_term(rows.to_go(0.95), list(zip(rows.group, rows.state, strict=True)))
    return [one + other for one, other in zip(grpo(steps, numbers), step, strict=True)]


def hgpo(steps: StepTable, numbers: Numbers = floats) -> list[float]:
    """Levels 0 to 2, weighted by k + 1 where they are not 0."""
    rows = Rows(steps, numbers)
    returns = rows.to_go(0.95)
    total, weight = [0.0] * len(rows), [0.0] * len(rows)
    for k in range(3):
        keys: list[Any] = [None] * len(rows)
        for own in rows.rows.values():
            states = [rows.state[row] for row in own]
            for place, row in enumerate(own):
                keys[row] = (rows.group[row], tuple(states[max(0, place - k) : place + 1]))
        for row, item in enumerate(step_term(returns, keys, ddof=0)):
            if item != 0.0:
                total[row] += (k + 1) * item
                weight[row] += k + 1
    return [one / other if other else 0.0 for one, other in zip(total, weight, strict=True)]


def greedy_clusters(vectors: NDArray[Any], group: Sequence[int], radius: float) -> list[int]:
    """Algorithm 1 of BiPACE: the nearest centroid of the group if it is near enough, else a new one."""
    centroids: dict[int, list[tuple[int, NDArray[Any], int]]] = defaultdict(list)
    out, clusters = [], 0
    for vector, of in zip(vectors, group, strict=True):
        own = centroids[of]
        best, nearest = -1, math.inf
        for place, (_, centroid, _) in enumerate(own):
            distance = 1.0 - float(np.dot(centroid, vector))
            if distance < nearest:
                best, nearest = place, distance
        if best < 0 or nearest > radius + (1e-6 if vector.dtype == np.float32 else 1e-9):
            own.append((clusters, vector, 1))
            out.append(clusters)
            clusters += 1
            continue
        code, centroid, size = own[best]
        moved = centroid + (vector - centroid) / (size + 1)
        own[best] = (code, moved / np.linalg.norm(moved), size + 1)
        out.append(code)
    return out


def bipace(steps: StepTable, numbers: Numbers = floats) -> list[float]:
    """Clusters of radius 0.10, credit q."""
    rows = Rows(steps, numbers)
    vectors = steps.extra["embedding"]
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cluster = greedy_clusters(vectors, rows.group, 0.10)
    returns, actions = rows.to_go(0.95), steps.extra["action"].tolist()
    members, alike = defaultdict(list), defaultdict(list)
    for row, code in enumerate(cluster):
        members[code].append(returns[row])
        alike[code, actions[row]].append(returns[row])
    out = []
    for row, episode in enumerate(grpo(steps, numbers)):
        own, same = members[cluster[row]], alike[cluster[row], actions[row]]
        if len(own) == 1:
            step = 0.0
        elif len(same) > 1:
            step = sum(same) / len(same) - sum(own) / len(own)
        else:
            step = returns[row] - (sum(own) - returns[row]) / (len(own) - 1)
        out.append(episode + step)
    return out


def scpo(steps: StepTable, numbers: Numbers = floats) -> list[float]:
    """0.5 times the credit of exact matches, the longest response first."""
    rows, texts = Rows(steps, numbers), steps.extra["step_text"].tolist()
    returns, out = rows.returns(), [0.0] * len(rows)
    for episodes in rows.by_group().values():
        won = [rows.rows[episode] for episode in episodes if returns[episode] > 0.0]
        if not won:
            continue
        reference = [texts[row] for row in max(won, key=len) if texts[row] is not None]
        table = [-1] * len(reference)
        for j in range(1, len(reference)):
            k = table[j - 1]
            while k >= 0 and reference[k + 1] != reference[j]:
                k = table[k]
            table[j] = k + 1 if reference[k + 1] == reference[j] else k
        for episode in episodes:
            if returns[episode] > 0.0:
                continue
            own = sorted((r for r in rows.rows[episode] if texts[r] is not None), key=lambda r: -rows.length[r])
            similar = [[float(one == texts[row]) for row in own] for one in reference]
            j = furthest = -1
            for v, row in enumerate(own):
                while j >= 0 and similar[j + 1][v] < 0.6:
                    j = table[j]
                if similar[j + 1][v] >= 0.6:
                    j += 1
                    if j > furthest:
                        out[row], furthest = 0.5 * (similar[j][v] - 0.4) / 0.6, j
                if j == len(reference) - 1:
                    break
    return out


PLAIN: dict[str, Plain] = {
    "grpo": grpo,
    "dapo": grpo,
    "gspo": grpo,
    "dr_grpo": dr_grpo,
    "gpg": gpg,
    "rft": rft,
    "opd": opd,
    "rloo": rloo,
    "opo": opo,
    "remax": remax,
    "oracle_mc": oracle_mc,
    "tree_grpo": tree_grpo,
    "reinforce_pp": reinforce_pp,
    "reinforce_pp_baseline": reinforce_pp_baseline,
    "ppo": ppo,
    "steppo": steppo,
    "gigpo": gigpo,
    "hgpo": hgpo,
    "bipace": bipace,
}
"""By the estimators' names."""
