"""Registration of the environment: what stands where, imported when it is asked for."""

from envsuite.core.registration import EnvSpec

SPEC = EnvSpec(
    "PaperSearch-v0",
    "envsuite.papersearch.env:PaperSearchEnv",
    max_episode_steps=5,
    players={
        "expert": "envsuite.papersearch.expert:PaperSearchExpert",
        "lexical": "envsuite.papersearch.lexical:PaperSearchLexical",
    },
    milestones="envsuite.papersearch.milestones:PaperSearchMilestones",
    page="envsuite.papersearch.page.command",
    practice="envsuite.papersearch.practice:practice",
    builds={"papers": "envsuite.papersearch.build_command"},
)
TEAM = EnvSpec(
    "PaperSearchTeam-v0",
    "envsuite.papersearch.team:PaperSearchTeam",
    max_episode_steps=10,
    players={
        "expert": "envsuite.papersearch.team_expert:TeamExpert",
        "lexical": "envsuite.papersearch.lexical:TeamLexical",
    },
)
