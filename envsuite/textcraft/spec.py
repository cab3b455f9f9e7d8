"""Registration of the environment: what stands where, imported when it is asked for."""

from envsuite.core.registration import EnvSpec

SPEC = EnvSpec(
    "TextCraft-v0",
    "envsuite.textcraft.env:TextCraft",
    max_episode_steps=50,
    extra="textcraft",
    inline=True,
    players={
        "expert": "envsuite.textcraft.expert:TextCraftExpert",
        "lexical": "envsuite.textcraft.lexical:TextCraftLexical",
    },
    milestones="envsuite.textcraft.milestones:TextCraftMilestones",
    downloads="envsuite.textcraft.downloads:DATA_SETS",
    practice="envsuite.textcraft.practice:practice",
)
