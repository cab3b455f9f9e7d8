"""Registration of the environment: what stands where, imported when it is asked for."""

from envsuite.core.registration import EnvSpec, Profile

SPEC = EnvSpec(
    "PythonMath-v0",
    "envsuite.mathematics.env:PythonMathEnv",
    max_episode_steps=8,
    extra="mathematics",
    players={"expert": "envsuite.mathematics.expert:MathExpert"},
    milestones="envsuite.mathematics.milestones:MathMilestones",
    downloads="envsuite.mathematics.downloads:DATA_SETS",
    practice="envsuite.mathematics.practice:practice",
    profile=Profile(
        plain="python",
        prefixes={"=": "answer"},
        code=True,
        about="Python code runs in the sandbox; = 3/7 answers the problem with 3/7",
    ),
)
