"""Registration of the environment: what stands where, imported when it is asked for."""

from envsuite.core.registration import EnvSpec

SPEC = EnvSpec(
    "Bifurcation-v0",
    "envsuite.bifurcation.env:Bifurcation",
    max_episode_steps=50,
    inline=True,
    players={"expert": "envsuite.bifurcation.expert:Expert"},
    milestones="envsuite.bifurcation.milestones:Milestones",
    practice="envsuite.bifurcation.practice:practice",
)
