"""What envsuite registers; the rest is imported when it is asked for."""

from envsuite.core.registration import EnvSpec

SPEC = EnvSpec(
    "Errand-v0", "errand.env:Errand", max_episode_steps=6, inline=True, players={"expert": "errand.expert:ErrandExpert"}
)
