"""``envsuite export episodes RUN --env ID --out FILE.jsonl``: episodes of a run as demonstrations.

Those that solved their task are played again in the environment, which gives the observations that files of episodes
leave out (admissible commands); one that takes another course than the recorded one stops the export.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from envsuite.core import ToolEnv, UnparsedAction
from envsuite.core.errors import DataError, UsageError
from envsuite.core.naming import spec_of
from envsuite.evaluation.demonstrations.arguments import add_arguments, options_of
from envsuite.evaluation.demonstrations.demonstration import Demonstration
from envsuite.evaluation.demonstrations.file import write_demonstrations
from envsuite.evaluation.demonstrations.messages import FORMS
from envsuite.evaluation.demonstrations.playing import take_step
from envsuite.exits import status_of
from envsuite.playing.step import Episode
from envsuite.remote.making import make
from trainers.imitation.demonstrations import episodes_in, thought_of
from trainers.steps.parquet import read_episodes


def main(arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="envsuite export episodes", description=__doc__)
    parser.add_argument("run", type=Path, help="Folder of a run or of kept episodes, or one Parquet file of episodes.")
    parser.add_argument("--env", required=True, metavar="ID", help="Id of the environment.")
    parser.add_argument("--out", type=Path, required=True, help="File of JSON lines that is written.")
    parser.add_argument("--form", choices=FORMS, default="native", help="How messages hold calls.")
    parser.add_argument("--no-commands", action="store_true", help="Leave admissible commands out of the messages.")
    parser.add_argument("--unsolved", action="store_true", help="Keep episodes that did not solve their task, too.")
    add_arguments(parser)
    options = parser.parse_args(arguments)

    def command() -> None:
        examples, count = collect_demonstrations(
            options.run, spec_of(options.env).id, options.split, options_of(options), unsolved=options.unsolved
        )
        write_demonstrations(options.out, examples, options.form, not options.no_commands)
        sys.stdout.write(f"{len(examples)} of {count} episodes of {options.env} written to {options.out}\n")

    return status_of(command)


def collect_demonstrations(
    source: Path, env_id: str, split: str, env_options: dict[str, Any], *, unsolved: bool = False
) -> tuple[list[Demonstration], int]:
    """Returns the demonstrations in ``source``, and the number of its episodes of ``env_id``.

    Args:
        source: Folder, or file of episodes.
        env_id: Id of the environment.
        split: A split of the environment; tasks of others are found, too.
        env_options: Further arguments with which it is made.
        unsolved: Keep episodes that did not solve their task, too.

    Raises:
        DataError: There are no such episodes, or one takes another course here.
        EnvsuiteError: The environment cannot be made.
    """
    if not source.exists():
        raise DataError(f"{source}: no such file or folder")
    episodes = episodes_in(source) if source.is_dir() else read_episodes(source)
    mine = [episode for episode in episodes if episode.env_id == env_id and episode.error is None]
    selection = [episode for episode in mine if episode.success or unsolved]
    if not selection:
        what = "none of which solved its task; --unsolved takes the others" if mine else "and those of others"
        raise UsageError(f"{source}: {len(mine)} episodes of {env_id}, {what}")
    env = make(env_id, **env_options, split=split)
    try:
        return [_replay(env, episode, env_options) for episode in selection], len(mine)
    finally:
        env.close()


def _replay(env: ToolEnv, episode: Episode, env_options: dict[str, Any]) -> Demonstration:
    """Plays a recorded episode in ``env``."""
    where = f"episode {episode.episode_id} (task {episode.task_id!r})"
    first, info = env.reset(options={"task_id": episode.task_id})
    observation, steps, same = first["text"], [], first["task"] == episode.task
    for record in episode.steps:
        if not same or env.done or observation != record.observation:
            raise DataError(
                f"{where} takes another course here at step {record.t}; give --source, --split and --option as in the "
                "settings of its run (config.yaml, envs)"
            )
        action = record.action if record.action is not None else UnparsedAction(record.parse_error or "no action")
        step, info = take_step(env, action, thought_of(record))
        steps.append(step)
        observation = step.observation["text"]
    demonstration = Demonstration.of(env, first, steps, info, env_options=env_options, player="policy")
    if demonstration.success != episode.success:
        raise DataError(f"{where} ends otherwise here: {demonstration.success=}")
    return demonstration
