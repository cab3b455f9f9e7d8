"""The figures of the classics."""

from __future__ import annotations

from benchmarks.envs.measure import Row, reset_rate, step_rates
from envsuite.classics.spec import COUNTDOWN, FROZENLAKE, GAME2048, RUSHHOUR, WORDLE
from envsuite.core.tools import Action
from envsuite.remote.making import make

_TASKS = 40


def classics() -> list[Row]:
    """The figures of each classic on built-in test tasks, in random play."""
    rows: list[Row] = []
    for spec in (WORDLE, COUNTDOWN, FROZENLAKE, GAME2048, RUSHHOUR):
        env = make(spec.id, split="test")
        env.action_space.seed(0)
        plays: dict[str, list[Action]] = {}
        for task_id in env.tasks.ids("test")[:_TASKS]:
            env.reset(options={"task_id": task_id})
            plays[task_id] = []
            while not env.done and len(plays[task_id]) < spec.max_episode_steps:
                plays[task_id].append(env.action_space.sample())
                env.step(plays[task_id][-1])
        rows += step_rates({spec.id: env}, plays)
        rows.append((f"{spec.id}: reset, task seen before", reset_rate(env, plays)))
    return rows
