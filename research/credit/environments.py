"""Measures what credit assignment has to deal with in each environment, without a model (``docs/diagnose.md``).

    python -m research.credit.environments                      # all environments: about five minutes of a core
    python -m research.credit.environments --only Sokoban-v0 --out runs/sokoban

The environment's expert plays, a share of whose moves are random: groups of episodes of the same tasks of split train.
The share is the one of a few whose success is nearest to 40 %, in episodes that are played for this choice alone.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, cast

import gymnasium
import numpy as np

from benchmarks.tables import Table
from envsuite.core import Action, Observation, ToolEnv
from envsuite.core.errors import unknown
from envsuite.core.registration import builtin
from envsuite.data import write_atomically
from envsuite.evaluation.players import Random
from envsuite.exits import status_of
from envsuite.remote.making import make_player
from trainers.credit.diagnosis import MEASURES, Measure, diagnosed, untold
from trainers.credit.rows import by_agent
from trainers.imitation.erring import TRIES, Erring, Following
from trainers.programs.diagnose import as_json
from trainers.steps import Episode, Step, StepTable

SHARES = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
"""Shares of random moves that are tried, up to the first one with less success than wanted."""
WANTED = 0.4
"""Success to which the share is set."""
TASKS, EPISODES, TRIED = 16, 16, 2
"""Number of tasks; of episodes of each that are measured, and that are played with each share for its choice."""
FEWER = {"PythonMath-v0": 1, "BabyAI-v0": 3}
"""Random calls that are tried for one mistake, where each takes long."""
COLUMNS = {
    "success": "success", "zero_variance_groups": "equal returns", "median_length": "median length",
    "repeated_states": "repeated states", "singletons": "singletons", "alias": "aliasing",
    "decisive_steps": "decisive steps", "effective_decisions": "effective decisions", "late_reward": "late reward",
}  # fmt: skip
"""Measures of the table, with their headings; ``alias`` is the largest of three."""
TEXTS = ("other_prompts", "prompt_overlap", "response_length", "prompt_length")
"""Measures of prompts and responses, which there are none of."""
NOTE = (
    f"{TASKS} tasks of split train, {EPISODES} episodes each, default options, played by the environment's expert, of "
    "whose moves a share is random; where it knows no move any more, all are. Aliasing: the largest of alias_step, "
    "alias_previous and alias_history, with 95 %; ALFWorld's expert remembers what it saw, the others play by the "
    "state. PaperSearchTeam: each agent's steps are an episode. A dash: these episodes cannot tell."
)


def play(env: gymnasium.Env[Observation, Action], share: float, plan: tuple[int, str, int]) -> Episode:
    """Plays an episode; its steps have neither prompt nor response.

    Args:
        env: An environment with an expert, made by ``gymnasium.make``.
        share: Share of the moves that are random.
        plan: Number of the group, task, and number of the episode in the group.
    """
    (group, task, number), key, name = plan, f"{share}/{plan}", cast(Any, env.spec).id
    erring = Erring(Following(make_player(name, "expert")), share, FEWER.get(name, TRIES))
    observation, info = env.reset(options={"task_id": task})
    lost, steps, terminated = Following(Random(key, env)), list[Step](), False
    for move in chain(*(player.turns(env, random.Random(key)) for player in (erring, lost))):
        seen, state, agent = observation["text"], info["state_key"], info.get("agent", "")
        observation, reward, terminated, truncated, info = env.step(move.action)
        steps.append(Step(
            len(steps), prompt_ids=(), response_ids=(), response_logprobs=(), policy_version=0,  # type: ignore[arg-type]
            finish_reason="stop", observation=seen, state_key=state, action=move.action, parse_error=None,
            valid=info["valid"], reward=float(reward), info=dict(info), agent=agent,
        ))  # fmt: skip
        if terminated or truncated:
            break
    return Episode(
        group * (TRIED + EPISODES) + number, group, name, task, info["task_type"], info["split"], observation["task"],
        tuple(steps), terminated, not terminated, info["success"], info["score"],
    )  # fmt: skip


def measured(env_id: str, **options: Any) -> tuple[dict[str, Any], dict[str, Measure]]:
    """Plays groups of episodes, and measures them.

    Args:
        env_id: The environment.
        options: Arguments of it.

    Returns:
        What was played, as plain JSON, and the measures.
    """
    env = gymnasium.make(env_id, disable_env_checker=True, split="train", **options)
    tasks = random.Random(0).sample(cast(ToolEnv, env.unwrapped).tasks.ids("train"), TASKS)

    def played(share: float, numbers: Iterable[int]) -> list[Episode]:
        return [play(env, share, (group, task, n)) for n in numbers for group, task in enumerate(tasks)]

    tried = dict[float, float]()
    for share in SHARES:
        tried[share] = float(np.mean([one.success for one in played(share, range(TRIED))]))
        if tried[share] < WANTED:
            break
    share = min(tried, key=lambda one: abs(tried[one] - WANTED))
    episodes = played(share, range(TRIED, TRIED + EPISODES))
    env.close()
    found = diagnosed(by_agent(StepTable.from_episodes(episodes)))
    return {"share": share, "tried": tried}, {name: one for name, one in found.items() if name not in TEXTS}


def row(env_id: str, share: float, measures: Mapping[str, Measure]) -> tuple[str, ...]:
    """Returns a row of the table."""
    alias = [one for name, one in measures.items() if name.startswith("alias") and one.value is not None]
    cells = []
    for name in COLUMNS:
        one = measures.get(name, max(alias, key=lambda one: one.value or 0.0, default=measures["alias_step"]))
        scale, unit = (1.0, "") if MEASURES[one.name][0] == "mean" else (100.0, " %")
        cells.append("-" if one.value is None else f"{scale * one.value:.1f}{unit}")
        if name == "alias" and one.interval is not None:
            cells[-1] += " [" + ", ".join(f"{scale * end:.0f}" for end in one.interval) + "]"
    return env_id.removesuffix("-v0"), f"{share:g}", *cells


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    return status_of(lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    known = [spec.id for spec in builtin()]
    parser = argparse.ArgumentParser(
        prog="python -m research.credit.environments", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--only", nargs="+", metavar="ENV", default=known, help="these environments alone")
    parser.add_argument("--out", type=Path, default=Path("runs/credit"), help="folder of the table and the measures")
    args = parser.parse_args(arguments)
    for env_id in args.only:
        if env_id not in known:
            raise unknown("environment", env_id, known)
    rows, found = [], {}
    for env_id in args.only:
        began = sum(os.times()[:4])
        played, measures = measured(env_id)
        rows.append(row(env_id, played["share"], measures))
        found[env_id] = {**played, "measures": as_json(measures), "untold": untold(measures)}
        lines = [f"{', '.join(rows[-1])}: {sum(os.times()[:4]) - began:.0f} s of CPU", *found[env_id]["untold"]]
        print(*lines, sep="\n  ", flush=True)
    table = Table("environments", "Our environments", NOTE, ("", "random", *COLUMNS.values()), tuple(rows), "credit")
    texts = {"md": table.markdown(), "tex": table.latex(), "json": json.dumps(found, indent=1)}
    for ending, text in texts.items():
        write_atomically(args.out / f"environments.{ending}", text.encode())
    print(f"written: {args.out}/environments.md, .tex, .json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
