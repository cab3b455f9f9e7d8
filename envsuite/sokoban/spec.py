"""Registration of the environment: what stands where, imported when it is asked for."""

from envsuite.core.registration import EnvSpec, Profile

_ARROWS = {"up": "up", "down": "down", "left": "left", "right": "right"}
_BOARD = {
    "#": ("██", "ansi_blue"), " ": ("  ", ""), ".": ("◎ ", "ansi_red"), "$": ("[]", "ansi_yellow"),
    "*": ("[]", "bold ansi_green"), "@": ("☺ ", "bold ansi_cyan"), "+": ("☺ ", "bold ansi_cyan"),
}  # fmt: skip
SPEC = EnvSpec(
    "Sokoban-v0",
    "envsuite.sokoban.env:SokobanEnv",
    max_episode_steps=15,
    official_steps=120,
    players={"expert": "envsuite.sokoban.expert:SokobanExpert"},
    milestones="envsuite.sokoban.milestones:SokobanMilestones",
    downloads="envsuite.sokoban.downloads:DATA_SETS",
    practice="envsuite.sokoban.practice:practice",
    profile=Profile(keys=_ARROWS, cells=_BOARD, about="the arrow keys move"),
)
