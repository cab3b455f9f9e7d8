"""Registration of the environment: what stands where, imported when it is asked for."""

from envsuite.core.registration import EnvSpec, Profile

SPEC = EnvSpec(
    "BabyAI-v0",
    "envsuite.babyai.env:BabyAI",
    max_episode_steps=64,
    extra="babyai",
    players={"expert": "envsuite.babyai.expert:BabyAIExpert"},
    milestones="envsuite.babyai.milestones:BabyAIMilestones",
    practice="envsuite.babyai.practice:practice",
    profile=Profile(
        commands="act",
        keys={"left": "turn left", "right": "turn right", "up": "go forward"},
        about="the arrow keys turn and go forward; Tab completes the other commands",
    ),
)
