"""The metrics of one iteration, over all processes."""

from __future__ import annotations

import resource
import sys
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from accelerate import Accelerator
from numpy.typing import NDArray

from envsuite.playing.activity import ACTIVITY
from envsuite.playing.step import REFUSALS, Episode, Step
from envsuite.playing.timing import Timing
from trainers.credit.crediting import Credit
from trainers.credit.shapers import DIAGNOSTIC
from trainers.policy.update import UpdateMetrics
from trainers.processes.distributed import all_gather_object
from trainers.steps.sharing import SharedTokens
from trainers.steps.table import action_text


@dataclass(frozen=True)
class IterationMetrics:
    """Metrics by name, and the counts that rates are made of."""

    values: dict[str, float]
    """Values by their names in :data:`trainers.report.metrics.METRICS`."""
    sampled: int
    """Response tokens sampled in the iteration, by all processes."""
    steps: int
    """Environment steps of the iteration, by all processes."""
    calls: int = 0
    """Tool calls of the iteration, by all processes."""


@dataclass(frozen=True)
class ClockMoment:
    """A point in time of this process, on two clocks."""

    wall: float
    """Seconds of wall-clock time."""
    cpu: float
    """Seconds of CPU time that the process has used, over all its threads."""

    @classmethod
    def now(cls) -> ClockMoment:
        """Returns the present moment."""
        return cls(time.perf_counter(), time.process_time())


class Clock:
    """Measures the parts of an iteration, one after the other."""

    def __init__(self) -> None:
        self._began = self._last = ClockMoment.now()
        self._waited = ACTIVITY.spent()
        self._before = dict(self._waited)
        self._metrics: dict[str, float] = {}

    def book(self, part: str) -> None:
        """Books the time since the last call on ``part``, as metrics ``time/<part>`` and ``cpu/<part>``.

        Waits for weights and for other processes, which are metrics of their own, are in ``time/rollout`` only.
        """
        now = ClockMoment.now()
        wall = now.wall - self._last.wall - (0.0 if part == "rollout" else self._waits())
        self._metrics |= {f"time/{part}": wall, f"cpu/{part}": now.cpu - self._last.cpu}
        self._last, self._waited = now, ACTIVITY.spent()

    def _waits(self) -> float:
        """Returns the seconds of waits since the last part."""
        return sum(seconds - self._waited[cause] for cause, seconds in ACTIVITY.spent().items())

    def metrics(
        self, timing: Timing, figures: IterationMetrics, seconds: float | None = None, covered: float | None = None
    ) -> dict[str, float]:
        """Returns the times of all parts, and the rates of the rollout.

        Args:
            timing: Seconds of the rollout's parts.
            figures: Numbers of tokens and steps that were played.
            seconds: Seconds in which they were played; by default those of the part ``rollout``.
            covered: Seconds that ``timing`` is of; by default those of the iteration.
        """
        now = ClockMoment.now()
        rollout = max(self._metrics["time/rollout"] if seconds is None else seconds, 1e-9)
        total = now.wall - self._began.wall
        parts = {
            **{name: value for name, value in self._metrics.items() if name.startswith("time/")},
            "time/engine": timing.engine,
            "time/env": timing.env,
            "time/codec": timing.codec,
            "time/longest_episode": timing.longest_episode,
            **{f"time/{cause}": spent - self._before[cause] for cause, spent in ACTIVITY.spent().items()},
            "time/log": now.wall - self._last.wall - self._waits(),
        }
        disjoint = sum(seconds for name, seconds in parts.items() if name != "time/rollout")
        training_seconds = sum(parts.get(f"time/{part}", 0.0) for part in ("estimator", "update"))
        return {
            **self._metrics,
            **parts,
            "time/rest": total - disjoint,
            "time/total": total,
            "idle/engine": 1.0 - timing.engine / max(total if covered is None else covered, 1e-9),
            "idle/device": 1.0 - training_seconds / max(total, 1e-9),
            "rate/tokens": figures.sampled / rollout,
            "rate/steps": figures.steps / rollout,
            "rate/tool_calls": figures.calls / rollout,
        }


