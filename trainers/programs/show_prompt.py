"""Shows what the prompts of a run look like, and how many of the model's own answers are actions.

``envsuite show-prompt --config FILE`` shows the first steps of an episode; with ``--zero-shot 60`` the model
answers.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence

from envsuite.core.escaping import log_to_stderr
from trainers.processes.distributed import make_accelerator, run_guarded
from trainers.run.cli import ORDER, CommandLine, TrainerProgram, parse
from trainers.run.showing import env_of, prompts
from trainers.run.zero_shot import zero_shot
from trainers.settings import ConfigError
from trainers.settings.words import whole_number

SHOW = TrainerProgram(
    "envsuite show-prompt",
    f"""Show the prompts of the first steps of an episode, with their numbers of tokens; control tokens are «marked».
With --zero-shot, the model answers instead, and a table says how many of its answers each codec reads.
{ORDER}
examples:
  envsuite show-prompt --config configs/textcraft.yaml
  envsuite show-prompt --config configs/textcraft.yaml --prompt.template steps --prompt.memory "window(2)"
  envsuite show-prompt --config configs/textcraft.yaml --zero-shot 60
""",
    options={
        "--steps N": "Show at most N steps; with --zero-shot, the first N steps of each episode. By default 3.",
        "--env N": "Number of the environment among envs, from 0. By default 0.",
        "--task ID": "The task; by default the first one of the split.",
        "--player expert|nothing": "Who answers: the environment's expert, or nobody, so that every answer is empty.",
        "--zero-shot N": "Let the model give about N answers under each codec, and count those that are actions.",
    },
)


def main(arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit status."""
    log_to_stderr(logging.WARNING, "%(levelname)s %(name)s: %(message)s")
    return run_guarded(lambda: _main(arguments))


def _main(arguments: Sequence[str]) -> None:
    for line in _lines(parse(arguments, SHOW)):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def _lines(command: CommandLine) -> Iterator[str]:
    config, options = command.config, command.options
    steps, player = whole_number("--steps", options.get("steps", "3")), options.get("player", "expert")
    if player not in ("expert", "nothing"):
        raise ConfigError(f"--player {player}: it is expert or nothing")
    env = env_of(config, whole_number("--env", options.get("env", "0"), 0))
    if "zero-shot" in options:
        if name := next((name for name in ("task", "player") if name in options), None):
            raise ConfigError(f"--{name} and --zero-shot: the model plays the first tasks of the split; leave one out")
        accelerator = make_accelerator(config.process_timeout)
        return zero_shot(config, accelerator, env, whole_number("--zero-shot", options["zero-shot"]), steps)
    return prompts(config, env, options.get("task"), steps, player == "expert")
