"""Wording of ALFWorld."""

TOOL = "Do one thing: one of the admissible commands, word for word."
"""What the tool ``env_step`` is said to do."""

COMMAND = "The command, e.g. `go to cabinet 1`."
"""What its argument is said to be."""

GOAL = "Your task is to: "
"""How the game begins the sentence that says the task."""