def iteration_metrics(
    accelerator: Accelerator,
    episodes: Sequence[Episode],
    credit: Credit,
    update: UpdateMetrics,
    learnt: Mapping[str, float],
    tokens_before: int,
    *,
    timing: Timing | None = None,
    pruned_tokens: int = 0,
    episode_tokens: int | None = None,
    prompt_tokens: int | None = None,
) -> IterationMetrics:
    """Returns the metrics of an iteration; every process must call this, with its own episodes and steps.

    Args:
        accelerator: The run's accelerator.
        episodes: Episodes that this process played.
        credit: Their credited steps.
        update: Metrics of the update, which are over all processes already.
        learnt: This process's metrics of the critic, by their names under ``train/``.
        tokens_before: Response tokens that the run had sampled before.
        timing: What the rollout of this process had to give up; ``None`` for nothing.
        pruned_tokens: Response tokens of this process that were sampled for episodes which are not among ``episodes``.
        episode_tokens: Most response tokens of an episode; ``None`` for no limit.
        prompt_tokens: Most tokens of a prompt, where longer ones lose their first tokens; ``None`` where none does.
    """
    figures = (_env_sums(episodes), _diagnostics(credit), _shaper_sums(credit), _filter_counts(credit))
    waste = timing or Timing()
    given_up = {"repeated": waste.repeated, "dropped_tokens": waste.dropped_tokens, "pruned": pruned_tokens}
    tokens = {f"tokens/{name}": count for name, count in vars(SharedTokens.of(credit.table)).items()}
    repeats, *choices = _count_choices(episodes)
    sums = _sums(episodes, credit, episode_tokens, prompt_tokens) | given_up | tokens | {"repeated_actions": repeats}
    parts = all_gather_object(accelerator, (sums, dict(learnt), figures, _versions(episodes), choices))
    total: dict[str, float] = {name: sum(part[0][name] for part in parts) for name in parts[0][0]}
    versions = [version for part in parts for version in part[3]] or [(0, 0)]
    sound, steps, rows = max(total["sound"], 1), max(total["steps"], 1), max(total["rows"], 1)
    mean = total["advantage"] / rows
    used = total["own"] + total["greedy"] + total["pruned"]
    values = {
        **{f"train/{name}": total[name] / sound for name in _OF_EPISODES},
        **{f"train/{name}": total[name] / steps for name in _OF_STEPS},
        "train/episode_length": total["steps"] / sound,
        "train/top_action": _greatest_share([part[4][0] for part in parts]),
        "train/top_token": _greatest_share([part[4][1] for part in parts]),
        "train/version_min": min(low for low, _ in versions),
        "train/version_max": max(high for _, high in versions),
        "train/mixed_versions": sum(low < high for low, high in versions) / sound,
        **{name: count / steps for name, count in total.items() if name.startswith("invalid/")},
        **_sharing_metrics(total),
        **{f"train/{name}": total[name] for name in ("episodes", "failed", "repeated", "dropped_tokens", "groups")},
        "train/live_tokens": used / max(used + total["dropped_tokens"], 1),
        "train/zero_variance_groups": total["flat"] / max(total["groups"], 1),
        "train/steps": total["kept"],
        "train/filtered": 1.0 - total["kept"] / steps,
        "train/sampled_tokens": used,
        "train/tokens_total": tokens_before + used,
        "train/advantage_mean": mean,
        "train/advantage_std": max(0.0, total["advantage_squares"] / rows - mean**2) ** 0.5,
        **{f"train/{name}": value for name, value in update.train.items()},
        **{f"train/{name}": sum(part[1][name] for part in parts) / len(parts) for name in learnt},
        **{f"replay/{name}": value for name, value in update.replay.items()},
        **_means("env", [part[2][0] for part in parts]),
        **_means("diag", [part[2][1] for part in parts]),
        **{f"term/{name}": value for name, value in credit.terms.items()},
        **_means("shape", [part[2][2] for part in parts]),
        **_left_out([part[2][3] for part in parts]),
        **_memory(),
    }
    return IterationMetrics(values, int(used), int(total["steps"]), int(total["tool_calls"]))


