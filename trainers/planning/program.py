"""``envsuite plan --config FILE --gpus 8xH100``: whether a run fits, and how long an iteration may take."""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

from transformers import AutoConfig, PreTrainedConfig

from envsuite.core.errors import DataError, UnknownName
from envsuite.core.escaping import log_to_stderr
from trainers.planning.advice import alternatives
from trainers.planning.display import as_json, parts
from trainers.planning.hardware import GPUS, Machines, machines
from trainers.planning.plan import RunPlanner
from trainers.policy.adapter import check_adapter
from trainers.policy.loading import settings_of
from trainers.policy.source import find
from trainers.processes.distributed import run_guarded
from trainers.rollout.limits import check_limits
from trainers.run.cli import ORDER, CommandLine, TrainerProgram, parse
from trainers.run.config import TrainConfig
from trainers.run.teacher import KEY
from trainers.settings import ConfigError
from trainers.settings.console import EscapingConsole
from trainers.settings.words import whole_number

_FOLDER = Path(__file__).with_name("shapes")
NAMES = tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))
"""Shapes that are shipped."""


def shape_of(path: str, shape: str | None, images: bool = False, key: str = "model.path") -> PreTrainedConfig:
    """The configuration of ``model.path``, or the shape that is given in its place.

    Args:
        path: Value of the setting ``key``; of a name on the hub only the configuration is downloaded.
        shape: The option ``--model-shape``: a file of a configuration as ``config.json`` is one, or one of
            :data:`NAMES`.
        images: ``ModelConfig.sees``.
        key: Another setting that names a model.

    Raises:
        DataError: It is missing or cannot be read.
        UnknownName: There is no such file or shape.
    """
    if shape is None:
        return settings_of(find(path, key, tokenizer=False, weights=False), key, path, images)
    file = Path(shape) if shape.lower() not in NAMES else _FOLDER / f"{shape.lower()}.json"
    if not file.is_file():
        raise UnknownName(f"--model-shape {shape}: no such file, and no shape of that name; known: {', '.join(NAMES)}")
    try:
        return AutoConfig.for_model(**json.loads(file.read_bytes()))
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"--model-shape {shape}: not a model's configuration ({error})") from error


def check(config: TrainConfig, shape: PreTrainedConfig, where: Machines, name: str) -> None:
    """Checks the settings against the model's shape and the hardware.

    Raises:
        ConfigError: Two of them contradict each other; the message names both.
    """
    check_limits(name, shape, config.prompt, config.rollout, config.optim.tokens_per_microbatch)
    if config.rollout.tasks % where.ranks:
        raise ConfigError(
            f"rollout.tasks is {config.rollout.tasks}, which the {where.ranks} processes of --gpus {where} cannot "
            f"share evenly; make it a multiple of {where.ranks}"
        )
    if config.model.adapter is not None and config.model.adapter.base != "nf4":
        check_adapter(config.model.adapter, shape, name, config.model.shard)


WORKLOAD = {
    "--gpus HARDWARE": f"8xH100, 2x8xH100 (machines, GPUs of each), cpu or 2xcpu (processes); {', '.join(GPUS)}.",
    "--model-shape FILE|NAME": f"A model's config.json in place of model.path's, or one of {', '.join(NAMES)}.",
    "--steps N": "Steps of an episode, in the mean; by default envs[0].max_episode_steps.",
    "--prompt-tokens N": "Tokens of a step's prompt, in the mean; by default prompt.max_tokens.",
    "--response-tokens N": "Tokens of a response, in the mean; by default rollout.sampling.max_tokens.",
}
"""Options that give hardware and the sizes of the work."""
PLAN = TrainerProgram(
    "envsuite plan",
    f"""Plan a run before it is started: memory of one process by part and phase, the largest micro-batch that fits, the
time of an iteration by phase, and the settings that would help most. No weights are read or downloaded: the trainer's
own passes run on tensors without memory. Times are estimates. Exit status: 0 it fits, 3 it does not.
{ORDER}
examples:
  envsuite plan --config configs/textcraft.yaml --gpus cpu
  envsuite plan --gpus 8xH100 --model-shape qwen2.5-7b --model.compute_dtype bfloat16 --model.shard full
  envsuite plan --gpus 2x8xA100 --model.path Qwen/Qwen2.5-7B-Instruct --model.shard hybrid --steps 20
  envsuite plan --gpus H100 --model-shape my/config.json --prompt.max_tokens 2048 --json yes
""",
    elsewhere=True,
    options={**WORKLOAD, "--json yes": "Write the plan as JSON, bytes and seconds, instead of tables."},
)


def main(arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit status."""
    log_to_stderr(logging.ERROR, "%(levelname)s %(name)s: %(message)s")
    return run_guarded(lambda: _plan(parse(arguments, PLAN)))


def _plan(command: CommandLine) -> int:
    config, options = command.config, command.options
    tokens = sizes(options)
    shape = shape_of(config.model.path, options.get("model-shape"), config.model.sees)
    where = machines(options["gpus"])
    check(config, shape, where, options.get("model-shape", config.model.path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of passes on fake tensors
        path = config.method.local_teacher
        teacher = None if path is None else shape_of(path, None, key=KEY)
        planner = RunPlanner(shape, where, tokens["steps"], tokens["prompt-tokens"], tokens["response-tokens"], teacher)
        plan = planner.plan(config)
        largest = planner.largest(plan)
        advice = alternatives(planner, plan, largest)
    if "json" in options:
        sys.stdout.write(json.dumps(as_json(plan, largest, advice), indent=2) + "\n")
    else:
        console = EscapingConsole(highlight=False, soft_wrap=False, width=None if sys.stdout.isatty() else 110)
        for part in parts(plan, largest, advice):
            console.print(part)
    return 0 if plan.fits else 3


def sizes(options: Mapping[str, str]) -> dict[str, int | None]:
    """Returns ``steps``, ``prompt-tokens`` and ``response-tokens`` of the options; ``None`` where one was not given.

    Raises:
        ConfigError: One of them cannot be, or ``--gpus`` is missing.
    """
    if "gpus" not in options:
        raise ConfigError("--gpus is missing: say which hardware, like --gpus 8xH100 or --gpus cpu")
    return {
        name: whole_number(f"--{name}", options[name], most=10_000_000) if name in options else None
        for name in ("steps", "prompt-tokens", "response-tokens")
    }
