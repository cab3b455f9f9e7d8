"""Registration of the environment: what stands where, imported when it is asked for."""

from envsuite.core.registration import EnvSpec, Profile

SPEC = EnvSpec(
    "ALFWorld-v0",
    "envsuite.alfworld.env:ALFWorld",
    max_episode_steps=50,
    players={"expert": "envsuite.alfworld.expert:Expert", "lexical": "envsuite.alfworld.lexical:Lexical"},
    milestones="envsuite.alfworld.milestones:Milestones",
    downloads="envsuite.alfworld.downloads:DATA_SETS",
    practice="envsuite.alfworld.practice:practice",
    contents={"alfworld": "envsuite.alfworld.verify_cli"},
    profile=Profile(attentive=True),
)
