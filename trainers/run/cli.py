"""The command line of the trainer: YAML files, a recipe, dotted overrides."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from envsuite.core.errors import UnknownName
from envsuite.core.registration import ENVIRONMENTS
from envsuite.prompting import make_memory
from trainers.credit.method import Method
from trainers.credit.recipes import COMPOSITIONS, recipe, recipes
from trainers.credit.shapers import KLPenalty
from trainers.papers.settings import read_settings
from trainers.rollout.engines import AUTO, answers_in_text, check_engine, check_machine, no_training
from trainers.rollout.environments import prompt_file_of
from trainers.run.config import TrainConfig
from trainers.run.features.tracking.tracker import check_trackers
from trainers.run.help_page import here, on_page
from trainers.settings import ConfigError, checked
from trainers.settings.shipped import shipped_configs
from trainers.settings.words import help_text, merge, over, split

ORDER = """
Settings come from, later ones winning: the defaults below, the recipe, the files given with --config in their order,
and options on the command line. Lists and dictionaries are written as YAML. A --recipe with another estimator than
that of a file's recipe leaves out the file's method.options, which are of its own.
"""


@dataclasses.dataclass(frozen=True)
class TrainerProgram:
    """A program that takes the settings of a run."""

    name: str
    """Command as it is typed."""
    description: str
    resumes: bool = False
    """Whether it has the option ``--resume``."""
    trains: bool = False
    """Whether it trains the model that plays."""
    elsewhere: bool = False
    """Whether the run that the settings describe is another machine's."""
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Further options: how each is typed, e.g. ``--steps N``, and its description."""


TRAIN = TrainerProgram(
    "envsuite train",
    f"""Train a language agent by reinforcement learning.
{ORDER}
examples:
  envsuite train --config configs/textcraft.yaml --processes 2
  envsuite train --config configs/textcraft.yaml --recipe grpo --name grpo --seed 1
  envsuite train --config configs/textcraft.yaml --optim.lr 3e-4 --method.options.gamma 0.9
  envsuite train --config configs/textcraft.yaml --resume
  envsuite train --config configs/textcraft.yaml --print-config
  envsuite train --list-recipes
  accelerate launch -m trainers.train --config configs/textcraft.yaml   # by a launcher of your own
""",
    resumes=True,
    trains=True,
    options={
        "--processes N": "Processes that train together: GPUs of this machine, or processes on its CPU. By default 1.",
        "--nodes N": "Machines that train together, with --processes on each; this command is typed on each of them.",
        "--node I": "Number of this machine, from 0; by default SLURM_NODEID or JOB_COMPLETION_INDEX.",
        "--rendezvous HOST[:PORT]": "Name or address of node 0; without a port, one that follows from the job's id.",
        "--job ID": "Name of the job, the same on all nodes; by default SLURM_JOB_ID.",
        "--launch-config FILE": "accelerate's file on how the processes are started, e.g. on several machines.",
        "--max-restarts N": "How often the run starts again by itself, from its newest checkpoint, after a process or "
        "a server was lost. By default 0.",
    },
)
EVALUATE = TrainerProgram(
    "envsuite eval model",
    f"""Measure the success of a model, or of a checkpoint of a run, on the environments of the section "evaluation";
the results are written to standard output as JSON.
{ORDER}
examples:
  envsuite eval model --config configs/textcraft.yaml --model.path runs/textcraft/checkpoints/iteration-00060
  envsuite eval model --config configs/textcraft.yaml --evaluation.episodes 64 > result.json
  envsuite eval model --config configs/textcraft.yaml --rollout.engine openai \\
    --rollout.engine_options "{{url: 'http://127.0.0.1:8000/v1', model: NAME}}" --prompt.codec native --keep episodes
  envsuite eval model --config configs/textcraft.yaml --out results --seeds 5
""",
    options={
        "--out FOLDER": "Append a line for each episode to a file there when it ends, for `envsuite eval table`; what "
        "is there is not played again. Without --seeds, each task is then played five times, or once at temperature 0.",
        "--policy NAME": "Name of the policy in tables of --out (default: that of the model).",
        "--seeds N": "Episodes of each task: evaluation.repeats; evaluation.episodes counts those of one seed.",
        "--keep FOLDER": "Write each episode into the folder when it ends; those that are there are not played again.",
    },
)


@dataclasses.dataclass(frozen=True)
class CommandLine:
    """The parsed command line."""

    config: TrainConfig
    resume: str | None
    """``"auto"``: the newest checkpoint of the run; else the folder of a checkpoint."""
    options: Mapping[str, str]
    """Values of the program's further options that were given, by their names without dashes."""
    words: Sequence[str] = ()
    """The command line without the program's further options."""


