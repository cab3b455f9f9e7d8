"""The known environments, and their registration with Gymnasium."""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points

import gymnasium
from gymnasium.envs.registration import WrapperSpec

BY_SOURCE = WrapperSpec("by_source", "envsuite.remote.making:by_source", {})
"""Called by ``gymnasium.make`` to set the horizon by source."""
GROUP = "envsuite.environments"
"""Entry points by which other packages register environments; each names an :class:`EnvSpec`."""
NAMED = "ENVSUITE_NAMED"
"""Variable that tells the processes which this one starts of environments that were registered by their name: a list
as in ``PATH``, of ``ID``, of a file ``ID=PATH``, and of an id that a module registers ``ID=MODULE``."""


class Default(int):
    """A horizon that nobody has asked for: ``gymnasium.make`` hands it on as it is."""


@dataclass(frozen=True)
class Profile:
    """How a person types actions of an environment, and sees its texts. Every part may be left out."""

    plain: str = ""
    """Tool whose only argument is a line that names no tool."""
    commands: str = ""
    """Tool whose only argument is an admissible command."""
    prefixes: Mapping[str, str] = field(default_factory=dict)
    """Beginning of a line -> tool whose only argument is the rest of the line."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Key -> line, while nothing is typed."""
    code: bool = False
    """Whether ``plain`` takes Python code, which goes on over several lines."""
    breaks: str = ""
    """Text that is shown as the end of a line."""
    cells: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Symbol of a board -> two characters and their style; shown so are lines of such symbols alone."""
    attentive: bool = False
    """Whether the expert has to see every observation, as it remembers them."""
    about: str = ""
    """How to type, in one line."""


@dataclass(frozen=True)
class EnvSpec:
    """One environment id: where its class is, and its horizon."""

    id: str
    entry_point: str
    """``"module:Class"``, a :class:`~envsuite.core.ToolEnv`."""
    max_episode_steps: int
    """Its horizon: steps after which an episode is truncated, unless ``gymnasium.make`` is given others."""
    extra: str = ""
    """Name of envsuite's pip extra that it needs; empty if it needs none, or is another package's."""
    inline: bool = False
    """Whether a step costs less than a message to another process: then a server plays it where it answers HTTP."""
    players: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Name of a baseline -> ``"module:Class"``, a :class:`~envsuite.core.Player` made without arguments: ``expert``
    plays from the state of the world; ``lexical`` compares words of task and observation, and sees what agents see."""
    milestones: str = ""
    """``"module:Class"``, the :class:`~envsuite.vector.milestones.Milestones` of its tasks; empty if it has none."""
    practice: str = ""
    """``"module:function"``, which returns the :class:`~envsuite.core.practice.Practice` for imitation; empty if it has
    none."""
    profile: Profile = field(default_factory=Profile, hash=False)
    """How a person types its actions and sees its texts (``envsuite play``)."""
    official_steps: int | None = None
    """Its horizon for the source ``"official"`` or a path, where that is another."""
    builds: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Name after ``envsuite data build`` -> module with ``HELP``, ``add_arguments(parser)`` and ``run(arguments)``,
    which builds a file that the environment reads."""
    downloads: str = ""
    """``"module:DATA_SETS"``: each :class:`~envsuite.data.catalog.DataSet` that ``envsuite data fetch`` fetches for it;
    empty if there is none."""
    page: str = ""
    """Module of the page that ``envsuite play --browser`` serves, with ``add_arguments(group)`` and
    ``run(arguments, make)``, which serves it and returns the exit code; empty if it has none."""
    contents: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Name of a data set -> module with ``present()``, whether it is there, and ``run(folder, play)``, which looks at
    what is in its files for ``envsuite data verify`` and returns the exit code."""

    def horizon(self, arguments: Mapping[str, object]) -> int:
        """Returns the horizon of an environment made with ``arguments``."""
        own = arguments.get("source", "builtin") in ("builtin", "generated")
        return self.max_episode_steps if own or self.official_steps is None else self.official_steps

    @property
    def package(self) -> str:
        """Returns the package of the environment, with the extra, as an argument of pip."""
        return f"envsuite[{self.extra}]" if self.extra else self.entry_point.partition(".")[0].partition(":")[0]


BUILTIN = (
    "envsuite.alfworld.spec:SPEC",
    "envsuite.textcraft.spec:SPEC",
    "envsuite.bifurcation.spec:SPEC",
    "envsuite.sokoban.spec:SPEC",
    "envsuite.mathematics.spec:SPEC",
    "envsuite.papersearch.spec:SPEC",
    "envsuite.papersearch.spec:TEAM",
    "envsuite.searchqa.spec:SPEC",
    "envsuite.webshop.spec:SPEC",
    "envsuite.babyai.spec:SPEC",
    "envsuite.bfcl.spec:SPEC",
    "envsuite.textworld.spec:SPEC",
    "envsuite.classics.spec:WORDLE",
    "envsuite.classics.spec:COUNTDOWN",
    "envsuite.classics.spec:FROZENLAKE",
    "envsuite.classics.spec:GAME2048",
    "envsuite.classics.spec:RUSHHOUR",
)
"""Envsuite's own environments: where the :class:`EnvSpec` of each stands."""


def builtin() -> list[EnvSpec]:
    """Returns envsuite's own environments."""
    places = (place.partition(":") for place in BUILTIN)
    return [getattr(importlib.import_module(module), name) for module, _, name in places]


ENVIRONMENTS: dict[str, EnvSpec] = {}
"""The registered environments, by id."""


def register(spec: EnvSpec) -> None:
    """Registers an environment with Gymnasium, servers, bridges and the command line.

    Does nothing if it is registered already.

    Raises:
        UsageError: Another environment has the id.
    """
    if ENVIRONMENTS.setdefault(spec.id, spec) != spec:
        from envsuite.core.errors import UsageError

        there = ENVIRONMENTS[spec.id].entry_point
        raise UsageError(f"{spec.entry_point} cannot be registered as {spec.id}, which is {there}; choose another id")
    if spec.id not in gymnasium.registry:
        by_source = spec.official_steps is not None
        gymnasium.register(
            spec.id,
            entry_point="envsuite.remote.making:make",
            max_episode_steps=Default(spec.max_episode_steps) if by_source else spec.max_episode_steps,
            additional_wrappers=(BY_SOURCE,) if by_source else (),
            kwargs={"env_id": spec.id},
        )


def tell(named: str) -> None:
    """Tells the processes that this one starts of an environment; ``named`` is an entry of :data:`NAMED`."""
    there = [*filter(None, os.environ.get(NAMED, "").split(os.pathsep)), named]
    os.environ[NAMED] = os.pathsep.join(dict.fromkeys(there))


def register_envs() -> None:
    """Registers envsuite's own environments and those of installed packages that are not registered yet.

    Warns of a package whose entry point cannot be loaded, and skips it.
    """
    for spec in builtin():
        register(spec)
    for entry in entry_points(group=GROUP):
        try:
            spec = entry.load()
            if not isinstance(spec, EnvSpec):
                raise TypeError(f"it is a {type(spec).__name__}, not an envsuite.core.registration.EnvSpec")
            register(spec)
        except Exception as error:  # a bug in one package must not affect the environments of the others
            reason = f"{type(error).__name__}: {error}"
            warnings.warn(f"the entry point {entry.name} = {entry.value!r} of {GROUP}: {reason}", stacklevel=2)
