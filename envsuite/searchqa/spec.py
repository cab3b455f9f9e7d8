"""Registration of the environment: what stands where, imported when it is asked for."""

from envsuite.core.registration import EnvSpec

SPEC = EnvSpec(
    "SearchQA-v0",
    "envsuite.searchqa.env:SearchQAEnv",
    max_episode_steps=5,
    players={
        "expert": "envsuite.searchqa.expert:SearchQAExpert",
        "lexical": "envsuite.searchqa.lexical:SearchQALexical",
    },
    milestones="envsuite.searchqa.milestones:SearchQAMilestones",
    practice="envsuite.searchqa.practice:practice",
    builds={"questions": "envsuite.searchqa.build_command"},
)
