"""Registration of the environment: what stands where, imported when it is asked for."""

from envsuite.core.registration import EnvSpec, Profile

SPEC = EnvSpec(
    "ALFWorld-v0",
    "envsuite.alfworld.env:ALFWorld",
    max_episode_steps=50,
    players={
        "expert": "envsuite.alfworld.expert:ALFWorldExpert",
        "lexical": "envsuite.alfworld.lexical:ALFWorldLexical",
    },
    milestones="envsuite.alfworld.milestones:ALFWorldMilestones",
    downloads="envsuite.alfworld.downloads:DATA_SETS",
    practice="envsuite.alfworld.practice:practice",
    contents={"alfworld": "envsuite.alfworld.verify_cli"},
    profile=Profile(attentive=True),
)
