"""``python credit_of_ranks.py FOLDER`` under ``accelerate launch``: every recipe's credit and gradient, over all ranks.

With ``team`` as a second argument, two agents take turns in the episodes. Each process has the episodes of its own
groups; the first writes what all of them have together. The model is float64, so that the order of sums does not hide a
difference.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from safetensors.numpy import save_file
from tiny_runs import in_float64, model

from envsuite.core import ToolCall
from envsuite.playing.step import Episode, Step
from trainers.credit.config import MethodConfig
from trainers.credit.crediting import Crediting
from trainers.credit.estimators import ESTIMATORS, Estimator, ValueBased
from trainers.credit.method import Method
from trainers.credit.providers import GreedyReturn, Provider
from trainers.credit.recipes import COMPOSITIONS, recipe, recipes
from trainers.credit.rows import as_played
from trainers.policy.config import OptimConfig
from trainers.policy.loss import Objective
from trainers.policy.model import Policy
from trainers.policy.update import Updater
from trainers.processes.distributed import all_gather_object, make_accelerator, run_guarded
from trainers.settings import checked
from trainers.steps import StepTable
from trainers.steps.columns import (
    BLOCK,
    EMBEDDING,
    ENTROPY,
    HINDSIGHT,
    LOW_START,
    MC_VALUE,
    NEXT_MC_VALUE,
    REFERENCE,
    SEGMENT,
    SWITCH,
    SWITCH_PROBABILITY,
    TEACHER,
    VALUE,
)

SIZE, GROUPS, MEMBERS = 61, 6, 4
AGENTS = ("searcher_0", "selector_0")


def by_step(steps: StepTable) -> Iterator[tuple[int, ...]]:
    """A seed of each step."""
    return zip(steps.episode_id.tolist(), steps.t.tolist(), strict=True)


def by_state(steps: StepTable) -> Iterator[tuple[int, ...]]:
    """A seed of each state that a step answers."""
    return ((len(key), *key.encode()) for key in steps.state_key.tolist())


class Random(Provider):
    """Values, hidden states and the reference's log-probabilities: a function of the step, wherever it is."""

    supplies: ClassVar[tuple[str, ...]] = (VALUE, EMBEDDING, REFERENCE, MC_VALUE, NEXT_MC_VALUE)
    before_shaping: ClassVar[bool] = True

    def __init__(self, estimator: Estimator, seeds: Callable[[StepTable], Iterator[tuple[int, ...]]] = by_step) -> None:
        self.seeds = seeds
        self.values = estimator.values if isinstance(estimator, ValueBased) else ()
        self.planned = BLOCK in estimator.needs

    def columns(self, steps: StepTable) -> StepTable:
        """The steps with all columns."""
        rngs = [np.random.default_rng([9, *seed]) for seed in self.seeds(steps)]
        states = np.array([rng.normal(size=8) for rng in rngs], np.float32).reshape(len(steps), 8)
        sizes = steps.response.lengths.tolist()
        values, reference = (_normal(rngs, sizes) for _ in range(2))
        steps = steps.with_columns(
            **{EMBEDDING: states, MC_VALUE: states[:, 0], NEXT_MC_VALUE: states[:, 1]}
        ).with_token_columns(**{REFERENCE: reference - 3.0})
        for value in self.values:
            if value.per == "step":
                steps = steps.with_columns(**{value.name: np.array([rng.normal() for rng in rngs], np.float64)})
            else:
                steps = steps.with_token_columns(**{value.name: values})
        if self.planned:
            switch = np.array([rng.random() < 0.4 for rng in rngs], np.bool_)
            blocks = (steps.response.values % 4).astype(np.int8)
            steps = steps.with_token_columns(**{BLOCK: blocks}).with_columns(**{
                SWITCH: switch,
                SEGMENT: switch | (steps.t == 0),
                SWITCH_PROBABILITY: np.array([rng.random() for rng in rngs], np.float64),
                LOW_START: np.array([rng.integers(0, 3) for rng in rngs], np.int64),
            })  # fmt: skip
        return steps


class Signals(Provider):
    """Entropies, log-probabilities in hindsight and a teacher's: a function of the step, wherever it is."""

    supplies: ClassVar[tuple[str, ...]] = (ENTROPY, HINDSIGHT, TEACHER)

    def columns(self, steps: StepTable) -> StepTable:
        """The steps with the three columns."""
        seeds = zip(steps.episode_id.tolist(), steps.t.tolist(), strict=True)
        rngs, sizes = [np.random.default_rng([7, episode, t]) for episode, t in seeds], steps.response.lengths.tolist()
        entropy, hindsight = (np.abs(_normal(rngs, sizes)) for _ in range(2))
        columns = {ENTROPY: entropy, HINDSIGHT: -3.0 * hindsight, TEACHER: -2.0 * entropy}
        return steps.with_token_columns(**columns)


def _normal(rngs: Sequence[np.random.Generator], sizes: Sequence[int]) -> np.ndarray:
    """One draw for each token."""
    return np.concatenate([np.zeros(0), *(rng.normal(size=size) for rng, size in zip(rngs, sizes, strict=True))])


