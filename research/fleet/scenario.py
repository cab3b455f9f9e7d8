"""The fleet that the settings of a run and the options of the command line describe."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

import yaml

from envsuite.core.errors import UnknownName
from research.fleet.constants import SHIPPED, Constants, EnvironmentConstants
from research.fleet.model import Failures, Fleet, Lognormal, Workload, mean_steps
from research.fleet.outcome import Outcome
from research.fleet.simulation import Simulation
from research.fleet.sizing import Sized, sized
from research.fleet.speeds import Speeds, speeds_of
from trainers.planning.hardware import GIB, Machines, machines
from trainers.planning.plan import RunPlanner
from trainers.planning.program import check, shape_of
from trainers.planning.workload import Workload as Tokens
from trainers.run.config import TrainConfig
from trainers.settings import ConfigError, checked

SPREAD = 0.5
"""Assumed standard deviation of the logarithm of a response's tokens."""
SERVER_CORES, SERVER_MEMORY = 64, 256 * GIB
"""Assumed cores and bytes of memory of an environment server."""
NETWORK = 0.5e-3
"""Assumed seconds of a round trip to an environment server."""
UPDATES = 5
"""Updates that are simulated by default."""

OPTIONS = {
    "--generation HARDWARE": "GPUs that only generate; --gpus then only train. By default they share.",
    "--staleness K,K": "Versions that a rollout may be old, 0 is synchronous (default: 0,1,2,4).",
    "--env-cores N": "Environment cores; by default the fewest that cost at most 2 % of the time.",
    "--server SPEC": "An environment server as cores and memory (default: 64x256GiB).",
    "--network SECONDS": "A round trip to the servers (default: 0.0005).",
    "--failures MAPPING": "E.g. {gpu_hours: 20000, server_hours: 2000, hung: 1.0e-5, restart: 300}; "
    "hours between two losses of one GPU's process and of one server, the share of calls that never return, seconds "
    "until what was lost is back. deadline and attempts are those of the run.",
    "--response-spread S": "Deviation of the logarithm of a response's tokens (default: 0.5).",
    "--updates N": "Updates that are simulated after the first ones (default: 5).",
    "--constants FILE": "Measured constants in place of those that are here (python -m research.fleet.measure measures "
    "them).",
    "--figure FILE": "Draw the iteration's time by staleness and by environment cores (PNG).",
    "--check RUN": "Compare with the folder of a run, whose engine's speed the constants must have (python -m "
    "research.fleet.measure --engine RUN).",
}
"""The options of a simulation."""


@dataclass(frozen=True)
class Scenario:
    """A fleet without the number of its environment cores."""

    config: TrainConfig
    constants: Constants
    environment: EnvironmentConstants
    speeds: Speeds
    work: Workload
    fleet: Fleet
    """With one core."""
    training: Machines
    generation: Machines | None
    """``None`` where the training GPUs generate, too."""
    staleness: tuple[int, ...]
    cores: int | None
    """Environment cores, if they were given."""
    server_memory: float
    updates: int
    notes: tuple[str, ...]
    """Assumptions."""

    @property
    def name(self) -> str:
        """Hardware in words."""
        where = f"{self.training}"
        return (
            f"{where}, which also generate" if self.generation is None else f"{where} train, {self.generation} generate"
        )

    @property
    def sessions(self) -> int:
        """Most episodes that are played at a time."""
        most = (max(self.staleness) + 1) * self.work.tasks * self.work.group_size
        return min(self.fleet.engines * self.fleet.slots, most)

    def simulate(self, cores: int, staleness: int, failures: Failures | None = None) -> Outcome:
        """Simulates the fleet; with the same seed, the same episodes are played whatever the fleet is."""
        fleet = replace(
            self.fleet, cores=cores, staleness=staleness, failures=self.fleet.failures if failures is None else failures
        )
        made = Simulation(
            self.work, self.environment.speed, self.speeds.engine, self.speeds.update, fleet, self.config.seed
        )
        warm_up = staleness + 1 if staleness else 0
        return made.run(warm_up + self.updates, warm_up)

    @cached_property
    def sized(self) -> Sized:
        """Cores that are enough at the least staleness, where updates wait most for episodes, without failures."""
        speed, per_server, least = self.environment.speed, self.fleet.cores_per_server, min(self.staleness)
        return sized(
            lambda cores: self.simulate(cores, least, Failures()), self.sessions, speed, per_server, self.server_memory
        )

    @property
    def used_cores(self) -> int:
        """The cores that the simulation has."""
        return self.sized.cores if self.cores is None else self.cores