_OF_EPISODES = ("success", "score", "return", "shaped_return", "horizon", "context_truncated", "token_limit")
_OF_STEPS = (
    *("valid_actions", "parsed", "prompt_length", "response_length", "response_cut", "prompt_cut", "tool_calls"),
    "repeated_actions",
)
"""Metrics that are sums over the episodes, and over the steps, divided by their number."""


def _sums(
    episodes: Sequence[Episode], credit: Credit, episode_tokens: int | None, prompt_tokens: int | None
) -> dict[str, float]:
    greedy = sum(len(step.response_ids) for e in episodes if e.greedy for step in e.steps)
    episodes = [episode for episode in episodes if not episode.greedy]
    sound = [episode for episode in episodes if episode.error is None]
    steps = [step for episode in sound for step in episode.steps]
    returns: dict[int, set[float]] = {}
    for episode in sound:
        returns.setdefault(episode.group_id, set()).add(episode.total_reward)
    advantage = credit.advantage.per_step
    if advantage is None:
        advantage = credit.advantage.tokens(credit.table)
    refusals = Counter(step.refusal for step in steps)
    ends_early = [episode for episode in sound if episode.truncated and not episode.context_truncated]
    lengths = [sum(len(step.response_ids) for step in episode.steps) for episode in ends_early]
    return {
        "episodes": len(episodes), "failed": len(episodes) - len(sound), "sound": len(sound),
        "success": sum(episode.success for episode in sound), "score": sum(episode.score for episode in sound),
        "return": sum(episode.total_reward for episode in sound), "shaped_return": float(credit.table.reward.sum()),
        "steps": len(steps), "valid_actions": sum(step.valid for step in steps),
        "parsed": sum(step.parse_error is None for step in steps),
        "prompt_length": sum(len(step.prompt_ids) for step in steps),
        "response_length": sum(len(step.response_ids) for step in steps),
        "own": sum(len(step.response_ids) for episode in sound for step in episode.steps[episode.shared :]),
        "response_cut": sum(step.finish_reason == "length" for step in steps),
        "horizon": len(ends_early), "context_truncated": sum(episode.context_truncated for episode in sound),
        "groups": len(returns), "flat": sum(len(values) == 1 for values in returns.values()),
        "greedy": greedy,
        "kept": int(credit.keep.sum()),
        "rows": len(advantage), "advantage": float(advantage.sum()),
        "advantage_squares": float(np.square(advantage).sum()),
        "tool_calls": sum(len(step.action) for step in steps if step.action is not None),
        "token_limit": sum(episode_tokens is not None and tokens >= episode_tokens for tokens in lengths),
        "prompt_cut": sum(prompt_tokens is not None and len(step.prompt_ids) >= prompt_tokens for step in steps),
        **{f"invalid/{reason}": refusals[reason] for reason in REFUSALS},
    }  # fmt: skip


def _sharing_metrics(total: Mapping[str, float]) -> dict[str, float]:
    """Counts of tokens over all processes, and the shares of them that rows share and could share."""
    counts = {name: count for name, count in total.items() if name.startswith("tokens/")}
    tokens = max(counts["tokens/rows"], 1)
    return {
        **counts,
        "tokens/shared": 1.0 - counts["tokens/distinct"] / tokens,
        "tokens/shareable": 1.0 - counts["tokens/least"] / tokens,
    }


def _actions(steps: Sequence[Step]) -> list[int | None]:
    """Returns a checksum of each step's action, the same in all processes; ``None`` where it did not parse."""
    texts = (action_text(step.action) for step in steps)
    return [None if text is None else zlib.crc32(text.encode()) for text in texts]


def _repeats(steps: Sequence[Step], actions: Sequence[int | None]) -> int:
    """Returns how many steps take the action of the step before, or one that was taken in the same state before."""
    count, last = 0, None
    pairs: set[tuple[str, int]] = set()
    for step, action in zip(steps, actions, strict=True):
        if action is not None:
            count += action == last or (step.state_key, action) in pairs
            pairs.add((step.state_key, action))
        last = action
    return count


