"""Measures what credit assignment has to deal with in each environment, without a model (``docs/diagnose.md``).

    python -m research.credit.environments                      # all environments: about three minutes of a core
    python -m research.credit.environments --only Sokoban-v0 --out runs/sokoban

The environment's expert plays, a share of whose moves are random: groups of episodes of the same tasks of split train.
The share is the one of a few whose success is nearest to 40 %, in episodes that are played for this choice alone.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from benchmarks.tables import Table
from envsuite.core.naming import spec_of
from envsuite.core.practice import ExpertTeacher
from envsuite.core.registration import builtin
from envsuite.data.files import write_atomically
from envsuite.exits import status_of
from envsuite.playing.player import RandomPlayer
from envsuite.playing.step import Episode, Step
from envsuite.remote.making import make_player
from trainers.credit.diagnosis import MEASURES, Measure, diagnose, untold
from trainers.credit.map import AXES, load, nearest
from trainers.credit.rows import by_agent
from trainers.imitation.erring import TRIES, ErringTeacher
from trainers.programs.diagnose import as_json
from trainers.steps import StepTable

SHARES = (0.3, 0.5, 0.8, 0.95)
"""Shares of random moves that are tried, up to the first one with less success than wanted."""
WANTED = 0.4
"""Success to which the share is set."""
TASKS, EPISODES, TRIED = 16, 16, 2
"""Number of tasks; of episodes of each that are measured, and that are played with each share for its choice."""
SLOW = {"PythonMath-v0": (8, 1), "BabyAI-v0": (8, 3)}
"""Number of tasks, and of random calls that are tried for one mistake, where steps take long."""
COLUMNS = ("success", "zero_variance_groups", "median_length", "repeated_states", "singletons", "alias",
           "decisive_steps", "effective_decisions", "late_reward")  # fmt: skip
"""Measures of the table; ``alias`` is the largest of three."""
_NONE: Any = np.empty(0)
_TEXTS = ("other_prompts", "prompt", "response")
NOTE = (
    f"{TASKS} tasks of split train (8 of PythonMath and BabyAI), {EPISODES} episodes each, played by the expert, some "
    "of whose moves are random; all are where it knows none. alias: the largest of three, with its interval; the "
    "experts of ALFWorld and BabyAI remember what happened. PaperSearchTeam: of each agent. map: the nearest cell. -: "
    "cannot be told."
)


def play(env: gymnasium.Env[Any, Any], env_id: str, share: float, plan: tuple[int, str, int]) -> Episode:
    """Plays an episode; its steps have neither prompt nor response.

    Args:
        env: The environment, made by ``gymnasium.make``.
        env_id: Its id.
        share: Share of the moves that are random.
        plan: Number of the group, task, and number of the episode in the group.
    """
    (group, task, number), key, steps, over = plan, f"{share}/{plan}", list[Step](), False
    erring = ErringTeacher(ExpertTeacher(make_player(env_id, "expert")), share, SLOW.get(env_id, (TASKS, TRIES))[1])
    seen, info = env.reset(options={"task_id": task})
    moves = chain(
        erring.turns(env, random.Random(key)), ExpertTeacher(RandomPlayer(key, env)).turns(env, random.Random(key))
    )
    while not over:
        action, before, state, agent = next(moves).action, seen["text"], info["state_key"], info.get("agent", "")
        seen, reward, terminated, truncated, info = env.step(action)
        own: dict[str, Any] = {"valid": info["valid"], "reward": float(reward), "info": dict(info), "agent": agent}
        steps.append(Step(len(steps), _NONE, _NONE, _NONE, _NONE, "stop", before, state, action, None, **own))
        over = terminated or truncated
    ending = (task, info["task_type"], info["split"], seen["task"], tuple(steps), terminated, not terminated)
    return Episode(group * (TRIED + EPISODES) + number, group, env_id, *ending, info["success"], info["score"])


def measured(env_id: str, **options: Any) -> tuple[dict[str, Any], dict[str, Measure]]:
    """Plays groups of episodes, and measures them.

    Args:
        env_id: The environment.
        options: Arguments of it.

    Returns:
        What was played, as plain JSON, and the measures.
    """
    env: Any = gymnasium.make(env_id, disable_env_checker=True, split="train", **options)
    tasks = random.Random(0).sample(env.unwrapped.tasks.ids("train"), SLOW.get(env_id, (TASKS, TRIES))[0])

    def played(share: float, numbers: range) -> list[Episode]:
        return [play(env, env_id, share, (group, task, n)) for n in numbers for group, task in enumerate(tasks)]

    tried = dict[float, float]()
    for share in SHARES:
        if min(tried.values(), default=1.0) >= WANTED:
            tried[share] = float(np.mean([one.success for one in played(share, range(TRIED))]))
    share = min(tried, key=lambda one: abs(tried[one] - WANTED))
    found = diagnose(by_agent(StepTable.from_episodes(played(share, range(TRIED, TRIED + EPISODES)))))
    env.close()
    return {"share": share, "tried": tried}, {name: one for name, one in found.items() if not name.startswith(_TEXTS)}


def row(env_id: str, share: float, measures: Mapping[str, Measure]) -> tuple[str, ...]:
    """Returns a row of the table."""
    alias, cells = [one for name, one in measures.items() if name.startswith("alias")], []
    for name in COLUMNS:
        one = measures.get(name) or max(alias, key=lambda one: -np.inf if one.value is None else one.value)
        scale, unit = (1.0, "") if MEASURES[one.name][0] == "mean" else (100.0, " %")
        ends = ", ".join(f"{scale * end:.0f}" for end in one.interval or ()) if name == "alias" else ""
        number = "-" if one.value is None else f"{round(scale * one.value, 1) + 0.0:.1f}{unit}"
        cells.append(number + (f" [{ends}]" if ends else ""))
    near = nearest(load().spots, {name: measures[name].value for name in AXES})
    return env_id.removesuffix("-v0"), f"{share:g}", *cells, near.name if near else "-"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    return status_of(lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    known, rows, found = [spec.id for spec in builtin()], list[tuple[str, ...]](), {}
    parser = argparse.ArgumentParser("python -m research.credit.environments", description="See docs/diagnose.md.")
    parser.add_argument("--only", nargs="+", metavar="ENV", default=known, help="these environments alone")
    parser.add_argument("--out", type=Path, default=Path("runs/credit"), help="folder of the table and the measures")
    args, heads = parser.parse_args(arguments), ("", "random", *(name.replace("_", " ") for name in COLUMNS), "map")
    for env_id in [spec_of(name).id for name in args.only]:
        played, measures = measured(env_id)
        rows.append(row(env_id, played["share"], measures))
        found[env_id] = {**played, "measures": as_json(measures), "untold": untold(measures)}
        print(", ".join(rows[-1]), *untold(measures), sep="\n  ", flush=True)
        table = Table("environments", "Our environments", NOTE, heads, (*rows,), "credit")
        for ending, text in ("md", table.markdown()), ("tex", table.latex()), ("json", json.dumps(found, indent=1)):
            write_atomically(args.out / f"environments.{ending}", text.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