def scenario_of(config: TrainConfig, given: Mapping[str, str], tokens: Mapping[str, int | None]) -> Scenario:
    """Reads the options.

    Args:
        config: Settings of the run.
        given: Options of the command line by name.
        tokens: ``steps``, ``prompt-tokens`` and ``response-tokens``, where they were given.

    Raises:
        ConfigError: One of them cannot be; the message names it.
    """
    constants = Constants.read(Path(given["constants"]) if "constants" in given else SHIPPED)
    environment = constants.environment(config.envs[0].id)
    horizon = config.envs[0].max_episode_steps or environment.horizon
    steps = environment.steps.lognormal
    if (mean := tokens["steps"]) is not None:
        if mean > horizon:
            raise ConfigError(f"--steps {mean}: an episode has at most {horizon} (envs[0].max_episode_steps)")
        steps = Lognormal.of_mean(mean, steps.sigma)
    cores, memory = _server(given.get("server"))
    network = _number(given, "network", NETWORK, 60.0)
    spread = _number(given, "response-spread", SPREAD, 3.0)
    failures, staleness = _failures(config, given.get("failures")), _staleness(given.get("staleness", "0,1,2,4"))
    env_cores = None if "env-cores" not in given else int(_number(given, "env-cores", 1, 1e6, whole=True))
    updates = int(_number(given, "updates", UPDATES, 1e4, whole=True))
    training = machines(given["gpus"])
    generation = machines(given["generation"]) if "generation" in given else None
    shape = shape_of(config.model.path, given.get("model-shape"))
    check(config, shape, training, given.get("model-shape", config.model.path))
    lengths = (max(1, round(mean_steps(steps, horizon))), tokens["prompt-tokens"], tokens["response-tokens"])
    planner = RunPlanner(shape, training, *lengths)
    speeds = speeds_of(config, planner, planner if generation is None else RunPlanner(shape, generation, *lengths))
    notes = (
        *(note for note in speeds.notes if "steps an episode" not in note),
        f"episodes of {mean_steps(steps, horizon):.1f} steps in the mean, at most {horizon}, lognormal with sigma "
        f"{steps.sigma:.2f} ({'--steps' if mean is not None else environment.source})",
        f"sigma of responses {spread} (--response-spread)",
        f"servers of {cores} cores and {memory / GIB:.0f} GiB (--server), {network * 1e3:.2f} ms to them and "
        "back (--network)",
        *([] if config.rollout.engine != "hf" else ["engine hf: prompts and parsing interrupt generation"]),
        "one engine for each GPU; the codec's time is that of the run from which the constants are",
    )
    return Scenario(
        config,
        constants,
        environment,
        speeds,
        _workload(config, speeds.plan.work, steps, horizon, spread),
        Fleet(
            (generation or training).ranks,
            config.rollout.slots,
            generation is None,
            training.ranks,
            cores_per_server=cores,
            request=constants.serving.request,
            network=network,
            client=environment.codec + constants.serving.client,
            client_blocks=config.rollout.engine == "hf",
            failures=failures,
        ),
        training,
        generation,
        staleness,
        env_cores,
        memory,
        updates,
        notes,
    )


def _workload(config: TrainConfig, expected: Tokens, steps: Lognormal, horizon: int, spread: float) -> Workload:
    """The plan's tokens as distributions; prompts that continue each other grow evenly to twice their mean."""
    longest = expected.longest_response
    response = Lognormal.of_mean(expected.response, spread if expected.response < longest else 0.0)
    growth = 2.0 * expected.prompt / (mean_steps(steps, horizon) + 1.0) if expected.merges else 0.0
    first = growth if expected.merges else expected.prompt
    rollout = config.rollout
    return Workload(
        rollout.tasks, rollout.group_size, steps, horizon, first, growth, response, longest, expected.merges
    )


def _failures(config: TrainConfig, text: str | None) -> Failures:
    try:
        body = {} if text is None else yaml.safe_load(text)
    except yaml.YAMLError:
        body = None
    if not isinstance(body, dict):
        raise ConfigError(f"--failures {text}: write it like {{gpu_hours: 20000, hung: 1.0e-5}}")
    given = {"deadline": config.rollout.deadline, "checkpoint": config.checkpoint_every} | body
    try:
        return checked(Failures, {**asdict(Failures()), **given}, "failure")
    except (ConfigError, UnknownName) as error:
        raise type(error)(f"--failures: {error}") from None


def _staleness(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d{1,3}(,\d{1,3})*", text):
        raise ConfigError(f"--staleness {text}: write whole numbers like 0,1,2")
    return tuple(sorted({int(word) for word in text.split(",")}))


def _server(text: str | None) -> tuple[int, float]:
    if text is None:
        return SERVER_CORES, float(SERVER_MEMORY)
    found = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,5})GiB", text)
    if found is None:
        raise ConfigError(f"--server {text}: write cores and memory like 64x256GiB")
    return int(found[1]), float(found[2]) * GIB


def _number(given: Mapping[str, str], name: str, default: float, most: float, whole: bool = False) -> float:
    """A number of the command line, from 0 (a whole one from 1) to ``most``."""
    if (word := given.get(name)) is None:
        return default
    try:
        value = float(int(word) if whole else word)
    except ValueError:
        value = -1.0
    if not (1 if whole else 0) <= value <= most:
        kind = f"a whole number from 1 to {most:.0f}" if whole else f"a number from 0 to {most:g}"
        raise ConfigError(f"--{name} {word}: it must be {kind}")
    return value