Counted = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Different values, and how often each occurs."""


def _count_choices(episodes: Sequence[Episode]) -> tuple[int, Counted, Counted]:
    """Counts the steps that repeat an action, the actions that parsed, by their checksums, and the response tokens."""
    repeats, actions, tokens = 0, list[int](), [np.empty(0, np.int32)]
    for episode in episodes:
        if episode.error is None and not episode.greedy:
            own = _actions(episode.steps)
            repeats += _repeats(episode.steps, own)
            actions += [action for action in own if action is not None]
            tokens += [step.response_ids for step in episode.steps]
    return repeats, _count_values(np.array(actions, np.int64)), _count_values(np.concatenate(tokens).astype(np.int64))


def _count_values(values: NDArray[np.int64]) -> Counted:
    different, counts = np.unique(values, return_counts=True)
    return different, counts.astype(np.int64)


def _greatest_share(parts: Sequence[Counted]) -> float:
    """Returns the share that the most frequent value has, over all processes; 0 where there is no value."""
    different, place = np.unique(np.concatenate([values for values, _ in parts]), return_inverse=True)
    if not len(different):
        return 0.0
    counts = np.bincount(place, np.concatenate([counts for _, counts in parts]))
    return float(counts.max() / counts.sum())


def _versions(episodes: Sequence[Episode]) -> list[tuple[int, int]]:
    """Returns the versions of the oldest and the newest weights that sampled each episode."""
    sound = [episode for episode in episodes if episode.error is None and not episode.greedy]
    return [episode.versions for episode in sound if episode.versions is not None]


def _env_sums(episodes: Sequence[Episode]) -> dict[str, tuple[float, float]]:
    """Sum and count of each figure that the environment reports at the end of an episode."""
    figures: dict[str, list[float]] = defaultdict(list)
    for episode in episodes:
        if episode.error is None and episode.steps and not episode.greedy:
            for name, value in episode.steps[-1].info.get("metrics", {}).items():
                figures[name].append(float(value))
    return {name: (sum(values), float(len(values))) for name, values in figures.items()}


def _diagnostics(credit: Credit) -> dict[str, tuple[float, float]]:
    """The estimator's diagnostics, weighted by the rows behind them."""
    n = float(len(credit.table))
    return {name: (float(value) * n, n) for name, value in credit.advantage.diagnostics.items()}


def _shaper_sums(credit: Credit) -> dict[str, tuple[float, float]]:
    """Returns sum and count, over the steps, of each shaper's diagnostics."""
    columns = credit.table.extra.items()
    diagnostics = {name.removeprefix(DIAGNOSTIC): values for name, values in columns if name.startswith(DIAGNOSTIC)}
    return {name: (float(values.sum()), float(len(values))) for name, values in diagnostics.items()}


def _filter_counts(credit: Credit) -> dict[str, tuple[int, int, int]]:
    """Returns, for each filter, the steps that it leaves out, the number of steps, and the groups left out whole."""
    groups = np.unique(credit.table.group_id)
    return {
        name: (int((~keep).sum()), len(keep), len(groups) - len(np.unique(credit.table.group_id[keep])))
        for name, keep in credit.filters.items()
    }


def _left_out(parts: Sequence[Mapping[str, tuple[int, int, int]]]) -> dict[str, float]:
    values: dict[str, float] = {}
    for name in parts[0]:
        out, steps, groups = (sum(part[name][i] for part in parts) for i in range(3))
        values |= {f"filter/{name}": out / max(steps, 1), f"filter/{name}_groups": float(groups)}
    return values


def _means(family: str, parts: Sequence[Mapping[str, tuple[float, float]]]) -> dict[str, float]:
    names = dict.fromkeys(name for part in parts for name in part)
    pairs = {name: [part[name] for part in parts if name in part] for name in names}
    return {f"{family}/{name}": sum(s for s, _ in p) / max(sum(n for _, n in p), 1.0) for name, p in pairs.items()}


def _memory() -> dict[str, float]:
    # ru_maxrss is in KiB, on macOS in bytes.
    unit = 2**30 if sys.platform == "darwin" else 2**20
    values = {"memory/rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit}
    if torch.cuda.is_available():
        values["memory/gpu"] = torch.cuda.max_memory_allocated() / 2**30
    return values