OPTIONS = {
    "--help [SECTION]": "Show the settings that people change, or those of a section: --help rollout.",
    "--help-all": "Show all settings.",
    "--config FILE": "YAML file of settings, or a paper's run (envsuite papers list); of several, later ones win.",
    "--resume [FOLDER]": "Go on from the newest checkpoint, or from the folder given.",
    "--print-config": "Print the resolved settings as YAML, and stop.",
    "--list-recipes": "List the recipes, and stop.",
    "--list-configs": "List the configurations that are installed, and stop.",
}


def parse(arguments: Sequence[str] | None = None, program: TrainerProgram = TRAIN) -> CommandLine:
    """Read the command line of ``program``.

    Raises:
        ConfigError: A setting has the wrong type or contradicts another.
        UnknownName: A setting, recipe, method … does not exist; the message lists what does.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    options = {text: description for text, description in OPTIONS.items() if program.resumes or "--resume" not in text}
    further = [text.split()[0] for text in program.options]
    switches = {text: "yes" for text in program.options if " " not in text}
    bare: dict[str, str | None] = {"--config": None, "--recipe": None}
    bare |= dict.fromkeys(("--print-config", "--list-recipes", "--list-configs", "--help", "--help-all"), "main")
    bare |= dict.fromkeys(further) | switches
    values, words = split(arguments, {**bare, **({"--resume": "auto"} if program.resumes else {})})
    if "--help" in values or "--help-all" in values:
        topic = "all" if "--help-all" in values else values["--help"][-1]
        usage = f"usage: {program.name} [OPTION ...] [--SETTING VALUE ...]\n\n{program.description}"
        sys.stdout.write(help_text(TrainConfig, usage, {**options, **program.options}, on_page(topic)))
        raise SystemExit(0)
    for option, show in (("--list-recipes", _list_recipes), ("--list-configs", _list_configs)):
        if option in values:
            show()
            raise SystemExit(0)
    files = {name: read_settings(name) for name in values.get("--config", [])}
    for name, body in files.items():
        for key in body:
            if key not in TrainConfig.__dataclass_fields__ and (own := here((str(key),))) is not None:
                raise UnknownName(f"{name}: there is no setting {key!r}; here it is {own}")
    settings = over(TrainConfig, _recipe_below(files, values.get("--recipe", [])), words, here)

    def origin(path: Sequence[str | int]) -> str:
        """Returns the file that gives a setting, as prefix of a message; empty if the command line does."""
        keys = [tuple(word.removeprefix("--").split(".")) for word, _ in words]
        if not path or any(path[: len(key)] == key for key in keys):
            return ""
        return next((f"{name}: " for name, body in reversed(files.items()) if _has(body, path)), "")

    config = checked(TrainConfig, settings, origin=origin)
    if program.trains and answers_in_text(config.rollout.engine):
        raise ConfigError(no_training(config.rollout.engine))
    check_names(config)
    if "--print-config" in values:
        sys.stdout.write(dump(config))
        raise SystemExit(0)
    if program.elsewhere and config.rollout.engine == AUTO:
        raise ConfigError(
            "rollout.engine is auto, which is decided on the machine that trains; add --rollout.engine vllm or hf"
        )
    if not program.elsewhere:
        check_machine(config.rollout.engine, config.rollout.engine_options)
    program_options = {name.removeprefix("--"): values[name][-1] for name in further if name in values}
    resume = values["--resume"][-1] if "--resume" in values else None
    return CommandLine(config, resume, program_options, _without(arguments, further))


def _without(words: Sequence[str], options: Sequence[str]) -> list[str]:
    """Returns the words without ``options`` and the values after them."""
    words_left, leaves = list[str](), False
    for word in words:
        name, equals, _ = word.partition("=")
        if name.startswith("--"):
            leaves = name in options
        if not leaves:
            words_left.append(word)
        leaves = leaves and not equals
    return words_left


def _has(settings: Any, path: Sequence[str | int]) -> bool:
    for key in path:
        has_key = isinstance(settings, Mapping) and key in settings
        if not has_key and not (isinstance(settings, list) and isinstance(key, int) and key < len(settings)):
            return False
        settings = settings[key]
    return True


def _recipe_below(files: Mapping[str, Mapping[str, Any]], recipes: Sequence[str]) -> dict[str, Any]:
    """The settings of the recipe with those of the files on top.

    Args:
        files: Settings by the name of their file, in the order in which they were given.
        recipes: Recipes of the command line; the last one is taken.
    """
    settings: dict[str, Any] = {}
    for body in files.values():
        settings = merge(settings, body)
    file_recipe = settings.get("recipe", TrainConfig.recipe)
    if not isinstance(file_recipe, str):
        raise ConfigError(f"recipe must be a name, got {file_recipe!r}")
    name = recipes[-1] if recipes else file_recipe
    base, own = recipe(name), settings.get("method")
    if "recipe" in settings and isinstance(own, dict):
        if base.method["estimator"] != recipe(file_recipe).method["estimator"]:  # options are of the file's estimator
            settings["method"] = {key: value for key, value in own.items() if key != "options"}
    below = {"recipe": name, "method": base.method, "optim": base.optim, "rollout": base.rollout, "pool": base.pool}
    return merge(below, {**settings, "recipe": name})


def check_names(config: TrainConfig) -> None:
    """Checks that registered names, the options of estimator, shapers and filters, and the columns they need exist.

    Raises:
        UnknownName: A name or an option does not exist; the message lists what exists.
        ConfigError: The prompt file is missing or not valid, or settings contradict each other.
        MissingColumn: The method needs a column of the step table that nothing here supplies.
    """
    check_trackers(config.tracking.trackers)
    make_memory(config.prompt.memory)
    prompt_file_of(config.prompt)
    check_engine(config.rollout.engine, config.rollout.engine_options)
    _check_minibatches(config)
    method, objective = Method.of(config.method), config.method.objective
    if config.rollout.episodes == 1 and not method.estimator.credits_lone_episodes:
        raise ConfigError(
            f"rollout.group_size is 1, but estimator {config.method.estimator} compares the episodes of a group, and a "
            f"group of one teaches nothing; make it at least 2"
        )
    per_token = method.estimator.per == "token"
    if per_token and (objective.ratio in ("step", "product") or objective.loss == "gmpo"):
        what = f"ratio {objective.ratio!r}" if objective.loss != "gmpo" else "loss 'gmpo'"
        raise ConfigError(
            f"method.objective: {what} takes the tokens of a step together, but estimator {config.method.estimator} "
            "gives each token its own advantage; choose ratio: token (or sequence) and another loss"
        )
    penalty = method.shapers.get("kl_penalty")
    if isinstance(penalty, KLPenalty) and penalty.per == "token" and not per_token:
        raise ConfigError(
            f"method.shapers: a reward per token (kl_penalty with per: token) would be lost on estimator "
            f"{config.method.estimator}, which reads rewards per step; set per: step"
        )


def _check_minibatches(config: TrainConfig) -> None:
    """Refuses more minibatches than an iteration can have steps; horizons of unknown environments bound nothing."""
    horizons = [
        env.max_episode_steps or (ENVIRONMENTS[env.id].max_episode_steps if env.id in ENVIRONMENTS else None)
        for env in config.envs
    ]
    if None in horizons:
        return
    rollout, critic = config.rollout, config.method.critic
    longest = max(horizon for horizon in horizons if horizon is not None)
    if (curriculum := rollout.curricula.horizon) is not None:
        longest = min(longest, *curriculum.steps)
    most = rollout.tasks * rollout.episodes * longest
    for name, parts in [("optim", config.optim.minibatches), ("method.critic", critic.minibatches if critic else 1)]:
        if parts > most:
            raise ConfigError(
                f"{name}.minibatches is {parts}, but an iteration has at most {most} steps ({rollout.tasks} tasks of "
                f"{rollout.episodes} episodes of {longest} steps); lower it"
            )


def _list_recipes() -> None:
    from rich.table import Table

    from trainers.settings.console import EscapingConsole

    table = Table("recipe", "what it is", "paper", box=None, header_style="bold")
    for entry in recipes().values():
        name = entry.name if entry.over is None else f"{entry.name} (= {recipe(entry.name).name})"
        table.add_row(name, entry.description, entry.paper)
        for variant in entry.variants:
            table.add_row(f"  {entry.name}/{variant}", f"as published for {variant}", "")
    for name in COMPOSITIONS:
        table.add_row(name, recipe(name).description, recipe(name).paper)
    EscapingConsole().print(table)
    additions = ", ".join(entry.name for entry in recipes().values() if entry.over is not None)
    EscapingConsole().print(f"\nAny method can be followed by additions ({additions}), each after a '+'.")


def _list_configs() -> None:
    """Prints the name that ``--config`` takes, the first comment, and the file, for launchers that need its path."""
    for name, file in shipped_configs().items():
        first = file.read_text(encoding="utf-8").partition("\n")[0]
        comment = first.removeprefix("#").strip() if first.startswith("#") else ""
        sys.stdout.write(f"{name}\t{comment}\t{file}\n")


def settings_file(config: TrainConfig) -> str:
    """The resolved settings as a file that ``--config`` takes.

    Raises:
        ConfigError: A setting leaves out what the recipe has, which a file cannot say.
    """
    text = dump(config)
    if dump(checked(TrainConfig, _recipe_below({"": yaml.safe_load(text)}, []))) != text:
        raise ConfigError(f"the settings leave out some of recipe {config.recipe}'s; start from another recipe")
    return text


def dump(config: TrainConfig) -> str:
    """The resolved settings as YAML, in the order of the classes."""
    plain = json.loads(json.dumps(dataclasses.asdict(config)))
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
