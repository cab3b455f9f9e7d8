"""The known environments, and their registration with Gymnasium."""

from __future__ import annotations

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


class Default(int):
    """A horizon that nobody has asked for: ``gymnasium.make`` hands it on as it is."""


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
    """``"module:Class"``, the :class:`~envsuite.core.milestones.Milestones` of its tasks; empty if it has none."""
    practice: str = ""
    """``"module:function"``, which returns the :class:`~envsuite.core.practice.Practice` for imitation; empty if it has
    none."""
    official_steps: int | None = None
    """Its horizon for the source ``"official"`` or a path, where that is another."""
    builds: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Name after ``envsuite data build`` -> module with ``HELP``, ``add_arguments(parser)`` and ``run(arguments)``,
    which builds a file that the environment reads."""
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
    EnvSpec(
        "ALFWorld-v0",
        "envsuite.alfworld.env:ALFWorld",
        max_episode_steps=50,
        extra="alfworld",
        players={"expert": "envsuite.alfworld.expert:Expert", "lexical": "envsuite.alfworld.lexical:Lexical"},
        milestones="envsuite.alfworld.milestones:Milestones",
        practice="envsuite.alfworld.practice:practice",
        contents={"alfworld": "envsuite.alfworld.verify_cli"},
    ),
    EnvSpec(
        "TextCraft-v0",
        "envsuite.textcraft.env:TextCraft",
        max_episode_steps=50,
        extra="textcraft",
        inline=True,
        players={"expert": "envsuite.textcraft.expert:Expert", "lexical": "envsuite.textcraft.lexical:Lexical"},
        milestones="envsuite.textcraft.milestones:Milestones",
        practice="envsuite.textcraft.practice:practice",
    ),
    EnvSpec(
        "Sokoban-v0",
        "envsuite.sokoban.env:SokobanEnv",
        max_episode_steps=15,
        official_steps=120,
        players={"expert": "envsuite.sokoban.expert:Expert"},
        milestones="envsuite.sokoban.milestones:Milestones",
        practice="envsuite.sokoban.practice:practice",
    ),
    EnvSpec(
        "PythonMath-v0",
        "envsuite.mathematics.env:PythonMathEnv",
        max_episode_steps=8,
        extra="mathematics",
        players={"expert": "envsuite.mathematics.expert:Expert"},
        milestones="envsuite.mathematics.milestones:Milestones",
        practice="envsuite.mathematics.practice:practice",
    ),
    EnvSpec(
        "PaperSearch-v0",
        "envsuite.papersearch.env:PaperSearchEnv",
        max_episode_steps=5,
        players={"expert": "envsuite.papersearch.expert:Expert", "lexical": "envsuite.papersearch.lexical:Lexical"},
        milestones="envsuite.papersearch.milestones:Milestones",
        practice="envsuite.papersearch.practice:practice",
        builds={"papers": "envsuite.papersearch.build_command"},
    ),
    EnvSpec(
        "PaperSearchTeam-v0",
        "envsuite.papersearch.team:PaperSearchTeam",
        max_episode_steps=10,
        players={
            "expert": "envsuite.papersearch.team_expert:TeamExpert",
            "lexical": "envsuite.papersearch.team_lexical:TeamLexical",
        },
    ),
    EnvSpec(
        "SearchQA-v0",
        "envsuite.searchqa.env:SearchQAEnv",
        max_episode_steps=5,
        players={"expert": "envsuite.searchqa.expert:Expert", "lexical": "envsuite.searchqa.lexical:Lexical"},
        milestones="envsuite.searchqa.milestones:Milestones",
        practice="envsuite.searchqa.practice:practice",
        builds={"questions": "envsuite.searchqa.build_command"},
    ),
    EnvSpec(
        "WebShop-v0",
        "envsuite.webshop.env:WebShop",
        max_episode_steps=15,
        extra="webshop",
        players={"expert": "envsuite.webshop.expert:Expert", "lexical": "envsuite.webshop.expert:Lexical"},
        milestones="envsuite.webshop.milestones:Milestones",
        practice="envsuite.webshop.practice:practice",
        builds={"webshop": "envsuite.webshop.build_cli"},
    ),
)
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
        gymnasium.register(
            spec.id,
            entry_point="envsuite.remote.making:make",
            max_episode_steps=spec.max_episode_steps
            if spec.official_steps is None
            else Default(spec.max_episode_steps),
            additional_wrappers=() if spec.official_steps is None else (BY_SOURCE,),
            kwargs={"env_id": spec.id},
        )


def register_envs() -> None:
    """Registers envsuite's own environments and those of installed packages that are not registered yet.

    Warns of a package whose entry point cannot be loaded, and skips it.
    """
    for spec in BUILTIN:
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
