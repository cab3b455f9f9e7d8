"""Which environments of other packages can be made and played, and which are the same in another process.

For each environment that a package names, the first three tasks are begun and random calls made, in two processes with
other hash seeds; all texts and rewards are compared. An environment that cannot be made is listed with the reason.

    python -m benchmarks.adapters reasoning_gym textarena gymnasium
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import logging
import os
import subprocess
import sys
import warnings
from importlib import import_module
from importlib.metadata import version

import gymnasium

from envsuite.core.naming import spec_of

TASKS, STEPS, SECONDS = 3, 5, 900
PACKAGES = {name: name for name in ("gymnasium", "pettingzoo", "reasoning_gym", "textarena")} | {"gem": "gem-llm"}
"""Adapter -> the package whose environments it lists, as pip knows it."""


def played(env_id: str) -> str:
    """Returns a hash of what the first episodes say and pay."""
    spec_of(env_id)
    env = gymnasium.make(env_id, disable_env_checker=True)
    seen = hashlib.sha256()
    for number in range(TASKS):
        observation, _ = env.reset(options={"task_id": f"seed-{number}"})
        seen.update(repr(observation).encode())
        env.action_space.seed(number)
        for _ in range(STEPS):
            observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            seen.update(repr((observation, reward, terminated)).encode())
            if terminated or truncated:
                break
    return seen.hexdigest()


def play_all(package: str) -> None:
    """Prints a line of JSON for each environment of a package."""
    for name in sorted(import_module(f"envsuite.adapters.{package}").names()):
        env_id = f"{package}/{name}"
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                line = {"id": env_id, "hash": played(env_id)}
        except Exception as error:
            line = {"id": env_id, "error": f"{type(error).__name__}: {error}".split("\n")[0][:120]}
        print(json.dumps(line), flush=True)


def main() -> None:
    """Plays each package's environments twice, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("packages", nargs="+", choices=PACKAGES)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        warnings.simplefilter("ignore")
        logging.disable()
        play_all(arguments.packages[0])
        return
    print("| package | version | environments | can be played | of these the same in two processes |")
    print("|---|---|---:|---:|---:|")
    left = list[str]()
    for package in arguments.packages:
        runs = [
            subprocess.run(
                [sys.executable, "-m", "benchmarks.adapters", "--child", package],
                env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, timeout=SECONDS, check=True,
            )
            for seed in "12"
        ]  # fmt: skip
        one, two = ({line["id"]: line for line in map(json.loads, run.stdout.splitlines())} for run in runs)
        made = [env_id for env_id, line in one.items() if "hash" in line]
        same = [env_id for env_id in made if one[env_id] == two[env_id]]
        print(f"| {package} | {version(PACKAGES[package])} | {len(one)} | {len(made)} | {len(same)} |", flush=True)
        left += [
            f"{env_id}: {one[env_id].get('error', 'another in another process')}"
            for env_id in one
            if env_id not in same
        ]
    print("\n" + "\n".join(left))


if __name__ == "__main__":
    main()
