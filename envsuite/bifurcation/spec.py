"""Registration of the environment: what stands where, imported when it is asked for."""

from envsuite.core.registration import EnvSpec

SPEC = EnvSpec(
    "Bifurcation-v0",
    "envsuite.bifurcation.env:Bifurcation",
    max_episode_steps=50,
    inline=True,
    players={"expert": "envsuite.bifurcation.expert:BifurcationExpert"},
    milestones="envsuite.bifurcation.milestones:BifurcationMilestones",
    practice="envsuite.bifurcation.practice:practice",
)