def episodes(greedy: bool, team: bool = False) -> Iterator[Episode]:
    """Episodes of groups that differ in size, return and spread; one group without variance, some steps invalid."""
    for group in range(GROUPS):
        size = MEMBERS + group % 3
        for member in range(size + greedy):
            number = group * 10 + member
            rng = np.random.default_rng([5, number])
            steps = tuple(_step(rng, t, group) for t in range(int(rng.integers(1, 5))))
            if team:
                steps = tuple(_in_turn(step) for step in steps)
            success = group != 1 and bool(rng.random() < 0.4)
            yield Episode(
                episode_id=number, group_id=group, env_id="Tiny-v0", task_id=f"task-{group}", task_type="", split="",
                task="", steps=steps, terminated=True, truncated=False, success=success, score=float(success),
                greedy=member == size, tree=group * 10 + member % 2,
            )  # fmt: skip


def _step(rng: np.random.Generator, t: int, group: int) -> Step:
    parsed = rng.random() < 0.9
    response = rng.integers(0, SIZE, int(rng.integers(1, 7)))
    return Step(
        t=t,
        prompt_ids=rng.integers(0, SIZE, int(rng.integers(2, 9))).astype(np.int32),
        response_ids=response.astype(np.int32),
        response_logprobs=rng.normal(-3.0, 0.3, len(response)).astype(np.float32),
        policy_version=0,
        finish_reason="length" if rng.random() < 0.05 else "stop",
        observation=f"room {t}",
        state_key=f"room {rng.integers(0, 3)}",
        action=(ToolCall("go", {"to": int(rng.integers(0, 3))}),) if parsed else None,
        parse_error=None if parsed else "no action",
        valid=parsed,
        reward=0.0 if group == 1 else float(rng.integers(0, 3)),
        info={"milestone": t % 2 == group % 2},
    )


def _in_turn(step: Step) -> Step:
    """The step as one of two agents, of whom the first earns the reward, and the other half as much again."""
    earned = {AGENTS[0]: step.reward, AGENTS[1]: step.reward / 2}
    return replace(step, agent=AGENTS[step.t % 2], info={**step.info, "rewards": earned}, reward=1.5 * step.reward)


def methods() -> Iterator[tuple[str, MethodConfig]]:
    """Every recipe and composition, and the settings of estimators and filters that no recipe has."""
    for name in (*recipes(), *COMPOSITIONS):
        yield name, checked(MethodConfig, recipe(name).method, "method")
    for name, settings in {
        "steppo-whitened": {"estimator": "steppo", "options": {"whiten": True}, "critic": {}},
        "ppo-whitened": {"estimator": "ppo", "options": {"whiten": True}, "critic": {}},
        "hiper-code": recipe("hiper/alfworld_code").method,
        "hiper-code-webshop": recipe("hiper/webshop_code").method,
        "bipace-calibrated": {"estimator": "bipace", "options": {"radius": None}},
        "gpg-nonzero": {"estimator": "gpg", "options": {"scale": "nonzero"}},
        "grpo-low-spread": {"estimator": "grpo", "filters": {"low_spread": {"fraction": 0.5}}},
    }.items():
        yield name, checked(MethodConfig, settings, "method")


def main(folder: Path, team: bool) -> int:
    """Writes the credit and the gradient of each method into ``folder``; returns the exit status."""
    accelerator = make_accelerator()
    rank, ranks = accelerator.process_index, accelerator.num_processes
    seen = set()
    policy, optimizer = accelerator.prepare(
        Policy(m := in_float64(model("qwen2", SIZE))), torch.optim.SGD(m.parameters())
    )
    for name, config in methods():
        seen.add(config.estimator)
        method = Method.of(config)
        objective = Objective.of(config.objective)
        updater = Updater(accelerator, policy, optimizer, OptimConfig(tokens_per_microbatch=150), objective)
        greedy = [GreedyReturn()] if config.plays_greedily else []
        crediting = Crediting(method, accelerator, [*greedy, Random(method.estimator), Signals()])
        own = [e for e in episodes(config.plays_greedily, team) if e.group_id % ranks == rank]
        credit = crediting(own, iteration=3)
        rows = np.flatnonzero(credit.keep)
        kept = np.isin(credit.table.response.row_of, rows)
        gradient = updater.gradient(credit.table.take(rows), credit.advantage.tokens(credit.table)[kept])
        parts = all_gather_object(
            accelerator, _columns(credit.table, credit.advantage.tokens(credit.table), credit.keep)
        )
        if accelerator.is_main_process:
            rows_of_all = np.concatenate(parts)
            found = {"credit": rows_of_all[np.lexsort(rows_of_all.T[::-1])]}
            found |= {f"gradient/{key}": value.numpy() for key, value in gradient.items()}
            told = {**credit.advantage.diagnostics, **credit.terms}
            found["diagnostics"] = np.array([told[key] for key in sorted(told)], np.float64)
            save_file(found, folder / f"{name}-{ranks}.safetensors")
    assert seen == set(ESTIMATORS), f"no method uses {set(ESTIMATORS) - seen}"
    return 0


def _columns(table: StepTable, advantage: np.ndarray, keep: np.ndarray) -> np.ndarray:
    """Episode, place in it, place in the response, whether the row is kept, advantage of each token, (T, 5)."""
    row = table.response.row_of
    place = np.arange(len(row)) - table.response.offsets[row]
    episode, t = np.array(as_played(table), np.int64).reshape(-1, 2)[row].T
    return np.stack([episode, t, place, keep[row], advantage], axis=1).astype(np.float64)


if __name__ == "__main__":
    sys.exit(run_guarded(lambda: main(Path(sys.argv[1]), sys.argv[2:] == ["team"])))
