"""Wording of TextCraft."""

TOOL = (
    "Execute one crafting command: `get N item` (base items only), `craft N item using n a, m b` "
    "(one of the crafting commands, with exact counts; a specific item may stand for its family), or `inventory`."
)
"""What the tool ``env_step`` is said to do."""

COMMAND = "The command, e.g. `get 2 oak logs`."
"""What its argument is said to be."""


def task(recipes: list[str], goal: str) -> str:
    """The instruction of an episode: the crafting commands, then the goal."""
    return "Crafting commands:\n{}\n\nGoal: craft {}.".format("\n".join(recipes), goal)
