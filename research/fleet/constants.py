"""Constants that were measured: what environments, servers and engines of this machine take, in one file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envsuite.core.errors import DataError, EnvsuiteError, UnknownName, nearest
from envsuite.data.files import write_atomically
from research.fleet.model import EnvironmentSpeed, Lognormal, counts_distance, kolmogorov_distance
from trainers.planning.plan import EngineSpeed
from trainers.settings import AtLeastOne, Count, Fraction, NotNegative, Text, checked

SHIPPED = Path(__file__).with_name("constants.json")
"""Those of the machine that docs/benchmarks.md describes."""


@dataclass(frozen=True)
class Fit:
    """A lognormal distribution that was fitted to measurements."""

    median: NotNegative
    """Median."""
    sigma: NotNegative
    """Standard deviation of the logarithm."""
    distance: Fraction = 0.0
    """Kolmogorov's distance between the measurements and the fit: how well it describes them."""
    count: Count = 0
    """Measurements."""

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> Fit:
        """Fits positive values."""
        fitted = Lognormal.fit(values)
        return cls(fitted.median, fitted.sigma, kolmogorov_distance(values, fitted), len(values))

    @classmethod
    def of_counts(cls, values: NDArray[np.float64], most: int) -> Fit:
        """Fits whole numbers from 1 to ``most``."""
        fitted = Lognormal.fit_counts(values, most)
        return cls(fitted.median, fitted.sigma, counts_distance(values, fitted, most), len(values))

    @property
    def lognormal(self) -> Lognormal:
        """The distribution."""
        return Lognormal(self.median, self.sigma)


@dataclass(frozen=True)
class EnvironmentConstants:
    """Costs of one environment on one core."""

    step: Fit
    """CPU seconds of a step."""
    reset: Fit
    """CPU seconds of a reset."""
    steps: Fit
    """Steps of an episode."""
    horizon: AtLeastOne
    """Most steps of those episodes."""
    memory: NotNegative
    """Bytes that one more session takes."""
    base: NotNegative
    """Bytes of a process without sessions."""
    codec: NotNegative
    """CPU seconds of the rollout process for each step: prompt, tokenizer, parsing."""
    source: Text
    """Which episodes were measured."""

    @property
    def speed(self) -> EnvironmentSpeed:
        """Measurements that a simulation needs of an environment."""
        return EnvironmentSpeed(self.step.lognormal, self.reset.lognormal, self.memory, self.base)


@dataclass(frozen=True)
class ServingConstants:
    """Costs of a call over HTTP, its environment not counted."""

    request: NotNegative
    """CPU seconds of the server."""
    client: NotNegative
    """CPU seconds of the client."""
    network: NotNegative
    """Seconds of a round trip."""


@dataclass(frozen=True)
class EngineConstants:
    """Speed of the ``hf`` engine with one model on the machine itself."""

    model: Text
    """The model."""
    speed: EngineSpeed
    """CPU seconds."""


@dataclass(frozen=True)
class Constants:
    """Everything that was measured."""

    machine: Text
    """Which machine."""
    date: Text
    """When."""
    command: Text
    """How it is measured again."""
    serving: ServingConstants
    """Calls over HTTP."""
    environments: dict[str, EnvironmentConstants] = field(default_factory=dict)
    """Environments by Gymnasium id."""
    engine: EngineConstants | None = None
    """The engine on the machine itself, for ``--check``."""

    @classmethod
    def read(cls, path: Path = SHIPPED) -> Constants:
        """Reads a file.

        Raises:
            DataError: It cannot be read, or a key is missing, unknown or not what it must be; the message names it.
        """
        try:
            body: Any = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise DataError(f"--constants {path}: cannot be read ({error})") from error
        if not isinstance(body, dict):
            raise DataError(f"--constants {path}: keys and values were expected, like those of {SHIPPED.name}")
        try:
            return checked(cls, body, "constant")
        except EnvsuiteError as error:
            raise DataError(
                f"--constants {path}: {error}\n`python -m research.fleet.measure --help` measures them"
            ) from None

    def write(self, path: Path) -> None:
        """Writes the file; an interrupted write leaves the old one."""
        write_atomically(path, (json.dumps(asdict(self), indent=1) + "\n").encode())

    def environment(self, env_id: str) -> EnvironmentConstants:
        """The constants of an environment.

        Raises:
            UnknownName: There are none; the message lists what there is.
        """
        if env_id not in self.environments:
            near = nearest(env_id, self.environments)
            raise UnknownName(
                f"no constants of {env_id}{f' (nearest: {near[0]})' if near else ''}; there are those of "
                f"{', '.join(self.environments) or 'no environment'}. Measure it: python -m "
                "research.fleet.measure --runs RUN"
            )
        return self.environments[env_id]
