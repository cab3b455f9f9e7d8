"""A run folder as a real run leaves it, made from real episode records: what the report is tested on."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from envsuite.core import ToolCall
from envsuite.playing.step import Episode, Step
from trainers.report.metrics import MetricsWriter
from trainers.report.stats import EvalResult, evaluate_summary
from trainers.steps.parquet import write_episodes

WOODS = ("oak", "birch", "spruce", "acacia", "jungle", "crimson")
GOODS = ("planks", "stairs", "slab", "door", "trapdoor", "fence", "sign", "boat", "ladder", "chest", "barrel", "bowl")
COMMANDS = ("get", "craft", "inventory")
SYSTEM = (
    "You craft items in Minecraft. Answer with one command between <action> and </action>. "
    "Commands: get COUNT ITEM; craft COUNT ITEM using INGREDIENTS; inventory.\n"
)
Text = dict[tuple[int, int], tuple[str, str]]


def make_episodes(
    rng: np.random.Generator, iteration: int, groups: int, size: int, steps: int, skill: float
) -> tuple[list[Episode], Text, dict[tuple[int, int], float]]:
    """Episodes of one iteration, their text, their advantages."""
    episodes, text, advantages = [], {}, {}
    for group in range(groups):
        goal = f"{rng.choice(WOODS)} {rng.choice(GOODS)}"
        depth = int(rng.integers(1, 4))
        recipes = "\n".join(
            f"craft {rng.integers(1, 5)} {rng.choice(WOODS)} {rng.choice(GOODS)} using {rng.integers(1, 4)} "
            f"{rng.choice(WOODS)} {rng.choice(GOODS)}"
            for _ in range(8)
        )
        task = f"Crafting commands:\n{recipes}\n\nGoal: craft {goal}."
        for member in range(size):
            episode_id = group * size + member
            success = bool(rng.random() < skill - 0.12 * (depth - 1))
            length = min(steps, max(1, int(rng.integers(2, steps + 1))))
            failed = rng.random() < 0.01
            history, records = "", []
            for t in range(length):
                observation = "Inventory: nothing." if t == 0 else f"Got {rng.integers(1, 9)} {rng.choice(WOODS)} log."
                prompt = f"{SYSTEM}{task}\n{history}> {observation}\n"
                valid = bool(rng.random() < 0.9)
                command = f"{rng.choice(COMMANDS)} {rng.integers(1, 9)} {rng.choice(WOODS)} {rng.choice(GOODS)}"
                response = f"<think>I need {goal}; step {t}.</think><action>{command}</action>"
                if not valid:
                    response = response.removesuffix("</action>")
                last = t == length - 1
                reward = float(success and last)
                info = {"valid": valid, "error": None, "success": success and last, "score": reward, "metrics": {}}
                info["milestone"] = valid and t % 2 == 0
                n = 12 + len(response) // 4
                records.append(
                    Step(
                        t=t,
                        prompt_ids=tuple(byte + 3 for byte in prompt.encode()[::3]),
                        response_ids=tuple(int(i) for i in rng.integers(0, 4096, n)),
                        response_logprobs=tuple(float(np.float32(-p)) for p in rng.exponential(0.4, n)),
                        policy_version=iteration - 1,
                        finish_reason="stop" if valid else "length",
                        observation=observation,
                        state_key=f"{goal}/{observation}",
                        action=(ToolCall(command.split()[0], {"text": command}),) if valid else None,
                        parse_error=None if valid else "no </action> after <action>",
                        valid=valid,
                        reward=reward,
                        info=info,
                    )
                )
                text[episode_id, t] = (prompt, response)
                advantages[episode_id, t] = float(rng.normal(0.8 if success else -0.6, 0.3))
                history += f"> {observation}\n{response}\n"
            episodes.append(
                Episode(
                    episode_id=episode_id,
                    group_id=group,
                    env_id="TextCraft-v0",
                    task_id=f"minecraft/{goal.replace(' ', '_')}",
                    task_type=f"depth-{depth}",
                    split="train",
                    task=task,
                    steps=tuple(records),
                    terminated=success and not failed,
                    truncated=not success and not failed,
                    success=success and not failed,
                    score=float(success and not failed),
                    error="environment worker 1 did not answer within 60 s" if failed else None,
                )
            )
    return episodes, text, advantages


def evaluate(rng: np.random.Generator, name: str, version: int, skill: float, tasks: int = 256) -> EvalResult:
    episodes, _, _ = make_episodes(rng, 1, tasks, 1, 2, skill)
    return evaluate_summary(episodes, name, "TextCraft-v0", "test", "3f9a77c0de", version, 0.4, wall_s=31.5)


def make_run(
    folder: Path,
    iterations: int = 5,
    groups: int = 4,
    size: int = 4,
    steps: int = 6,
    seed: int = 0,
    advantages: bool = True,
    tasks: int = 256,
    **config: Any,
) -> Path:
    """Write a run folder, with made-up advantages or none; further keyword arguments go into its config."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    body = {
        "name": folder.name,
        "seed": seed,
        "iterations": iterations,
        "recipe": "gigpo",
        "model": {"path": "models/craft-2m", "dtype": "float32"},
        "envs": [{"id": "TextCraft-v0", "split": "train", "kwargs": {"source": "generated"}}],
        "rollout": {"engine": "hf", "tasks": groups, "group_size": size, "sampling": {"temperature": 1.0}},
        "method": {"estimator": "gigpo", "options": {"gamma": 0.95, "step_weight": 1.0}},
        "optim": {"lr": 1e-4, "epochs": 2},
        **config,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(body, sort_keys=False, allow_unicode=True))
    results = [evaluate(rng, "before", 0, 0.4, tasks)]
    with closing(MetricsWriter(folder / "metrics.jsonl")) as writer:
        writer.write(0, results[0].metrics())
        for i in range(1, iterations + 1):
            progress = i / iterations
            skill = 0.4 + 0.55 * progress**0.7
            episodes, text, found = make_episodes(rng, i, groups, size, steps, skill)
            path = folder / "episodes" / f"iteration-{i:05}.parquet"
            write_episodes(path, episodes, found if advantages else None, text)
            sound = [e for e in episodes if e.error is None]
            rollout, update = 4 + rng.random(), 2 + rng.random()
            writer.write(
                i,
                {
                    "train/success": sum(e.success for e in sound) / len(sound),
                    "train/return": sum(e.total_reward for e in sound) / len(sound),
                    "train/valid_actions": 0.85 + 0.14 * progress + 0.01 * rng.random(),
                    "train/episode_length": float(np.mean([len(e.steps) for e in sound])),
                    "train/response_length": 30 - 6 * progress + rng.random(),
                    "train/episodes": len(episodes),
                    "train/failed": len(episodes) - len(sound),
                    "train/loss": 0.02 * rng.normal() * (1 - progress / 2),
                    "train/grad_norm": 0.5 + rng.random() / 4,
                    "train/kl": 0.002 * i + 0.001 * rng.random(),
                    "train/entropy": 0.9 - 0.5 * progress + 0.02 * rng.random(),
                    "train/clip_fraction": 0.02 * rng.random(),
                    "train/lr": 1e-4,
                    "diag/group_size": 3 + rng.random(),
                    "rate/tokens": 2000 + 100 * rng.normal(),
                    "time/rollout": rollout,
                    "time/engine": rollout * 0.7,
                    "time/env": rollout * 0.03,
                    "time/codec": rollout * 0.04,
                    "time/longest_episode": rollout * 0.2,
                    "time/sync": rollout * 0.02,
                    "time/other_processes": 0.0,
                    "time/rest": rollout * 0.01 + 0.04,
                    "idle/engine": 1 - rollout * 0.7 / (rollout + update + 0.15),
                    "idle/device": 1 - (update + 0.01) / (rollout + update + 0.15),
                    "time/update": update,
                    "time/estimator": 0.01,
                    "cpu/rollout": rollout,
                    "cpu/estimator": 0.01,
                    "cpu/update": update,
                    "time/log": 0.1,
                    "time/total": rollout + update + 0.15,
                },
            )
            if i % max(1, iterations // 4) == 0:
                name = "after" if i == iterations else f"iteration {i}"
                results.append(evaluate(rng, name, i, skill, tasks))
                writer.write(i, results[-1].metrics())
    summary = {
        "name": folder.name,
        "versions": {"envsuite": "0.1.0", "torch": "2.13.0", "transformers": "5.23.0", "python": "3.11.2"},
        "seeds": [seed],
        "tasks": [{"env_id": "TextCraft-v0", "source": "builtin", "hash": "3f9a77c0de", "splits": {"test": 210}}],
        "evaluations": [result.to_json() for result in results],
        "wall_s": 7.2 * iterations,
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


if __name__ == "__main__":
    import sys

    numbers = [int(word) for word in sys.argv[2:]]
    make_run(Path(sys.argv[1]), *numbers)
