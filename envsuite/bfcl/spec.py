"""Registration of the environment: what stands where, imported when it is asked for."""

from envsuite.core.registration import EnvSpec

SPEC = EnvSpec(
    "BFCL-v0",
    "envsuite.bfcl.env:BFCL",
    max_episode_steps=168,
    extra="bfcl",
    players={"expert": "envsuite.bfcl.expert:BFCLExpert"},
    milestones="envsuite.bfcl.milestones:BFCLMilestones",
)
