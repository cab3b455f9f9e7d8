"""Wording of ALFWorld."""

SYSTEM = (
    "You do a household task in a house that you can only read about. You go to places, open and search them, take, "
    "clean, heat, cool and move things. The episode ends when the task is done."
)
"""What the agent is told once, before the first observation."""

TOOL = "Do one thing: one of the admissible commands, word for word."
"""What the tool ``env_step`` is said to do."""

COMMAND = "The command, e.g. `go to cabinet 1`."
"""What its argument is said to be."""

GOAL = "Your task is to: "
"""How the game begins the sentence that says the task."""
