"""Registration of the environment: what stands where, imported when it is asked for."""

from envsuite.core.registration import EnvSpec, Profile

SPEC = EnvSpec(
    "TextWorld-v0",
    "envsuite.textworld.env:TextWorld",
    max_episode_steps=50,
    extra="textworld",
    players={"expert": "envsuite.textworld.expert:TextWorldExpert"},
    profile=Profile(commands="act"),
)
